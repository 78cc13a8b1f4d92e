"""The two tables of reporters that write to SQL databases: runs, and a row per metric."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from hyperscale.reporting.delivery import Batch, chunks
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.rows import rows_of, run_document

RUN_COLUMNS = (
    "run_id",
    "file",
    "status",
    "passed",
    "started_at",
    "elapsed_seconds",
    "generator",
)
METRIC_COLUMNS = (
    "run_id",
    "at",
    "file",
    "workflow",
    "step",
    "metric_group",
    "name",
    "value",
    "unit",
)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one table, in the order of its columns."""

    table: str  # "runs" or "metrics"
    rows: list[tuple[Any, ...]]


def table_batches(result: RunResult, items_max: int) -> Iterator[Batch[Rows]]:
    """Yield the metrics, then the run: a run that is there has all its metrics."""
    for rows in chunks(rows_of(result), items_max):
        records = [
            (
                row.run_id,
                datetime.fromtimestamp(row.at_unix_ms / 1000, UTC),
                *(getattr(row, name) for name in METRIC_COLUMNS[2:]),
            )
            for row in rows
        ]
        yield Batch(len(records), Rows("metrics", records))
    run = run_document(result)
    run["started_at"] = datetime.fromisoformat(result.started_at)
    yield Batch(0, Rows("runs", [tuple(run[name] for name in RUN_COLUMNS)]))


def preview_rows(rows: Rows) -> str:
    names = METRIC_COLUMNS if rows.table == "metrics" else RUN_COLUMNS
    lines = (msgspec.json.encode(dict(zip(names, row, strict=True))).decode() for row in rows.rows)
    return "\n".join([f"into {rows.table}:", *lines])


def listed(columns: Sequence[str]) -> str:
    return ", ".join(columns)
