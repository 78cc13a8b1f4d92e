"""A result as CSV: one row per step, for spreadsheets."""

import csv
import io

from hyperscale.reporting.results import LatencyMs, RunResult, StepResult, WorkflowResult
from hyperscale.reporting.verdict import workflow_standing
from hyperscale.stats.workflow import PHASES

_LATENCY = LatencyMs.__struct_fields__
_COUNTS = ("total", "ok", "failed", "cut", "skipped", "sent")

COLUMNS = (
    "workflow",
    "workflow_status",
    "step",
    "kind",
    "elapsed_seconds",
    *_COUNTS,
    "rate_per_second",
    *(f"latency_{key}_ms" for key in _LATENCY),
    *(f"{phase}_{key}_ms" for phase in PHASES for key in ("p50", "p99")),
    "bytes_sent",
    "bytes_received",
    "status_codes",
    "errors",
    "none",
    "requests_per_second",
    "censored_from_ms",
    "workflow_verdict",
)


def encode_csv(result: RunResult, *, delimiter: str = ",") -> bytes:
    """Return a header and a row per step. What was not measured is an empty cell."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL)
    writer.writerow(COLUMNS)
    for workflow in result.workflows:
        verdict = workflow_standing(workflow)
        for step in workflow.steps:
            writer.writerow([*_row(workflow, step), verdict])
    return text.getvalue().encode("utf-8", "replace")


def _row(workflow: WorkflowResult, step: StepResult) -> list[str | int | float | None]:
    phases = (step.phases_ms.get(phase, {}) for phase in PHASES)
    return [
        workflow.name,
        workflow.status.value,
        step.name,
        step.kind,
        workflow.elapsed_seconds,
        *(getattr(step, key) for key in _COUNTS),
        step.rate_per_second,
        *(getattr(step.latency_ms, key) for key in _LATENCY),
        *(phase.get(key) for phase in phases for key in ("p50", "p99")),
        step.bytes_sent,
        step.bytes_received,
        _pairs(step.status_codes),
        _pairs(step.errors),
        step.none,
        step.requests_per_second,
        step.censored_from_ms,
    ]


def _pairs(counts: dict[str, int]) -> str:
    """Return several counts for one cell: `200=980 503=20`."""
    return " ".join(f"{key}={count}" for key, count in counts.items())
