"""The hook vocabulary under the name published tests import it by."""

from hyperscale.graph import (
    Hook,
    Provide,
    Use,
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
    "Hook",
    "Provide",
    "Use",
    "action",
    "check",
    "depends",
    "metric",
    "setup",
    "state",
    "step",
    "teardown",
]
