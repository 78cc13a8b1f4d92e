"""What users derive from, under the name that published Hyperscale tests import."""

from hyperscale.reporting.metrics import (
    CheckSet,
    MetricsSet,
    ResultSet,
    StepMetricSet,
    WorkflowMetric,
    WorkflowMetricSet,
)
from hyperscale.reporting.sinks import CustomReporter
from hyperscale.testing import CustomResult

__all__ = [
    "CheckSet",
    "CustomReporter",
    "CustomResult",
    "MetricsSet",
    "ResultSet",
    "StepMetricSet",
    "WorkflowMetric",
    "WorkflowMetricSet",
]
