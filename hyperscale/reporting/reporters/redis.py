"""Redis and Valkey: a hash per run for its facts and one for its metrics, and an index by time."""

import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec

from hyperscale.reporting.delivery import Backend, Batch, DeliverySink, chunks
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.rows import MetricRow, ended_unix_ms, rows_of, run_document, run_id_of
from hyperscale.reporting.settings import DeliverySettings, check_given, credential, host_and_more

if TYPE_CHECKING:
    from redis.asyncio import Redis as RedisClient

_TRANSIENT = (
    "ConnectionError",
    "TimeoutError",
    "BusyLoadingError",
    "ReadOnlyError",
    "TryAgainError",
)


class RedisConfig(DeliverySettings, frozen=True, kw_only=True):
    """A server. With `expire_s`, a run disappears after that time."""

    EXTRA: ClassVar[str] = "redis"
    DRIVERS: ClassVar[tuple[str, ...]] = ("redis",)

    host: str = "localhost"
    port: int = 6379
    database_number: int = 0
    username: str = ""
    password: Annotated[str, credential("REDIS_PASSWORD")] = ""
    prefix: str = "hyperscale"
    expire_s: int = 0  # 0: never
    tls: bool = False

    def check(self) -> None:
        check_given(self, "host", "prefix")

    @classmethod
    def of_address(cls, address: str) -> dict[str, Any]:
        found = host_and_more(address)
        if database := found.pop("database", ""):
            found["database_number"] = database
        return found

    def open_sink(self) -> DeliverySink:
        return DeliverySink(Redis(self), self)


class Redis(Backend[list[list[str]]]):
    """Each batch is a list of commands, run as one transaction."""

    def __init__(self, config: RedisConfig) -> None:
        self._config = config
        self._client: RedisClient | None = None

    def batches(self, result: RunResult) -> Iterator[Batch[list[list[str]]]]:
        prefix, run_id = self._config.prefix, run_id_of(result)
        metrics, run = f"{prefix}:metrics:{run_id}", f"{prefix}:run:{run_id}"
        for rows in chunks(rows_of(result), self._config.batch_items_max):
            pairs = [text for row in rows for text in (field_of(row), repr(row.value))]
            yield Batch(len(rows), [["HSET", metrics, *pairs], *self._expiry(metrics)])
        facts = [
            text
            for name, value in run_document(result).items()
            for text in (name, str(value).lower() if isinstance(value, bool) else str(value))
        ]
        index = ["ZADD", f"{prefix}:runs", str(ended_unix_ms(result)), run_id]
        yield Batch(0, [["HSET", run, *facts], *self._expiry(run), index])

    def _expiry(self, key: str) -> list[list[str]]:
        return [["EXPIRE", key, str(self._config.expire_s)]] if self._config.expire_s else []

    async def connect(self) -> None:
        from redis.asyncio import Redis as RedisClient  # noqa: PLC0415  imported when it is used
        from redis.asyncio.retry import Retry  # noqa: PLC0415  as above
        from redis.backoff import NoBackoff  # noqa: PLC0415  as above

        config = self._config
        options: dict[str, Any] = {"ssl_ca_certs": ssl.get_default_verify_paths().cafile}
        self._client = RedisClient(
            host=config.host,
            port=config.port,
            db=config.database_number,
            username=config.username or None,
            password=config.password or None,
            socket_timeout=config.request_timeout_s,
            socket_connect_timeout=config.request_timeout_s,
            ssl=config.tls,
            retry=Retry(NoBackoff(), 0),  # retries are made in one place
            **(options if config.tls else {}),
        )
        await self._client.ping()

    async def send(self, batch: Batch[list[list[str]]]) -> None:
        assert self._client is not None  # `connect` came first
        async with self._client.pipeline(transaction=True) as pipeline:
            for command in batch.payload:
                pipeline.execute_command(*command)
            await pipeline.execute()

    async def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await client.aclose()

    def is_transient(self, error: Exception) -> bool:
        # A wrong password is an error of the connection too.
        if type(error).__name__.startswith("Authentication"):
            return False
        names = {each.__name__ for each in type(error).__mro__}
        return super().is_transient(error) or bool(names & set(_TRANSIENT))

    def preview(self, batch: Batch[list[list[str]]]) -> str:
        return "\n".join(" ".join(map(_quoted, command)) for command in batch.payload)


def field_of(row: MetricRow) -> str:
    """Return the name of a metric within its run: a JSON list, which no name can break."""
    parts = [row.workflow, row.step, row.metric_group, row.name]
    return msgspec.json.encode(parts).decode()


def _quoted(word: str) -> str:
    return word if word.isascii() and word.isalnum() else msgspec.json.encode(word).decode()
