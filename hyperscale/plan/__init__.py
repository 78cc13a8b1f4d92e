"""The data-only description of a test: what travels, and what everybody but the executor reads.

Nothing here knows a user's class or imports their code.
"""

from hyperscale.plan.model import (
    Connections,
    MetricKind,
    MetricPlan,
    Plan,
    Priority,
    StateKind,
    StatePlan,
    StepKind,
    StepPlan,
    ThresholdPlan,
    WorkflowPlan,
)
from hyperscale.plan.share import share

__all__ = [
    "Connections",
    "MetricKind",
    "MetricPlan",
    "Plan",
    "Priority",
    "StateKind",
    "StatePlan",
    "StepKind",
    "StepPlan",
    "ThresholdPlan",
    "WorkflowPlan",
    "share",
]
