"""Who is in the cluster and who is alive: SWIM with Lifeguard, gossip, discovery. Sans-IO.

`core.Membership` takes events and the time, returns effects; `discovery.Discovery` finds the
first peers the same way; `dns` is the one module here that does I/O. The parts:

`messages`     what goes over the wire            `events`      what goes into the core and out
`core`         rounds, datagrams, views           `settings`    the knobs, with units and bounds
`prober`       asking                             `probing`     questions under way
`judge`        confirming, suspecting, dying      `suspicion`   one suspicion and its witnesses
`rumours`      believing, contradicting           `members`     the table, what outranks what
`station`      what they share                    `deadlines`   the one heap of timers
`gossip`       what is still to be told           `awareness`   how well this node itself is
`formulas`     numbers, as pure functions         `audit`       what was thought of whom, when
"""
