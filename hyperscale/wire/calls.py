"""Calls inside a session: those this node waits for, and those it executes for the peer.

No socket, clock or task: an asyncio `Future` is a `ReplyFuture`, and so is a stub in a test.
"""

import heapq
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from hyperscale.wire.admission import Admission
from hyperscale.wire.client_access import Principal
from hyperscale.wire.errors import QueueFullError, RemoteError, RemoteErrorCode
from hyperscale.wire.frames import REQUEST_ID_MAX
from hyperscale.wire.messages import CallFailed, CallOverloaded, Introduction, StreamEnd
from hyperscale.wire.outbox import QueuedFrame
from hyperscale.wire.registry import REGISTRY, MessageSpec
from hyperscale.wire.streams import STREAM_WINDOW_BYTES, StreamBuffer

if TYPE_CHECKING:
    from hyperscale.wire.session import Session

_REMOTE_TEXT_CHARS_MAX = 2000
QUANTUM_S = 0.02
_NO_BUCKET = -1  # of a call without a deadline


class ReplyFuture(Protocol):
    """Receives the reply of one call, or the error it ended with."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class CallDeadlines:
    """Request ids and their deadlines, in buckets of `QUANTUM_S`: removing one is a set operation.

    Never early, and at most `QUANTUM_S` late. Most deadlines are never reached: a heap would keep
    every finished call until its deadline, and a timer per call costs more than the call.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, set[int]] = {}
        self._order: list[int] = []

    def add(self, number: int, deadline_s: float) -> int:
        """Add a deadline; return its bucket, which `remove` needs."""
        bucket = int(deadline_s / QUANTUM_S) + 1
        members = self._buckets.get(bucket)
        if members is None:
            self._buckets[bucket] = {number}
            heapq.heappush(self._order, bucket)
        else:
            members.add(number)
        return bucket

    def remove(self, number: int, bucket: int) -> None:
        members = self._buckets.get(bucket)
        if members is not None:
            members.discard(number)

    def wake_at_s(self) -> float | None:
        """Return when a deadline may expire next; None if there is none."""
        while self._order:
            bucket = self._order[0]
            if self._buckets[bucket]:
                return bucket * QUANTUM_S
            heapq.heappop(self._order)
            del self._buckets[bucket]
        return None

    def expired(self, *, now_s: float) -> Iterator[int]:
        """Yield every id whose deadline has passed, once."""
        while self._order and self._order[0] * QUANTUM_S <= now_s:
            yield from self._buckets.pop(heapq.heappop(self._order))


class PendingCall(Struct, eq=False):
    """A call of this node without a reply yet: its outcome goes to `future` or to `buffer`."""

    name: str
    frame: QueuedFrame
    reply: MessageSpec
    future: ReplyFuture | None
    buffer: StreamBuffer | None
    bucket: int = _NO_BUCKET

    def fail(self, error: BaseException) -> None:
        """End the call with an error."""
        if self.future is not None:
            if not self.future.done():
                self.future.set_exception(error)
        elif self.buffer is not None:
            self.buffer.fail(error)


class PendingCalls:
    """The calls of this node in one session, by request id, with their deadlines."""

    __slots__ = ("_next_id", "by_id", "deadlines", "parity")

    def __init__(self, *, is_dialer: bool, first_id: int = 0) -> None:
        self.parity = 1 if is_dialer else 0
        self.by_id: dict[int, PendingCall] = {}
        self._next_id = first_id or 2 - self.parity
        self.deadlines = CallDeadlines()

    def take_id(self) -> int:
        """Return an unused request id of this side."""
        request_id = self._next_id
        while request_id in self.by_id:  # ids are reused after four billion calls
            request_id = self._id_after(request_id)
        self._next_id = self._id_after(request_id)
        return request_id

    def add(self, request_id: int, call: PendingCall, deadline_s: float) -> None:
        """Wait for a reply. `deadline_s` 0: without a deadline."""
        if deadline_s:
            call.bucket = self.deadlines.add(request_id, deadline_s)
        self.by_id[request_id] = call

    def pop(self, request_id: int) -> PendingCall | None:
        """Remove a call: it has ended."""
        call = self.by_id.pop(request_id, None)
        if call is not None and call.bucket >= 0:
            self.deadlines.remove(request_id, call.bucket)
        return call

    def _id_after(self, request_id: int) -> int:
        return request_id + 2 if request_id + 2 <= REQUEST_ID_MAX else 2 - self.parity


class InboundCall(Struct, eq=False):
    """A request or one-way message of the peer, admitted and decoded, being executed.

    Ends exactly once: with a reply, or by `abandon` (cancelled, past its deadline, one-way).
    """

    session: "Session"
    spec: MessageSpec
    request_id: int
    message: Any
    deadline_s: float
    bucket: int = _NO_BUCKET
    lane: int = 0  # the outbox lane of a stream's items, so that the end follows them
    is_open: bool = True
    credit_bytes: int = STREAM_WINDOW_BYTES
    on_cancel: Callable[[], None] | None = None
    on_credit: Callable[[], None] | None = None

    @property
    def peer(self) -> Introduction:
        """The node that called."""
        return self.session.peer

    @property
    def principal(self) -> Principal | None:
        """The client that called, if it has proved its name."""
        return self.session.agreement.principal

    @property
    def wants_answer(self) -> bool:
        """True for a request, False for a one-way message."""
        return self.request_id != 0

    def reply(self, message: Struct) -> None:
        """Answer a request with a message; a one-way message just ends."""
        if self.is_open:
            if self.request_id:
                spec = REGISTRY.spec_of(message)
                # A reply is never less urgent than its request.
                self._push(spec, min(spec.priority, self.spec.priority), message)
            self.abandon()

    def fail(self, error: RemoteError) -> None:
        """Answer with an error."""
        text, hint = error.detail[:_REMOTE_TEXT_CHARS_MAX], error.hint[:_REMOTE_TEXT_CHARS_MAX]
        self._answer_control(CallFailed(error.code_text, text, hint))

    def refuse(self, retry_after_s: float) -> None:
        """Answer that this node is overloaded and executed nothing."""
        self._answer_control(CallOverloaded(retry_after_s, self.spec.name))

    def send_item(self, item: Struct) -> None:
        """Send one item of a stream; call `end_stream` after the last."""
        if self.is_open:
            # A stream is bulk: it travels in the lane of its items, however urgent the request was.
            spec = REGISTRY.spec_of(item)
            self.lane = max(self.lane, spec.priority)
            self.credit_bytes -= self._push(spec, self.lane, item)

    def end_stream(self) -> None:
        """End a stream."""
        if self.is_open:
            self._push(REGISTRY.by_type[StreamEnd], self.lane, StreamEnd())
            self.abandon()

    def abandon(self) -> None:
        """End the call without a reply."""
        self.session.inbound.forget(self)

    def cancel(self) -> None:
        """End the call and its handler: the caller does not wait any more."""
        if self.is_open:
            self.abandon()
            if self.on_cancel is not None:
                self.on_cancel()

    def add_credit(self, credit_bytes: int) -> None:
        """Allow a stream to send this many bytes more."""
        self.credit_bytes = min(self.credit_bytes + credit_bytes, STREAM_WINDOW_BYTES)
        if self.on_credit is not None:
            self.on_credit()

    def _answer_control(self, message: Struct) -> None:
        if self.is_open:
            if self.request_id:
                self.session.push_control(message, self.request_id)
            self.abandon()

    def _push(self, spec: MessageSpec, lane: int, message: Struct) -> int:
        """Queue a frame of the reply; return its size. If the queue is full, the call fails."""
        body = REGISTRY.encode_as(spec, message)
        frame = QueuedFrame(spec.kind, self.request_id, lane, self.deadline_s, body)
        try:
            self.session.outbox.push(frame)
        except QueueFullError:
            text = "the reply did not fit the outgoing queue to this peer"
            self._answer_control(CallFailed(RemoteErrorCode.QUEUE_FULL, text))
        return len(body)


class InboundCalls:
    """The calls of the peer in one session that this node executes."""

    __slots__ = ("_one_ways", "admission", "by_id", "deadlines")

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.by_id: dict[int, InboundCall] = {}
        self._one_ways: set[InboundCall] = set()
        self.deadlines = CallDeadlines()

    def __iter__(self) -> Iterator[InboundCall]:
        return iter([*self.by_id.values(), *self._one_ways])

    def __bool__(self) -> bool:
        return bool(self.by_id or self._one_ways)

    def add(self, call: InboundCall) -> None:
        """Register an admitted call."""
        if call.request_id:
            self.by_id[call.request_id] = call
            if call.deadline_s:
                call.bucket = self.deadlines.add(call.request_id, call.deadline_s)
        else:
            self._one_ways.add(call)

    def forget(self, call: InboundCall) -> None:
        """Remove a call and release its admission. Every inbound call ends here."""
        if not call.is_open:
            return
        call.is_open = False
        if call.request_id:
            del self.by_id[call.request_id]
            if call.bucket >= 0:
                self.deadlines.remove(call.request_id, call.bucket)
        else:
            self._one_ways.discard(call)
        self.admission.release(call.spec.priority)
