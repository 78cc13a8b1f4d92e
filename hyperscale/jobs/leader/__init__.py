"""The leader of a group's jobs: compares committed state with what workers report, and acts.

`core` takes events and returns effects. `reconcile` decides what a job needs next, `attempt_rules`
what one attempt needs, `replies` what the replies of workers mean. `lifecycle` changes attempts,
`leases` renews leases. `state` is what a leader keeps in memory: `attempts`, `worker_liveness`,
`core_requests`, `statistics`.

Glossary. An attempt is *inherited* if it was dispatched under an earlier leader, and *lost* when
this leader gives it up. A part is *fenced* until the load of its lost attempt has certainly
stopped. A *stamp* is a reading of a worker's own clock; leases count from stamps. A worker is
*held* while its silence is attributed to the network.
"""
