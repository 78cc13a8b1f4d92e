"""How well nodes do, and what follows from it, on an explicit clock.

`overload`      whether this node is overloaded: loop lag, requests in flight, queues, memory, CPU
`load_monitor`  measures this process for `overload`
`signals`       whether a node is ready for work and makes progress, and how to route work to it
`correlation`   whether many nodes fell silent together, which is the fault of the network
"""
