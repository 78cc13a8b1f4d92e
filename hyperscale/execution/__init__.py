"""Running one slot of a workflow on one core: the executor process, its protocol and its pool.

`protocol` defines the messages between the two processes. `pool` and the modules it imports are the
parent's side; `executor`, `service` and `slot` are the executor's side.
"""
