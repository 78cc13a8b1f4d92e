"""The plan of a test, as data. Nothing here imports user code."""

from hyperscale.plan.model import (
    RECORDED,
    ArrivalKind,
    Connections,
    FeedPer,
    FeedPlan,
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
    Take,
    ThresholdPlan,
    WorkflowPlan,
)
from hyperscale.plan.shapes import StagePlan
from hyperscale.plan.share import share

__all__ = [
    "RECORDED",
    "ArrivalKind",
    "Connections",
    "FeedPer",
    "FeedPlan",
    "MetricKind",
    "MetricPlan",
    "ParameterPlan",
    "Per",
    "Plan",
    "Priority",
    "StagePlan",
    "StateKind",
    "StatePlan",
    "StepKind",
    "StepPlan",
    "Take",
    "ThresholdPlan",
    "WorkflowPlan",
    "share",
]
