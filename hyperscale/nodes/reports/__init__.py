"""Results and live statistics that nodes send to other systems.

led_jobs     the jobs of a manager or a gate, as far as reports need them
reporters    the reporters that a node's configuration names
results      sends the results of ended jobs, and commits that it did
streams      streams the statistics of running jobs
"""
