"""How well a node does, and what follows from it: pure logic on an explicit clock.

`overload`      is *this* node overloaded: loop lag, requests in flight, queues, memory, latency
`windows`       recent samples and what is typical of them
`readiness`     may work be given to a node, by role, and why not
`progress`      is work getting anywhere: idle, progressing, stalled, stuck
`routing`       the three signals together: route, investigate, hold, drain, evict
`correlation`   many failing at once is the network's fault, for a while

Measures nothing, sends nothing, knows no role of a node but by the thresholds it is given.
"""
