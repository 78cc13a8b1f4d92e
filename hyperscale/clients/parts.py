"""Bodies that are read, or written, while the call is under way."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from typing import Any, Protocol

from hyperscale._native import Call, Template
from hyperscale.testing.streams import StreamedResponse


class Send(Protocol):
    """Sends a request of a virtual user.

    True keeps the body even if no step can see it. `on_part` gets it in pieces instead.
    """

    def __call__(
        self,
        template: Template,
        vu: int,
        needs_body: bool,
        on_part: Callable[[bytes], object] | None = None,
        /,
    ) -> Coroutine[Any, Any, Any]: ...


class PartReader:
    """A call whose response arrives in pieces, and the pieces that were not read yet."""

    def __init__(self, send: Send, template: Template, vu: int) -> None:
        self._pieces: deque[bytes] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self.call = send(template, vu, True, self._receive)
        if isinstance(self.call, Call):
            self.call.add_done_callback(self._wake)

    def _receive(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._wake()

    def _wake(self, _call: object = None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def next(self) -> bytes | None:
        """Return the next piece; None when the response has ended. Raises what the call raises."""
        while not self._pieces:
            if not isinstance(self.call, Call):
                await self.call  # the run is over: nothing is sent any more
                return None
            if self.call.done():
                self.call.result()
                return None
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self._pieces.popleft()

    async def push(self, data: bytes) -> None:
        """Hand a piece of the request's body over; an empty one ends it. Raises what the call
        raised if it has ended."""
        if not isinstance(self.call, Call):
            await self.call  # as above
            return
        if self.call.done():
            self.call.result()
        self.call.push(data)

    def cancel(self) -> None:
        self.call.close()


class BodyStream(Coroutine[Any, Any, StreamedResponse]):
    """A request whose body can be read while it arrives, and which is awaited for its response.

    `async for chunk in stream` begins the request and ends with the body; after that,
    `await stream` returns the response, which has all pieces with their times.
    """

    def __init__(self, send: Send, template: Template, vu: int) -> None:
        self._send, self._template, self._vu = send, template, vu
        self._reader: PartReader | None = None
        self._running: Coroutine[Any, Any, StreamedResponse] | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._reader = reader = PartReader(self._send, self._template, self._vu)
        while (piece := await reader.next()) is not None:
            yield piece

    async def _response(self) -> StreamedResponse:
        if self._reader is not None:
            response: Any = await self._reader.call
        else:
            response = await self._send(self._template, self._vu, True)
        return response  # type: ignore[no-any-return]  # as the template says

    def __await__(self) -> Generator[Any, None, StreamedResponse]:
        return self._response().__await__()

    # What `asyncio.create_task` asks of a coroutine.

    def send(self, value: None, /) -> Any:
        if self._running is None:
            self._running = self._response()
        return self._running.send(value)

    def throw(self, *error: Any) -> Any:
        if self._running is None:
            self._running = self._response()
        return self._running.throw(*error)

    def close(self) -> None:
        if self._running is not None:
            self._running.close()
