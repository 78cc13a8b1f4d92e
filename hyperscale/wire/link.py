"""A lasting link to one peer: dials, dials again, and decides whether a call may go.

Uses whatever connection to the peer there is, also one the peer opened. While there is none,
calls wait for it until their deadline and one-way messages are parked (bounded, and not for
long). A peer whose calls keep failing is left alone for a while; what it refused for now is
repeated when it said so.
"""

import asyncio
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec import Struct

from hyperscale.wire.admission import RetryThrottle
from hyperscale.wire.backoff import Backoff
from hyperscale.wire.circuit_breaker import BreakerState, CircuitBreaker
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
from hyperscale.wire.outbox import WAITING, Outbox, QueuedFrame
from hyperscale.wire.registry import REGISTRY, MessagePriority
from hyperscale.wire.streams import ReplyStream

if TYPE_CHECKING:
    from hyperscale.wire.server import ConnectionHooks

PARKED_BYTES_MAX = 4 * 1024 * 1024
PARKED_S = 10.0
RETRIES_MAX = 3
FLAPPING_S = 1.0
"""A connection that did not last this long is no reason to dial again at once."""

_Reply = TypeVar("_Reply", bound=Struct)
_Item = TypeVar("_Item", bound=Struct)


class LinkOwner(Protocol):
    """What a link needs of its node."""

    rng: Random
    hooks: "ConnectionHooks"

    async def dial(self, host: str, port: int) -> Connection: ...

    def connection_to(self, node_id: str) -> Connection | None: ...


class PeerLink:
    """A peer at an address, whether it is there now or not."""

    def __init__(
        self, node: LinkOwner, host: str, port: int, *, node_id: str | None = None
    ) -> None:
        self.host = host
        self.port = port
        self.node_id = node_id
        """Who answers there, once known."""
        self.last_error = "not dialled yet"
        self.refused_s: float | None = None
        """Since when nobody has listened there, as far as is known: none was connected since."""
        self._node = node
        self._loop = asyncio.get_running_loop()
        self.closing: asyncio.Future[None] = self._loop.create_future()
        self._breaker = CircuitBreaker()
        self._courtesy = RetryThrottle()
        self._backoff = Backoff(node.rng)
        self._parked = Outbox(PARKED_BYTES_MAX)
        self._changed = asyncio.Event()
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def connection(self) -> Connection | None:
        """The usable connection, if there is one."""
        return None if self.node_id is None else self._node.connection_to(self.node_id)

    @property
    def breaker_state(self) -> BreakerState:
        return self._breaker.state(now_s=self._loop.time())

    def close(self) -> None:
        """Stops dialling. The connection stays as long as others use it or the node lives."""
        if not self.closing.done():
            self.closing.set_result(None)
        self.heed()

    # -- asking ---------------------------------------------------------------------------

    async def call(
        self, message: Struct, reply: type[_Reply], *, deadline_s: float, retries: int = RETRIES_MAX
    ) -> _Reply:
        """Asks, waiting for a connection if need be; a refusal for now is obeyed and repeated.

        Raises a `CallError`; its `is_definite` says whether the peer certainly did nothing.
        """
        operation = type(message)
        while True:
            if self._courtesy.is_waiting:
                await self._wait_courteously(operation, deadline_s)
            self._check_breaker(message)
            try:
                connection = self.connection or await self._connected(message, deadline_s)
                result = await connection.call(message, reply, deadline_s=deadline_s)
            except OverloadedError as error:
                self._breaker.succeeded()
                now_s = self._loop.time()
                wait_s = self._courtesy.refused(operation, error.retry_after_s, now_s=now_s)
                retries -= 1
                if retries < 0 or now_s + wait_s >= deadline_s:
                    raise
            except UnreachableError:
                # Nothing was sent: again on the next connection, within the same deadline.
                self._breaker.abandoned()
                if self._loop.time() >= deadline_s or self.closing.done():
                    self._breaker.failed(now_s=self._loop.time())
                    raise
                await asyncio.sleep(0)  # the end of the old connection must be heard first
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
                self._courtesy.accepted(operation)
                return result

    def send(self, message: Struct, *, deadline_s: float | None = None) -> None:
        """Sends a one-way message, or parks it for a while if there is no connection."""
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
        """A request answered in parts: `async with await link.stream(...) as parts`."""
        connection = self.connection or await self._connected(message, deadline_s)
        return connection.stream(message, item, deadline_s=deadline_s)

    # -- keeping it up --------------------------------------------------------------------

    async def maintain(self) -> None:
        """Dials while there is no connection, until the link is closed."""
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
                self._breaker.succeeded()  # a handshake is a call that was answered
                up_since_s = self._loop.time()
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self._backoff.next_s()):
                    await self._changed.wait()

    def hope(self) -> None:
        """Somebody is said to be there again: dials at once, whatever was found before."""
        self.refused_s = None
        self._backoff.reset()
        self._changed.set()

    def heed(self) -> None:
        """Something changed about the connections to this peer."""
        self._changed.set()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def park_again(self, unsent: list[QueuedFrame]) -> None:
        """One-way messages a lost connection had not sent yet."""
        now_s = self._loop.time()
        for entry in unsent:
            until_s = entry.deadline_s or now_s + PARKED_S
            with suppress(QueueFullError):  # what does not fit is lost, as it would have been
                self._parked.push(
                    QueuedFrame(entry.kind, 0, entry.priority, until_s, entry.body, WAITING)
                )

    # -- inside ---------------------------------------------------------------------------

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
        self.heed()
        return True

    def _unpark(self, connection: Connection) -> None:
        now_s = self._loop.time()
        while (entry := self._parked.pop(now_s=now_s)) is not None:
            connection.resend(
                QueuedFrame(entry.kind, 0, entry.priority, entry.deadline_s, entry.body)
            )

    def _check_breaker(self, message: Struct) -> None:
        if REGISTRY.spec_of(message).priority is MessagePriority.CRITICAL:
            return  # cancels and final results are always worth a try
        wait_s = self._breaker.try_begin(now_s=self._loop.time())
        if wait_s > 0:
            raise CircuitOpenError(
                f"{type(message).__name__} to {self.host}:{self.port}: recent calls failed, "
                f"left alone for {wait_s:.1f} s; last: {self.last_error}",
                retry_after_s=wait_s,
            )

    async def _wait_courteously(self, operation: type[Struct], deadline_s: float) -> None:
        wait_s = self._courtesy.wait_s(operation, now_s=self._loop.time())
        if wait_s <= 0:
            return
        if self._loop.time() + wait_s >= deadline_s:
            raise OverloadedError(
                f"{operation.__name__} to {self.host}:{self.port}: the peer asked to wait",
                retry_after_s=wait_s,
            )
        await asyncio.sleep(wait_s)

    async def _connected(self, message: Struct, deadline_s: float) -> Connection:
        """The connection, once there is one; `UnreachableError` at the deadline."""
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
                f"{name}: no connection before the deadline; last: {self.last_error}"
            ) from None
        raise UnreachableError(f"{name}: the link is closed")
