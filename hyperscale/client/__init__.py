"""`HyperscaleClient`: submit jobs to a cluster, follow them, get their results.

client               HyperscaleClient: the public interface
cluster_connection   the client as a peer of its cluster: lifetime, and one question at a time
manager_connections  connections to the managers: which one is asked, and what if it fails
package, submission  build the plan and the bundle of a job; submit the job
watch                the state of a job, its updates until it has ended, its final record
datacenters          what a client asks gates about datacenters
push_limit           how many progress updates a program gets
updates              report a job's progress to callbacks of a program, and to the terminal
results              build the results of a job from its final record
inputs               check what callers pass in
messages             what clients, operators and managers say to managers about jobs
cluster_file         the file in which `hyperscale cluster up` lists its nodes
"""
