"""A session on an asyncio transport: reading, writing in batches, one timer.

The thin shell around `handshake` and `session`. Frames queued during one turn of the event loop
are sealed and written together at its end. `call_runner` runs the handlers.
"""

import asyncio
import logging
import socket
import ssl
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar, cast

from msgspec import Struct

from hyperscale.errors import HyperscaleError
from hyperscale.wire.admission import Admission
from hyperscale.wire.errors import (
    ConnectionLostError,
    PeerProtocolError,
    QueueFullError,
    RefusalReason,
    UnreachableError,
)
from hyperscale.wire.frames import Frame
from hyperscale.wire.handlers import CallRunner, Handlers
from hyperscale.wire.handshake import (
    Handshake,
    HandshakeResult,
    handshake_decoder,
    refusal_frame,
)
from hyperscale.wire.messages import Introduction
from hyperscale.wire.outbox import QueuedFrame
from hyperscale.wire.registry import REGISTRY, UNKNOWN_KIND_BYTES_MAX
from hyperscale.wire.sealing import TAG_BYTES
from hyperscale.wire.security import Security, SecurityMode, certificate_identity
from hyperscale.wire.session import Session
from hyperscale.wire.streams import ReplyStream, StreamBuffer
from hyperscale.wire.tls_refusals import certificate_error

LEAVE_S = 30.0
"""How long calls in flight may take once the connection is leaving."""
CLOSE_S = 1.0
BATCH_BYTES = 256 * 1024
WRITE_BUFFER_BYTES = 1024 * 1024

_TCP_RTO_MAX_MS = 44  # Linux 6.15 and later; the socket module has no name for it yet
_RESEND_MS_MAX = 1000

_log = logging.getLogger("hyperscale.wire")

_Reply = TypeVar("_Reply", bound=Struct)
_Item = TypeVar("_Item", bound=Struct)


class ConnectionOwner(Protocol):
    """What a connection needs from the server it belongs to."""

    local: Introduction
    security: Security
    handlers: Handlers
    admission: Admission
    protocol: tuple[int, int]

    def check_peer(self, peer: Introduction) -> None:
        """Raise `PeerProtocolError` for a peer this node does not accept."""

    def opened(self, connection: "Connection") -> None:
        """The handshake succeeded."""

    def closed(self, connection: "Connection", why: str, unsent: list[QueuedFrame]) -> None:
        """The connection has ended; `unsent` are one-way messages that were not written."""

    def count_refusal(self, host: str, error: PeerProtocolError) -> None:
        """The peer at `host` broke the protocol after the handshake."""

    def handler_cancelled(self, task: asyncio.Task[None]) -> None:
        """A handler task was cancelled and may take a moment to end."""


class Endpoint(Struct, frozen=True):
    """The remote address of a connection, and which side dialed."""

    host: str
    port: int
    is_dialer: bool

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class _Timers(Struct):
    """The timers of one connection: the session's next deadline, and the end of its leave."""

    session: asyncio.TimerHandle | None = None
    session_at_s: float = 0.0
    leave: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        for timer in (self.session, self.leave):
            if timer is not None:
                timer.cancel()


class Connection(asyncio.Protocol):
    """One connection to one peer, from its first byte to its last."""

    def __init__(self, owner: ConnectionOwner, *, is_dialer: bool, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        self.endpoint = Endpoint(host, port, is_dialer)
        self.handshaken: asyncio.Future[HyperscaleError | None] = loop.create_future()
        """Resolved when the handshake has ended: with its error, or with None."""
        self.gone: asyncio.Future[str] = loop.create_future()
        """Resolved with the reason when the connection has ended."""
        self._loop = loop
        self._owner = owner
        self._session: Session | None = None
        self._transport: asyncio.Transport | None = None
        self._handshake: Handshake | None = None
        self._decoder = handshake_decoder()
        self._runner = CallRunner(
            owner.handlers,
            owner.local.role,
            flush_soon=self.flush_soon,
            on_cancel=owner.handler_cancelled,
        )
        self._timers = _Timers()
        self._why = ""
        self._is_closing = False
        self._is_paused = False
        self._is_flush_due = False

    # -- peer and state -------------------------------------------------------------------

    @property
    def peer(self) -> Introduction:
        return self.session.peer

    @property
    def is_established(self) -> bool:
        """True if the handshake has succeeded, even if the connection has ended since."""
        return self._session is not None

    @property
    def is_usable(self) -> bool:
        """True if a new call may start."""
        session = self._session
        return session is not None and not self._is_closing and not session.is_leaving

    @property
    def session(self) -> Session:
        """The session; raises `UnreachableError` before the handshake has succeeded."""
        if self._session is None:
            raise UnreachableError(f"the connection to {self.endpoint} is not established")
        return self._session

    # -- calls ----------------------------------------------------------------------------

    async def call(self, message: Struct, reply: type[_Reply], *, deadline_s: float) -> _Reply:
        """Send a request and wait for its reply; `deadline_s` on the clock of the loop."""
        session = self._session
        if session is None or self._is_closing:
            session = self._open_session(message)
        future: asyncio.Future[_Reply] = self._loop.create_future()
        request_id = session.request(message, reply, future, deadline_s=deadline_s)
        if deadline_s < self._timers.session_at_s:
            self._arm()
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)
        try:
            return await future
        except asyncio.CancelledError:
            session.cancel(request_id)
            self.flush_soon()
            raise

    def send(self, message: Struct, *, deadline_s: float = 0.0, at_once: bool = False) -> None:
        """Queue a one-way message, or raise `QueueFullError`. `at_once` writes it now, not at the
        end of this turn of the loop: for a message that other nodes wait for."""
        self._open_session(message).send(message, deadline_s=deadline_s)
        (self._flush if at_once else self.flush_soon)()

    def resend(self, frame: QueuedFrame) -> None:
        """Queue a message that another connection did not send; drop it if the queue is full."""
        with suppress(QueueFullError):
            self.session.outbox.push(frame)
        self.flush_soon()

    def stream(
        self, message: Struct, item: type[_Item], *, deadline_s: float
    ) -> ReplyStream[_Item]:
        """Return a stream that sends the request when it is entered."""
        return ReplyStream(self, message, item, deadline_s)

    def open_stream(
        self, message: Struct, item: type[Struct], buffer: StreamBuffer, deadline_s: float
    ) -> int:
        """Send a request whose reply is a stream; return its request id."""
        session = self._open_session(message)
        request_id = session.request(message, item, None, deadline_s=deadline_s, buffer=buffer)
        self._arm()
        self.flush_soon()
        return request_id

    def _open_session(self, message: Struct) -> Session:
        session = self.session
        if self._is_closing:
            raise UnreachableError(f"{type(message).__name__}: the connection is closed")
        return session

    # -- the end --------------------------------------------------------------------------

    def leave(self, why: str) -> None:
        """Start no new call, let calls in flight finish, then close."""
        if self._session is None:
            self.abort(why)
            return
        self._why = self._why or why
        self._session.send_go_away(why)
        self.flush_soon()
        if self._timers.leave is None:
            self._timers.leave = self._loop.call_later(LEAVE_S, self.abort, why)

    def abort(self, why: str) -> None:
        """End the connection now; calls in flight fail."""
        self._end(why)
        if self._transport is not None:
            self._transport.abort()
        else:
            self._lose(why)

    def drop(self, why: str) -> None:
        """End a connection whose transport was never made, or will not report its end."""
        self.abort(why)
        self._lose(why)

    def give_up(self, why: str) -> None:
        """Abort, unless the connection is closing already: its last frames may still be sent."""
        if not self._is_closing or self._transport is None:
            self.abort(why)

    def fail(self, error: Exception) -> None:
        """Log an unexpected error of this connection and end it."""
        _log.error(
            "connection.failed: %s: %s",
            self.endpoint.host,
            error,
            exc_info=error,
            extra={"peer": self.endpoint.host, "detail": str(error)},
        )
        self.abort(f"{type(error).__name__} on this connection")

    # -- asyncio.Protocol -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's are not its subclasses
        self._transport = transport
        if self._is_closing:
            transport.abort()
            return
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        _limit_retransmission_delay(transport)
        security = self._owner.security
        try:
            certificate = None
            if security.mode is SecurityMode.TLS:
                certificate = certificate_identity(transport.get_extra_info("peercert"))
            self._handshake = Handshake(
                self._owner.local,
                security.mode,
                security.secrets,
                is_dialer=self.endpoint.is_dialer,
                certificate=certificate,
                clients=security.clients,
                check_peer=self._owner.check_peer,
                protocol=self._owner.protocol,
            )
        except PeerProtocolError as error:
            transport.write(refusal_frame(error))
            self._breach(error)
            return
        transport.write(self._handshake.begin())

    def data_received(self, data: bytes) -> None:
        now_s = self._loop.time()
        try:
            for frame in self._decoder.feed(data):
                if self._is_closing:
                    return
                if self._session is not None:
                    self._session.take(frame, now_s=now_s)
                else:
                    self._continue_handshake(frame)
        except PeerProtocolError as error:
            self._breach(error)
            return
        except QueueFullError as error:
            self.abort(f"the peer does not read the replies to its requests: {error}")
            return
        except Exception as error:  # noqa: BLE001  a bug ends the connection it occurred on
            self.fail(error)
            return
        session = self._session
        if session is not None and (session.outbox or session.is_leaving):
            self.flush_soon()

    def eof_received(self) -> bool:
        if self._decoder.is_mid_frame and not self._is_closing:
            self._breach(_ended_mid_frame())
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ssl.SSLError) and self._session is None:
            self._reject(certificate_error(exc))
        why = self._why or ("closed by the peer" if exc is None else f"lost: {exc}")
        if self._session is None and self._decoder.is_mid_frame and not self._is_closing:
            self._reject(_ended_mid_frame())
        self._lose(why)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self.flush_soon()

    def _continue_handshake(self, frame: Frame) -> None:
        handshake, transport = self._handshake, self._transport
        assert handshake is not None
        assert transport is not None
        try:
            answer = handshake.receive(frame)
        except PeerProtocolError as error:
            transport.write(handshake.refusal(error))
            raise
        if handshake.result is not None:
            self._start_session(handshake.result)
        transport.write(answer)
        if self._session is not None and not self.handshaken.done():
            # Only now: the owner may write at once, and this side's introduction goes first.
            self._owner.opened(self)
            self.handshaken.set_result(None)

    def _start_session(self, result: HandshakeResult) -> None:
        self._decoder.limits = REGISTRY.limits
        self._decoder.limit_other = UNKNOWN_KIND_BYTES_MAX
        self._decoder.overhead = 0 if result.opener is None else TAG_BYTES
        self._session = Session(
            result,
            is_dialer=self.endpoint.is_dialer,
            admission=self._owner.admission,
            on_call=self._runner.run,
            on_refused=partial(self._owner.count_refusal, self.endpoint.host),
            now_s=self._loop.time(),
        )
        self._arm()

    def flush_soon(self) -> None:
        """Write the queued frames at the end of this turn of the loop."""
        if not self._is_flush_due and not self._is_closing:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        # A flush that is already scheduled will find nothing to do.
        self._is_flush_due = False
        session, transport = self._session, self._transport
        if session is None or transport is None or self._is_closing:
            return
        now_s = self._loop.time()
        try:
            while not self._is_paused:
                data = session.outgoing(now_s=now_s, bytes_max=BATCH_BYTES)
                if not data:
                    break
                transport.write(data)
                if not session.outbox:
                    break
        except Exception as error:  # noqa: BLE001  a bug ends the connection it occurred on
            self.fail(error)
            return
        if self._runner.room_waiters:
            self._runner.wake_if_room(session)
        if session.is_leaving and session.is_drained:
            self._end(self._why or "the peer left")
            self._close(transport)

    def _arm(self) -> None:
        """Set the session timer to the session's next deadline."""
        timers = self._timers
        if timers.session is not None:
            timers.session.cancel()
            timers.session = None
        if self._session is not None and not self._is_closing:
            timers.session_at_s = self._session.wake_at_s()
            timers.session = self._loop.call_at(timers.session_at_s, self._on_timer)

    def _on_timer(self) -> None:
        session = self._session
        if session is None or self._is_closing:
            return
        try:
            if not session.tick(now_s=self._loop.time()):
                self.abort("the peer has been silent for too long")
        except QueueFullError as error:
            self.abort(f"the peer reads nothing: {error}")
        except Exception as error:  # noqa: BLE001  a bug ends the connection it occurred on
            self.fail(error)
        self.flush_soon()
        self._arm()

    def _breach(self, error: PeerProtocolError) -> None:
        """End the connection because the peer broke the protocol; tell the peer, if possible."""
        self._reject(error)
        transport = self._transport
        assert transport is not None  # the peer has sent something
        if self._session is not None and not self._is_closing:
            self._session.send_go_away(str(error))
            transport.write(self._session.outgoing(now_s=self._loop.time(), bytes_max=BATCH_BYTES))
        self._end(str(error))
        self._close(transport)

    def _reject(self, error: PeerProtocolError) -> None:
        if not self.handshaken.done():
            self.handshaken.set_result(error)
        else:
            self._owner.count_refusal(self.endpoint.host, error)

    def _end(self, why: str) -> None:
        """Read and write nothing from now on; `connection_lost` follows."""
        self._why = self._why or why
        self._is_closing = True

    def _close(self, transport: asyncio.Transport) -> None:
        """Write the buffered bytes, then close; abort if the peer does not read them in time."""
        transport.close()
        if self._timers.session is not None:
            self._timers.session.cancel()
        self._timers.session = self._loop.call_later(CLOSE_S, transport.abort)

    def _lose(self, why: str) -> None:
        if self.gone.done():
            return
        self._is_closing = True
        self._timers.cancel()
        unsent: list[QueuedFrame] = []
        if self._session is not None:
            unsent = self._session.close(why)
        self._runner.wake_waiters()
        if not self.handshaken.done():
            self.handshaken.set_result(ConnectionLostError(f"{self.endpoint}: {why}"))
        self.gone.set_result(why)
        self._owner.closed(self, why, unsent)


def _ended_mid_frame() -> PeerProtocolError:
    return PeerProtocolError("the stream ends within a frame", RefusalReason.TRUNCATED)


def _limit_retransmission_delay(transport: asyncio.Transport) -> None:
    """Make the kernel retransmit every second. By default it doubles the wait each time, so a
    network that was down for four seconds is used again after six: too late for leases."""
    with suppress(OSError):  # an older kernel: it recovers more slowly
        transport.get_extra_info("socket").setsockopt(
            socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, _RESEND_MS_MAX
        )
