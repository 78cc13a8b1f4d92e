"""A result as rows: one number each, with everything a database needs to find it again.

`(run_id, workflow, step, group, name)` is the key of a row. The time of all rows is the end of the
run, so a result that is sent again replaces itself in databases that key by time.
"""

import hashlib
import re
from collections.abc import Iterator
from datetime import datetime

from msgspec import Struct

from hyperscale.reporting.metrics import result_set
from hyperscale.reporting.results import RunResult

KEY_COLUMNS = ("run_id", "workflow", "step", "metric_group", "name")


class MetricRow(Struct, frozen=True, kw_only=True):
    """One number of a run. An empty `step` is the whole workflow, an empty `workflow` the run."""

    run_id: str
    at_unix_ms: int
    file: str
    workflow: str
    step: str
    metric_group: str  # run, counts, latency, phase, status, errors, checks, thresholds, custom
    name: str
    value: float
    unit: str

    def labels(self) -> dict[str, str]:
        """Return the labels of a time series, without empty ones."""
        found = {"run": self.run_id, "workflow": self.workflow, "step": self.step}
        found |= {"group": self.metric_group, "metric": self.name, "unit": self.unit}
        return {key: value for key, value in found.items() if value}


def run_id_of(result: RunResult) -> str:
    """Return the id of the run; of a result without one, an id that is the same every time."""
    known = result.run_id or result.job_id
    return known or hashlib.sha256(f"{result.started_at} {result.file}".encode()).hexdigest()[:16]


def ended_unix_ms(result: RunResult) -> int:
    began = datetime.fromisoformat(result.started_at)
    return round((began.timestamp() + result.elapsed_seconds) * 1000)


def rows_of(result: RunResult) -> list[MetricRow]:
    """Return every number of the result."""
    run_id, at_unix_ms = run_id_of(result), ended_unix_ms(result)
    return [
        MetricRow(
            run_id=run_id,
            at_unix_ms=at_unix_ms,
            file=result.file,
            workflow=metric.workflow,
            step=metric.step or "",
            metric_group=metric.group,
            name=metric.name,
            value=metric.value,
            unit=metric.unit,
        )
        for metric in result_set(result).metrics()
    ]


_UNSAFE_IN_PATH = re.compile(r"[^A-Za-z0-9_-]+")


def dotted_name(prefix: str, row: MetricRow, *, with_run: bool) -> str:
    """Return `prefix.run.workflow.step.group.name`, for systems without labels."""
    parts = [row.run_id if with_run else "", row.workflow, row.step, row.metric_group]
    parts += row.name.split(".")
    safe = (_UNSAFE_IN_PATH.sub("_", part) for part in parts if part)
    return ".".join([prefix, *safe])


def run_document(result: RunResult) -> dict[str, object]:
    """Return the run itself as one flat record."""
    return {
        "run_id": run_id_of(result),
        "file": result.file,
        "status": result.status.value,
        "passed": result.passed,
        "started_at": result.started_at,
        "elapsed_seconds": result.elapsed_seconds,
        "generator": result.generator,
    }


def grouped(rows: list[MetricRow]) -> Iterator[list[MetricRow]]:
    """Yield rows of the same workflow, step and group together, in order."""
    group: list[MetricRow] = []
    for row in rows:
        key = (row.workflow, row.step, row.metric_group)
        if group and key != (group[0].workflow, group[0].step, group[0].metric_group):
            yield group
            group = []
        group.append(row)
    if group:
        yield group
