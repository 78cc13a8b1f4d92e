"""Jobs, without any I/O: what is committed about them, who runs them, where and how long.

`committed/`  the replicated state machine of a group's jobs
`leader/`     the leader of a group's jobs, which brings them on
`allocator/`  the allocator, which grants cores to job leaders
`agent/`      the worker's side: attempts, leases, cores, results
`messages`    what these say to each other
`provisioner`, `dependencies`  how many cores a workflow gets, and when it may start; for local runs
too

Glossary. A *job* is a test that was submitted to a cluster. A *workflow* of it becomes *parts*, one
for each worker that takes a share. A part covers *slots*, one for each executor; slots are numbered
through the whole workflow. An *attempt* is one try to run a part; it is *open* from its dispatch
until it ended or was revoked. A *lease* is the permission to generate load until a deadline.
"""
