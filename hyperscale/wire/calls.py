"""The two ends of a call inside a session: what is asked of us, and what we wait for.

No socket, clock or task: an asyncio `Future` fits `ReplyFuture`, a list would do in a test.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from hyperscale.wire.errors import PeerProtocolError, RefusalReason, RemoteError
from hyperscale.wire.outbox import QueuedFrame
from hyperscale.wire.registry import MessageSpec, SizeClass

if TYPE_CHECKING:
    from hyperscale.wire.messages import Introduction
    from hyperscale.wire.session import Session

STREAM_WINDOW_BYTES = 4 * 1024 * 1024
"""What a sender may have under way of one stream before the reader has consumed any of it."""


class ReplyFuture(Protocol):
    """Whoever waits for one answer."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class StreamBuffer:
    """The reading end of a stream: what has arrived and not been taken yet.

    Bounded by the window: a sender that ignores it is cut off. `on_change` is called whenever
    there is something new to find: an item, the end, an error.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.items: deque[tuple[Struct, int]] = deque()
        self.is_ended = False
        self.error: BaseException | None = None
        self._on_change = on_change
        self._outstanding_bytes = 0  # arrived and not yet credited back
        self._consumed_bytes = 0  # taken and not yet credited back

    def feed(self, item: Struct, size: int) -> None:
        self._outstanding_bytes += size
        # The last item may begin within the window and end beyond it.
        if self._outstanding_bytes > STREAM_WINDOW_BYTES + SizeClass.LARGE:
            raise PeerProtocolError(
                f"{self._outstanding_bytes} bytes of a stream nobody asked for yet",
                reason=RefusalReason.UNEXPECTED,
            )
        self.items.append((item, size))
        self._on_change()

    def end(self) -> None:
        self.is_ended = True
        self._on_change()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self._on_change()

    def take(self) -> tuple[Struct, int]:
        """The next item, and the credit to give back now (0: not worth a frame yet)."""
        item, size = self.items.popleft()
        self._consumed_bytes += size
        if self._consumed_bytes < STREAM_WINDOW_BYTES // 2 or self.is_ended:
            return item, 0
        credit, self._consumed_bytes = self._consumed_bytes, 0
        self._outstanding_bytes -= credit
        return item, credit


class PendingCall:
    """A request of ours that has no answer yet."""

    __slots__ = ("bucket", "entry", "inflow", "name", "reply", "waiter")

    def __init__(
        self,
        name: str,
        entry: QueuedFrame,
        reply: MessageSpec,
        *,
        waiter: ReplyFuture | None,
        inflow: StreamBuffer | None,
        bucket: int,
    ) -> None:
        self.name = name
        self.entry = entry
        self.reply = reply
        self.waiter = waiter
        self.inflow = inflow
        self.bucket = bucket

    def fail(self, error: BaseException) -> None:
        if self.waiter is not None:
            if not self.waiter.done():
                self.waiter.set_exception(error)
        elif self.inflow is not None:
            self.inflow.fail(error)


class InboundCall:
    """A request or one-way message of the peer's, admitted and decoded, being carried out.

    Ends exactly once: by an answer, or by `abandon` (cancelled, past its deadline, one-way).
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
        self.bucket = -1
        self.lane = 0  # of the items of a stream, so that its end follows them
        self.is_open = True
        self.credit_bytes = STREAM_WINDOW_BYTES
        self.on_cancel: Callable[[], None] | None = None
        self.on_credit: Callable[[], None] | None = None

    @property
    def peer(self) -> "Introduction":
        """Who asks."""
        return self.session.peer

    @property
    def wants_answer(self) -> bool:
        return self.request_id != 0

    def reply(self, message: Struct) -> None:
        self.session.answer(self, message)

    def fail(self, error: RemoteError) -> None:
        """Answer with an error."""
        self.session.answer_failure(self, error)

    def refuse(self, retry_after_s: float) -> None:
        self.session.answer_overloaded(self, retry_after_s)

    def send_item(self, item: Struct) -> None:
        """One part of an answer in parts; `end_stream` after the last."""
        self.credit_bytes -= self.session.answer_item(self, item)

    def end_stream(self) -> None:
        self.session.answer_end(self)

    def abandon(self) -> None:
        """No answer will be given."""
        self.session.forget(self)

    def cancel(self) -> None:
        """Nobody wants the answer any more."""
        if self.is_open:
            self.abandon()
            if self.on_cancel is not None:
                self.on_cancel()

    def add_credit(self, credit_bytes: int) -> None:
        self.credit_bytes = min(self.credit_bytes + credit_bytes, STREAM_WINDOW_BYTES)
        if self.on_credit is not None:
            self.on_credit()
