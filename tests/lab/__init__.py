"""What tests share: processes, nodes, clusters, networks, stand-ins for peers, and waiting.

waiting        wait for a condition, with a deadline
loops          run a coroutine and check that it leaves no task, socket or error behind
ports          free TCP and UDP ports
processes      look at other processes: are they alive, which sockets do they hold
command        run the `hyperscale` command
nodes          manager and worker processes, started one by one
cluster        a cluster started by `hyperscale cluster up`, and a target server that counts
split_cluster  a cluster whose nodes are in two network namespaces
network        two network namespaces and a link that delays, drops and cuts (relay: its packets)
executors      executor processes that run a workflow
memory_tier    ledger cores in memory, without faults or time
manager_tier   manager processes of one ledger that keep their data over restarts
ledger_clients clients of such a ledger, and load that remembers its answers
clients        the HTTP client of one virtual user
peers          peers that exchange the messages of the wire tests
managers       stand-ins for managers, for tests of the client
job_leader     a stand-in for a job leader, for tests of a real worker
soak_report    the files in benchmarks/results that soak tests write
"""
