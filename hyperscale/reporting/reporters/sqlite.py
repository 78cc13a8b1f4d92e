"""SQLite: a file with two tables."""

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hyperscale.reporting.delivery import Backend, Batch, DeliverySink
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.settings import DeliverySettings, check_given, check_identifier
from hyperscale.reporting.tables import (
    METRIC_COLUMNS,
    RUN_COLUMNS,
    Rows,
    listed,
    preview_rows,
    table_batches,
)


class SQLiteConfig(DeliverySettings, frozen=True, kw_only=True):
    """A database file; it and its tables are created if they are missing."""

    path: str = "hyperscale.db"
    table_prefix: str = "hyperscale"

    def check(self) -> None:
        check_given(self, "path")
        check_identifier(self, self.table_prefix, name="table_prefix")

    @classmethod
    def of_address(cls, address: str) -> dict[str, Any]:
        return {"path": address}

    def open_sink(self) -> DeliverySink:
        return DeliverySink(SQLite(self), self)


class SQLite(Backend[Rows]):
    """Each batch is one transaction, in a thread: the disk may block."""

    def __init__(self, config: SQLiteConfig) -> None:
        self._config = config

    def batches(self, result: RunResult) -> Iterator[Batch[Rows]]:
        return table_batches(result, self._config.batch_items_max)

    async def connect(self) -> None:
        await asyncio.to_thread(self._create)

    async def send(self, batch: Batch[Rows]) -> None:
        await asyncio.to_thread(self._insert, batch.payload)

    def is_transient(self, error: Exception) -> bool:
        """Return True if another process holds the lock on the file."""
        text = str(error)
        is_locked = "locked" in text or "busy" in text
        return isinstance(error, sqlite3.OperationalError) and is_locked

    def preview(self, batch: Batch[Rows]) -> str:
        return preview_rows(batch.payload)

    def _open(self) -> sqlite3.Connection:
        # Below the timeout of a try, so that a locked file is an error with a name.
        return sqlite3.connect(self._config.path, timeout=self._config.request_timeout_s / 2)

    def _create(self) -> None:
        prefix = self._config.table_prefix
        Path(self._config.path).parent.mkdir(parents=True, exist_ok=True)
        connection = self._open()
        try:
            with connection:
                connection.execute(
                    f"CREATE TABLE IF NOT EXISTS {prefix}_metrics (run_id TEXT, at TEXT, "
                    "file TEXT, workflow TEXT, step TEXT, metric_group TEXT, name TEXT, "
                    "value REAL, unit TEXT, "
                    "PRIMARY KEY (run_id, workflow, step, metric_group, name))"
                )
                connection.execute(
                    f"CREATE TABLE IF NOT EXISTS {prefix}_runs (run_id TEXT PRIMARY KEY, "
                    "file TEXT, status TEXT, passed INTEGER, started_at TEXT, "
                    "elapsed_seconds REAL, generator TEXT)"
                )
        finally:
            connection.close()

    def _insert(self, rows: Rows) -> None:
        columns = METRIC_COLUMNS if rows.table == "metrics" else RUN_COLUMNS
        marks = listed(["?"] * len(columns))
        table = f"{self._config.table_prefix}_{rows.table}"
        records = [
            tuple(each.isoformat() if hasattr(each, "isoformat") else each for each in row)
            for row in rows.rows
        ]
        connection = self._open()
        try:
            with connection:
                connection.executemany(
                    f"INSERT OR REPLACE INTO {table} ({listed(columns)}) VALUES ({marks})",  # noqa: S608  checked names
                    records,
                )
        finally:
            connection.close()
