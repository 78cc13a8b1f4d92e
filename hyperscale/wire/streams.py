"""The reading end of a stream, which is a reply in items: its buffer and its async iterator."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from msgspec import Struct

from hyperscale.wire.errors import PeerProtocolError, RefusalReason
from hyperscale.wire.registry import SizeClass

if TYPE_CHECKING:
    from hyperscale.wire.connection import Connection

STREAM_WINDOW_BYTES = 4 * 1024 * 1024
"""How many bytes of one stream a sender may send before the reader has consumed any of them."""

_Item = TypeVar("_Item", bound=Struct)


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
                RefusalReason.UNEXPECTED,
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


class ReplyStream(Generic[_Item]):
    """An async iterator over the items of a stream. Leaving it early cancels the rest.

    async with connection.stream(Request(), Item, deadline_s=...) as items:
        async for item in items: ...
    """

    def __init__(
        self, connection: "Connection", message: Struct, item: type[_Item], deadline_s: float
    ) -> None:
        self._connection = connection
        self._message = message
        self._item = item
        self._deadline_s = deadline_s
        self._buffer = StreamBuffer(self._wake)
        self._request_id = 0
        self._waiter: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        self._request_id = self._connection.open_stream(
            self._message, self._item, self._buffer, self._deadline_s
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._connection.session.cancel(self._request_id)
        self._connection.flush_soon()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _Item:
        buffer = self._buffer
        while not buffer.items:
            if buffer.error is not None:
                raise buffer.error
            if buffer.is_ended:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        item, credit_bytes = buffer.take()
        if credit_bytes:
            self._connection.session.grant(self._request_id, credit_bytes)
            self._connection.flush_soon()
        assert isinstance(item, self._item)
        return item

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
