"""Nodes: composition roots that wire the parts together, and the sockets the cores do not own.

`manager`, `worker`   what a program starts, embedded or from the command line
`member`              one node as a member: sockets, cores, endpoint, in their order of life
`driver`              the membership and discovery cores on real sockets
`datagrams`           the UDP socket        `http`      /metrics, /healthz, /readyz
`vitals`              measuring this node   `metrics`   numbers for graphs   `logs`  events
`identity`            who this node is      `messages`  what operators ask   `ask`   asking it
`settings`            the parts' settings   `workers`   what a manager makes of its workers

Decisions are the cores'; here is order, lifetime and I/O.
"""
