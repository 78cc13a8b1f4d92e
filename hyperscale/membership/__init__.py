"""Which nodes are in the cluster and alive: SWIM with Lifeguard, gossip, discovery. Sans-IO.

`core.Membership` handles events and returns effects; `discovery.Discovery` finds the first
members in the same shape; `dns_resolver` is the one module here that does I/O.

Words: an *update* is one claim about one node, as it is gossiped. A node's *incarnation* is one
life of its process; its *refutation* number counts the suspicions it has refuted in that life. A
*probe* is a ping with a timeout; an *indirect probe* asks other members (relays) to ping. A
*confirmation* is an independent member that suspects the same node. *Push-pull* is the exchange
of whole member tables over a stream.

`core`           event dispatch and rounds       `context`       state that all parts share
`messages`       datagrams and push-pull         `events`        events and effects of the core
`prober`         probes and their outcomes       `suspicion`     one suspicion, its witnesses
`lifecycle`      the state of each member        `member_table`  members, ranking of claims
`update_merger`  believing and refuting updates  `local_node`    this node as a member
`push_pull`      exchange of member tables       `timers`        one heap of timers
`gossip`         updates still to be sent        `settings`      settings, with units and bounds
`formulas`       numbers, as pure functions
"""
