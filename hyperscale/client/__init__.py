"""`HyperscaleClient`: submit jobs to a cluster, follow them, get their results.

client               HyperscaleClient: the public interface
cluster_connection   the client as a peer of its cluster: lifetime, and one question at a time
manager_connections  connections to the managers: which one is asked, and what if it fails
submission, package  a job to submit: its options; its plan and its bundle
submit, upload       submit a job; upload its bundle
watch                follow a job until it has ended
job_display          a job as the terminal shows it
callbacks, updates   report a job's progress to the callbacks of a program
records, results     fetch the final record of a job; build its results
inputs               check what callers pass in
messages             what clients, operators and managers say to managers about jobs
query                ask one node one question, as an operator
cluster_file         the file in which `hyperscale cluster up` lists its nodes
"""
