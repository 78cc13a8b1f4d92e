"""This node's end of all its connections: `PeerServer` accepts, dials and keeps one per peer.

    async with PeerServer(local, security, handlers) as server:
        await server.listen("127.0.0.1", 9000)
        link = server.link("127.0.0.1", 9001)
        pong = await link.call(Question(), Answer, deadline_s=loop.time() + 2)

A node that only asks does not listen. Leaving the context says goodbye to everyone, waits a
moment for what is in flight, and leaves no task and no socket behind.
"""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from types import TracebackType
from typing import Self

from msgspec import Struct

from hyperscale.errors import HyperscaleError, InputError
from hyperscale.wire.admission import WATERMARKS, Admission
from hyperscale.wire.connection import Connection, certificate_error
from hyperscale.wire.errors import (
    ConnectionLostError,
    PeerProtocolError,
    PeerRefusedError,
    RefusalReason,
)
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.handshake import PROTOCOL
from hyperscale.wire.link import PeerLink
from hyperscale.wire.messages import Introduction
from hyperscale.wire.outbox import QueuedFrame
from hyperscale.wire.refusal_log import RefusalLog
from hyperscale.wire.security import Security, SecurityMode

DOUBLE_DIAL_S = 10.0
"""Two nodes that dial each other within this time did so at once, not one after the other."""
LEAVE_GRACE_S = 5.0
ABANDON_GRACE_S = 2.0
_ACCEPT_PAUSE_S = 0.1
_ACCEPT_BATCH = 64
_BACKLOG = 512

# A refused connect is something else: nobody is there.
_CUT_OFF = (ConnectionLostError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError)

_log = logging.getLogger("hyperscale.wire")


class ServerLimits(Struct, frozen=True):
    """What a node takes on before it knows who is asking."""

    connections_max: int = 4096
    connections_per_host_max: int = 1024
    handshakes_max: int = 256
    handshake_s: float = 5.0


class ConnectionHooks(Struct, frozen=True):
    """What a node wants to hear of its connections. None of these may raise."""

    connected: Callable[[Connection], None] = lambda _: None
    disconnected: Callable[[Introduction, str], None] = lambda _peer, _why: None
    dial_failed: Callable[[str, int, str | None, Exception], None] = (
        lambda _host, _port, _node_id, _error: None
    )
    """Host, port, the node last known there, and why: `ConnectionRefusedError` is evidence."""


class PeerServer:
    """All connections of one node, at most one usable per peer.

    Two nodes may dial each other at once: then the connection opened by the one with the smaller
    node id stays, and both sides know that without a word. A peer that dials again, or comes
    back in a later life, replaces its earlier connection.
    """

    def __init__(
        self,
        local: Introduction,
        security: Security,
        handlers: Handlers | None = None,
        *,
        admission: Admission | None = None,
        limits: ServerLimits | None = None,
        hooks: ConnectionHooks | None = None,
        rng: Random | None = None,
        protocol: tuple[int, int] = PROTOCOL,
    ) -> None:
        self.local = local
        self.security = security
        self.handlers = handlers or Handlers()
        self.rng = rng or Random()  # noqa: S311  for jitter, not for keys
        self.admission = admission or Admission(WATERMARKS[local.role], self.rng)
        self.hooks = hooks or ConnectionHooks()
        self.protocol = protocol
        self.refusals = RefusalLog()
        """Peers this node refused."""
        self.rejections: Counter[RefusalReason] = Counter()
        """Peers that refused this node."""
        self._limits = limits or ServerLimits()
        self._connections: dict[str, Connection] = {}
        self._all: set[Connection] = set()
        self._per_host: Counter[str] = Counter()
        self._handshakes = 0
        self._links: set[PeerLink] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: set[socket.socket] = set()
        self._arriving: set[socket.socket] = set()  # accepted, and their task has not begun
        self._services: set[asyncio.Task[None]] = set()
        self._group = asyncio.TaskGroup()
        self._is_closing = False

    # -- lifetime -------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._leave()
        finally:
            self._abandon()
            await self._settle(ABANDON_GRACE_S)
            if isinstance(error, asyncio.CancelledError):
                # The group must see it: it may be the group's own doing, after a child failed.
                await self._group.__aexit__(kind, error, trace)
            else:
                await self._group.__aexit__(None, None, None)

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Begins to accept; returns the address it got (port 0 chooses one)."""
        self.security.check_bind(host)
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            family, _, _, _, address = found[0]
            listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        except OSError as error:
            raise InputError(
                f"cannot listen on {host}:{port}: {error.strerror or error}",
                hint="is another node running there?",
            ) from error
        listener.setblocking(False)
        self._listeners.add(listener)
        self._watch(listener)
        bound: tuple[str, int] = listener.getsockname()[:2]
        return bound

    def link(self, host: str, port: int, *, node_id: str | None = None) -> PeerLink:
        """A lasting link to an address: dials, and dials again."""
        link = PeerLink(self, host, port, node_id=node_id)
        self._links.add(link)
        task = self._spawn(self._keep(link), name=f"link:{host}:{port}")
        link.closing.add_done_callback(lambda _: task.cancel())
        return link

    # -- connections ----------------------------------------------------------------------

    @property
    def connections(self) -> list[Connection]:
        """The usable ones."""
        return [each for each in self._connections.values() if each.is_usable]

    def connection_to(self, node_id: str) -> Connection | None:
        """The usable connection to a node, whoever opened it."""
        connection = self._connections.get(node_id)
        return connection if connection is not None and connection.is_usable else None

    async def dial(self, host: str, port: int) -> Connection:
        """Opens a connection; `PeerProtocolError`, `OSError` or `TimeoutError` if it fails."""
        loop = asyncio.get_running_loop()
        connection = Connection(self, is_dialer=True, host=host, port=port)
        tls = self.security.tls
        self._all.add(connection)
        try:
            async with asyncio.timeout(self._limits.handshake_s):
                opening = loop.create_connection(
                    lambda: connection,
                    host,
                    port,
                    ssl=None if tls is None else tls.client,
                    server_hostname=None if tls is None else host,
                )
                await _open(connection, opening)
        except BaseException as error:
            connection.give_up("the handshake failed")
            refusal = _refusal_in(error)
            if isinstance(error, _CUT_OFF):
                refusal = self._cut_off(error)
            if refusal is None:
                raise
            self._count(host, refusal)
            raise refusal from error
        return connection

    # -- Owner: what connections tell -----------------------------------------------------

    def vet(self, peer: Introduction) -> None:
        if self._is_closing:
            raise PeerProtocolError("this node is stopping", reason=RefusalReason.CROWDED)
        if peer.node_id == self.local.node_id:
            raise PeerProtocolError(
                f"'{peer.node_id}' is this node's own id", reason=RefusalReason.LOOPED
            )
        known = self._connections.get(peer.node_id)
        if known is not None and known.peer.incarnation > peer.incarnation:
            raise PeerProtocolError(
                f"{peer.node_id} in incarnation {peer.incarnation}, "
                f"connected is {known.peer.incarnation}",
                reason=RefusalReason.INCARNATION,
            )

    def opened(self, connection: Connection) -> None:
        peer = connection.peer
        known = self._connections.get(peer.node_id)
        if known is not None and known.is_usable and not self._supersedes(connection, known):
            connection.leave("another connection between these nodes stays")
            return
        self._connections[peer.node_id] = connection
        is_new = known is None
        if known is not None:
            known.leave("another connection between these nodes stays")
            if known.peer.incarnation != peer.incarnation:
                self.hooks.disconnected(known.peer, "a later life of the node has connected")
                is_new = True
        if is_new:
            self.hooks.connected(connection)
        self._heed(peer.node_id)

    def closed(self, connection: Connection, why: str, unsent: list[QueuedFrame]) -> None:
        self._all.discard(connection)
        if not connection.is_dialer:
            self._per_host[connection.host] -= 1
            if not self._per_host[connection.host]:
                del self._per_host[connection.host]
        if not connection.is_established:
            return
        peer = connection.peer
        if self._connections.get(peer.node_id) is connection:
            del self._connections[peer.node_id]
            self.hooks.disconnected(peer, why)
        for link in self._links:
            if link.node_id == peer.node_id:
                link.park_again(unsent)
                break
        self._heed(peer.node_id)

    def refused(self, connection: Connection, error: PeerProtocolError) -> None:
        self._count(connection.host, error)

    def ending(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- inside ---------------------------------------------------------------------------

    def _supersedes(self, new: Connection, known: Connection) -> bool:
        """Whether `new` takes the place of `known`; both sides come to the same answer."""
        if new.peer.incarnation != known.peer.incarnation:
            return new.peer.incarnation > known.peer.incarnation
        if new.is_dialer == known.is_dialer or new.opened_s - known.opened_s > DOUBLE_DIAL_S:
            return True  # whoever dials again has lost the other one, though we still have it
        is_ours_kept = self.local.node_id < new.peer.node_id
        return new.is_dialer == is_ours_kept

    def _heed(self, node_id: str) -> None:
        for link in self._links:
            if link.node_id == node_id:
                link.heed()

    def _spawn(self, work: Coroutine[None, None, None], *, name: str) -> asyncio.Task[None]:
        task = self._group.create_task(work, name=name)
        self._services.add(task)
        task.add_done_callback(self._services.discard)
        return task

    async def _keep(self, link: PeerLink) -> None:
        try:
            await link.maintain()
        finally:
            self._links.discard(link)

    def _watch(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            loop = asyncio.get_running_loop()
            loop.add_reader(listener.fileno(), self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        """Takes what waits at a listener. Synchronous: no accepted socket can get lost."""
        loop = asyncio.get_running_loop()
        for _ in range(_ACCEPT_BATCH):
            try:
                accepted, address = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors: others may give some back
                _log.warning("accept.failed: %s", error, extra={"detail": str(error)})
                loop.remove_reader(listener.fileno())
                loop.call_later(_ACCEPT_PAUSE_S, self._watch, listener)
                return
            host, port = str(address[0]), int(address[1])
            if self._is_crowded(host):
                accepted.close()
                crowded = PeerProtocolError("too many connections", reason=RefusalReason.CROWDED)
                self._count(host, crowded)
                continue
            accepted.setblocking(False)
            self._arriving.add(accepted)
            self._spawn(self._receive(accepted, host, port), name=f"handshake:{host}:{port}")

    def _is_crowded(self, host: str) -> bool:
        limits = self._limits
        return (
            self._handshakes >= limits.handshakes_max
            or len(self._all) >= limits.connections_max
            or self._per_host[host] >= limits.connections_per_host_max
        )

    async def _receive(self, accepted: socket.socket, host: str, port: int) -> None:
        """Takes an accepted socket through TLS and the handshake, then lets it run."""
        self._arriving.discard(accepted)
        loop = asyncio.get_running_loop()
        connection = Connection(self, is_dialer=False, host=host, port=port)
        tls = self.security.tls
        self._all.add(connection)
        self._per_host[host] += 1
        self._handshakes += 1
        try:
            async with asyncio.timeout(self._limits.handshake_s):
                opening = loop.connect_accepted_socket(
                    lambda: connection, accepted, ssl=None if tls is None else tls.server
                )
                await _open(connection, opening)
        except TimeoutError:
            text = f"no handshake within {self._limits.handshake_s:g} s"
            self._count(host, PeerProtocolError(text, reason=RefusalReason.SLOW))
        except (OSError, HyperscaleError) as error:
            text = "the connection ended within the handshake"
            refusal = PeerProtocolError(text, reason=RefusalReason.TRUNCATED)
            self._count(host, _refusal_in(error) or refusal)
        finally:
            self._handshakes -= 1
            if not connection.is_established:
                connection.give_up("the handshake failed")  # the socket is its transport's

    def _cut_off(self, error: Exception) -> PeerRefusedError:
        """The acceptor ended it without a word, as TLS does and as strangers do."""
        if self.security.mode is SecurityMode.TLS:
            reason, hint = RefusalReason.CERTIFICATE, "it may not accept this node's certificate"
        else:
            reason, hint = (
                RefusalReason.TRUNCATED,
                "it may need certificates, or not be one of our nodes",
            )
        return PeerRefusedError(
            f"cut off within the handshake: {error or 'reset'}", reason=reason, hint=hint
        )

    def _count(self, host: str, error: PeerProtocolError) -> None:
        if isinstance(error, PeerRefusedError):
            self.rejections[error.reason] += 1
        else:
            self.refusals.add(host, error, now_s=asyncio.get_running_loop().time())

    async def _leave(self) -> None:
        """Goodbye to everyone, and a moment for what is in flight."""
        self._is_closing = True
        for link in list(self._links):
            link.close()
        self._close_listeners()
        for task in self._services:
            task.cancel()
        for connection in list(self._all):
            connection.leave("the node stops")
        await self._settle(LEAVE_GRACE_S)

    async def _settle(self, grace_s: float) -> None:
        """Waits until every connection and every handler has ended, or the time is up."""
        try:
            async with asyncio.timeout(grace_s):
                while self._all:
                    await asyncio.wait([each.gone for each in self._all])
                while self._tasks:
                    await asyncio.wait(self._tasks)
        except TimeoutError:
            stuck = [task.get_name() for task in self._tasks]
            if stuck:
                _log.warning("handlers.stuck: %s", stuck, extra={"handlers": stuck})

    def _abandon(self) -> None:
        for connection in list(self._all):
            connection.abort("the node stops")
        for task in self._tasks | self._services:
            task.cancel()
        self._close_listeners()
        while self._arriving:
            self._arriving.pop().close()

    def _close_listeners(self) -> None:
        loop = asyncio.get_running_loop()
        while self._listeners:
            listener = self._listeners.pop()
            loop.remove_reader(listener.fileno())
            listener.close()


async def _open(connection: Connection, opening: Awaitable[object]) -> None:
    """Waits for the transport, then for the handshake."""
    try:
        await opening
    except BaseException:
        connection.drop("no connection")  # the loop closes the socket, and tells nobody
        raise
    error = await asyncio.shield(connection.handshaken)
    if error is not None:
        raise error


def _refusal_in(error: BaseException) -> PeerProtocolError | None:
    if isinstance(error, ssl.SSLError):
        return certificate_error(error)
    return error if isinstance(error, PeerProtocolError) else None
