"""The shape of every sans-IO core, the one driver that runs them, and the supervisor of tasks.

A *core* decides and does no I/O: `handle(event, now_s=...)` returns *effects*, and `wake_at_s()`
says when it wants a `Tick`. A *driver* feeds a core events, one at a time, and performs its
effects in order. The *supervisor* owns the tasks that effects start.
"""
