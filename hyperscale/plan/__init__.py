"""The plan of a test, as data. Nothing here imports user code."""

from hyperscale.plan.model import (
    RECORDED,
    Connections,
    MetricKind,
    MetricPlan,
    ParameterPlan,
    Per,
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
    "RECORDED",
    "Connections",
    "MetricKind",
    "MetricPlan",
    "ParameterPlan",
    "Per",
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
