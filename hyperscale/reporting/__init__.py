"""The result of a run, and the forms and places it goes to."""

from hyperscale.reporting.build import WorkflowOutcome, build_result
from hyperscale.reporting.files import OutputError, ensure_writable, write_file
from hyperscale.reporting.json_report import decode_json, encode_json
from hyperscale.reporting.results import (
    CheckResult,
    LatencyMs,
    MetricResult,
    RunResult,
    RunStatus,
    SeriesResult,
    StepResult,
    ThresholdResult,
    WorkflowResult,
)

__all__ = [
    "CheckResult",
    "LatencyMs",
    "MetricResult",
    "OutputError",
    "RunResult",
    "RunStatus",
    "SeriesResult",
    "StepResult",
    "ThresholdResult",
    "WorkflowOutcome",
    "WorkflowResult",
    "build_result",
    "decode_json",
    "encode_json",
    "ensure_writable",
    "write_file",
]
