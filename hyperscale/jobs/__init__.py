"""Jobs, without any I/O: what is committed about them, who runs them, where and how long.

`events`, `state`, `transitions`, `machine`, `keys`, `context`: the replicated state machine.
`leader`, `steering`, `desk`, `live`, `links`, `timing`, `effects`: the leader of a group's jobs.
`allocator`, `queueing`, `allocation`, `ordering`: who gets which cores.
`agent*`: the worker's side. `commands`: what they say to each other.
`outcome`: from a final record to results.
"""
