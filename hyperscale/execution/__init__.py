"""Running one slot of a workflow on one core: the executor process, its protocol, its pool.

`protocol` defines the messages between the two processes, `channel` carries them.
The parent's side: `pool`, `pooled_executor`, `process`, `overdue`, `orphans`. The executor's side:
`executor`, `service`, `lease`, `capture`, and the runtime of a slot: `slot`, `lifecycle_hooks`,
`virtual_users`, `static`, `hook_calls`, `outcomes`, `tally`, `slot_reports`. What is sent to an
executor: `bundle`, `imports`, `values`. Nothing here knows how a workflow is split over slots, or
how reports are merged and shown.
"""
