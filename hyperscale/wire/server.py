"""The connections of one node: `PeerServer` accepts, dials, and keeps one connection per peer.

    async with PeerServer(local, security, handlers) as server:
        await server.listen("127.0.0.1", 9000)
        link = server.link("127.0.0.1", 9001)
        reply = await link.call(GetJob(job="j1"), GetJobReply, deadline_s=loop.time() + 2)

A node that only calls others does not listen. Leaving the context tells every peer, waits a
moment for calls in flight, and leaves no task and no socket behind.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from types import TracebackType
from typing import Self

from msgspec import Struct

from hyperscale.errors import HyperscaleError
from hyperscale.wire.admission import WATERMARKS, Admission
from hyperscale.wire.connection import Connection
from hyperscale.wire.errors import (
    ConnectionLostError,
    PeerProtocolError,
    PeerRefusedError,
    RefusalReason,
)
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.handshake import PROTOCOL, refusal_frame
from hyperscale.wire.link import PeerLink
from hyperscale.wire.listener import CROWDED, Listener, ServerLimits
from hyperscale.wire.messages import Introduction
from hyperscale.wire.outbox import QueuedFrame
from hyperscale.wire.refusal_log import RefusalLog
from hyperscale.wire.security import Security
from hyperscale.wire.tls_refusals import RENEW_HINT, certificate_error

DOUBLE_DIAL_S = 10.0
"""Two nodes that dial each other within this time did so at once, not one after the other."""
LEAVE_GRACE_S = 5.0
ABANDON_GRACE_S = 2.0

NAME_HINT = "give this node another --node-id, or stop the other one first"

# A refused connect is different: no process listens there.
_CUT_OFF = (ConnectionLostError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError)

_log = logging.getLogger("hyperscale.wire")


class ConnectionHooks(Struct, frozen=True):
    """Callbacks of a node for its connections. Only `claimed` and `check_version`
    may raise."""

    connected: Callable[[Connection], None] = lambda _: None
    disconnected: Callable[[Introduction, str], None] = lambda _peer, _why: None
    dial_failed: Callable[[str, int, str | None, Exception], None] = (
        lambda _host, _port, _node_id, _error: None
    )
    """Host, port, the node last known there, and the error of the dial."""
    claimed: Callable[[Introduction], None] = lambda _: None
    """A peer introduced itself; raise `PeerProtocolError` if another node has its name."""
    check_version: Callable[[Introduction], None] = lambda _: None
    """Raises `PeerProtocolError` for a peer whose version does not fit the cluster's."""
    rejected: Callable[[PeerRefusedError], None] = lambda _: None
    """A peer refused this node."""


class _ServerTasks:
    """The tasks of a server: services that must not fail, and cancelled handlers that end."""

    def __init__(self) -> None:
        self.group = asyncio.TaskGroup()
        self.services: set[asyncio.Task[None]] = set()
        self.cancelled_handlers: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[None, None, None], *, name: str) -> asyncio.Task[None]:
        task = self.group.create_task(work, name=name)
        self.services.add(task)
        task.add_done_callback(self.services.discard)
        return task

    def cancel(self) -> None:
        for task in self.cancelled_handlers | self.services:
            task.cancel()


class PeerServer:
    """All connections of one node, at most one usable per peer.

    Two nodes may dial each other at once: then the connection opened by the node with the smaller
    id stays, and both sides decide so without a message. A peer that dials again, or restarts as
    a later incarnation, replaces its earlier connection.
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
        """Peers this node refused, and peers that refused this node."""
        self._handshake_s = (limits or ServerLimits()).handshake_s
        self._connections: dict[str, Connection] = {}  # node id -> the connection to use
        self._all: set[Connection] = set()
        self._links: set[PeerLink] = set()
        self._tasks = _ServerTasks()
        self._listener = Listener(
            limits or ServerLimits(),
            connections=lambda: len(self._all),
            on_accept=self._accepted,
            on_refuse=self.count_refusal,
            # Inside TLS it could not be read.
            farewell=b"" if security.tls is not None else refusal_frame(CROWDED),
        )
        self._is_closing = False

    # -- lifetime -------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._tasks.group.__aenter__()
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
                # The group may have cancelled this task itself, after one of its tasks failed.
                await self._tasks.group.__aexit__(kind, error, trace)
            else:
                await self._tasks.group.__aexit__(None, None, None)

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Accept connections; return the address with the port chosen for port 0."""
        self.security.check_bind(host)
        return await self._listener.listen(host, port)

    def link(self, host: str, port: int, *, node_id: str | None = None) -> PeerLink:
        """Return a link to an address, which dials until it is closed."""
        link = PeerLink(self, host, port, node_id=node_id)
        self._links.add(link)
        task = self._tasks.spawn(link.maintain(), name=f"link:{host}:{port}")
        task.add_done_callback(lambda _: self._links.discard(link))
        link.closing.add_done_callback(lambda _: task.cancel())
        return link

    # -- connections ----------------------------------------------------------------------

    @property
    def connections(self) -> list[Connection]:
        """The usable connections."""
        return [each for each in self._connections.values() if each.is_usable]

    @property
    def connection_count(self) -> int:
        """The number of connections in any state."""
        return len(self._all)

    def connection_to(self, node_id: str) -> Connection | None:
        """Return the usable connection to a node, whichever side opened it."""
        connection = self._connections.get(node_id)
        return connection if connection is not None and connection.is_usable else None

    async def dial(self, host: str, port: int) -> Connection:
        """Open a connection; raise `PeerProtocolError`, `OSError` or `TimeoutError`."""
        loop = asyncio.get_running_loop()
        connection = Connection(self, is_dialer=True, host=host, port=port)
        tls = self.security.tls
        self._all.add(connection)
        try:
            async with asyncio.timeout(self._handshake_s):
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
            self.count_refusal(host, refusal)
            raise refusal from error
        return connection

    # -- ConnectionOwner ------------------------------------------------------------------

    def check_peer(self, peer: Introduction) -> None:
        """Raise `PeerProtocolError` for a peer this node does not accept."""
        if self._is_closing:
            raise PeerProtocolError("this node is stopping", RefusalReason.CROWDED)
        local = self.local
        if peer.node_id == local.node_id:
            if (peer.incarnation, peer.key) == (local.incarnation, local.key):
                text = f"'{peer.node_id}' is this node itself"
                raise PeerProtocolError(text, RefusalReason.LOOPED)
            raise PeerProtocolError(
                f"the name '{peer.node_id}' is taken by this {local.role} at {local.address}",
                RefusalReason.NAMESAKE,
                hint=NAME_HINT,
            )
        self.hooks.check_version(peer)
        self.hooks.claimed(peer)
        known = self._connections.get(peer.node_id)
        if known is not None and known.peer.incarnation > peer.incarnation:
            raise PeerProtocolError(
                f"{peer.node_id} has incarnation {peer.incarnation}, but incarnation "
                f"{known.peer.incarnation} is connected",
                RefusalReason.INCARNATION,
            )

    def opened(self, connection: Connection) -> None:
        """Use a new connection, or leave it if the existing one stays."""
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
                self.hooks.disconnected(known.peer, "a later incarnation has connected")
                is_new = True
        if is_new:
            self.hooks.connected(connection)
        self._notify_links(peer.node_id)

    def closed(self, connection: Connection, why: str, unsent: list[QueuedFrame]) -> None:
        """Forget a connection; a link to the peer keeps the unsent messages."""
        self._all.discard(connection)
        if not connection.endpoint.is_dialer:
            self._listener.connection_closed(connection.endpoint.host)
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
        self._notify_links(peer.node_id)

    def count_refusal(self, host: str, error: PeerProtocolError) -> None:
        """Count a breach of the protocol by the peer at `host`, or its refusal of this node."""
        if isinstance(error, PeerRefusedError):
            self.refusals.rejections[error.reason] += 1
            self.hooks.rejected(error)
        else:
            self.refusals.add(host, error, now_s=asyncio.get_running_loop().time())

    def handler_cancelled(self, task: asyncio.Task[None]) -> None:
        """Wait for a cancelled handler when the server closes."""
        self._tasks.cancelled_handlers.add(task)
        task.add_done_callback(self._tasks.cancelled_handlers.discard)

    def _supersedes(self, new: Connection, known: Connection) -> bool:
        """Return True if `new` replaces `known`; both sides come to the same result."""
        if new.peer.incarnation != known.peer.incarnation:
            return new.peer.incarnation > known.peer.incarnation
        age_s = new.session.opened_s - known.session.opened_s
        if new.endpoint.is_dialer == known.endpoint.is_dialer or age_s > DOUBLE_DIAL_S:
            return True  # the peer has lost the known connection, though this node has not
        is_ours_kept = self.local.node_id < new.peer.node_id
        return new.endpoint.is_dialer == is_ours_kept

    def _notify_links(self, node_id: str) -> None:
        for link in self._links:
            if link.node_id == node_id:
                link.connection_changed()

    def _accepted(self, accepted: socket.socket, host: str, port: int) -> None:
        self._tasks.spawn(self._receive(accepted, host, port), name=f"handshake:{host}:{port}")

    async def _receive(self, accepted: socket.socket, host: str, port: int) -> None:
        """Take an accepted socket through TLS and the handshake."""
        loop = asyncio.get_running_loop()
        connection = Connection(self, is_dialer=False, host=host, port=port)
        tls = self.security.tls
        self._all.add(connection)
        handshaking = self._listener.handshaking(accepted, host, lambda: connection.is_established)
        try:
            async with handshaking:
                opening = loop.connect_accepted_socket(
                    lambda: connection, accepted, ssl=None if tls is None else tls.server
                )
                await _open(connection, opening)
        except TimeoutError:
            text = f"no handshake within {self._handshake_s:g} s, or it had to make room"
            self.count_refusal(host, PeerProtocolError(text, RefusalReason.SLOW))
        except (OSError, HyperscaleError) as error:
            self.count_refusal(host, _refusal_in(error) or self._ended())
        except Exception as error:  # noqa: BLE001  a bug ends the connection it occurred on
            connection.fail(error)
            accepted.close()  # there may be no transport that owns it
        finally:
            if not connection.is_established:
                connection.give_up("the handshake failed")  # its transport owns the socket

    def _ended(self) -> PeerProtocolError:
        """Return the error for a dialer that closed the connection within the handshake."""
        # TLS sends no reason: the peer may have refused the certificate of this side.
        if self.security.tls is not None and (expiry := self.security.tls.expiry()):
            text = f"the certificate of this side was refused: {expiry}"
            return PeerProtocolError(text, RefusalReason.CERTIFICATE, hint=RENEW_HINT)
        return PeerProtocolError(
            "the connection ended within the handshake", RefusalReason.TRUNCATED
        )

    def _cut_off(self, error: Exception) -> PeerRefusedError:
        """Return the error for an acceptor that closed the connection without a refusal."""
        if self.security.tls is not None:
            reason = RefusalReason.CERTIFICATE
            hint = "it may not accept this node's certificate, or be overloaded"
            if expiry := self.security.tls.expiry():
                return PeerRefusedError(
                    f"the certificate of this side was refused: {expiry}",
                    reason=reason,
                    hint=RENEW_HINT,
                )
        else:
            reason = RefusalReason.TRUNCATED
            hint = "it may need certificates, or may not be a Hyperscale node"
        return PeerRefusedError(
            f"cut off within the handshake: {error or 'reset'}", reason=reason, hint=hint
        )

    async def _leave(self) -> None:
        """Tell every peer that this node stops, and give calls in flight a moment."""
        self._is_closing = True
        for link in list(self._links):
            link.close()
        self._listener.close()
        for task in self._tasks.services:
            task.cancel()
        for connection in list(self._all):
            connection.leave("the node stops")
        await self._settle(LEAVE_GRACE_S)

    async def _settle(self, grace_s: float) -> None:
        """Wait until every connection and every handler has ended, at most `grace_s`."""
        handlers = self._tasks.cancelled_handlers
        try:
            async with asyncio.timeout(grace_s):
                while self._all:
                    await asyncio.wait([each.gone for each in self._all])
                while handlers:
                    await asyncio.wait(handlers)
        except TimeoutError:
            stuck = [task.get_name() for task in handlers]
            if stuck:
                _log.warning("handlers.stuck: %s", stuck, extra={"handlers": stuck})

    def _abandon(self) -> None:
        for connection in list(self._all):
            connection.abort("the node stops")
        self._tasks.cancel()
        self._listener.close()
        self._listener.close_accepted()


async def _open(connection: Connection, opening: Awaitable[object]) -> None:
    """Wait for the transport, then for the handshake."""
    try:
        await opening
    except BaseException:
        connection.drop("no connection")  # the loop closes the socket without a callback
        raise
    error = await asyncio.shield(connection.handshaken)
    if error is not None:
        raise error


def _refusal_in(error: BaseException) -> PeerProtocolError | None:
    if isinstance(error, ssl.SSLError):
        return certificate_error(error)
    return error if isinstance(error, PeerProtocolError) else None
