"""Sending lines over TCP or UDP, to systems that answer nothing."""

import asyncio
import os
import socket

from hyperscale.reporting.delivery import Backend, Batch

DATAGRAM_BYTES_MAX = 1432  # fits into one Ethernet frame with its headers


class LineSocket:
    """A connection that takes lines.

    Over TCP a closed connection is noticed, over UDP at most that nobody listens; neither protocol
    confirms that lines were processed.
    """

    def __init__(self, host: str, port: int, *, is_stream: bool) -> None:
        self._address = (host, port)
        self._is_stream = is_stream
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._socket: socket.socket | None = None

    async def connect(self) -> None:
        if self._is_stream:
            self._reader, self._writer = await asyncio.open_connection(*self._address)
            return
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(*self._address, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        self._socket = socket.socket(family, kind, protocol)
        self._socket.setblocking(False)
        self._socket.connect(address)

    async def write(self, lines: bytes) -> None:
        """Send whole lines. Raises OSError if the connection is known to be broken."""
        if self._writer is not None and self._reader is not None:
            if self._reader.at_eof():
                raise ConnectionResetError("the server closed the connection")
            self._writer.write(lines)
            await self._writer.drain()
        elif self._socket is not None:
            self._socket.send(lines)
            # The kernel reports a refused datagram with the next use of the socket.
            await asyncio.sleep(0)
            if error := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(error, f"{os.strerror(error)}: nothing listens there")

    async def close(self) -> None:
        if self._writer is not None:
            writer, self._writer, self._reader = self._writer, None, None
            writer.close()
            await writer.wait_closed()
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class LineBackend(Backend[bytes]):
    """Base of the backends whose batches are lines on a socket."""

    def __init__(self, host: str, port: int, *, is_stream: bool) -> None:
        self._lines = LineSocket(host, port, is_stream=is_stream)

    async def connect(self) -> None:
        await self._lines.connect()

    async def send(self, batch: Batch[bytes]) -> None:
        await self._lines.write(batch.payload)

    async def close(self) -> None:
        await self._lines.close()
