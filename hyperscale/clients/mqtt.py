"""`self.client.mqtt`: MQTT through aiomqtt."""

import asyncio
import uuid
from time import monotonic
from typing import Any, Literal

import aiomqtt

from hyperscale.clients.connections import LibraryConnection
from hyperscale.clients.library import (
    CONNECT_TIMEOUT_S,
    Failure,
    LibraryClient,
    Reply,
    classify_os_error,
    root_cause,
)
from hyperscale.config import parse_duration_s
from hyperscale.errors import InputError
from hyperscale.testing.protocols import ServiceUrl
from hyperscale.testing.responses import MQTTMessage, MQTTResponse

MESSAGES_MAX = 10_000

QoS = Literal[0, 1, 2]

# Reasons of CONNACK: bad user name or password, not authorized; of MQTT 3.1.1 and of MQTT 5.
_DENIED = {4, 5, 134, 135}


class MQTTConnection(LibraryConnection):
    """A client of aiomqtt that is connected."""

    __slots__ = ("_is_closed", "link")

    def __init__(self, link: Any) -> None:
        self.link = link
        self._is_closed = False

    @property
    def is_usable(self) -> bool:
        # Done once the server has closed the connection, or it broke.
        return not self._is_closed and not self.link._disconnected.done()

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self.link.__aexit__(None, None, None)

    def abort(self) -> bool:
        self._is_closed = True
        _drop(self.link)
        return True


def _drop(link: Any) -> None:
    """Close the socket. aiomqtt leaves it open if its caller stops waiting for the broker."""
    link._client._sock_close()


# --- operations on a connection ------------------------------------------------------------


async def _publish(
    connection: MQTTConnection, topic: str, payload: bytes, qos: int, retain: bool
) -> None:
    await connection.link.publish(topic, payload, qos=qos, retain=retain)


async def _listen(
    connection: MQTTConnection, _topic: str, count: int, wait_s: float
) -> list[MQTTMessage]:
    until_s = monotonic() + wait_s
    messages: list[MQTTMessage] = []
    incoming = connection.link.messages
    while len(messages) < count:
        try:
            async with asyncio.timeout(max(0.0, until_s - monotonic())):
                arrived = await anext(incoming)
        except TimeoutError:
            break
        payload = arrived.payload
        body = payload if isinstance(payload, bytes) else str(payload).encode()
        messages.append(MQTTMessage(topic=str(arrived.topic), payload=body, qos=arrived.qos))
    return messages


def _heard(value: Any, *times: Any) -> MQTTResponse:
    response = MQTTResponse(value, *times)
    response.bytes_received = sum(len(message.payload) for message in value)
    return response


class MQTTClient(LibraryClient):
    """The MQTT client of one virtual user.

    The URL is `mqtt://user:password@host:1883`, or `mqtts://` with TLS.
    """

    __slots__ = ()
    protocol = "mqtt"

    def publish(
        self,
        url: str,
        topic: str,
        payload: bytes | str,
        *,
        qos: QoS = 1,
        retain: bool = False,
        timeout: str | float | None = None,
    ) -> Reply[MQTTResponse]:
        """Publish a message; with `qos` 1 or 2, wait until the broker has confirmed it."""
        if qos not in (0, 1, 2):
            raise InputError(f"mqtt: qos={qos!r} is unknown", hint="0, 1 or 2")
        body = payload.encode() if isinstance(payload, str) else payload

        def respond(value: Any, *times: Any) -> MQTTResponse:
            response = MQTTResponse(value, *times)
            response.bytes_sent = len(body)
            return response

        return self._call(self._place(url), _publish, (topic, body, qos, retain), respond, timeout)

    def listen(
        self,
        url: str,
        topic: str,
        *,
        qos: QoS = 1,
        count: int = 1,
        wait: str | float = "1s",
        timeout: str | float | None = None,
    ) -> Reply[MQTTResponse]:
        """Wait for messages of a topic (it may have `+` and `#`), at most `wait` long.

        The subscription begins with the first call and stays with the connection, so messages
        between two calls are not lost; at most 10,000 wait.
        """
        if not 1 <= count <= MESSAGES_MAX:
            raise InputError(f"mqtt: listen() takes a count of 1 to {MESSAGES_MAX:,}")
        args = (topic, count, parse_duration_s(wait, where="wait"))
        return self._call(self._place(url, (topic, qos)), _listen, args, _heard, timeout)

    async def ping(self, url: str, *, timeout: str | float | None = None) -> MQTTResponse:
        """Publish an empty message to `hyperscale/ping` and wait for its confirmation."""
        response = await self.publish(url, "hyperscale/ping", b"", timeout=timeout)
        response.value = "MQTT broker"
        return response

    async def _connect(self, url: ServiceUrl, options: Any) -> LibraryConnection:
        link = aiomqtt.Client(
            url.host,
            url.port,
            username=url.user,
            password=url.password,
            identifier=f"hyperscale-{uuid.uuid4().hex[:16]}",
            timeout=CONNECT_TIMEOUT_S,
            max_queued_incoming_messages=MESSAGES_MAX,
            tls_params=aiomqtt.TLSParameters() if url.scheme == "mqtts" else None,
        )
        try:
            await link.__aenter__()
        except BaseException:
            _drop(link)
            raise
        connection = MQTTConnection(link)
        if options is not None:
            topic, qos = options
            try:
                await link.subscribe(topic, qos=qos)
            except BaseException:
                connection.abort()
                raise
        return connection

    def _classify(self, error: BaseException) -> Failure | None:
        if not isinstance(error, aiomqtt.MqttError):
            return None
        detail = str(error)
        code = getattr(getattr(error, "rc", None), "value", getattr(error, "rc", None))
        if code in _DENIED and "connect" in type(error).__name__.lower():
            return Failure("auth", detail, str(code))
        cause = root_cause(error)
        if isinstance(cause, OSError):
            is_connecting = not isinstance(cause, ConnectionResetError | BrokenPipeError)
            known = classify_os_error(cause, is_connecting=is_connecting)
            if known is not None:
                return known
        if "timed out" in detail.lower():
            return Failure("timeout", detail)
        return Failure("reset", detail, "" if code is None else str(code))


CLIENT = MQTTClient
