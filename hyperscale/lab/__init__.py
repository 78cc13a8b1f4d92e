"""A local cluster of real node processes, and faults injected into it.

cluster           `hyperscale cluster up`: runs and restarts the nodes of a local cluster
layout            names, ports, CPUs and command lines of its nodes
node_processes    nodes as child processes
readiness         which nodes are not ready, and what gates do not see yet
chaos             `hyperscale chaos`: a job under faults, and the checks afterwards
faults            which faults happen when, from a seed; kills, pauses and restarts nodes
"""
