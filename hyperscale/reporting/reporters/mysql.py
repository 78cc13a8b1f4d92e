"""MySQL and MariaDB."""

import hashlib
import ssl
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from hyperscale.reporting.delivery import Backend, Batch, DeliverySink
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.settings import (
    DeliverySettings,
    check_given,
    check_identifier,
    credential,
    host_and_more,
)
from hyperscale.reporting.tables import (
    METRIC_COLUMNS,
    RUN_COLUMNS,
    Rows,
    listed,
    preview_rows,
    table_batches,
)

# Too many connections, server gone or shutting down, lock wait, deadlock.
_TRANSIENT_CODES = frozenset({1040, 1053, 1152, 1205, 1213, 2002, 2003, 2006, 2013, 2014})
_KEY_PLACES = (0, 3, 4, 5, 6)  # of run_id, workflow, step, metric_group, name


class MySQLConfig(DeliverySettings, frozen=True, kw_only=True):
    """A database; the tables are created if they are missing."""

    EXTRA: ClassVar[str] = "mysql"
    DRIVERS: ClassVar[tuple[str, ...]] = ("asyncmy",)

    host: str = "localhost"
    port: int = 3306
    database: str = ""
    username: str = ""
    password: Annotated[str, credential("MYSQL_PWD")] = ""
    table_prefix: str = "hyperscale"
    tls: bool = False

    def check(self) -> None:
        check_given(self, "host", "database", "username")
        check_identifier(self, self.table_prefix, name="table_prefix")

    @classmethod
    def of_address(cls, address: str) -> dict[str, Any]:
        return host_and_more(address)

    def open_sink(self) -> DeliverySink:
        return DeliverySink(MySQL(self), self)


class MySQL(Backend[Rows]):
    def __init__(self, config: MySQLConfig) -> None:
        self._config = config
        self._connection: Any = None  # the driver has no types

    def batches(self, result: RunResult) -> Iterator[Batch[Rows]]:
        return table_batches(result, self._config.batch_items_max)

    async def connect(self) -> None:
        import asyncmy  # noqa: PLC0415  a driver is imported when it is used

        config = self._config
        self._connection = await asyncmy.connect(
            host=config.host,
            port=config.port,
            user=config.username,
            password=config.password,
            database=config.database,
            charset="utf8mb4",
            ssl=ssl.create_default_context() if config.tls else None,
            connect_timeout=max(1, int(config.request_timeout_s)),
        )
        prefix = config.table_prefix
        # Names may be longer than a key may be, so the key is their digest.
        await self._execute(
            f"CREATE TABLE IF NOT EXISTS {prefix}_metrics (row_key CHAR(64) PRIMARY KEY, "
            "run_id VARCHAR(191) NOT NULL, at DATETIME(3) NOT NULL, file TEXT NOT NULL, "
            "workflow TEXT NOT NULL, step TEXT NOT NULL, metric_group VARCHAR(32) NOT NULL, "
            "name TEXT NOT NULL, value DOUBLE NOT NULL, unit VARCHAR(16) NOT NULL, "
            "KEY run_id (run_id)) CHARACTER SET utf8mb4",
            f"CREATE TABLE IF NOT EXISTS {prefix}_runs (run_id VARCHAR(191) PRIMARY KEY, "
            "file TEXT NOT NULL, status VARCHAR(16) NOT NULL, passed BOOLEAN NOT NULL, "
            "started_at DATETIME(3) NOT NULL, elapsed_seconds DOUBLE NOT NULL, "
            "generator TEXT NOT NULL) CHARACTER SET utf8mb4",
        )

    async def _execute(self, *statements: str) -> None:
        async with self._connection.cursor() as cursor:
            await cursor.execute("SET sql_notes = 0")  # no warning that a table exists
            for statement in statements:
                await cursor.execute(statement)

    async def send(self, batch: Batch[Rows]) -> None:
        is_metrics = batch.payload.table == "metrics"
        columns = ("row_key", *METRIC_COLUMNS) if is_metrics else RUN_COLUMNS
        rows = [tuple(map(_storable, row)) for row in batch.payload.rows]
        if is_metrics:
            rows = [(_digest(row), *row) for row in batch.payload.rows]
            rows = [tuple(map(_storable, row)) for row in rows]
        changes = listed([f"{name} = VALUES({name})" for name in columns[1:]])
        async with self._connection.cursor() as cursor:
            await cursor.executemany(
                f"INSERT INTO {self._config.table_prefix}_{batch.payload.table} "  # noqa: S608  checked names
                f"({listed(columns)}) VALUES ({listed(['%s'] * len(columns))}) "
                f"ON DUPLICATE KEY UPDATE {changes}",
                rows,
            )
        await self._connection.commit()

    async def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    def is_transient(self, error: Exception) -> bool:
        code = error.args[0] if error.args else None
        if isinstance(code, int) and not isinstance(error, OSError):
            return code in _TRANSIENT_CODES
        return super().is_transient(error) or type(error).__name__ == "InterfaceError"

    def preview(self, batch: Batch[Rows]) -> str:
        return preview_rows(batch.payload)


def _digest(row: tuple[Any, ...]) -> str:
    return hashlib.sha256("\0".join(row[place] for place in _KEY_PLACES).encode()).hexdigest()


def _storable(value: Any) -> Any:
    """Return a time without its zone, which is UTC: DATETIME has none."""
    return value.replace(tzinfo=None) if hasattr(value, "tzinfo") else value
