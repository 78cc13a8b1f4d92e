"""Kafka: a JSON message per metric, keyed so that a compacted topic keeps the latest."""

import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec

from hyperscale.reporting.delivery import Backend, Batch, DeliverySink, DriverLog, chunks
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.rows import MetricRow, rows_of
from hyperscale.reporting.settings import DeliverySettings, check_given, credential

if TYPE_CHECKING:
    from aiokafka import AIOKafkaProducer

Message = tuple[bytes, bytes]  # key and value


class KafkaConfig(DeliverySettings, frozen=True, kw_only=True):
    """A topic. With `username` the connection uses SASL."""

    EXTRA: ClassVar[str] = "kafka"
    DRIVERS: ClassVar[tuple[str, ...]] = ("aiokafka",)

    servers: tuple[str, ...] = ("localhost:9092",)
    topic: str = "hyperscale-results"
    username: str = ""
    password: Annotated[str, credential("KAFKA_PASSWORD")] = ""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    tls: bool = False

    def check(self) -> None:
        check_given(self, "servers", "topic")

    @classmethod
    def of_address(cls, address: str) -> dict[str, Any]:
        servers, _, topic = address.partition("/")
        found: dict[str, Any] = {"servers": servers.split(",")}
        return {**found, "topic": topic} if topic else found

    def open_sink(self) -> DeliverySink:
        return DeliverySink(Kafka(self), self)


class Kafka(Backend[list[Message]]):
    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._log = DriverLog("aiokafka")
        self._producer: AIOKafkaProducer | None = None

    def batches(self, result: RunResult) -> Iterator[Batch[list[Message]]]:
        for rows in chunks(rows_of(result), self._config.batch_items_max):
            yield Batch(len(rows), [(_key(row), msgspec.json.encode(row)) for row in rows])

    async def connect(self) -> None:
        from aiokafka import AIOKafkaProducer  # noqa: PLC0415  a driver is imported when it is used

        config = self._config
        protocol = ("SASL_" if config.username else "") + ("SSL" if config.tls else "PLAINTEXT")
        self._producer = AIOKafkaProducer(
            bootstrap_servers=list(config.servers),
            acks="all",
            enable_idempotence=True,
            request_timeout_ms=int(config.request_timeout_s * 1000),
            security_protocol=protocol,
            ssl_context=ssl.create_default_context() if config.tls else None,
            sasl_mechanism=config.sasl_mechanism if config.username else "PLAIN",
            sasl_plain_username=config.username or None,
            sasl_plain_password=config.password or None,
        )
        try:
            await self._producer.start()
        except Exception as error:
            # The driver logs why, and raises only that it cannot connect.
            if "Authentication" in self._log.last:
                raise PermissionError(self._log.last) from error
            raise

    async def send(self, batch: Batch[list[Message]]) -> None:
        assert self._producer is not None  # `connect` came first
        topic = self._config.topic
        sent = [
            await self._producer.send(topic, value=value, key=key) for key, value in batch.payload
        ]
        for message in sent:
            await message

    async def close(self) -> None:
        if self._producer is not None:
            producer, self._producer = self._producer, None
            await producer.stop()

    def is_transient(self, error: Exception) -> bool:
        if isinstance(error, PermissionError):
            return False
        return super().is_transient(error) or bool(getattr(error, "retriable", False))

    def preview(self, batch: Batch[list[Message]]) -> str:
        return "\n".join(f"{key.decode()} {value.decode()}" for key, value in batch.payload)


def _key(row: MetricRow) -> bytes:
    return msgspec.json.encode([row.run_id, row.workflow, row.step, row.metric_group, row.name])
