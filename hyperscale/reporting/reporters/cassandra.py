"""Apache Cassandra (and ScyllaDB): a partition per run, a row per metric."""

import asyncio
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from hyperscale.reporting.delivery import Backend, Batch, DeliverySink, DriverLog
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


class CassandraConfig(DeliverySettings, frozen=True, kw_only=True):
    """A keyspace, which must exist; the tables are created if they are missing."""

    EXTRA: ClassVar[str] = "cassandra"
    DRIVERS: ClassVar[tuple[str, ...]] = ("cassandra",)

    hosts: tuple[str, ...] = ("localhost",)
    port: int = 9042
    keyspace: str = "hyperscale"
    username: str = ""
    password: Annotated[str, credential("CASSANDRA_PASSWORD")] = ""
    table_prefix: str = "hyperscale"

    def check(self) -> None:
        check_given(self, "hosts", "keyspace")
        check_identifier(self, self.keyspace, name="keyspace")
        check_identifier(self, self.table_prefix, name="table_prefix")

    @classmethod
    def of_address(cls, address: str) -> dict[str, Any]:
        found = host_and_more(address)
        names = {"host": "hosts", "database": "keyspace"}
        found = {names.get(name, name): value for name, value in found.items()}
        return {**found, "hosts": [found["hosts"]]}

    def open_sink(self) -> DeliverySink:
        return DeliverySink(Cassandra(self), self)


class Cassandra(Backend[Rows]):
    """The driver has threads of its own; its calls run beside the event loop."""

    def __init__(self, config: CassandraConfig) -> None:
        self._config = config
        self._cluster: Any = None  # the driver has no types
        self._session: Any = None
        DriverLog("cassandra")  # what it logs, it also raises

    def batches(self, result: RunResult) -> Iterator[Batch[Rows]]:
        return table_batches(result, self._config.batch_items_max)

    async def connect(self) -> None:
        await asyncio.to_thread(self._connect)

    def _connect(self) -> None:
        from cassandra.auth import PlainTextAuthProvider  # noqa: PLC0415  imported when it is used
        from cassandra.cluster import Cluster  # noqa: PLC0415  as above

        config = self._config
        login = None
        if config.username:
            login = PlainTextAuthProvider(config.username, config.password)
        self._cluster = Cluster(
            list(config.hosts),
            port=config.port,
            auth_provider=login,
            connect_timeout=config.request_timeout_s / 2,
            control_connection_timeout=config.request_timeout_s / 2,
        )
        self._session = self._cluster.connect(config.keyspace)
        self._session.default_timeout = config.request_timeout_s
        prefix = config.table_prefix
        for statement in (
            f"CREATE TABLE IF NOT EXISTS {prefix}_metrics (run_id text, workflow text, step text, "
            "metric_group text, name text, at timestamp, file text, value double, unit text, "
            "PRIMARY KEY (run_id, workflow, step, metric_group, name))",
            f"CREATE TABLE IF NOT EXISTS {prefix}_runs (run_id text PRIMARY KEY, file text, "
            "status text, passed boolean, started_at timestamp, elapsed_seconds double, "
            "generator text)",
        ):
            self._session.execute(statement)

    async def send(self, batch: Batch[Rows]) -> None:
        await asyncio.to_thread(self._insert, batch.payload)

    def _insert(self, rows: Rows) -> None:
        from cassandra.concurrent import execute_concurrent_with_args  # noqa: PLC0415  as above

        columns = METRIC_COLUMNS if rows.table == "metrics" else RUN_COLUMNS
        statement = self._session.prepare(
            f"INSERT INTO {self._config.table_prefix}_{rows.table} ({listed(columns)}) "  # noqa: S608  checked names
            f"VALUES ({listed(['?'] * len(columns))})"
        )
        execute_concurrent_with_args(self._session, statement, rows.rows, concurrency=32)

    async def close(self) -> None:
        if self._cluster is not None:
            cluster, self._cluster, self._session = self._cluster, None, None
            await asyncio.to_thread(cluster.shutdown)

    def is_transient(self, error: Exception) -> bool:
        from cassandra import OperationTimedOut, RequestExecutionException  # noqa: PLC0415  as above
        from cassandra.cluster import NoHostAvailable  # noqa: PLC0415  as above

        if isinstance(error, NoHostAvailable):
            causes = [type(cause).__name__ for cause in dict(error.errors).values()]
            return "AuthenticationFailed" not in causes
        kinds = OperationTimedOut | RequestExecutionException
        return super().is_transient(error) or isinstance(error, kinds)

    def preview(self, batch: Batch[Rows]) -> str:
        return preview_rows(batch.payload)
