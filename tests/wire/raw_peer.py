"""A peer that writes any bytes it likes, before, during and after the handshake."""

import asyncio
import contextlib
from typing import Any

from hyperscale.wire.cluster_secret import Secrets
from hyperscale.wire.frames import encode_head
from hyperscale.wire.handshake import Handshake, handshake_decoder
from hyperscale.wire.security import SecurityMode
from tests.lab.peers import SECRET, introduction


class Raw:
    """One connection of that peer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.sealer: Any = None

    @classmethod
    async def dial(cls, address: tuple[str, int]) -> "Raw":
        return cls(*await asyncio.open_connection(*address))

    async def shake(self) -> "Raw":
        """Complete the handshake."""
        intro = introduction("raw")
        machine = Handshake(intro, SecurityMode.SECRET, Secrets(SECRET), is_dialer=True)
        decoder = handshake_decoder()
        self.writer.write(machine.begin())
        while machine.result is None:
            for frame in decoder.feed(await self.reader.read(65536)):
                self.writer.write(machine.receive(frame))
        self.sealer = machine.result.sealer
        return self

    def frame(self, kind: int, body: bytes, request_id: int = 1) -> bytes:
        head = encode_head(kind, request_id, 0, 2, len(body) + 16)
        return head + bytes(self.sealer.seal(head, body))

    async def until_closed(self) -> bytes:
        """Read until the other side closes the connection."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()
