"""The listening sockets of a server: accepting connections within limits."""

import asyncio
import logging
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from msgspec import Struct

from hyperscale.errors import InputError
from hyperscale.wire.errors import PeerProtocolError, RefusalReason
from hyperscale.wire.handshake_door import DoorLimits, HandshakeDoor

_ACCEPT_PAUSE_S = 0.1
_ACCEPT_BATCH = 64
_BACKLOG = 512

CROWDED = PeerProtocolError(
    "the node is overloaded: too many connections", RefusalReason.CROWDED, hint="try again later"
)

_log = logging.getLogger("hyperscale.wire")


def bind_stream(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 chooses a free port."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        # `create_server` appends the address to `strerror`, which the message has already.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error
        raise InputError(
            f"cannot listen on {host}:{port}: {reason}",
            hint="another process may use the port; choose another one with --port",
        ) from error
    listening.setblocking(False)
    return listening


class ServerLimits(Struct, frozen=True):
    """How many connections and handshakes a node accepts."""

    connections_max: int = 4096
    connections_per_host_max: int = 1024
    handshake_s: float = 5.0
    door: DoorLimits = DoorLimits()


class Listener:
    """Accepts sockets and counts connections per host.

    `on_accept` gets each accepted socket and must start a task that enters `handshaking`;
    `on_refuse` gets the error of each connection beyond the limits, which `farewell` is sent to.
    """

    def __init__(
        self,
        limits: ServerLimits,
        *,
        connections: Callable[[], int],
        on_accept: Callable[[socket.socket, str, int], None],
        on_refuse: Callable[[str, PeerProtocolError], None],
        farewell: bytes,
    ) -> None:
        self._limits = limits
        self._connections = connections
        self._on_accept = on_accept
        self._on_refuse = on_refuse
        self._farewell = farewell
        self._door = HandshakeDoor(limits.door)
        self._timeouts: dict[int, asyncio.Timeout] = {}  # of pending handshakes, by token
        self._next_token = 0
        self._sockets: set[socket.socket] = set()
        self._accepted: set[socket.socket] = set()  # their task has not begun
        self._per_host: Counter[str] = Counter()

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Listen on an address; return it with the port that was chosen for port 0."""
        listening = await asyncio.to_thread(bind_stream, host, port)
        self._sockets.add(listening)
        self._watch(listening)
        bound: tuple[str, int] = listening.getsockname()[:2]
        return bound

    @asynccontextmanager
    async def handshaking(
        self, accepted: socket.socket, host: str, is_authenticated: Callable[[], bool]
    ) -> AsyncIterator[None]:
        """Count a connection of `host`, and its handshake while the context lasts; raise
        `TimeoutError` in it when the handshake takes too long, or has to make room."""
        loop = asyncio.get_running_loop()
        token = self._next_token = self._next_token + 1
        self._accepted.discard(accepted)
        self._per_host[host] += 1
        self._door.begin(token, host, loop.time())
        try:
            async with asyncio.timeout(self._limits.handshake_s) as timeout:
                self._timeouts[token] = timeout
                yield
        finally:
            del self._timeouts[token]
            self._door.end(token, is_authenticated=is_authenticated())

    def connection_closed(self, host: str) -> None:
        """Count one accepted connection of `host` less."""
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]

    def close(self) -> None:
        """Stop listening."""
        loop = asyncio.get_running_loop()
        while self._sockets:
            listening = self._sockets.pop()
            loop.remove_reader(listening.fileno())
            listening.close()

    def close_accepted(self) -> None:
        """Close the accepted sockets whose task never began."""
        while self._accepted:
            self._accepted.pop().close()

    def _watch(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            loop = asyncio.get_running_loop()
            loop.add_reader(listening.fileno(), self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        """Accept the connections that wait. Synchronous, so that no accepted socket is lost."""
        loop = asyncio.get_running_loop()
        for _ in range(_ACCEPT_BATCH):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no file descriptors left: try again in a moment
                _log.warning("accept.failed: %s", error, extra={"detail": str(error)})
                loop.remove_reader(listening.fileno())
                loop.call_later(_ACCEPT_PAUSE_S, self._watch, listening)
                return
            host, port = str(address[0]), int(address[1])
            accepted.setblocking(False)
            for token in self._door.overdue(loop.time()):
                # Only if the task has begun to wait, and is not ending already.
                if token in self._timeouts and not self._timeouts[token].expired():
                    self._timeouts[token].reschedule(loop.time())
            if self._is_crowded(host):
                with suppress(OSError):  # the refusal is sent if the connection takes it
                    accepted.send(self._farewell)
                accepted.close()
                self._on_refuse(host, CROWDED)
                continue
            self._accepted.add(accepted)
            self._on_accept(accepted, host, port)

    def _is_crowded(self, host: str) -> bool:
        limits = self._limits
        return (
            not self._door.admits(host)
            or self._connections() >= limits.connections_max
            or self._per_host[host] >= limits.connections_per_host_max
        )
