"""`self.client.rabbitmq`: AMQP 0-9-1 through aio-pika."""

import asyncio
import uuid
from collections.abc import Mapping
from time import monotonic
from typing import Any

import aio_pika
from aio_pika import exceptions

from hyperscale.clients.connections import LibraryConnection
from hyperscale.clients.library import Failure, LibraryClient, Reply, classify_os_error
from hyperscale.config import parse_duration_s
from hyperscale.errors import InputError
from hyperscale.testing.protocols import ServiceUrl
from hyperscale.testing.responses import RabbitMQMessage, RabbitMQResponse

MESSAGES_MAX = 10_000
_REPLY_QUEUE = "amq.rabbitmq.reply-to"


class RabbitMQConnection(LibraryConnection):
    """A connection with one channel. One that consumes has the messages that have arrived."""

    __slots__ = ("arrived", "channel", "link")

    def __init__(self, link: Any, channel: Any) -> None:
        self.link = link
        self.channel = channel
        # Bounded by the prefetch count: the server sends no more than were acknowledged.
        self.arrived: asyncio.Queue[Any] = asyncio.Queue()

    @property
    def is_usable(self) -> bool:
        return not self.link.is_closed and not self.channel.is_closed

    async def close(self) -> None:
        await self.link.close()


# --- operations on a connection ------------------------------------------------------------


async def _publish(
    connection: RabbitMQConnection, routing_key: str, exchange: str, message: Any, mandatory: bool
) -> Any:
    channel = connection.channel
    target = await channel.get_exchange(exchange, ensure=False) if exchange else None
    target = target or channel.default_exchange
    return await target.publish(message, routing_key, mandatory=mandatory)


async def _consume(
    connection: RabbitMQConnection, _queue: str, count: int, wait_s: float
) -> list[RabbitMQMessage]:
    until_s = monotonic() + wait_s
    messages: list[RabbitMQMessage] = []
    while len(messages) < count:
        try:
            async with asyncio.timeout(max(0.0, until_s - monotonic())):
                arrived = await connection.arrived.get()
        except TimeoutError:
            break
        await arrived.ack()
        messages.append(_message(arrived))
    return messages


async def _rpc(connection: RabbitMQConnection, routing_key: str, message: Any) -> Any:
    await connection.channel.default_exchange.publish(message, routing_key, mandatory=True)
    while True:
        reply = await connection.arrived.get()
        if reply.correlation_id == message.correlation_id:  # not that of a call that was given up
            return [_message(reply)]


async def _declare(connection: RabbitMQConnection, queue: str, durable: bool) -> Any:
    declared = await connection.channel.declare_queue(queue, durable=durable)
    return declared.declaration_result.message_count


async def _describe_server(connection: RabbitMQConnection) -> Any:
    about = connection.link.transport.connection.server_properties
    return f"{about.get('product', 'AMQP')} {about.get('version', '')}".strip()


def _message(arrived: Any) -> RabbitMQMessage:
    return RabbitMQMessage(
        body=arrived.body,
        routing_key=arrived.routing_key or "",
        headers=dict(arrived.headers),
        redelivered=bool(arrived.redelivered),
    )


def _received(value: Any, *times: Any) -> RabbitMQResponse:
    response = RabbitMQResponse(value, *times)
    response.bytes_received = sum(len(message.body) for message in value)
    return response


class RabbitMQClient(LibraryClient):
    """The RabbitMQ client of one virtual user.

    The URL is `amqp://user:password@host:5672/vhost`, or `amqps://` with TLS.
    """

    __slots__ = ()
    protocol = "rabbitmq"

    def publish(
        self,
        url: str,
        routing_key: str,
        body: bytes | str,
        *,
        exchange: str = "",
        headers: Mapping[str, Any] | None = None,
        persistent: bool = False,
        confirm: bool = True,
        mandatory: bool = True,
        timeout: str | float | None = None,
    ) -> Reply[RabbitMQResponse]:
        """Publish a message; with `confirm`, wait until the server has taken it.

        A `mandatory` message that no queue takes is an error of class `server`.
        """
        payload = body.encode() if isinstance(body, str) else body
        mode = aio_pika.DeliveryMode.PERSISTENT if persistent else None
        message = aio_pika.Message(payload, headers=dict(headers or {}), delivery_mode=mode)

        def respond(value: Any, *times: Any) -> RabbitMQResponse:
            response = RabbitMQResponse(value, *times)
            response.bytes_sent = len(payload)
            return response

        args = (routing_key, exchange, message, mandatory and confirm)
        return self._call(self._place(url, ("publish", confirm)), _publish, args, respond, timeout)

    def consume(
        self,
        url: str,
        queue: str,
        *,
        count: int = 1,
        wait: str | float = "1s",
        timeout: str | float | None = None,
    ) -> Reply[RabbitMQResponse]:
        """Take messages of a queue, at most `count` and at most `wait` long, and acknowledge them.

        The server delivers up to `count` messages ahead.
        """
        if not 1 <= count <= MESSAGES_MAX:
            raise InputError(f"rabbitmq: consume() takes a count of 1 to {MESSAGES_MAX:,}")
        args = (queue, count, parse_duration_s(wait, where="wait"))
        place = self._place(url, ("consume", queue, count))
        return self._call(place, _consume, args, _received, timeout)

    def rpc(
        self,
        url: str,
        routing_key: str,
        body: bytes | str,
        *,
        headers: Mapping[str, Any] | None = None,
        timeout: str | float | None = None,
    ) -> Reply[RabbitMQResponse]:
        """Publish a request and wait for the reply, through RabbitMQ's direct reply-to."""
        payload = body.encode() if isinstance(body, str) else body
        message = aio_pika.Message(
            payload,
            headers=dict(headers or {}),
            reply_to=_REPLY_QUEUE,
            correlation_id=uuid.uuid4().hex,
        )

        def respond(value: Any, *times: Any) -> RabbitMQResponse:
            response = _received(value, *times)
            response.bytes_sent = len(payload)
            return response

        return self._call(
            self._place(url, ("rpc",)), _rpc, (routing_key, message), respond, timeout
        )

    def declare(
        self,
        url: str,
        queue: str,
        *,
        durable: bool = False,
        timeout: str | float | None = None,
    ) -> Reply[RabbitMQResponse]:
        """Make a queue, unless it exists; the value is the number of its messages."""
        place = self._place(url, ("publish", True))
        return self._call(place, _declare, (queue, durable), RabbitMQResponse, timeout)

    async def ping(self, url: str, *, timeout: str | float | None = None) -> RabbitMQResponse:
        """Connect and open a channel; the value describes the server."""
        place = self._place(url, ("publish", True))
        return await self._call(place, _describe_server, (), RabbitMQResponse, timeout)

    async def _connect(self, url: ServiceUrl, options: Any) -> LibraryConnection:
        link = await aio_pika.connect(url.url, client_properties={"connection_name": "hyperscale"})
        try:
            confirms = options[0] == "rpc" or options == ("publish", True)
            channel = await link.channel(publisher_confirms=confirms, on_return_raises=confirms)
            connection = RabbitMQConnection(link, channel)
            match options:
                case ("consume", queue, count):
                    await channel.set_qos(prefetch_count=count)
                    source = await channel.get_queue(queue)
                    await source.consume(connection.arrived.put)
                case ("rpc",):
                    replies = await channel.get_queue(_REPLY_QUEUE, ensure=False)
                    await replies.consume(connection.arrived.put, no_ack=True)
        except BaseException:
            await link.close()
            raise
        return connection

    def _classify(self, error: BaseException) -> Failure | None:
        detail = str(error) or type(error).__name__
        match error:
            case exceptions.AuthenticationError() | exceptions.ProbableAuthenticationError():
                return Failure("auth", detail)
            case exceptions.DeliveryError():
                return Failure("server", f"not delivered: {detail}", "312")
            case exceptions.ChannelNotFoundEntity() | exceptions.ChannelPreconditionFailed():
                return Failure("server", detail, str(error.args[0]) if error.args else "")
            case exceptions.AMQPConnectionError() if isinstance(error, OSError):
                cause = error.__cause__ or error.__context__
                known = None
                if cause is not None:
                    known = classify_os_error(cause, is_connecting=True)
                return known or Failure("reset", detail)
            case exceptions.IncompatibleProtocolError() | exceptions.InvalidFrameError():
                return Failure("protocol", detail)
            case exceptions.AMQPError():
                return Failure("reset", detail)
        return None


CLIENT = RabbitMQClient
