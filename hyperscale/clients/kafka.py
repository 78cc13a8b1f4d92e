"""`self.client.kafka`: Kafka through aiokafka."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, errors
from aiokafka.conn import create_conn
from aiokafka.helpers import create_ssl_context

from hyperscale.clients.connections import LibraryConnection
from hyperscale.clients.library import (
    CONNECT_TIMEOUT_S,
    Failure,
    LibraryClient,
    Reply,
    resolve_hosts,
)
from hyperscale.config import parse_duration_s
from hyperscale.errors import InputError
from hyperscale.testing.protocols import ServiceUrl
from hyperscale.testing.responses import KafkaMessage, KafkaResponse

SENT_HEADER = "hyperscale-sent-ns"
"""When a message was sent, by the clock of its sender: `consume` tells its age."""
MESSAGES_MAX = 10_000

Acks = Literal[0, 1, "all"]
Headers = Mapping[str, bytes]


class KafkaConnection(LibraryConnection):
    """A producer or a consumer of aiokafka, which has connections to its brokers."""

    __slots__ = ("_is_closed", "link")

    def __init__(self, link: Any) -> None:
        self.link = link
        self._is_closed = False

    @property
    def is_usable(self) -> bool:
        return not self._is_closed

    async def close(self) -> None:
        self._is_closed = True
        await self.link.stop()


# --- operations on a connection ------------------------------------------------------------


async def _produce(
    connection: KafkaConnection,
    topic: str,
    values: Sequence[bytes],
    key: bytes | None,
    headers: Headers,
    partition: int | None,
) -> Any:
    sent = [(SENT_HEADER, str(time.time_ns()).encode()), *headers.items()]
    send = connection.link.send
    # Put into one batch as far as the partitions allow, then wait for all of them.
    waiting = [
        await send(topic, value, key=key, partition=partition, headers=sent) for value in values
    ]
    return [await one for one in waiting]


async def _consume(
    connection: KafkaConnection, _topic: str, count: int, wait_s: float
) -> tuple[list[KafkaMessage], int]:
    consumer = connection.link
    until_s = time.monotonic() + wait_s
    messages: list[KafkaMessage] = []
    while len(messages) < count:
        left_ms = round((until_s - time.monotonic()) * 1000)
        if left_ms <= 0:
            break
        most = count - len(messages)
        for records in (await consumer.getmany(timeout_ms=left_ms, max_records=most)).values():
            now_ns = time.time_ns()
            messages += [_message(record, now_ns) for record in records]
    lag = 0
    for partition in consumer.assignment():
        end = consumer.highwater(partition)
        if end is not None:
            lag += max(0, end - await consumer.position(partition))
    return messages, lag


def _message(record: Any, now_ns: int) -> KafkaMessage:
    headers = dict(record.headers)
    sent = headers.pop(SENT_HEADER, b"")
    age_s = (now_ns - int(sent)) / 1e9 if sent.isdigit() else None
    return KafkaMessage(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=record.key,
        value=record.value,
        headers=headers,
        age_s=age_s,
    )


async def _describe_cluster(connection: KafkaConnection) -> Any:
    metadata = await connection.link.client.fetch_all_metadata()
    return f"Kafka, {len(metadata.brokers())} brokers, {len(metadata.topics())} topics"


def _consumed(value: Any, *times: Any) -> KafkaResponse:
    messages, lag = value
    response = KafkaResponse(messages, *times)
    response.lag = lag
    response.bytes_received = sum(len(message.value or b"") for message in messages)
    return response


class KafkaClient(LibraryClient):
    """The Kafka client of one virtual user.

    The URL names the brokers, `kafka://host:9092,other:9092`; `kafkas://` uses TLS, and a user and
    a password log in with SASL PLAIN.
    """

    __slots__ = ()
    protocol = "kafka"

    def produce(
        self,
        url: str,
        topic: str,
        value: bytes | str,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        acks: Acks = "all",
        timeout: str | float | None = None,
    ) -> Reply[KafkaResponse]:
        """Send a message and wait until `acks` replicas have it ("all", 1, or 0: do not wait)."""
        return self.produce_many(
            url,
            topic,
            [value],
            key=key,
            headers=headers,
            partition=partition,
            acks=acks,
            timeout=timeout,
        )

    def produce_many(
        self,
        url: str,
        topic: str,
        values: Sequence[bytes | str],
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        acks: Acks = "all",
        timeout: str | float | None = None,
    ) -> Reply[KafkaResponse]:
        """Send messages in one batch, as one request; `offsets` are theirs."""
        if acks not in (0, 1, "all"):
            raise InputError(f"kafka: acks={acks!r} is unknown", hint='"all", 1 or 0')
        payloads = [value.encode() if isinstance(value, str) else value for value in values]
        if not payloads:
            raise InputError("kafka: produce_many() needs a message")
        size = sum(map(len, payloads))

        def respond(value: Any, *times: Any) -> KafkaResponse:
            response = KafkaResponse(value, *times)
            response.bytes_sent = size
            return response

        key = key.encode() if isinstance(key, str) else key
        args = (topic, payloads, key, headers or {}, partition)
        return self._call(self._place(url, ("produce", acks)), _produce, args, respond, timeout)

    def consume(
        self,
        url: str,
        topic: str,
        *,
        group: str | None = None,
        count: int = 1,
        wait: str | float = "1s",
        start: Literal["earliest", "latest"] = "earliest",
        timeout: str | float | None = None,
    ) -> Reply[KafkaResponse]:
        """Wait for messages, at most `count` and at most `wait` long.

        With a `group`, its consumers share the partitions and commit their offsets; without one,
        every consumer gets every message. A new consumer begins at `start`.
        """
        if not 1 <= count <= MESSAGES_MAX:
            raise InputError(f"kafka: consume() takes a count of 1 to {MESSAGES_MAX:,}")
        if start not in ("earliest", "latest"):
            raise InputError(f"kafka: start={start!r} is unknown", hint='"earliest" or "latest"')
        args = (topic, count, parse_duration_s(wait, where="wait"))
        place = self._place(url, ("consume", topic, group, start))
        return self._call(place, _consume, args, _consumed, timeout)

    async def ping(self, url: str, *, timeout: str | float | None = None) -> KafkaResponse:
        """Ask for the cluster's metadata; the value describes it."""
        place = self._place(url, ("produce", "all"))
        return await self._call(place, _describe_cluster, (), KafkaResponse, timeout)

    async def _connect(self, url: ServiceUrl, options: Any) -> LibraryConnection:
        await resolve_hosts(url)
        is_tls = url.scheme == "kafkas"
        settings: dict[str, Any] = {
            "bootstrap_servers": [_address(*host) for host in url.hosts],
            "client_id": "hyperscale",
            "request_timeout_ms": round(CONNECT_TIMEOUT_S * 1000),
        }
        security = "SSL" if is_tls else "PLAINTEXT"
        if is_tls:
            settings["ssl_context"] = create_ssl_context()
        if url.user is not None:
            security = f"SASL_{security}"
            settings |= {
                "sasl_mechanism": "PLAIN",
                "sasl_plain_username": url.user,
                "sasl_plain_password": url.password or "",
            }
        settings["security_protocol"] = security
        link: Any
        match options:
            case ("produce", acks):
                link = AIOKafkaProducer(acks=acks, **settings)
            case (_, topic, group, start):
                link = AIOKafkaConsumer(topic, group_id=group, auto_offset_reset=start, **settings)
        try:
            await link.start()
        except errors.KafkaConnectionError:
            await link.stop()
            await _raise_reason(url, settings)
            raise
        except BaseException:
            await link.stop()
            raise
        return KafkaConnection(link)

    def _classify(self, error: BaseException) -> Failure | None:
        detail = str(error) or type(error).__name__
        match error:
            case errors.SaslAuthenticationFailed() | errors.AuthenticationFailedError():
                return Failure("auth", detail)
            case errors.TopicAuthorizationFailedError() | errors.GroupAuthorizationFailedError():
                return Failure("auth", detail, str(error.errno))
            case errors.KafkaConnectionError() | errors.NodeNotReadyError():
                return Failure("connect", detail)
            case errors.RequestTimedOutError() | errors.KafkaTimeoutError():
                return Failure("timeout", detail)
            case errors.CorrelationIdError() | errors.IncompatibleBrokerVersion():
                return Failure("protocol", detail)
            case errors.BrokerResponseError():
                return Failure("server", detail, str(error.errno))
            case errors.KafkaError():
                return Failure("reset", detail)
        return None


async def _raise_reason(url: ServiceUrl, settings: dict[str, Any]) -> None:
    """Raise why a broker cannot be used; aiokafka only says that none could."""
    names = ("bootstrap_servers", "client_id")
    rest = {name: value for name, value in settings.items() if name not in names}
    link = await create_conn(url.host, url.port, **rest)
    link.close()


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


CLIENT = KafkaClient
