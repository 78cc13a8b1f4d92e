"""Nodes: composition roots that wire cores, sockets and disks together.

manager, worker    what a program starts, embedded or from the command line
server             start and stop a node, in a task or as a whole process
member             one node as a member of its cluster: what it opens and closes, in which order
membership         the membership core on real sockets    discovery   the discovery core
member_metrics     the metrics of a member
settings           a node's name, addresses and the settings of its parts
messages           what operators ask a node, and what nodes announce about themselves
ledger_service     the ledger of a manager
jobs/              what else a manager adds               agent/      what a worker adds

The cores decide; nodes own order, lifetime and I/O.
"""
