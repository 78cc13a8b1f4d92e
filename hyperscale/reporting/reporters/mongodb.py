"""MongoDB: a document per run and per metric."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec

from hyperscale.reporting.delivery import Backend, Batch, DeliverySink
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.settings import (
    DeliverySettings,
    check_given,
    credential,
    host_and_more,
)
from hyperscale.reporting.tables import (
    METRIC_COLUMNS,
    RUN_COLUMNS,
    Rows,
    preview_rows,
    table_batches,
)

if TYPE_CHECKING:
    from pymongo import AsyncMongoClient


class MongoDBConfig(DeliverySettings, frozen=True, kw_only=True):
    """A database; results go to `PREFIX_runs` and `PREFIX_metrics`."""

    EXTRA: ClassVar[str] = "mongodb"
    DRIVERS: ClassVar[tuple[str, ...]] = ("pymongo",)

    host: str = "localhost"
    port: int = 27017
    database: str = "hyperscale"
    username: str = ""
    password: Annotated[str, credential("MONGODB_PASSWORD")] = ""
    auth_source: str = "admin"
    auth_mechanism: str = ""  # empty: the one that the server prefers
    collection_prefix: str = "hyperscale"
    tls: bool = False

    def check(self) -> None:
        check_given(self, "host", "database", "collection_prefix")

    @classmethod
    def of_address(cls, address: str) -> dict[str, Any]:
        return host_and_more(address)

    def open_sink(self) -> DeliverySink:
        return DeliverySink(MongoDB(self), self)


class MongoDB(Backend[Rows]):
    def __init__(self, config: MongoDBConfig) -> None:
        self._config = config
        self._client: AsyncMongoClient[dict[str, Any]] | None = None

    def batches(self, result: RunResult) -> Iterator[Batch[Rows]]:
        return table_batches(result, self._config.batch_items_max)

    async def connect(self) -> None:
        from pymongo import AsyncMongoClient  # noqa: PLC0415  a driver is imported when it is used

        config = self._config
        limit_ms = int(config.request_timeout_s * 1000)
        options: dict[str, Any] = {}
        if config.username:
            options = {"username": config.username, "password": config.password}
            options["authSource"] = config.auth_source
            if config.auth_mechanism:
                options["authMechanism"] = config.auth_mechanism
        self._client = AsyncMongoClient(
            config.host,
            config.port,
            tls=config.tls,
            serverSelectionTimeoutMS=limit_ms,
            connectTimeoutMS=limit_ms,
            socketTimeoutMS=limit_ms,
            retryWrites=False,
            **options,
        )
        await self._client.admin.command("ping")

    async def send(self, batch: Batch[Rows]) -> None:
        from pymongo import ReplaceOne  # noqa: PLC0415  as above

        assert self._client is not None  # `connect` came first
        table = batch.payload.table
        collection = self._client[self._config.database][
            f"{self._config.collection_prefix}_{table}"
        ]
        columns = METRIC_COLUMNS if table == "metrics" else RUN_COLUMNS
        documents = [dict(zip(columns, row, strict=True)) for row in batch.payload.rows]
        await collection.bulk_write(
            [ReplaceOne({"_id": _id(each)}, each, upsert=True) for each in documents],
            ordered=False,
        )

    async def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    def is_transient(self, error: Exception) -> bool:
        from pymongo.errors import AutoReconnect, ConnectionFailure  # noqa: PLC0415  as above

        return super().is_transient(error) or isinstance(error, AutoReconnect | ConnectionFailure)

    def preview(self, batch: Batch[Rows]) -> str:
        return preview_rows(batch.payload)


def _id(document: dict[str, Any]) -> str:
    parts = [document.get(name, "") for name in ("workflow", "step", "metric_group", "name")]
    return msgspec.json.encode([document["run_id"], *filter(None, parts)]).decode()
