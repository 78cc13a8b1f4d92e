"""Real processes on a link that can be delayed, made lossy and cut.

Two network namespaces, a TUN device in each, and a relay between them. See `lab.NetLab`.
"""
