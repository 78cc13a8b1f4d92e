"""One established connection without its socket: calls, replies, streams, deadlines.

Frames in (`take`), bytes out (`outgoing`), time by argument (`tick`, `wake_at_s`). Owns the calls
of both sides, the outgoing queue, the keep-alive and the orderly shutdown. `connection` drives
it; it knows neither tasks nor transports.

Only a breach of framing or sealing ends a connection. A message that cannot be decoded, is not
allowed or not known is answered with `CallFailed` and counted: peers one version apart must be
able to go on.
"""

from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct

from hyperscale.wire.admission import Admission
from hyperscale.wire.calls import (
    InboundCall,
    InboundCalls,
    PendingCall,
    PendingCalls,
    ReplyFuture,
)
from hyperscale.wire.errors import (
    CallError,
    ConnectionLostError,
    DeadlineError,
    OverloadedError,
    PeerProtocolError,
    QueueFullError,
    RefusalReason,
    RemoteError,
    RemoteErrorCode,
    UnreachableError,
)
from hyperscale.wire.frames import DEADLINE_MS_MAX, Frame, encode_head
from hyperscale.wire.handshake import HandshakeResult
from hyperscale.wire.messages import (
    CallFailed,
    CallOverloaded,
    CancelCall,
    GoAway,
    KeepAlive,
    KeepAliveReply,
    StreamCredit,
    StreamEnd,
)
from hyperscale.wire.outbox import FrameFate, Outbox, QueuedFrame
from hyperscale.wire.registry import CONTROL_KIND_MAX, REGISTRY, MessagePriority
from hyperscale.wire.sealing import TAG_BYTES
from hyperscale.wire.streams import StreamBuffer

PING_AFTER_S = 5.0
LOST_AFTER_S = 15.0
STALL_S = 0.5
"""A tick later than this is a stall of this node, not silence of the peer."""

_CODE_OF_REASON = {
    RefusalReason.UNKNOWN: RemoteErrorCode.UNKNOWN_MESSAGE,
    RefusalReason.ROLE: RemoteErrorCode.ROLE,
    RefusalReason.MALFORMED: RemoteErrorCode.MALFORMED,
}
_CRITICAL = MessagePriority.CRITICAL
_CANCEL, _FAILED, _OVERLOADED, _END, _CREDIT, _KEEP_ALIVE, _KEEP_ALIVE_REPLY, _GO_AWAY = (
    REGISTRY.by_type[struct].kind
    for struct in (
        CancelCall,
        CallFailed,
        CallOverloaded,
        StreamEnd,
        StreamCredit,
        KeepAlive,
        KeepAliveReply,
        GoAway,
    )
)


class KeepAliveTimer:
    """When the peer was last heard, and when the session next has to act."""

    __slots__ = ("_lost_after_s", "_ping_after_s", "due_s", "heard_s", "is_pinged", "opened_s")

    def __init__(self, *, now_s: float, ping_after_s: float, lost_after_s: float) -> None:
        self._ping_after_s = ping_after_s
        self._lost_after_s = lost_after_s
        self.opened_s = now_s
        self.heard_s = now_s
        self.is_pinged = False
        self.due_s = now_s + ping_after_s

    def next_due_s(self) -> float:
        """Return when the peer has to be pinged or given up if it stays silent."""
        return self.heard_s + (self._lost_after_s if self.is_pinged else self._ping_after_s)

    def forgive_stall(self, *, now_s: float) -> None:
        """Do not count a stall of this node as silence: the peer's frames wait in the socket."""
        late_s = now_s - self.due_s
        if late_s > STALL_S:
            self.heard_s += late_s

    def is_lost(self, *, now_s: float) -> bool:
        """Return True if the peer has been silent for too long."""
        return now_s - self.heard_s >= self._lost_after_s

    def should_ping(self, *, now_s: float) -> bool:
        """Return True once per silence, when a ping is due."""
        if self.is_pinged or now_s - self.heard_s < self._ping_after_s:
            return False
        self.is_pinged = True
        return True


class Session:
    """The calls of one connection. `on_call` gets every call of the peer that was admitted."""

    def __init__(
        self,
        agreement: HandshakeResult,
        *,
        is_dialer: bool,
        admission: Admission,
        on_call: Callable[[InboundCall], None],
        on_refused: Callable[[PeerProtocolError], None],
        now_s: float,
        ping_after_s: float = PING_AFTER_S,
        lost_after_s: float = LOST_AFTER_S,
    ) -> None:
        self.agreement = agreement
        self.peer = agreement.peer
        self.outbox = Outbox()
        self._sealer = agreement.sealer
        self._opener = agreement.opener
        self.pending = PendingCalls(is_dialer=is_dialer)
        self.inbound = InboundCalls(admission)
        self._on_call = on_call
        self._on_refused = on_refused
        self._keep_alive = KeepAliveTimer(
            now_s=now_s, ping_after_s=ping_after_s, lost_after_s=lost_after_s
        )
        self._is_go_away_sent = False
        self._is_go_away_received = False

    @property
    def opened_s(self) -> float:
        """When the handshake succeeded."""
        return self._keep_alive.opened_s

    # -- calls of this node ---------------------------------------------------------------

    def request(
        self,
        message: Struct,
        reply: type[Struct],
        future: ReplyFuture | None,
        *,
        deadline_s: float,
        buffer: StreamBuffer | None = None,
    ) -> int:
        """Queue a request; its outcome goes to `future`, or item by item to `buffer`."""
        spec = REGISTRY.spec_of(message)
        reply_spec = REGISTRY.by_type[reply]
        pending = self.pending
        request_id = pending.take_id()
        body = REGISTRY.encode_as(spec, message)
        frame = QueuedFrame(spec.kind, request_id, spec.priority, deadline_s, body)
        self.outbox.push(frame)
        call = PendingCall(spec.name, frame, reply_spec, future, buffer)
        pending.add(request_id, call, deadline_s)
        return request_id

    def send(self, message: Struct, *, deadline_s: float = 0.0) -> None:
        """Queue a one-way message."""
        spec = REGISTRY.spec_of(message)
        body = REGISTRY.encode_as(spec, message)
        self.outbox.push(QueuedFrame(spec.kind, 0, spec.priority, deadline_s, body))

    def cancel(self, request_id: int) -> None:
        """Give up a request: drop it from the queue, or tell the peer to cancel it."""
        call = self.pending.pop(request_id)
        if call is not None and not self.outbox.discard(call.frame):
            self.push_control(CancelCall(), request_id)

    def grant(self, request_id: int, credit_bytes: int) -> None:
        """Allow the sender of a stream to send this many bytes more."""
        if request_id in self.pending.by_id:
            self.push_control(StreamCredit(credit_bytes), request_id)

    def push_control(self, message: Struct, request_id: int) -> None:
        """Queue a message of the wire itself."""
        spec = REGISTRY.by_type[type(message)]
        body = REGISTRY.encode_as(spec, message)
        self.outbox.push(QueuedFrame(spec.kind, request_id, _CRITICAL, 0.0, body))

    # -- frames in, bytes out -------------------------------------------------------------

    def take(self, frame: Frame, *, now_s: float) -> None:
        """Handle one frame of the peer. Raise `PeerProtocolError` if the connection must end."""
        body = frame.body
        if self._opener is not None:
            body = self._opener.open(frame.head, body)
        keep_alive = self._keep_alive
        keep_alive.heard_s = now_s
        keep_alive.is_pinged = False
        request_id = frame.request_id
        if request_id and request_id & 1 == self.pending.parity:
            self._take_reply(request_id, frame.kind, body)
        elif frame.kind > CONTROL_KIND_MAX:
            self._take_call(request_id, frame.kind, body, frame.deadline_ms, now_s)
        else:
            self._take_control(request_id, frame.kind, body)

    def outgoing(self, *, now_s: float, bytes_max: int) -> bytes:
        """Return the next frames to write, sealed, about `bytes_max` of them."""
        pop, sealer = self.outbox.pop, self._sealer
        overhead = 0 if sealer is None else TAG_BYTES
        parts: list[bytes] = []
        size = 0
        while size < bytes_max:
            frame = pop(now_s=now_s)
            if frame is None:
                break
            body, deadline_s = frame.body, frame.deadline_s
            deadline_ms = 0
            if deadline_s:
                deadline_ms = min(int((deadline_s - now_s) * 1000) + 1, DEADLINE_MS_MAX)
            head = encode_head(
                frame.kind, frame.request_id, deadline_ms, frame.priority, len(body) + overhead
            )
            parts.append(head)
            parts.append(body if sealer is None else sealer.seal(head, body))
            size += len(body)
            frame.body = b""  # a pending call keeps its frame, but not the memory of the body
        return b"".join(parts)

    # -- time -----------------------------------------------------------------------------

    def wake_at_s(self) -> float:
        """Return when `tick` is due at the latest."""
        due_s = self._keep_alive.next_due_s()
        for calls in (self.pending, self.inbound):
            deadline_s = calls.deadlines.wake_at_s()
            if deadline_s is not None and deadline_s < due_s:
                due_s = deadline_s
        self._keep_alive.due_s = due_s
        return due_s

    def tick(self, *, now_s: float) -> bool:
        """End calls past their deadline and ping a silent peer; return False if it is lost."""
        keep_alive = self._keep_alive
        keep_alive.forgive_stall(now_s=now_s)
        for request_id in self.inbound.deadlines.expired(now_s=now_s):
            call = self.inbound.by_id.get(request_id)
            if call is not None:
                call.cancel()
        for request_id in self.pending.deadlines.expired(now_s=now_s):
            self._expire(request_id)
        if keep_alive.is_lost(now_s=now_s):
            return False
        if keep_alive.should_ping(now_s=now_s):
            self.push_control(KeepAlive(), 0)
        return True

    # -- shutdown -------------------------------------------------------------------------

    def send_go_away(self, why: str) -> None:
        """Announce that no request follows. In the last lane, after every queued request."""
        if not self._is_go_away_sent:
            self._is_go_away_sent = True
            body = REGISTRY.encode(GoAway(why[:200]))
            with suppress(QueueFullError):  # then the connection ends by its leave timeout
                self.outbox.push(QueuedFrame(_GO_AWAY, 0, MessagePriority.LOW, 0.0, body))

    @property
    def is_leaving(self) -> bool:
        """True once either side has sent `GoAway`: no new request may start."""
        return self._is_go_away_sent or self._is_go_away_received

    @property
    def is_drained(self) -> bool:
        """True once both sides have sent `GoAway` and every call has ended."""
        return (
            self._is_go_away_sent
            and self._is_go_away_received
            and not (self.pending.by_id or self.inbound or self.outbox)
        )

    def close(self, why: str) -> list[QueuedFrame]:
        """End every call; return the one-way messages that were not sent."""
        unsent: list[QueuedFrame] = []
        for frame in self.outbox.drain():
            frame.fate = FrameFate.GONE
            if not frame.request_id and frame.kind > CONTROL_KIND_MAX:
                unsent.append(frame)
        pending = list(self.pending.by_id.values())
        self.pending.by_id.clear()
        for call in pending:
            name = f"{call.name} to {self.peer.node_id}"
            if call.frame.fate is FrameFate.GONE:
                call.fail(UnreachableError(f"{name}: not sent: {why}"))
            else:
                call.fail(ConnectionLostError(f"{name}: no reply: {why}"))
        for inbound in self.inbound:
            inbound.cancel()
        return unsent

    def _take_reply(self, request_id: int, kind: int, body: bytes) -> None:
        call = self.pending.by_id.get(request_id)
        if call is None:
            return  # it was cancelled or timed out meanwhile
        if kind != call.reply.kind:
            if kind == _END and call.buffer is not None:
                self.pending.pop(request_id)
                call.buffer.end()
            else:
                name = f"{call.name} to {self.peer.node_id}"
                self._fail(request_id, _error_of_reply(name, kind, body))
            return
        try:
            message = call.reply.decode(body)
        except (ValueError, RecursionError) as error:
            text = f"{call.name}: the reply does not decode: {error}"
            self._fail(request_id, RemoteError(text, code=RemoteErrorCode.MALFORMED))
            return
        if call.buffer is not None:
            call.buffer.feed(message, len(body))
            return
        del self.pending.by_id[request_id]
        if call.bucket >= 0:
            self.pending.deadlines.remove(request_id, call.bucket)
        future = call.future
        if future is not None and not future.done():
            future.set_result(message)

    def _take_call(
        self, request_id: int, kind: int, body: bytes, deadline_ms: int, now_s: float
    ) -> None:
        if request_id in self.inbound.by_id:
            raise PeerProtocolError(f"request id {request_id} is in use", RefusalReason.UNEXPECTED)
        spec = REGISTRY.by_kind.get(kind)
        if spec is None:
            self._refuse(request_id, f"message kind {kind} is not known", RefusalReason.UNKNOWN)
            return
        peer, admission = self.peer, self.inbound.admission
        problem = spec.sending_problem(peer.role, self.agreement.principal)
        if problem:
            self._refuse(request_id, problem, RefusalReason.ROLE)
            return
        retry_after_s = admission.admit(spec, peer.role, peer.node_id, now_s=now_s)
        if retry_after_s:
            if request_id:
                self.push_control(CallOverloaded(retry_after_s, spec.name), request_id)
            return
        try:
            message = spec.decode(body)
        except (ValueError, RecursionError) as error:
            admission.release(spec.priority)
            text = f"{spec.name} does not decode: {error}"
            self._refuse(request_id, text, RefusalReason.MALFORMED)
            return
        deadline_s = now_s + deadline_ms / 1000 if deadline_ms else 0.0
        call = InboundCall(self, spec, request_id, message, deadline_s)
        self.inbound.add(call)
        self._on_call(call)

    def _take_control(self, request_id: int, kind: int, body: bytes) -> None:
        if kind == _CANCEL:
            call = self.inbound.by_id.get(request_id)
            if call is not None:
                call.cancel()
        elif kind == _CREDIT:
            credit: StreamCredit = REGISTRY.decode(kind, body)
            call = self.inbound.by_id.get(request_id)
            if call is not None:
                call.add_credit(credit.consumed_bytes)
        elif kind == _KEEP_ALIVE:
            self.push_control(KeepAliveReply(), 0)
        elif kind == _GO_AWAY:
            self._is_go_away_received = True
            self.send_go_away("")
        elif kind != _KEEP_ALIVE_REPLY:
            raise PeerProtocolError(
                f"kind {kind} on an established connection", RefusalReason.UNEXPECTED
            )

    def _refuse(self, request_id: int, text: str, reason: RefusalReason) -> None:
        self._on_refused(PeerProtocolError(text, reason=reason))
        if request_id:
            self.push_control(CallFailed(_CODE_OF_REASON[reason], text), request_id)

    def _fail(self, request_id: int, error: CallError) -> None:
        call = self.pending.pop(request_id)
        if call is not None:
            call.fail(error)

    def _expire(self, request_id: int) -> None:
        call = self.pending.by_id.get(request_id)
        if call is None:
            return
        name = f"{call.name} to {self.peer.node_id}"
        if self.outbox.discard(call.frame):
            self._fail(request_id, UnreachableError(f"{name}: not sent before the deadline"))
        else:
            self.push_control(CancelCall(), request_id)
            self._fail(request_id, DeadlineError(f"{name}: no reply before the deadline"))


def _error_of_reply(name: str, kind: int, body: bytes) -> CallError:
    """Return the error that a reply other than the expected one means."""
    if kind == _OVERLOADED:
        refused: CallOverloaded = REGISTRY.decode(kind, body)
        return OverloadedError(
            f"{name}: refused, retry after {refused.retry_after_s:.3g} s",
            retry_after_s=refused.retry_after_s,
        )
    if kind == _FAILED:
        failed: CallFailed = REGISTRY.decode(kind, body)
        return RemoteError(
            f"{name}: {failed.code}: {failed.message}",
            code=RemoteErrorCode.parse(failed.code),
            hint=failed.hint,
            detail=failed.message,
            code_text=failed.code,
        )
    return RemoteError(f"{name}: the reply is of kind {kind}", code=RemoteErrorCode.UNEXPECTED)
