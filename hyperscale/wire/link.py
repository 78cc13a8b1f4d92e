"""A link to one peer: dials with backoff, opens a circuit breaker, and retries refused calls.

A link uses any connection to the peer, also one the peer opened. Without a connection, calls wait
until their deadline and one-way messages are parked (bounded, and for a short time). After
repeated failures the circuit breaker opens; an overloaded peer is called again after the time it
asked for.
"""

import asyncio
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec import Struct

from hyperscale.wire.connection import Connection
from hyperscale.wire.errors import (
    CallError,
    CircuitOpenError,
    OverloadedError,
    PeerProtocolError,
    QueueFullError,
    RemoteError,
    UnreachableError,
)
from hyperscale.wire.outbox import Outbox, QueuedFrame
from hyperscale.wire.registry import REGISTRY, MessagePriority
from hyperscale.wire.retries import Backoff, CircuitBreaker, RetryThrottle
from hyperscale.wire.streams import ReplyStream

if TYPE_CHECKING:
    from hyperscale.wire.server import ConnectionHooks

PARKED_BYTES_MAX = 4 * 1024 * 1024
PARKED_S = 10.0
RETRIES_MAX = 3
FLAPPING_S = 1.0
"""After a connection that lasted less than this, the link backs off before it dials again."""

# Bound once: in Python 3.11 each access through an enum class costs a Python call.
_CRITICAL = MessagePriority.CRITICAL

_Reply = TypeVar("_Reply", bound=Struct)
_Item = TypeVar("_Item", bound=Struct)


class LinkOwner(Protocol):
    """What a link needs from its server."""

    rng: Random
    hooks: "ConnectionHooks"

    async def dial(self, host: str, port: int) -> Connection: ...

    def connection_to(self, node_id: str) -> Connection | None: ...


class PeerLink:
    """A peer at an address, connected or not."""

    def __init__(
        self, node: LinkOwner, host: str, port: int, *, node_id: str | None = None
    ) -> None:
        self.host = host
        self.port = port
        self.node_id = node_id
        """The node at the address, once known."""
        self.last_error = "not dialed yet"
        self.refused_s: float | None = None
        """When the address first refused a connection since the last one; None if it has not."""
        self._node = node
        self._loop = asyncio.get_running_loop()
        self.closing: asyncio.Future[None] = self._loop.create_future()
        self._breaker = CircuitBreaker()
        self._throttle = RetryThrottle()
        self._backoff = Backoff(node.rng)
        self._parked = Outbox(PARKED_BYTES_MAX)
        self._changed = asyncio.Event()
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def connection(self) -> Connection | None:
        """The usable connection; None if there is none."""
        return None if self.node_id is None else self._node.connection_to(self.node_id)

    @property
    def is_refused(self) -> bool:
        """True if there is no connection and the address refused the last one: nothing listens."""
        return self.refused_s is not None and self.connection is None

    def close(self) -> None:
        """Stop dialing. The connection stays while others use it."""
        if not self.closing.done():
            self.closing.set_result(None)
        self.connection_changed()

    async def call(
        self, message: Struct, reply: type[_Reply], *, deadline_s: float, retries: int = RETRIES_MAX
    ) -> _Reply:
        """Call the peer; wait for a connection, and retry while the peer is overloaded.

        Raise a `CallError`; its `is_definite` is True if the peer certainly executed nothing.
        """
        operation = type(message)
        while True:
            if self._throttle.is_waiting:
                await self._wait_for_retry(operation, deadline_s)
            self._check_breaker(message)
            try:
                connection = self.connection or await self._connected(message, deadline_s)
                result = await connection.call(message, reply, deadline_s=deadline_s)
            except OverloadedError as error:
                self._breaker.succeeded()
                now_s = self._loop.time()
                wait_s = self._throttle.refused(operation, error.retry_after_s, now_s=now_s)
                retries -= 1
                if retries < 0 or now_s + wait_s >= deadline_s:
                    raise
            except UnreachableError:
                # Nothing was sent: try the next connection, within the same deadline.
                self._breaker.abandoned()
                if self._loop.time() >= deadline_s or self.closing.done():
                    self._breaker.failed(now_s=self._loop.time())
                    raise
                await asyncio.sleep(0)  # lets the loop report the end of the old connection
            except (RemoteError, QueueFullError):
                self._breaker.succeeded()
                raise
            except CallError:
                self._breaker.failed(now_s=self._loop.time())
                raise
            except BaseException:
                self._breaker.abandoned()
                raise
            else:
                self._breaker.succeeded()
                self._throttle.accepted(operation)
                return result

    def send(self, message: Struct, *, deadline_s: float | None = None) -> None:
        """Send a one-way message, or park it for a while if there is no connection."""
        connection = self.connection
        if connection is not None:
            connection.send(message, deadline_s=deadline_s or 0.0)
            return
        spec = REGISTRY.spec_of(message)
        until_s = self._loop.time() + PARKED_S if deadline_s is None else deadline_s
        self._parked.push(
            QueuedFrame(spec.kind, 0, spec.priority, until_s, REGISTRY.encode(message))
        )

    async def stream(
        self, message: Struct, item: type[_Item], *, deadline_s: float
    ) -> ReplyStream[_Item]:
        """Return a stream: `async with await link.stream(...) as items`."""
        connection = self.connection or await self._connected(message, deadline_s)
        return connection.stream(message, item, deadline_s=deadline_s)

    async def maintain(self) -> None:
        """Dial whenever there is no connection, until the link is closed."""
        up_since_s: float | None = None
        while not self.closing.done():
            self._changed.clear()
            connection = self.connection
            if connection is not None:
                up_since_s = up_since_s or self._loop.time()
                self.refused_s = None
                self._unpark(connection)
                await self._changed.wait()
                continue
            is_flapping = False
            if up_since_s is not None:
                is_flapping = self._loop.time() - up_since_s < FLAPPING_S
                up_since_s = None
                if not is_flapping:
                    self._backoff.reset()
            if not is_flapping and await self._try_dial():
                self._breaker.succeeded()  # a handshake counts as a call that succeeded
                up_since_s = self._loop.time()
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self._backoff.next_s()):
                    await self._changed.wait()

    def dial_now(self) -> None:
        """Dial at once: the peer is reported to be back."""
        self.refused_s = None
        self._backoff.reset()
        self._changed.set()

    def connection_changed(self) -> None:
        """Wake the tasks that wait for a connection to this peer."""
        self._changed.set()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def park_again(self, unsent: list[QueuedFrame]) -> None:
        """Park one-way messages that a lost connection had not sent."""
        now_s = self._loop.time()
        for frame in unsent:
            until_s = frame.deadline_s or now_s + PARKED_S
            with suppress(QueueFullError):  # messages that do not fit are lost with the connection
                self._parked.push(QueuedFrame(frame.kind, 0, frame.priority, until_s, frame.body))

    async def _try_dial(self) -> bool:
        try:
            connection = await self._node.dial(self.host, self.port)
        except (PeerProtocolError, CallError, OSError) as error:
            self.last_error = str(error) or type(error).__name__
            if isinstance(error, ConnectionRefusedError):
                self.refused_s = self.refused_s or self._loop.time()
            self._node.hooks.dial_failed(self.host, self.port, self.node_id, error)
            return False
        self.node_id = connection.peer.node_id
        self.connection_changed()
        return True

    def _unpark(self, connection: Connection) -> None:
        now_s = self._loop.time()
        while (frame := self._parked.pop(now_s=now_s)) is not None:
            connection.resend(
                QueuedFrame(frame.kind, 0, frame.priority, frame.deadline_s, frame.body)
            )

    def _check_breaker(self, message: Struct) -> None:
        if self._breaker.is_closed or REGISTRY.spec_of(message).priority is _CRITICAL:
            return  # cancels and final results are always tried
        wait_s = self._breaker.try_begin(now_s=self._loop.time())
        if wait_s > 0:
            raise CircuitOpenError(
                f"{type(message).__name__} to {self.host}:{self.port}: recent calls failed, "
                f"the circuit is open for {wait_s:.1f} s; last error: {self.last_error}",
                retry_after_s=wait_s,
            )

    async def _wait_for_retry(self, operation: type[Struct], deadline_s: float) -> None:
        wait_s = self._throttle.wait_s(operation, now_s=self._loop.time())
        if wait_s <= 0:
            return
        if self._loop.time() + wait_s >= deadline_s:
            raise OverloadedError(
                f"{operation.__name__} to {self.host}:{self.port}: the peer is overloaded",
                retry_after_s=wait_s,
            )
        await asyncio.sleep(wait_s)

    async def _connected(self, message: Struct, deadline_s: float) -> Connection:
        """Wait for a connection; raise `UnreachableError` at the deadline."""
        name = f"{type(message).__name__} to {self.host}:{self.port}"
        try:
            async with asyncio.timeout_at(deadline_s):
                while not self.closing.done():
                    connection = self.connection
                    if connection is not None:
                        return connection
                    waiter: asyncio.Future[None] = self._loop.create_future()
                    self._waiters.append(waiter)
                    await waiter
        except TimeoutError:
            raise UnreachableError(
                f"{name}: no connection before the deadline; last error: {self.last_error}"
            ) from None
        raise UnreachableError(f"{name}: the link is closed")
