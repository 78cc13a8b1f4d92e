"""One established connection without its socket: requests, answers, streams, deadlines.

Frames in (`take`), bytes out (`outgoing`), time by argument (`tick`, `wake_at_s`). Owns the
numbers of requests, what is pending in both directions, the outgoing queue, keep-alive and the
orderly end. It knows no task and no transport; `connection` drives it.

Only a breach of framing or sealing ends a connection. A message that cannot be decoded, is not
allowed or not known is answered with `CallFailed` and counted: a peer one version apart must be
able to go on.
"""

from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct

from hyperscale.wire.admission import Admission
from hyperscale.wire.call_deadlines import CallDeadlines
from hyperscale.wire.calls import InboundCall, PendingCall, ReplyFuture, StreamBuffer
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
from hyperscale.wire.frames import DEADLINE_MS_MAX, REQUEST_ID_MAX, Frame, encode_head
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
from hyperscale.wire.outbox import GONE, Outbox, QueuedFrame
from hyperscale.wire.registry import REGISTRY, MessagePriority, MessageSpec
from hyperscale.wire.sealing import TAG_BYTES

PING_AFTER_S = 5.0
LOST_AFTER_S = 15.0
STALL_S = 0.5
"""Waking later than this past the due time is a stall of ours, not silence of the peer's."""
_REMOTE_TEXT_CHARS_MAX = 2000

_CODE_OF_REASON = {
    RefusalReason.UNKNOWN: RemoteErrorCode.UNKNOWN_MESSAGE,
    RefusalReason.ROLE: RemoteErrorCode.ROLE,
    RefusalReason.MALFORMED: RemoteErrorCode.MALFORMED,
}
_CONTROL_KIND_MAX = 17
_CANCEL, _FAILED, _OVERLOADED, _END, _CREDIT, _PING, _PONG, _GOODBYE = (
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


class Session:
    """One connection's conversation. `on_call` gets every request that was taken on."""

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
        self.peer = agreement.peer
        self.outbox = Outbox()
        self.frames_received = 0
        self.frames_sent = 0
        self.answers_late = 0
        self._sealer = agreement.sealer
        self._opener = agreement.opener
        self._overhead = 0 if agreement.sealer is None else TAG_BYTES
        self._is_dialer = is_dialer
        self._parity = 1 if is_dialer else 0
        self._next_id = 1 if is_dialer else 2
        self._pending: dict[int, PendingCall] = {}
        self._calls: dict[int, InboundCall] = {}
        self._one_ways: set[InboundCall] = set()
        self._deadlines = CallDeadlines()
        self._admission = admission
        self._on_call = on_call
        self._on_refused = on_refused
        self._ping_after_s = ping_after_s
        self._lost_after_s = lost_after_s
        self._heard_s = now_s
        self._is_pinged = False
        self._due_s = now_s + ping_after_s
        self._has_said_goodbye = False
        self._has_heard_goodbye = False

    # -- asking ---------------------------------------------------------------------------

    def request(
        self,
        message: Struct,
        reply: type[Struct],
        waiter: ReplyFuture | None,
        *,
        deadline_s: float,
        inflow: StreamBuffer | None = None,
    ) -> int:
        """Queues a request; its outcome goes to `waiter`, or item by item to `inflow`."""
        spec = REGISTRY.spec_of(message)
        reply_spec = REGISTRY.by_type[reply]
        request_id = self._take_id()
        body = REGISTRY.encode(message)
        entry = QueuedFrame(spec.kind, request_id, spec.priority, deadline_s, body)
        self.outbox.push(entry)
        bucket = self._deadlines.add(request_id, deadline_s) if deadline_s else -1
        self._pending[request_id] = PendingCall(
            spec.name, entry, reply_spec, waiter=waiter, inflow=inflow, bucket=bucket
        )
        return request_id

    def send(self, message: Struct, *, deadline_s: float = 0.0) -> None:
        """Queues a one-way message."""
        spec = REGISTRY.spec_of(message)
        self.outbox.push(
            QueuedFrame(spec.kind, 0, spec.priority, deadline_s, REGISTRY.encode(message))
        )

    def cancel(self, request_id: int) -> None:
        """Nobody waits for this answer any more: takes the request back, or tells the peer."""
        pending = self._forget_pending(request_id)
        if pending is not None and not self.outbox.discard(pending.entry):
            self._push_control(CancelCall(), request_id)

    def grant(self, request_id: int, credit_bytes: int) -> None:
        """The reader of a stream has room again."""
        if request_id in self._pending:
            self._push_control(StreamCredit(credit_bytes), request_id)

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    # -- answering ------------------------------------------------------------------------

    @property
    def calls(self) -> list[InboundCall]:
        """What is being carried out for the peer."""
        return [*self._calls.values(), *self._one_ways]

    def answer(self, call: InboundCall, message: Struct) -> None:
        if not call.is_open:
            return
        if call.request_id:
            spec = REGISTRY.spec_of(message)
            # An answer is never less urgent than its question.
            self._push(call, spec, min(spec.priority, call.spec.priority), message)
        self.forget(call)

    def answer_failure(self, call: InboundCall, error: RemoteError) -> None:
        if not call.is_open:
            return
        if call.request_id:
            text, hint = error.detail[:_REMOTE_TEXT_CHARS_MAX], error.hint[:_REMOTE_TEXT_CHARS_MAX]
            self._push_control(CallFailed(error.code_text, text, hint), call.request_id)
        self.forget(call)

    def answer_overloaded(self, call: InboundCall, retry_after_s: float) -> None:
        if not call.is_open:
            return
        if call.request_id:
            self._push_control(CallOverloaded(retry_after_s, call.spec.name), call.request_id)
        self.forget(call)

    def answer_item(self, call: InboundCall, item: Struct) -> int:
        """Returns how many bytes of the stream's window the item takes."""
        if not call.is_open:
            return 0
        # A stream is bulk: it travels in the lane of its items, however urgent the question was.
        spec = REGISTRY.spec_of(item)
        call.lane = max(call.lane, spec.priority)
        return self._push(call, spec, call.lane, item)

    def answer_end(self, call: InboundCall) -> None:
        if call.is_open:
            self._push(call, REGISTRY.by_type[StreamEnd], call.lane, StreamEnd())
            self.forget(call)

    def forget(self, call: InboundCall) -> None:
        """The one way an inbound call ends."""
        if not call.is_open:
            return
        call.is_open = False
        if call.request_id:
            del self._calls[call.request_id]
            if call.bucket >= 0:
                self._deadlines.remove(call.request_id, call.bucket)
        else:
            self._one_ways.discard(call)
        self._admission.release(call.spec.priority)

    # -- frames in, bytes out -------------------------------------------------------------

    def take(self, frame: Frame, *, now_s: float) -> None:
        """One frame of the peer's. Raises `PeerProtocolError` if the connection must end."""
        body = frame.body
        if self._opener is not None:
            body = self._opener.open(frame.head, body)
        self._heard_s = now_s
        self._is_pinged = False
        self.frames_received += 1
        request_id = frame.request_id
        if request_id and request_id & 1 == self._parity:
            self._take_answer(request_id, frame.kind, body)
        elif frame.kind > _CONTROL_KIND_MAX:
            self._take_call(request_id, frame.kind, body, frame.deadline_ms, now_s)
        else:
            self._take_control(request_id, frame.kind, body)

    def outgoing(self, *, now_s: float, bytes_max: int) -> bytes:
        """The next frames to put on the wire, sealed, about `bytes_max` of them."""
        pop = self.outbox.pop
        sealer, overhead = self._sealer, self._overhead
        parts: list[bytes] = []
        size = 0
        while size < bytes_max:
            entry = pop(now_s=now_s)
            if entry is None:
                break
            body, deadline_s = entry.body, entry.deadline_s
            deadline_ms = 0
            if deadline_s:
                deadline_ms = min(int((deadline_s - now_s) * 1000) + 1, DEADLINE_MS_MAX)
            head = encode_head(
                entry.kind, entry.request_id, deadline_ms, entry.priority, len(body) + overhead
            )
            parts.append(head)
            parts.append(body if sealer is None else sealer.seal(head, body))
            size += len(body)
            entry.body = b""  # a pending request keeps its entry, not what it weighed
            self.frames_sent += 1
        return b"".join(parts)

    # -- time -----------------------------------------------------------------------------

    def wake_at_s(self) -> float:
        """When `tick` has something to do, at the latest."""
        after_s = self._lost_after_s if self._is_pinged else self._ping_after_s
        self._due_s = self._heard_s + after_s
        deadline_s = self._deadlines.wake_at_s()
        if deadline_s is not None and deadline_s < self._due_s:
            self._due_s = deadline_s
        return self._due_s

    def tick(self, *, now_s: float) -> bool:
        """Expires what is due. False: the peer has been silent for too long."""
        late_s = now_s - self._due_s
        if late_s > STALL_S:
            # We did not run, so we could not hear either: what the peer sent meanwhile is
            # still in the socket and is read before the next tick.
            self._heard_s += late_s
        for request_id in self._deadlines.expired(now_s=now_s):
            self._expire(request_id)
        silent_s = now_s - self._heard_s
        if silent_s >= self._lost_after_s:
            return False
        if silent_s >= self._ping_after_s and not self._is_pinged:
            self._is_pinged = True
            self._push_control(KeepAlive(), 0)
        return True

    # -- the end --------------------------------------------------------------------------

    def say_goodbye(self, why: str) -> None:
        """No request of ours follows what is queued now. In the last lane, so that none does."""
        if not self._has_said_goodbye:
            self._has_said_goodbye = True
            entry = QueuedFrame(
                _GOODBYE, 0, MessagePriority.LOW, 0.0, REGISTRY.encode(GoAway(why[:200]))
            )
            with suppress(QueueFullError):  # then the end comes by time instead
                self.outbox.push(entry)

    @property
    def is_leaving(self) -> bool:
        """Whether either side has said goodbye: nothing new is asked here."""
        return self._has_said_goodbye or self._has_heard_goodbye

    @property
    def is_drained(self) -> bool:
        """Whether both sides have said goodbye and nothing is left to do."""
        return (
            self._has_said_goodbye
            and self._has_heard_goodbye
            and not (self._pending or self._calls or self._one_ways or self.outbox)
        )

    def close(self, why: str) -> list[QueuedFrame]:
        """Ends everything; returns the one-way messages that were not sent."""
        unsent: list[QueuedFrame] = []
        for entry in self.outbox.drain():
            entry.fate = GONE
            if not entry.request_id and entry.kind > _CONTROL_KIND_MAX:
                unsent.append(entry)
        pending, self._pending = self._pending, {}
        for each in pending.values():
            name = f"{each.name} to {self.peer.node_id}"
            if each.entry.fate == GONE:
                each.fail(UnreachableError(f"{name}: not sent: {why}"))
            else:
                each.fail(ConnectionLostError(f"{name}: no answer: {why}"))
        for call in self.calls:
            call.cancel()
        return unsent

    # -- inside ---------------------------------------------------------------------------

    def _take_id(self) -> int:
        request_id = self._next_id
        while request_id in self._pending:  # after four billion calls the numbers come round
            request_id = self._id_after(request_id)
        self._next_id = self._id_after(request_id)
        return request_id

    def _id_after(self, request_id: int) -> int:
        return request_id + 2 if request_id + 2 <= REQUEST_ID_MAX else 2 - self._parity

    def _take_answer(self, request_id: int, kind: int, body: bytes) -> None:
        pending = self._pending.get(request_id)
        if pending is None:
            self.answers_late += 1  # cancelled or expired meanwhile
            return
        if kind != pending.reply.kind:
            self._take_other_answer(request_id, pending, kind, body)
            return
        try:
            message = pending.reply.decode(body)
        except (ValueError, RecursionError) as error:
            malformed = RemoteError(f"{pending.name}: {error}", code=RemoteErrorCode.MALFORMED)
            self._fail(request_id, malformed)
            return
        if pending.inflow is not None:
            pending.inflow.feed(message, len(body))
            return
        del self._pending[request_id]
        if pending.bucket >= 0:
            self._deadlines.remove(request_id, pending.bucket)
        waiter = pending.waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(message)

    def _take_other_answer(
        self, request_id: int, pending: PendingCall, kind: int, body: bytes
    ) -> None:
        name = f"{pending.name} to {self.peer.node_id}"
        if kind == _END and pending.inflow is not None:
            self._forget_pending(request_id)
            pending.inflow.end()
            return
        error: CallError
        if kind == _OVERLOADED:
            refused: CallOverloaded = REGISTRY.decode(kind, body)
            error = OverloadedError(
                f"{name}: refused, retry after {refused.retry_after_s:.3g} s",
                retry_after_s=refused.retry_after_s,
            )
        elif kind == _FAILED:
            failed: CallFailed = REGISTRY.decode(kind, body)
            error = RemoteError(
                f"{name}: {failed.code}: {failed.message}",
                code=RemoteErrorCode.parse(failed.code),
                hint=failed.hint,
                detail=failed.message,
                code_text=failed.code,
            )
        else:
            error = RemoteError(f"{name}: answered by kind {kind}", code=RemoteErrorCode.UNEXPECTED)
        self._fail(request_id, error)

    def _take_call(
        self, request_id: int, kind: int, body: bytes, deadline_ms: int, now_s: float
    ) -> None:
        if request_id in self._calls:
            raise PeerProtocolError(f"request {request_id} again", reason=RefusalReason.UNEXPECTED)
        spec = REGISTRY.by_kind.get(kind)
        if spec is None:
            refusal = PeerProtocolError(
                f"message kind {kind} is not known", reason=RefusalReason.UNKNOWN
            )
            self._refuse(request_id, refusal)
            return
        if self.peer.role not in spec.senders:
            text = f"a {self.peer.role} may not send {spec.name}"
            self._refuse(request_id, PeerProtocolError(text, reason=RefusalReason.ROLE))
            return
        retry_after_s = self._admission.admit(spec, self.peer.role, self.peer.node_id, now_s=now_s)
        if retry_after_s:
            if request_id:
                self._push_control(CallOverloaded(retry_after_s, spec.name), request_id)
            return
        try:
            message = spec.decode(body)
        except (ValueError, RecursionError) as error:
            self._admission.release(spec.priority)
            text = f"{spec.name} does not decode: {error}"
            self._refuse(request_id, PeerProtocolError(text, reason=RefusalReason.MALFORMED))
            return
        deadline_s = now_s + deadline_ms / 1000 if deadline_ms else 0.0
        call = InboundCall(self, spec, request_id, message, deadline_s)
        if request_id:
            self._calls[request_id] = call
            if deadline_s:
                call.bucket = self._deadlines.add(request_id, deadline_s)
        else:
            self._one_ways.add(call)
        self._on_call(call)

    def _take_control(self, request_id: int, kind: int, body: bytes) -> None:
        if kind == _CANCEL:
            call = self._calls.get(request_id)
            if call is not None:
                call.cancel()
        elif kind == _CREDIT:
            credit: StreamCredit = REGISTRY.decode(kind, body)
            call = self._calls.get(request_id)
            if call is not None:
                call.add_credit(credit.consumed_bytes)
        elif kind == _PING:
            self._push_control(KeepAliveReply(), 0)
        elif kind == _GOODBYE:
            self._has_heard_goodbye = True
            self.say_goodbye("")
        elif kind != _PONG:
            raise PeerProtocolError(
                f"kind {kind} on an established connection", reason=RefusalReason.UNEXPECTED
            )

    def _refuse(self, request_id: int, error: PeerProtocolError) -> None:
        self._on_refused(error)
        if request_id:
            code = _CODE_OF_REASON[error.reason]
            self._push_control(CallFailed(code, error.message, error.hint), request_id)

    def _push(self, call: InboundCall, spec: MessageSpec, priority: int, message: Struct) -> int:
        body = REGISTRY.encode(message)
        try:
            self.outbox.push(
                QueuedFrame(spec.kind, call.request_id, priority, call.deadline_s, body)
            )
        except QueueFullError:
            text = "the answer did not fit the queue to this peer"
            self._push_control(CallFailed(RemoteErrorCode.QUEUE_FULL, text), call.request_id)
            self.forget(call)
        return len(body)

    def _push_control(self, message: Struct, request_id: int) -> None:
        spec = REGISTRY.by_type[type(message)]
        self.outbox.push(
            QueuedFrame(
                spec.kind, request_id, MessagePriority.CRITICAL, 0.0, REGISTRY.encode(message)
            )
        )

    def _forget_pending(self, request_id: int) -> PendingCall | None:
        pending = self._pending.pop(request_id, None)
        if pending is not None and pending.bucket >= 0:
            self._deadlines.remove(request_id, pending.bucket)
        return pending

    def _fail(self, request_id: int, error: CallError) -> None:
        pending = self._forget_pending(request_id)
        if pending is not None:
            pending.fail(error)

    def _expire(self, request_id: int) -> None:
        if request_id & 1 != self._parity:
            call = self._calls.get(request_id)
            if call is not None:
                call.cancel()
            return
        pending = self._pending.get(request_id)
        if pending is None:
            return
        name = f"{pending.name} to {self.peer.node_id}"
        if self.outbox.discard(pending.entry):
            self._fail(request_id, UnreachableError(f"{name}: not sent before the deadline"))
        else:
            self._push_control(CancelCall(), request_id)
            self._fail(request_id, DeadlineError(f"{name}: no answer before the deadline"))
