"""The reading end of a stream: a reply in items."""

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from msgspec import Struct

from hyperscale.wire.calls import StreamBuffer

if TYPE_CHECKING:
    from hyperscale.wire.connection import Connection

_Item = TypeVar("_Item", bound=Struct)


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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.cancel(self._request_id)

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
            self._connection.grant(self._request_id, credit_bytes)
        assert isinstance(item, self._item)
        return item

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
