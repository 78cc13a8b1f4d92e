"""One end of the control socket between a pool and an executor.

It is not an asyncio transport because the pool must be able to read at once everything that a dead
executor has sent.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Generic, TypeVar

from hyperscale.execution.protocol import (
    ExecutorFrameDecoder,
    FrameError,
    FromExecutor,
    ToExecutor,
    encode_frame,
)

_READ_BYTES = 256 * 1024
_FINISH_S = 2.0
_Message = TypeVar("_Message")


class Channel(Generic[_Message]):
    """Sends messages, calls `on_message` for those that arrive, and `on_closed` once at the end.

    `on_closed` gets the reason: None for an orderly end, else what the peer did wrong. No message
    is delivered after it, nor after `close()`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        end: socket.socket,
        decoder: ExecutorFrameDecoder[_Message],
        *,
        on_message: Callable[[_Message], None],
        on_closed: Callable[[str | None], None],
    ) -> None:
        end.setblocking(False)
        self._loop = loop
        self._end = end
        self._decoder = decoder
        self._on_message = on_message
        self._on_closed = on_closed
        self._unsent = bytearray()
        self._is_open = True
        loop.add_reader(end.fileno(), self.drain)

    @property
    def unsent_bytes(self) -> int:
        return len(self._unsent)

    def send(self, message: ToExecutor | FromExecutor) -> None:
        """Send the message, or queue what the peer does not accept now."""
        frame = encode_frame(message)
        if not self._is_open:
            return
        if self._unsent:
            self._unsent += frame
            return
        sent = self._write(frame)
        if sent < len(frame) and self._is_open:
            self._unsent += frame[sent:]
            self._loop.add_writer(self._end.fileno(), self._flush)

    def drain(self) -> None:
        """Deliver every message that has arrived."""
        while self._is_open:
            try:
                data = self._end.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError as error:  # a reset: the peer died before it read everything
                self._lose(None if isinstance(error, ConnectionError) else str(error))
                return
            if not data:
                is_cut = self._decoder.is_mid_frame
                self._lose("it closed the channel in the middle of a frame" if is_cut else None)
                return
            try:
                messages = self._decoder.feed(data)
            except FrameError as error:
                self._lose(str(error))
                return
            for message in messages:
                if not self._is_open:
                    return
                self._on_message(message)

    def finish(self) -> None:
        """Send what is queued, waiting for the peer if necessary. The last call that sends."""
        if self._unsent and self._is_open:
            self._end.settimeout(_FINISH_S)
            self._end.sendall(self._unsent)
            self._unsent.clear()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._end.fileno())
            self._loop.remove_writer(self._end.fileno())
            self._end.close()

    def _flush(self) -> None:
        sent = self._write(self._unsent)
        del self._unsent[:sent]
        if not self._unsent and self._is_open:
            self._loop.remove_writer(self._end.fileno())

    def _write(self, data: bytes | bytearray) -> int:
        try:
            return self._end.send(data)
        except BlockingIOError:
            return 0
        except OSError:  # the peer is gone; what it sent before is still to be read
            self._unsent.clear()
            self.drain()
            return 0

    def _lose(self, reason: str | None) -> None:
        self.close()
        self._on_closed(reason)
