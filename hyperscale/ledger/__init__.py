"""Consensus: small Raft groups that keep what the system has acknowledged.

`core` is one node's part in all its groups; `replica` is one group's state; `topology` is the
state of group 0, which places the others; `placement` decides about it; `records` is what
the logs hold; `messages` is what nodes say to each other. Sockets, tasks and clocks are in
`nodes`; consensus itself and the disk are native.
"""
