"""HTTP/3 servers of aioquic, one per script, and a relay that loses datagrams."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ProtocolNegotiated, QuicEvent, StreamDataReceived

Address = tuple[str, int]


class PageServer(QuicConnectionProtocol):
    """A server of pages: it answers every request with its method, path and body."""

    requests: list[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._http: H3Connection | None = None
        self._heads: dict[int, dict[bytes, bytes]] = {}
        self._bodies: dict[int, bytes] = {}

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, ProtocolNegotiated):
            self._http = H3Connection(self._quic)
        if self._http is not None:
            for each in self._http.handle_event(event):
                self._take(self._http, each)

    def _take(self, http: H3Connection, event: H3Event) -> None:
        if isinstance(event, HeadersReceived) and event.stream_id not in self._heads:
            self._heads[event.stream_id] = dict(event.headers)
            self._bodies[event.stream_id] = b""
        elif isinstance(event, DataReceived):
            self._bodies[event.stream_id] += event.data
        if isinstance(event, HeadersReceived | DataReceived) and event.stream_ended:
            head, body = self._heads[event.stream_id], self._bodies[event.stream_id]
            line = f"{head[b':method'].decode()} {head[b':path'].decode()}"
            self.requests.append(line)
            answer = line.encode() + b"\n" + body
            fields = [(b":status", b"200"), (b"server", b"aioquic"), (b"x-own", b"a" * 300)]
            http.send_headers(event.stream_id, fields)
            http.send_data(event.stream_id, answer, end_stream=False)
            http.send_headers(event.stream_id, [(b"x-checksum", b"7")], end_stream=True)
            self.transmit()


Script = Callable[[Any, int], None]
"""What a server does on its QUIC connection when the request of this stream has arrived."""


def scripted(script: Script) -> type[QuicConnectionProtocol]:
    """Return a server that answers the first bytes of every request as a script says."""

    class Scripted(QuicConnectionProtocol):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._answered: set[int] = set()

        def quic_event_received(self, event: QuicEvent) -> None:
            is_request = isinstance(event, StreamDataReceived) and event.stream_id % 4 == 0
            if is_request and event.stream_id not in self._answered:
                self._answered.add(event.stream_id)
                script(self._quic, event.stream_id)
                self.transmit()

    return Scripted


@contextlib.asynccontextmanager
async def serving(
    directory: Path,
    identity: tuple[str, str],
    protocol: type[QuicConnectionProtocol],
    *,
    alpn: list[str] = H3_ALPN,
) -> AsyncIterator[tuple[str, int]]:
    """Serve on a free port of the loopback interface, with the certificate and key given."""
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    certificate.write_text(identity[0])
    key.write_text(identity[1])
    configuration = QuicConfiguration(is_client=False, alpn_protocols=alpn)
    configuration.load_cert_chain(certificate, key)
    server = await serve("127.0.0.1", 0, configuration=configuration, create_protocol=protocol)
    try:
        yield server._transport.get_extra_info("sockname")[:2]
    finally:
        server.close()


class LossyRelay(asyncio.DatagramProtocol):
    """Passes datagrams on between clients and a server, except every n-th one each way."""

    def __init__(self, server: Address, *, every: int) -> None:
        self._server = server
        self._every = every
        self._passed = 0
        self.dropped = 0
        self._to_server: dict[Address, asyncio.DatagramTransport] = {}
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Address) -> None:
        self.pass_on(lambda: self._send_to_server(data, addr))

    def pass_on(self, send: Callable[[], None]) -> None:
        self._passed += 1
        if self._passed % self._every == 0:
            self.dropped += 1
        else:
            send()

    def _send_to_server(self, data: bytes, client: Address) -> None:
        known = self._to_server.get(client)
        if known is not None:
            known.sendto(data)
            return
        relay = self

        class Back(asyncio.DatagramProtocol):
            def datagram_received(self, data: bytes, addr: Address) -> None:
                relay.pass_on(lambda: relay._answer(data, client))

        async def connect() -> None:
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_datagram_endpoint(Back, remote_addr=relay._server)
            relay._to_server[client] = transport
            transport.sendto(data)

        self._connecting = asyncio.get_running_loop().create_task(connect(), name="relay")

    def _answer(self, data: bytes, client: Address) -> None:
        if self._transport is not None:
            self._transport.sendto(data, client)

    def close(self) -> None:
        for transport in (self._transport, *self._to_server.values()):
            if transport is not None:
                transport.close()
