"""`hyperscale.graph` under the name published tests import it by."""

from hyperscale.graph import (
    Workflow,
    action,
    check,
    depends,
    metric,
    setup,
    state,
    step,
    teardown,
)

__all__ = [
    "Workflow",
    "action",
    "check",
    "depends",
    "metric",
    "setup",
    "state",
    "step",
    "teardown",
]
