"""Who is in the cluster and who is alive: SWIM with Lifeguard, gossip, discovery. Sans-IO.

`core.Membership` takes events and the time, returns effects; `discovery.Discovery` finds the
first peers the same way; `dns` is the one module here that does I/O. The parts:

`messages`     what goes over the wire            `formulas`    numbers, as pure functions
`events`       what goes into the core and out    `settings`    the knobs, with units and bounds
`members`      the table of members               `deadlines`   the one heap of timers
`gossip`       what is still to be told           `suspicion`   one suspicion and its witnesses
`awareness`    how well this node itself is       `probing`     probes and relays under way
"""
