"""The result of a run, and the forms and places it goes to.

The public names are here; the rest of the package is imported from its modules. Names are loaded
when they are first used, so that a program that only needs the model of a result does not load
every report format.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hyperscale.reporting.files import OutputError
    from hyperscale.reporting.json_report import decode_json, encode_json
    from hyperscale.reporting.metrics import (
        CheckSet,
        MetricsSet,
        ResultSet,
        StepMetricSet,
        WorkflowMetric,
        WorkflowMetricSet,
        result_set,
    )
    from hyperscale.reporting.reporter import (
        Reporter,
        ReporterFailure,
        ReporterTypes,
        Sink,
        as_reporters,
        submit_all,
    )
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
    from hyperscale.reporting.sinks import (
        CSVConfig,
        CustomConfig,
        CustomReporter,
        JSONConfig,
        XMLConfig,
    )

_NAMES = {  # module -> its public names
    "files": "OutputError",
    "json_report": "decode_json encode_json",
    "metrics": (
        "CheckSet MetricsSet ResultSet StepMetricSet WorkflowMetric WorkflowMetricSet result_set"
    ),
    "reporter": "Reporter ReporterFailure ReporterTypes Sink as_reporters submit_all",
    "results": (
        "CheckResult LatencyMs MetricResult RunResult RunStatus SeriesResult StepResult"
        " ThresholdResult WorkflowResult"
    ),
    "sinks": "CSVConfig CustomConfig CustomReporter JSONConfig XMLConfig",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "CSVConfig",
    "CheckResult",
    "CheckSet",
    "CustomConfig",
    "CustomReporter",
    "JSONConfig",
    "LatencyMs",
    "MetricResult",
    "MetricsSet",
    "OutputError",
    "Reporter",
    "ReporterFailure",
    "ReporterTypes",
    "ResultSet",
    "RunResult",
    "RunStatus",
    "SeriesResult",
    "Sink",
    "StepMetricSet",
    "StepResult",
    "ThresholdResult",
    "WorkflowMetric",
    "WorkflowMetricSet",
    "WorkflowResult",
    "XMLConfig",
    "as_reporters",
    "decode_json",
    "encode_json",
    "result_set",
    "submit_all",
]


def __getattr__(name: str) -> object:
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
