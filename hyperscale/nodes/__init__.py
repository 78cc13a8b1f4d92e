"""Nodes: composition roots that wire the parts together, and the sockets the cores do not own.

`manager`, `worker`   what a program starts, embedded or from the command line
`running`             starting and stopping it
`member`              one node as a member: sockets, cores, endpoint, in their order of life
`driver`              the membership and discovery cores on real sockets
`turns`               events one after the other
`datagrams`           the UDP socket        `http`       /metrics, /healthz, /readyz
`vitals`              measuring this node   `metrics`    numbers for graphs   `logs`  events
`identity`            who this node is      `messages`   what operators ask   `ask`   asking it
`settings`            the parts' settings   `observing`  what a member shows in graphs
`workers`             what a manager makes of its workers
`shelf`               bundles on disk       `job_messages`, `client_messages`  jobs on the wire
`ledger/`, `jobs/`    what a manager adds   `agent/`     what a worker adds
`client`, `client_*`  `HyperscaleClient`    `local/`     a whole cluster on one machine

Decisions are the cores'; here is order, lifetime and I/O.
"""
