"""Calls inside a session: those this node waits for, and those it executes for the peer.

No socket, clock or task: an asyncio `Future` is a `ReplyFuture`, and so is a stub in a test.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from hyperscale.wire.admission import Admission
from hyperscale.wire.call_deadlines import CallDeadlines
from hyperscale.wire.errors import PeerProtocolError, RefusalReason, RemoteError
from hyperscale.wire.frames import REQUEST_ID_MAX
from hyperscale.wire.outbox import QueuedFrame
from hyperscale.wire.registry import MessageSpec, SizeClass

if TYPE_CHECKING:
    from hyperscale.wire.messages import Introduction
    from hyperscale.wire.session import Session

STREAM_WINDOW_BYTES = 4 * 1024 * 1024
"""How many bytes of one stream a sender may send before the reader has consumed any of them."""
_NO_BUCKET = -1  # of a call without a deadline


class ReplyFuture(Protocol):
    """Receives the reply of one call, or the error it ended with."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class StreamBuffer:
    """The reading end of a stream: items that have arrived and were not taken yet.

    Bounded by the window; a sender that ignores the window breaks the protocol. `on_change` is
    called for every item, the end, and an error.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.items: deque[tuple[Struct, int]] = deque()
        self.is_ended = False
        self.error: BaseException | None = None
        self._on_change = on_change
        self._outstanding_bytes = 0  # arrived and not yet credited back
        self._consumed_bytes = 0  # taken and not yet credited back

    def feed(self, item: Struct, size: int) -> None:
        """Add an item of `size` encoded bytes."""
        self._outstanding_bytes += size
        # The last item may begin within the window and end beyond it.
        if self._outstanding_bytes > STREAM_WINDOW_BYTES + SizeClass.LARGE:
            raise PeerProtocolError(
                f"{self._outstanding_bytes} bytes of a stream, beyond its window",
                reason=RefusalReason.UNEXPECTED,
            )
        self.items.append((item, size))
        self._on_change()

    def end(self) -> None:
        """Mark the stream as complete."""
        self.is_ended = True
        self._on_change()

    def fail(self, error: BaseException) -> None:
        """End the stream with an error."""
        self.error = error
        self._on_change()

    def take(self) -> tuple[Struct, int]:
        """Return the next item and the credit to grant now (0: not worth a frame yet)."""
        item, size = self.items.popleft()
        self._consumed_bytes += size
        if self._consumed_bytes < STREAM_WINDOW_BYTES // 2 or self.is_ended:
            return item, 0
        credit, self._consumed_bytes = self._consumed_bytes, 0
        self._outstanding_bytes -= credit
        return item, credit


class PendingCall:
    """A call of this node without a reply yet."""

    __slots__ = ("bucket", "buffer", "frame", "future", "name", "reply")

    def __init__(
        self,
        name: str,
        frame: QueuedFrame,
        reply: MessageSpec,
        *,
        future: ReplyFuture | None,
        buffer: StreamBuffer | None,
    ) -> None:
        self.name = name
        self.frame = frame
        self.reply = reply
        self.future = future
        self.buffer = buffer
        self.bucket = _NO_BUCKET

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

    def wake_at_s(self) -> float | None:
        return self.deadlines.wake_at_s()

    def expired(self, *, now_s: float) -> Iterator[int]:
        """Yield the ids whose deadline has passed."""
        return self.deadlines.expired(now_s=now_s)

    def _id_after(self, request_id: int) -> int:
        return request_id + 2 if request_id + 2 <= REQUEST_ID_MAX else 2 - self.parity


class InboundCall:
    """A request or one-way message of the peer, admitted and decoded, being executed.

    Ends exactly once: with a reply, or by `abandon` (cancelled, past its deadline, one-way).
    """

    __slots__ = (
        "bucket",
        "credit_bytes",
        "deadline_s",
        "is_open",
        "lane",
        "message",
        "on_cancel",
        "on_credit",
        "request_id",
        "session",
        "spec",
    )

    def __init__(
        self,
        session: "Session",
        spec: MessageSpec,
        request_id: int,
        message: Any,
        deadline_s: float,
    ) -> None:
        self.session = session
        self.spec = spec
        self.request_id = request_id
        self.message = message
        self.deadline_s = deadline_s
        self.bucket = _NO_BUCKET
        self.lane = 0  # the outbox lane of a stream's items, so that the end follows them
        self.is_open = True
        self.credit_bytes = STREAM_WINDOW_BYTES
        self.on_cancel: Callable[[], None] | None = None
        self.on_credit: Callable[[], None] | None = None

    @property
    def peer(self) -> "Introduction":
        """The node that called."""
        return self.session.peer

    @property
    def wants_answer(self) -> bool:
        """True for a request, False for a one-way message."""
        return self.request_id != 0

    def reply(self, message: Struct) -> None:
        """Answer with a message."""
        self.session.answer(self, message)

    def fail(self, error: RemoteError) -> None:
        """Answer with an error."""
        self.session.answer_failure(self, error)

    def refuse(self, retry_after_s: float) -> None:
        """Answer that this node is overloaded and executed nothing."""
        self.session.answer_overloaded(self, retry_after_s)

    def send_item(self, item: Struct) -> None:
        """Send one item of a stream; call `end_stream` after the last."""
        self.credit_bytes -= self.session.answer_item(self, item)

    def end_stream(self) -> None:
        """End a stream."""
        self.session.answer_end(self)

    def abandon(self) -> None:
        """End the call without a reply."""
        self.session.forget(self)

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


class InboundCalls:
    """The calls of the peer in one session that this node executes."""

    __slots__ = ("_deadlines", "_one_ways", "admission", "by_id")

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.by_id: dict[int, InboundCall] = {}
        self._one_ways: set[InboundCall] = set()
        self._deadlines = CallDeadlines()

    def __iter__(self) -> Iterator[InboundCall]:
        return iter([*self.by_id.values(), *self._one_ways])

    def __bool__(self) -> bool:
        return bool(self.by_id or self._one_ways)

    def add(self, call: InboundCall) -> None:
        """Register an admitted call."""
        if call.request_id:
            self.by_id[call.request_id] = call
            if call.deadline_s:
                call.bucket = self._deadlines.add(call.request_id, call.deadline_s)
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
                self._deadlines.remove(call.request_id, call.bucket)
        else:
            self._one_ways.discard(call)
        self.admission.release(call.spec.priority)

    def wake_at_s(self) -> float | None:
        return self._deadlines.wake_at_s()

    def expired(self, *, now_s: float) -> Iterator[int]:
        """Yield the ids whose deadline has passed."""
        return self._deadlines.expired(now_s=now_s)
