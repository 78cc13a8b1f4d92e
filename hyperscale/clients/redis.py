"""`self.client.redis`: Redis, and servers with its protocol, through redis-py.

Commands go through redis-py's connections and its hiredis parser, without its own pool: Hyperscale
keeps the connections.
"""

import asyncio
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

from redis import exceptions
from redis.asyncio.connection import Connection as TcpConnection
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from hyperscale.clients.connections import SHARED_MAX, LibraryConnection
from hyperscale.clients.library import (
    CONNECT_TIMEOUT_S,
    Failure,
    LibraryClient,
    Operation,
    Reply,
    classify_os_error,
    root_cause,
)
from hyperscale.config import parse_duration_s
from hyperscale.errors import InputError
from hyperscale.testing.protocols import ServiceUrl
from hyperscale.testing.responses import RedisResponse

_MESSAGES_MAX = 10_000
Encodable = str | bytes | int | float
Command = Sequence[Encodable]


class RedisConnection(LibraryConnection):
    """A connection of redis-py; one that subscribed is kept for its channels only."""

    __slots__ = ("link",)

    def __init__(self, link: Any) -> None:
        self.link = link

    @property
    def is_usable(self) -> bool:
        reader = self.link._reader
        return reader is not None and not reader.at_eof()

    async def close(self) -> None:
        await self.link.disconnect()

    def abort(self) -> bool:
        self.link._close()  # does nothing if redis-py has closed it
        return True


# --- operations on a connection ------------------------------------------------------------


async def _command(connection: RedisConnection, *args: Encodable) -> Any:
    link = connection.link
    await link.send_command(*args, check_health=False)
    return await link.read_response()


async def _pipeline(connection: RedisConnection, commands: Sequence[Command], atomic: bool) -> Any:
    link = connection.link
    sent = [("MULTI",), *commands, ("EXEC",)] if atomic else commands
    await link.send_packed_command(link.pack_commands(sent), check_health=False)
    replies: list[Any] = []
    first: exceptions.ResponseError | None = None
    for _ in sent:  # every reply is read, so that the connection can be used again
        try:
            replies.append(await link.read_response(disconnect_on_error=False))
        except exceptions.ResponseError as error:
            first = first or error
            replies.append(error)
    if first is not None:
        raise first
    return replies[-1] if atomic else replies


async def _listen(
    connection: RedisConnection,
    channels: Sequence[str],  # noqa: ARG001 - subscribed when the connection was opened
    count: int,
    wait_s: float,
) -> Any:
    """Return the next messages, at most `count`."""
    until_s = monotonic() + wait_s
    messages: list[Any] = []
    while len(messages) < count:
        try:
            async with asyncio.timeout(max(0.0, until_s - monotonic())):
                reply = await connection.link.read_response(disconnect_on_error=False)
        except TimeoutError:
            break
        if reply and reply[0] in (b"message", b"pmessage"):
            messages.append((reply[-2].decode(), reply[-1]))
    return messages


# --- responses -----------------------------------------------------------------------------


def _heard(value: Any, *times: Any) -> RedisResponse:
    response = RedisResponse(value, *times)
    response.bytes_received = sum(len(payload) for _, payload in value)
    return response


def _entries(value: Any, *times: Any) -> RedisResponse:
    """Return stream entries as (id, {field: value})."""
    streams = value or ()
    found = [
        (entry[0].decode(), dict(zip(entry[1][::2], entry[1][1::2], strict=True)))
        for _, entries in streams
        for entry in entries
        if entry[1] is not None
    ]
    return RedisResponse(found, *times)


class RedisClient(LibraryClient):
    """The Redis client of one virtual user.

    The URL is `redis://user:password@host:6379/0`, or `rediss://` with TLS. Values are returned
    as bytes.
    """

    __slots__ = ()
    protocol = "redis"

    def command(
        self,
        url: str,
        *args: Encodable,
        timeout: str | float | None = None,
        pool: int = SHARED_MAX,
    ) -> Reply[RedisResponse]:
        """Send any command: `command(url, "SET", "key", "value", "EX", 60)`.

        `pool` limits the connections that `connections = "shared"` opens to this server.
        """
        if not args:
            raise InputError("redis: command() needs a command", hint='as command(url, "PING")')
        return self._call(self._place(url, pool=pool), _command, args, RedisResponse, timeout)

    def get(
        self,
        url: str,
        key: Encodable,
        *,
        timeout: str | float | None = None,
    ) -> Reply[RedisResponse]:
        """Get the value of a key; None if there is none."""
        return self._call(self._place(url), _command, ("GET", key), RedisResponse, timeout)

    def set(
        self,
        url: str,
        key: Encodable,
        value: Encodable,
        *,
        expire_s: float | None = None,
        timeout: str | float | None = None,
    ) -> Reply[RedisResponse]:
        """Set the value of a key."""
        expiry = () if expire_s is None else ("PX", round(expire_s * 1000))
        args = ("SET", key, value, *expiry)
        return self._call(self._place(url), _command, args, RedisResponse, timeout)

    def pipeline(
        self,
        url: str,
        commands: Sequence[Command],
        *,
        atomic: bool = False,
        timeout: str | float | None = None,
        pool: int = SHARED_MAX,
    ) -> Reply[RedisResponse]:
        """Send commands together and return their replies, as one request.

        `pipeline(url, [("INCR", "a"), ("GET", "b")])`; `atomic` puts them into MULTI and EXEC.
        """
        if not commands or any(isinstance(one, str | bytes) or not one for one in commands):
            raise InputError(
                "redis: pipeline() takes a list of commands",
                hint='as pipeline(url, [("INCR", "a"), ("GET", "b")])',
            )
        place = self._place(url, pool=pool)
        return self._call(place, _pipeline, (commands, atomic), RedisResponse, timeout)

    def publish(
        self,
        url: str,
        channel: str,
        message: Encodable,
        *,
        timeout: str | float | None = None,
    ) -> Reply[RedisResponse]:
        """Publish a message; the value is the number of subscribers that got it."""
        args = ("PUBLISH", channel, message)
        return self._call(self._place(url), _command, args, RedisResponse, timeout)

    def listen(
        self,
        url: str,
        *channels: str,
        count: int = 1,
        wait: str | float = "1s",
        timeout: str | float | None = None,
    ) -> Reply[RedisResponse]:
        """Wait for messages on channels (patterns if they have a `*`), at most `wait` long.

        The subscription starts with the first call and is kept with the connection, so messages
        between two calls are not lost. `messages` is a list of (channel, payload).
        """
        if not channels or not 1 <= count <= _MESSAGES_MAX:
            raise InputError(f"redis: listen() needs channels and a count of 1 to {_MESSAGES_MAX}")
        args = (channels, count, parse_duration_s(wait, where="wait"))
        return self._call(self._place(url, channels), _listen, args, _heard, timeout)

    def stream_add(
        self,
        url: str,
        stream: str,
        fields: Mapping[Encodable, Encodable],
        *,
        length_max: int | None = None,
        timeout: str | float | None = None,
    ) -> Reply[RedisResponse]:
        """Append an entry to a stream; the value is its id. `length_max` trims the stream."""
        trim = () if length_max is None else ("MAXLEN", "~", length_max)
        pairs = [part for pair in fields.items() for part in pair]
        args = ("XADD", stream, *trim, "*", *pairs)
        return self._call(self._place(url), _command, args, RedisResponse, timeout)

    def stream_read(
        self,
        url: str,
        stream: str,
        *,
        after: str = "0",
        group: str | None = None,
        consumer: str = "hyperscale",
        count: int = 100,
        wait: str | float = 0,
        timeout: str | float | None = None,
    ) -> Reply[RedisResponse]:
        """Read entries of a stream: those after an id, or with `group` the next undelivered ones.

        Waits at most `wait` for the first one. `messages` is a list of (id, fields).
        """
        wait_s = 0.0 if wait == 0 else parse_duration_s(wait, where="wait")
        block = ("BLOCK", max(1, round(wait_s * 1000))) if wait_s else ()
        start = ("STREAMS", stream, after if group is None else ">")
        verb = ("XREAD",) if group is None else ("XREADGROUP", "GROUP", group, consumer)
        args = (*verb, "COUNT", count, *block, *start)
        return self._call(self._place(url), _command, args, _entries, timeout)

    async def ping(
        self,
        url: str,
        *,
        timeout: str | float | None = None,
    ) -> RedisResponse:
        """Send PING; the value describes the server."""
        response = await self.command(url, "PING", timeout=timeout)
        info = await self.command(url, "INFO", "server", timeout=timeout)
        lines = dict(line.split(":", 1) for line in info.text.splitlines() if ":" in line)
        response.value = f"Redis {lines.get('redis_version', '(version unknown)')}"
        return response

    async def _connect(self, url: ServiceUrl, options: Any) -> LibraryConnection:
        try:
            settings: dict[str, Any] = dict(parse_url(url.url))
        except ValueError as error:
            raise InputError(f"{url.shown}: {error}") from error
        make = settings.pop("connection_class", TcpConnection)
        link = make(
            **settings,
            retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_timeout=None,  # a call has its own deadline
            protocol=2,
            driver_info=None,
        )
        connection = RedisConnection(link)
        try:
            await link.connect()
            if options is not None:  # channels
                await _subscribe(link, options)
        except BaseException:
            connection.abort()
            raise
        return connection

    def _classify(self, error: BaseException) -> Failure | None:
        detail = str(error) or type(error).__name__
        match error:
            case exceptions.AuthenticationError() | exceptions.NoPermissionError():
                return Failure("auth", detail)
            case exceptions.MaxConnectionsError() | exceptions.BusyLoadingError():
                return Failure("connect", detail)
            case exceptions.TimeoutError():
                return Failure("timeout", detail)
            case exceptions.ConnectionError():
                cause = root_cause(error)
                known = None
                if isinstance(cause, OSError):
                    known = classify_os_error(cause, is_connecting="connecting" in detail)
                return known or Failure("reset", detail)
            case exceptions.ResponseError() if "NOAUTH" in detail or "WRONGPASS" in detail:
                return Failure("auth", detail)
            case exceptions.ResponseError():
                return Failure("server", detail, detail.partition(" ")[0])
            case exceptions.RedisError():
                return Failure("protocol", detail)
        return None

    def _describe(self, operation: Operation, args: tuple[Any, ...]) -> str:
        """Return the name of a command and its key, never its values."""
        if operation is _command:
            return " ".join(str(part) for part in args[:2])[:100]
        return super()._describe(operation, args)


async def _subscribe(link: Any, channels: Sequence[str]) -> None:
    for channel in channels:
        await link.send_command("PSUBSCRIBE" if "*" in channel else "SUBSCRIBE", channel)
        await link.read_response()


CLIENT = RedisClient
