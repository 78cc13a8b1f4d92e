"""Calls of gRPC in which messages go both ways while the call is under way."""

from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Self

from hyperscale._native import Template
from hyperscale.clients.parts import PartReader, Send
from hyperscale.testing.grpc import GRPCResponse

PREFIX_BYTES = 5


class GRPCStream:
    """A call under way: `async with self.client.grpc.stream(url, method) as stream`.

    `await stream.send(message)` and `await stream.receive()` alternate in any way. At the end of
    the block the client stops sending, further replies are discarded, and `stream.response` has the
    status. An exception in the block cancels the call.
    """

    def __init__(
        self,
        send: Send,
        template: Template,
        vu: int,
        frame: Callable[[object], bytes],
        parse: Callable[[bytes], Any],
    ) -> None:
        """`frame` lays a message out, `parse` reads a reply."""
        self._send, self._template, self._vu = send, template, vu
        self._frame, self._parse = frame, parse
        self._reader: PartReader | None = None
        self._input = bytearray()
        self._replies: deque[bytes] = deque()
        self._has_ended = False  # the client sends no more
        self._response: GRPCResponse | None = None
        self.sent = 0
        self.received = 0

    async def __aenter__(self) -> Self:
        self._reader = PartReader(self._send, self._template, self._vu)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._open().cancel()
        else:
            await self.finish()

    @property
    def response(self) -> GRPCResponse:
        """The status and the trailers of the call, once it has ended."""
        if self._response is None:
            raise RuntimeError("the stream has not ended: leave its block, or await finish()")
        return self._response

    async def send(self, message: object) -> None:
        """Send a message. Raises `RequestError` if the call has failed."""
        if self._has_ended:
            raise RuntimeError("the stream takes no message after end()")
        await self._open().push(self._frame(message))
        self.sent += 1

    async def end(self) -> None:
        """Tell the server that no further message follows."""
        if not self._has_ended:
            self._has_ended = True
            await self._open().push(b"")

    async def receive(self) -> Any:
        """Return the next reply; None when the server has ended the call.

        Raises `RequestError` if the call fails, TimeoutError with `asyncio.timeout` around it.
        """
        reader = self._open()
        while not self._replies:
            piece = await reader.next()
            if piece is None:
                if self._input:
                    raise ValueError("the last reply is cut off")
                return None
            self._input += piece
            self._split()
        self.received += 1
        return self._parse(self._replies.popleft())

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (reply := await self.receive()) is not None:
            yield reply

    async def finish(self) -> GRPCResponse:
        """Stop sending, wait until the server has ended the call, and return the response."""
        if self._response is None:
            reader = self._open()
            if not self._has_ended and not getattr(reader.call, "done", lambda: False)():
                await self.end()
            while await reader.next() is not None:
                pass
            self._response = await reader.call
        return self._response

    def _open(self) -> PartReader:
        if self._reader is None:
            raise RuntimeError("the stream is not open: use it in `async with`")
        return self._reader

    def _split(self) -> None:
        while len(self._input) >= PREFIX_BYTES:
            end = PREFIX_BYTES + int.from_bytes(self._input[1:PREFIX_BYTES], "big")
            if len(self._input) < end:
                return
            if self._input[0]:
                raise ValueError("a reply is compressed, which the call did not offer")
            self._replies.append(bytes(self._input[PREFIX_BYTES:end]))
            del self._input[:end]
