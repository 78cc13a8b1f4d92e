"""Timeouts, intervals and weights that both the pool and its executors rely on."""

REPORT_EVERY_S = 0.1
HISTOGRAMS_EVERY_S = 1.0

START_S = 60.0
"""How long an executor may take to start. It takes a tenth of a second, and much longer on an
overloaded machine."""

TEARDOWN_S = 10.0
"""How long the teardown and Provide hooks of a slot may take, together."""

CUT_S = 0.5
"""How long cancelled code may take to end before it is abandoned."""

SILENT_S = 2.0
"""A running executor reports ten times a second. If it is silent for this long after its slot
should have ended, its code blocks the event loop."""

CLOSE_GRACE_S = 5.0
"""How long an executor may take to exit before it is killed."""

EXECUTOR_NICE = 5
"""Nice value of an executor, added to that of its parent: agents, managers and terminals preempt
load generators."""
