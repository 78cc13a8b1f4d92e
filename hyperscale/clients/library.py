"""Calls through a library: one path for all of them, from the connection to the result.

A client has methods that name an operation on a connection; `LibraryClient._call` does the rest. It
takes a connection, keeps the deadline, counts the request, times the operation, classifies its
failure and gives the connection back. CONTRIBUTING.md says how to add a client.
"""

import asyncio
import socket
import ssl
from abc import ABC, abstractmethod
from asyncio import current_task
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, ClassVar, TypeVar

from hyperscale._native import Recorder
from hyperscale.clients.connections import (
    CONNECTING_MAX,
    SHARED_MAX,
    ConnectionPool,
    LibraryConnection,
    Reaper,
)
from hyperscale.clients.deadlines import Deadlines
from hyperscale.clients.scope import NO_STEP, current_step
from hyperscale.config import parse_duration_s
from hyperscale.errors import InvariantError
from hyperscale.plan import Connections
from hyperscale.testing.parameters import Mask
from hyperscale.testing.protocols import PROTOCOLS, ServiceUrl, split_service_url
from hyperscale.testing.responses import LibraryResponse

CONNECT_TIMEOUT_S = 10.0
REQUEST_CHARS_MAX = 200

# Failures at their elapsed time: the others say nothing about how fast the server replies.
_TIMED = frozenset({"timeout", "server", "status"})
# Failures that a server replied with: the connection can be used again.
_REPLIED = frozenset({"server", "status"})

_R = TypeVar("_R", bound=LibraryResponse)
Respond = Callable[[Any, int, int | None, int | None], _R]
Operation = Callable[..., Awaitable[Any]]
_Reply = TypeVar("_Reply")
Reply = Coroutine[Any, Any, _Reply]
"""A call that was made, to be awaited or made a task."""


class ClientError(Exception):
    """A call without a usable reply.

    `error` is its class in the results: dns, connect, tls, auth, timeout, reset, protocol, or
    server for an error that the server replied with, status for that of a page. `code` is the
    server's own code, if it has one. `request` is the call and the server, without credentials.
    """

    def __init__(self, error: str, detail: str, *, request: str, code: str = "") -> None:
        super().__init__(f"{request}: {error}: {detail}")
        self.error = error
        self.detail = detail
        self.request = request
        self.code = code
        self.latency_ns: int | None = None
        self.blocked_ns: int | None = None
        self.connect_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """What a library's error means."""

    error: str  # the class in the results
    detail: str
    code: str = ""


@dataclass(slots=True)
class CallRoom:
    """What all library calls of an executor share."""

    recorder: Recorder
    policy: Connections
    timeout_s: float
    show: Callable[[int, str], None] | None = None  # prints a call of a step, for --trace
    # Kept, because finding the running loop costs as much as the rest of a call's bookkeeping.
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    is_halted: bool = False
    connecting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONNECTING_MAX))
    deadlines: Deadlines = field(default_factory=Deadlines)
    reaper: Reaper = field(default_factory=Reaper)
    pools: list[ConnectionPool] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)  # what clients share beyond connections
    closers: list[Callable[[], Awaitable[None]]] = field(default_factory=list)  # of `kept`
    # The pools of all users together, by client, place and options; empty for pools of users.
    shared: dict[Hashable, "Place"] = field(default_factory=dict)

    async def drain(self) -> None:
        """Close every connection."""
        for pool in self.pools:
            pool.close()
        await self.reaper.drain()
        for close in self.closers:
            await close()
        self.deadlines.close()


class Place:
    """A server as a client reaches it: its URL, the options of its connections, and their pool."""

    __slots__ = ("_mask", "options", "pool", "url")

    def __init__(self, url: ServiceUrl, options: Any, pool: Any) -> None:
        self.url = url
        self.options = options
        self.pool = pool
        self._mask: Mask | None = None

    def masked(self, text: str) -> str:
        """Return the text without the password of the URL."""
        if self._mask is None:
            self._mask = Mask([self.url.password] if self.url.password else [])
        return self._mask.text(text).replace(self.url.url, self.url.shown)


class LibraryClient(ABC):
    """Base of the clients of one virtual user that use a library."""

    __slots__ = ("_places", "_room")
    protocol: ClassVar[str]  # its row in PROTOCOLS
    connect_timeout_s: ClassVar[float] = CONNECT_TIMEOUT_S

    def __init__(self, room: CallRoom) -> None:
        self._room = room
        is_shared = room.policy is Connections.SHARED
        self._places: dict[Hashable, Place] = room.shared if is_shared else {}

    # --- what a client defines ------------------------------------------------------------

    @abstractmethod
    async def _connect(self, url: ServiceUrl, options: Any) -> LibraryConnection:
        """Open a connection, logged in and ready for calls."""

    @abstractmethod
    def _classify(self, error: BaseException) -> Failure | None:
        """Return what an error of the library means; None if it is not one of the library's."""

    @abstractmethod
    async def ping(self, url: str, *, timeout: str | float | None = None) -> LibraryResponse:
        """Make one cheap round trip; the value of the response describes the server."""

    @classmethod  # noqa: B027 - most clients need nothing
    async def prepare(cls, room: CallRoom) -> None:
        """Start what all calls use, before the load. Raises InputError if that is not possible."""

    def _describe(self, operation: Operation, args: tuple[Any, ...]) -> str:
        """Return what a call asked for, for messages about its failure."""
        name = operation.__name__.strip("_")
        first = next((arg for arg in args if isinstance(arg, str)), "")
        text = f"{name} {first}".strip()
        return text if len(text) <= REQUEST_CHARS_MAX else f"{text[:REQUEST_CHARS_MAX]}…"

    # --- the path of every call -------------------------------------------------------------

    def _place(self, url: str, options: Hashable = None, *, pool: int = SHARED_MAX) -> Place:
        """Return where to send a call. Raises InputError if the URL is wrong."""
        key = url if options is None else (url, options)
        place = self._places.get(key)
        if place is None:
            parts = split_service_url(url, PROTOCOLS[self.protocol])
            place = self._places[key] = Place(parts, options, self._new_pool(pool))
        return place

    def _new_pool(self, limit: int) -> ConnectionPool:
        room = self._room
        pool = ConnectionPool(
            room.reaper,
            limit=limit if room.policy is Connections.SHARED else None,
            keeps=room.policy is not Connections.PER_REQUEST,
        )
        room.pools.append(pool)
        return pool

    async def _call(
        self,
        place: Place,
        operation: Operation,
        args: tuple[Any, ...],
        respond: Respond[_R],
        timeout: str | float | None = None,
    ) -> _R:
        """Run `operation(connection, *args)` and return its response. Raises ClientError."""
        room = self._room
        if room.is_halted:
            await _never()
        step = current_step.get(NO_STEP).step
        timeout_s = (
            room.timeout_s if timeout is None else parse_duration_s(timeout, where="timeout")
        )
        pool = place.pool
        connection: LibraryConnection | None = None
        blocked_ns = connect_ns = None
        task, deadlines = current_task(room.loop), room.deadlines
        if task is None:
            raise InvariantError("a client call has to run in a task")
        began_ns = perf_counter_ns()
        deadlines.in_flight[task] = end_ns = began_ns + int(timeout_s * 1e9)
        if end_ns < deadlines.look_ns:
            deadlines.watch(end_ns)
        try:
            connection = pool.take()
            if connection is None:
                connection, blocked_ns, connect_ns = await self._open(place, timeout_s)
                if room.is_halted:
                    await _never()
                began_ns = perf_counter_ns()
            room.recorder.add_sent(step, 1, 0, 0)
            value = await operation(connection, *args)
            took_ns = perf_counter_ns() - began_ns
        except BaseException as raised:
            took_ns = perf_counter_ns() - began_ns
            error: BaseException = raised
            if deadlines.has_expired(task):
                error = TimeoutError()  # whatever the library made of its cancellation
            failed = self._failed(place, connection, error, operation, args)
            if failed is None:
                raise
            failed.blocked_ns, failed.connect_ns = blocked_ns, connect_ns
            failed.latency_ns = took_ns if failed.error in _TIMED else None
            if room.show is not None:
                room.show(step, f"> {failed.request}\n< {failed.error}: {failed.detail}")
            raise failed from raised
        finally:
            deadlines.in_flight.pop(task, None)
        pool.put(connection)
        response = respond(value, took_ns, blocked_ns, connect_ns)
        if response.bytes_sent or response.bytes_received:
            room.recorder.add_sent(step, 0, response.bytes_sent, response.bytes_received)
        if room.show is not None:
            asked = f"{self._describe(operation, args)} to {place.url.shown}"
            room.show(step, place.masked(f"> {asked}\n< {response!r}\n* {took_ns / 1e6:.2f} ms"))
        return response

    async def _open(
        self, place: Place, timeout_s: float
    ) -> tuple[LibraryConnection, int | None, int | None]:
        """Wait for a connection, or open one; returns it and the times of both."""
        pool, room = place.pool, self._room
        began_ns = perf_counter_ns()
        handed = await pool.reserve()
        if handed is not None:
            return handed, perf_counter_ns() - began_ns, None
        try:
            async with room.connecting:
                connecting_ns = perf_counter_ns()
                async with asyncio.timeout(min(self.connect_timeout_s, timeout_s)):
                    connection = await self._connect(place.url, place.options)
        except BaseException:
            pool.leave()
            raise
        now_ns = perf_counter_ns()
        return connection, connecting_ns - began_ns, now_ns - connecting_ns

    def _failed(
        self,
        place: Place,
        connection: LibraryConnection | None,
        error: BaseException,
        operation: Operation,
        args: tuple[Any, ...],
    ) -> ClientError | None:
        """Give the connection back, or close it; returns the failure, None if it is no failure."""
        meaning = self._classify(error) if isinstance(error, Exception) else None
        if connection is not None:
            if meaning is not None and meaning.error in _REPLIED:
                place.pool.put(connection)
            else:
                place.pool.discard(connection)
        if meaning is None and isinstance(error, Exception):
            meaning = classify_os_error(error, is_connecting=connection is None)
        if meaning is None:
            return None  # a cancellation, or an error in the arguments of the call
        request = f"{self._describe(operation, args)} to {place.url.shown}"
        return ClientError(
            meaning.error,
            place.masked(meaning.detail),
            request=place.masked(request),
            code=meaning.code,
        )


def classify_os_error(error: BaseException, *, is_connecting: bool) -> Failure | None:
    """Return what an error of a socket means; None for any other error."""
    detail = str(error) or type(error).__name__
    match error:
        case TimeoutError():
            what = "connection" if is_connecting else "reply"
            return Failure("timeout", f"no {what} in time")
        case socket.gaierror():
            return Failure("dns", detail)
        case ssl.SSLError() | ssl.CertificateError():
            return Failure("tls", detail)
        case ConnectionResetError() | BrokenPipeError() | EOFError():
            return Failure("reset", detail)
        case OSError():
            return Failure("connect" if is_connecting else "reset", detail)
    return None


async def resolve_hosts(url: ServiceUrl) -> None:
    """Look the hosts up: some libraries do not say that a name is unknown. Raises gaierror."""
    loop = asyncio.get_running_loop()
    for host, port in url.hosts:
        await loop.getaddrinfo(host, port)


def root_cause(error: BaseException) -> BaseException:
    """Return the first error of a chain: libraries wrap those of sockets in their own."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


async def _never() -> None:
    """Wait until cancelled, in place of a call that is not sent."""
    await asyncio.get_running_loop().create_future()
    raise InvariantError("a call that was not sent was answered")
