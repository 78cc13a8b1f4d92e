"""A session on an asyncio transport: reading, writing in batches, one timer, handler tasks.

The thin shell around `handshake` and `session`. Everything that leaves during one turn of the
loop is sealed and written together at its end. Handler tasks belong to their connection: the
peer's cancel, the call's deadline and the end of the connection end them.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from msgspec import Struct

from hyperscale.errors import HyperscaleError
from hyperscale.wire.admission import Admission
from hyperscale.wire.calls import InboundCall, StreamBuffer
from hyperscale.wire.errors import (
    ConnectionLostError,
    PeerProtocolError,
    QueueFullError,
    RefusalReason,
    RemoteError,
    RemoteErrorCode,
    UnreachableError,
)
from hyperscale.wire.handlers import HandlerKind, Handlers, fail, finish
from hyperscale.wire.handshake import Handshake, HandshakeResult, handshake_decoder, refusal_frame
from hyperscale.wire.messages import SALT_BYTES, Introduction
from hyperscale.wire.outbox import QueuedFrame
from hyperscale.wire.registry import REGISTRY, UNKNOWN_KIND_BYTES_MAX
from hyperscale.wire.sealing import TAG_BYTES
from hyperscale.wire.security import Security, SecurityMode, certificate_identity
from hyperscale.wire.session import Session
from hyperscale.wire.streams import ReplyStream

LEAVE_S = 30.0
"""What is in flight when a connection is left has this long to finish."""
CLOSE_S = 1.0
BATCH_BYTES = 256 * 1024
WRITE_BUFFER_BYTES = 1024 * 1024
STREAM_OUTBOX_BYTES = 1024 * 1024
"""Streams wait while more than this is queued, so that they never crowd out the rest."""

_TCP_RTO_MAX_MS = 44  # Linux 6.15 and later; the socket module has no name for it yet
_RESEND_MS_MAX = 1000

_Reply = TypeVar("_Reply", bound=Struct)
_Item = TypeVar("_Item", bound=Struct)


class ConnectionOwner(Protocol):
    """What a connection needs of the node it belongs to."""

    local: Introduction
    security: Security
    handlers: Handlers
    admission: Admission
    protocol: tuple[int, int]

    def vet(self, peer: Introduction) -> None:
        """Raises `PeerProtocolError` for a peer that is not wanted."""

    def opened(self, connection: "Connection") -> None: ...

    def closed(self, connection: "Connection", why: str, unsent: list[QueuedFrame]) -> None: ...

    def refused(self, connection: "Connection", error: PeerProtocolError) -> None: ...

    def ending(self, task: asyncio.Task[None]) -> None:
        """A handler task has been cancelled and may take a moment to end."""


class Connection(asyncio.Protocol):
    """One connection to one peer, from its first byte to its last."""

    def __init__(self, owner: ConnectionOwner, *, is_dialer: bool, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        self.is_dialer = is_dialer
        self.host = host
        self.port = port
        self.handshaken: asyncio.Future[HyperscaleError | None] = loop.create_future()
        """Resolved when the handshake has ended: with what went wrong, or with None."""
        self.gone: asyncio.Future[str] = loop.create_future()
        """Resolved with the reason when the connection has ended."""
        self.opened_s = 0.0
        self._loop = loop
        self._owner = owner
        self._session: Session | None = None
        self._agreement: HandshakeResult | None = None
        self._transport: asyncio.Transport | None = None
        self._handshake: Handshake | None = None
        self._decoder = handshake_decoder()
        self._why = ""
        self._is_closing = False
        self._is_paused = False
        self._is_flush_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._leave_timer: asyncio.TimerHandle | None = None
        self._room_waiters: list[asyncio.Future[None]] = []

    # -- who and how ----------------------------------------------------------------------

    @property
    def peer(self) -> Introduction:
        return self._established().peer

    @property
    def capabilities(self) -> frozenset[str]:
        """What both sides can do."""
        agreement = self._agreement
        return frozenset() if agreement is None else agreement.capabilities

    @property
    def protocol(self) -> tuple[int, int]:
        agreement = self._agreement
        return self._owner.protocol if agreement is None else agreement.protocol

    @property
    def is_established(self) -> bool:
        """Whether the handshake succeeded, ever."""
        return self._session is not None

    @property
    def is_usable(self) -> bool:
        """Whether something new may be asked here."""
        session = self._session
        return session is not None and not self._is_closing and not session.is_leaving

    @property
    def session(self) -> Session:
        """The state below, for statistics and tests."""
        return self._established()

    # -- asking ---------------------------------------------------------------------------

    async def call(self, message: Struct, reply: type[_Reply], *, deadline_s: float) -> _Reply:
        """Sends a request and waits for its answer; `deadline_s` on the loop's clock."""
        session = self._established()
        if self._is_closing:
            raise UnreachableError(f"{type(message).__name__}: the connection is closed")
        future: asyncio.Future[_Reply] = self._loop.create_future()
        request_id = session.request(message, reply, future, deadline_s=deadline_s)
        if deadline_s < self._timer_s:
            self._arm()
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)
        try:
            return await future
        except asyncio.CancelledError:
            session.cancel(request_id)
            self._flush_soon()
            raise

    def send(self, message: Struct, *, deadline_s: float = 0.0, at_once: bool = False) -> None:
        """Sends a one-way message: queued now, or `QueueFullError`. With the rest of this turn
        of the loop, or `at_once` if others wait for it and more of this turn would take long."""
        session = self._established()
        if self._is_closing:
            raise UnreachableError(f"{type(message).__name__}: the connection is closed")
        session.send(message, deadline_s=deadline_s)
        if at_once:
            self._flush()
        else:
            self._flush_soon()

    def resend(self, entry: QueuedFrame) -> None:
        """Queues what another connection did not send; dropped if the queue is full."""
        with suppress(QueueFullError):
            self._established().outbox.push(entry)
        self._flush_soon()

    def stream(
        self, message: Struct, item: type[_Item], *, deadline_s: float
    ) -> ReplyStream[_Item]:
        """Sends a request that is answered in parts."""
        return ReplyStream(self, message, item, deadline_s)

    def open_stream(
        self, message: Struct, item: type[Struct], inflow: StreamBuffer, deadline_s: float
    ) -> int:
        session = self._established()
        if self._is_closing:
            raise UnreachableError(f"{type(message).__name__}: the connection is closed")
        request_id = session.request(message, item, None, deadline_s=deadline_s, inflow=inflow)
        self._arm()
        self._flush_soon()
        return request_id

    def cancel(self, request_id: int) -> None:
        if self._session is not None:
            self._session.cancel(request_id)
            self._flush_soon()

    def grant(self, request_id: int, credit_bytes: int) -> None:
        if self._session is not None:
            self._session.grant(request_id, credit_bytes)
            self._flush_soon()

    # -- the end --------------------------------------------------------------------------

    def leave(self, why: str) -> None:
        """Asks nothing new, finishes what is in flight, then closes."""
        if self._session is None:
            self.abort(why)
            return
        self._why = self._why or why
        self._session.say_goodbye(why)
        self._flush_soon()
        if self._leave_timer is None:
            self._leave_timer = self._loop.call_later(LEAVE_S, self.abort, why)

    def abort(self, why: str) -> None:
        """Ends it now, whatever is in flight."""
        self._end(why)
        if self._transport is not None:
            self._transport.abort()
        else:
            self._lose(why)

    def drop(self, why: str) -> None:
        """For a transport that never came to be, or that nobody will report the end of."""
        self.abort(why)
        self._lose(why)

    def give_up(self, why: str) -> None:
        """`abort`, unless it is ending already: then what it has to say may still be sent."""
        if not self._is_closing or self._transport is None:
            self.abort(why)

    # -- asyncio.Protocol -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's are not its subclasses
        self._transport = transport
        if self._is_closing:
            transport.abort()
            return
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        _resend_often(transport)
        owner, security = self._owner, self._owner.security
        try:
            vouched = None
            if security.mode is SecurityMode.TLS:
                vouched = certificate_identity(transport.get_extra_info("peercert"))
        except PeerProtocolError as error:
            transport.write(refusal_frame(error))
            self._breach(error)
            return
        self._handshake = Handshake(
            owner.local,
            security.mode,
            security.secrets,
            is_dialer=self.is_dialer,
            salt=os.urandom(SALT_BYTES),
            vouched=vouched,
            vet=owner.vet,
            protocol=owner.protocol,
        )
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
                    self._shake(frame)
        except PeerProtocolError as error:
            self._breach(error)
            return
        except QueueFullError as error:
            self.abort(f"the peer does not read what it asked for: {error}")
            return
        session = self._session
        if session is not None and (session.outbox or session.is_leaving):
            self._flush_soon()

    def eof_received(self) -> bool:
        if self._decoder.is_mid_frame and not self._is_closing:
            self._breach(
                PeerProtocolError("the stream ends within a frame", reason=RefusalReason.TRUNCATED)
            )
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ssl.SSLError) and self._session is None:
            self._reject(certificate_error(exc))
        why = self._why or ("closed by the peer" if exc is None else f"lost: {exc}")
        if self._session is None and self._decoder.is_mid_frame and not self._is_closing:
            self._reject(
                PeerProtocolError("the stream ends within a frame", reason=RefusalReason.TRUNCATED)
            )
        self._lose(why)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._flush_soon()

    # -- inside ---------------------------------------------------------------------------

    def _established(self) -> Session:
        if self._session is None:
            raise UnreachableError(f"the connection to {self.host}:{self.port} is not established")
        return self._session

    def _shake(self, frame: Any) -> None:
        handshake, transport = self._handshake, self._transport
        if handshake is None or transport is None:
            return
        try:
            answer = handshake.receive(frame)
        except PeerProtocolError as error:
            transport.write(handshake.refusal(error))
            raise
        if handshake.agreement is not None:
            self._open(handshake.agreement)
        transport.write(answer)
        if self._session is not None and not self.handshaken.done():
            # Only now: whoever is told may write at once, and our introduction goes first.
            self._owner.opened(self)
            self.handshaken.set_result(None)

    def _open(self, agreement: HandshakeResult) -> None:
        self._agreement = agreement
        self.opened_s = self._loop.time()
        self._handshake = None
        self._decoder.limits = REGISTRY.limits
        self._decoder.limit_other = UNKNOWN_KIND_BYTES_MAX
        self._decoder.overhead = 0 if agreement.opener is None else TAG_BYTES
        self._session = Session(
            agreement,
            is_dialer=self.is_dialer,
            admission=self._owner.admission,
            on_call=self._on_call,
            on_refused=lambda error: self._owner.refused(self, error),
            now_s=self._loop.time(),
        )
        self._arm()

    def _flush_soon(self) -> None:
        if not self._is_flush_due and not self._is_closing:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        # The one that was planned, if this came before it, will find nothing to do.
        self._is_flush_due = False
        session, transport = self._session, self._transport
        if session is None or transport is None or self._is_closing:
            return
        now_s = self._loop.time()
        while not self._is_paused:
            data = session.outgoing(now_s=now_s, bytes_max=BATCH_BYTES)
            if not data:
                break
            transport.write(data)
        if self._room_waiters and session.outbox.held_bytes < STREAM_OUTBOX_BYTES:
            self._wake_waiters()
        if session.is_leaving and session.is_drained:
            self._end(self._why or "the peer said goodbye")
            self._close(transport)

    def _arm(self) -> None:
        """Sets the one timer to the session's next deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._session is not None and not self._is_closing:
            self._timer_s = self._session.wake_at_s()
            self._timer = self._loop.call_at(self._timer_s, self._on_timer)

    def _on_timer(self) -> None:
        session = self._session
        if session is None or self._is_closing:
            return
        try:
            is_alive = session.tick(now_s=self._loop.time())
        except QueueFullError as error:
            self.abort(f"the peer reads nothing: {error}")
            return
        if not is_alive:
            self.abort("the peer has been silent for too long")
            return
        self._flush_soon()
        self._arm()

    def _on_call(self, call: InboundCall) -> None:
        handler = self._owner.handlers.get(call.spec.kind)
        if handler is None:
            text = f"a {self._owner.local.role} does not serve {call.spec.name}"
            call.fail(RemoteError(text, code=RemoteErrorCode.UNHANDLED))
            return
        if handler.shape is HandlerKind.PLAIN:
            try:
                finish(call, handler.function(call, call.message))
            except Exception as error:  # noqa: BLE001  whatever it does, the caller is answered
                fail(call, error)
            return
        if handler.shape is HandlerKind.ASYNC:
            work = self._serve(call, handler.function)
        else:
            work = self._serve_stream(call, handler.function)
        task = self._loop.create_task(work, name=handler.name)
        call.on_cancel = partial(self._cancel_task, task)

    def _cancel_task(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        self._owner.ending(task)

    async def _serve(self, call: InboundCall, function: Callable[..., Any]) -> None:
        try:
            finish(call, await function(call, call.message))
        except Exception as error:  # noqa: BLE001  whatever a handler does, the caller is answered
            fail(call, error)
        except BaseException:  # cancelled: by the peer, by the deadline, or because the node stops
            call.abandon()
            raise
        if not self._is_flush_due:
            self._flush_soon()

    async def _serve_stream(self, call: InboundCall, function: Callable[..., Any]) -> None:
        items = function(call, call.message)
        try:
            async for item in items:
                await self._room_for(call)
                call.send_item(item)
                self._flush_soon()
            call.end_stream()
        except Exception as error:  # noqa: BLE001  whatever a handler does, the caller is answered
            fail(call, error)
        except BaseException:
            call.abandon()
            raise
        finally:
            await items.aclose()
            self._flush_soon()

    async def _room_for(self, call: InboundCall) -> None:
        """Waits until the reader has consumed enough and the queue to it is short."""
        session = call.session
        while call.is_open and (
            call.credit_bytes <= 0 or session.outbox.held_bytes >= STREAM_OUTBOX_BYTES
        ):
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._room_waiters.append(waiter)
            call.on_credit = self._wake_waiters
            await waiter

    def _wake_waiters(self) -> None:
        waiters, self._room_waiters = self._room_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _breach(self, error: PeerProtocolError) -> None:
        """The peer broke the rules: it is told as far as it can be, counted, and dropped."""
        self._reject(error)
        transport = self._transport
        if transport is None:
            return
        if self._session is not None and not self._is_closing:
            self._session.say_goodbye(str(error))
            transport.write(self._session.outgoing(now_s=self._loop.time(), bytes_max=BATCH_BYTES))
        self._end(str(error))
        self._close(transport)

    def _reject(self, error: PeerProtocolError) -> None:
        if not self.handshaken.done():
            self.handshaken.set_result(error)
        else:
            self._owner.refused(self, error)

    def _end(self, why: str) -> None:
        """Nothing is read or written from here on; `connection_lost` follows."""
        self._why = self._why or why
        self._is_closing = True

    def _close(self, transport: asyncio.Transport) -> None:
        """Sends what is written, then closes; whoever does not take it in time goes without."""
        transport.close()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(CLOSE_S, transport.abort)

    def _lose(self, why: str) -> None:
        if self.gone.done():
            return
        self._is_closing = True
        for timer in (self._timer, self._leave_timer):
            if timer is not None:
                timer.cancel()
        unsent: list[QueuedFrame] = []
        if self._session is not None:
            unsent = self._session.close(why)
        self._wake_waiters()
        if not self.handshaken.done():
            self.handshaken.set_result(ConnectionLostError(f"{self.host}:{self.port}: {why}"))
        self.gone.set_result(why)
        self._owner.closed(self, why, unsent)


def _resend_often(transport: asyncio.Transport) -> None:
    """What was lost is sent again each second. The kernel waits twice as long each time, so a
    network that was gone for four seconds would be used again after six: leases do not last."""
    with suppress(OSError):  # an older kernel: then it takes longer
        transport.get_extra_info("socket").setsockopt(
            socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, _RESEND_MS_MAX
        )


def certificate_error(error: ssl.SSLError) -> PeerProtocolError:
    """What TLS refused, in the words of whoever has to mend it."""
    detail = getattr(error, "verify_message", "") or error.reason or str(error)
    return PeerProtocolError(
        f"TLS refused the connection: {detail}",
        reason=RefusalReason.CERTIFICATE,
        hint="both certificates must be valid now and signed by the authority the other trusts",
    )
