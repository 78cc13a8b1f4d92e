"""PostgreSQL, and TimescaleDB: a hypertable where the extension is there."""

import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from hyperscale.errors import InputError
from hyperscale.reporting.delivery import Backend, Batch, DeliverySink
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.settings import (
    DeliverySettings,
    check_given,
    check_identifier,
    credential,
    from_environment,
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

if TYPE_CHECKING:
    import asyncpg

# Classes of SQLSTATE that pass: connections, resources, operator intervention, rollbacks.
_TRANSIENT_CLASSES = ("08", "40", "53", "57", "55")


class PostgresConfig(DeliverySettings, frozen=True, kw_only=True):
    """A database; the tables are created if they are missing."""

    EXTRA: ClassVar[str] = "postgres"
    DRIVERS: ClassVar[tuple[str, ...]] = ("asyncpg",)

    host: Annotated[str, from_environment("PGHOST")] = "localhost"
    port: int = 5432
    database: Annotated[str, from_environment("PGDATABASE")] = "postgres"
    username: Annotated[str, from_environment("PGUSER")] = "postgres"
    password: Annotated[str, credential("PGPASSWORD")] = ""
    table_prefix: str = "hyperscale"
    tls: bool = False
    ca_file: str = ""  # PEM file of the authorities to trust; empty: those of the system

    def check(self) -> None:
        check_given(self, "host", "database", "username")
        check_identifier(self, self.table_prefix, name="table_prefix")
        if self.ca_file and not self.tls:
            raise InputError(f"{type(self).__name__}: ca_file is set and tls is not")

    @classmethod
    def of_address(cls, address: str) -> dict[str, Any]:
        return host_and_more(address)

    def open_sink(self) -> DeliverySink:
        return DeliverySink(Postgres(self), self)


class TimescaleDBConfig(PostgresConfig, frozen=True, kw_only=True):
    """A database with the extension `timescaledb`; without it, plain tables."""

    def open_sink(self) -> DeliverySink:
        return DeliverySink(Postgres(self, is_timescale=True), self)


class Postgres(Backend[Rows]):
    def __init__(self, config: PostgresConfig, *, is_timescale: bool = False) -> None:
        self._config = config
        self._is_timescale = is_timescale
        self._connection: asyncpg.Connection[Any] | None = None

    def batches(self, result: RunResult) -> Iterator[Batch[Rows]]:
        return table_batches(result, self._config.batch_items_max)

    async def connect(self) -> None:
        import asyncpg  # noqa: PLC0415  a driver is imported when it is used

        config = self._config
        self._connection = await asyncpg.connect(
            host=config.host,
            port=config.port,
            user=config.username,
            password=config.password or None,
            database=config.database,
            ssl=ssl.create_default_context(cafile=config.ca_file or None) if config.tls else None,
            timeout=config.request_timeout_s,
        )
        async with self._connection.transaction():
            # Two runs that end together would both create the tables, and one would fail.
            await self._connection.execute("SELECT pg_advisory_xact_lock(4747001)")
            await self._create(self._connection)

    async def _create(self, connection: "asyncpg.Connection[Any]") -> None:
        prefix = self._config.table_prefix
        time_key = ", at" if self._is_timescale else ""  # a hypertable demands it in the key
        await connection.execute(
            f"CREATE TABLE IF NOT EXISTS {prefix}_metrics (run_id TEXT NOT NULL, "
            "at TIMESTAMPTZ NOT NULL, file TEXT NOT NULL, workflow TEXT NOT NULL, "
            "step TEXT NOT NULL, metric_group TEXT NOT NULL, name TEXT NOT NULL, "
            "value DOUBLE PRECISION NOT NULL, unit TEXT NOT NULL, "
            f"PRIMARY KEY (run_id, workflow, step, metric_group, name{time_key}))"
        )
        await connection.execute(
            f"CREATE TABLE IF NOT EXISTS {prefix}_runs (run_id TEXT PRIMARY KEY, "
            "file TEXT NOT NULL, status TEXT NOT NULL, passed BOOLEAN NOT NULL, "
            "started_at TIMESTAMPTZ NOT NULL, elapsed_seconds DOUBLE PRECISION NOT NULL, "
            "generator TEXT NOT NULL)"
        )
        if self._is_timescale and await connection.fetchval(
            "SELECT count(*) FROM pg_proc WHERE proname = 'create_hypertable'"
        ):
            await connection.execute(
                f"SELECT create_hypertable('{prefix}_metrics', 'at', if_not_exists => true)"
            )

    async def send(self, batch: Batch[Rows]) -> None:
        assert self._connection is not None  # `connect` came first
        is_metrics = batch.payload.table == "metrics"
        columns = METRIC_COLUMNS if is_metrics else RUN_COLUMNS
        keys = ["run_id"]
        if is_metrics:
            keys += ["workflow", "step", "metric_group", "name"]
            keys += ["at"] if self._is_timescale else []
        marks = listed([f"${place}" for place in range(1, len(columns) + 1)])
        changes = listed([f"{name} = excluded.{name}" for name in columns if name not in keys])
        async with self._connection.transaction():
            await self._connection.executemany(
                f"INSERT INTO {self._config.table_prefix}_{batch.payload.table} "  # noqa: S608  checked names
                f"({listed(columns)}) VALUES ({marks}) "
                f"ON CONFLICT ({listed(keys)}) DO UPDATE SET {changes}",
                [tuple(_storable(each) for each in row) for row in batch.payload.rows],
            )

    async def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.terminate()

    def is_transient(self, error: Exception) -> bool:
        state = getattr(error, "sqlstate", None)
        if state:
            return bool(state[:2] in _TRANSIENT_CLASSES)
        name = type(error).__name__
        return super().is_transient(error) or name in (
            "InterfaceError",
            "ConnectionDoesNotExistError",
        )

    def preview(self, batch: Batch[Rows]) -> str:
        return preview_rows(batch.payload)


def _storable(value: Any) -> Any:
    """Return text without the one character that PostgreSQL cannot store."""
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value
