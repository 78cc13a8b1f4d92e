"""The HTTP endpoint of a node: a few GET routes for probes and scrapers, without authentication.

It serves one request per connection, bounded in size, time and number of connections. A new
connection replaces the oldest one that has not sent its request: probes are answered however many
silent connections there are.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import cast

import msgspec
from msgspec import Struct

from hyperscale.errors import InputError

HEAD_BYTES_MAX = 8 * 1024
CONNECTIONS_MAX = 64
REQUEST_S = 5.0
_BACKLOG = 64

_log = logging.getLogger("hyperscale.telemetry")


class Response(Struct, frozen=True):
    """Status and body of one answer."""

    status: HTTPStatus
    content_type: str
    body: bytes


class ReadinessReport(Struct, frozen=True):
    """The answer of /readyz."""

    ready: bool
    why_not: tuple[str, ...]


Routes = dict[str, Callable[[], Response]]


class _Exchange(asyncio.Protocol):
    """One connection: one request and its answer."""

    def __init__(self, routes: Routes, connections: dict[asyncio.Transport, None]) -> None:
        self._routes = routes
        self._connections = connections
        self._head = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop does not register its transports
        if len(self._connections) >= CONNECTIONS_MAX:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.abort()
        self._transport = transport
        self._connections[transport] = None
        self._timer = asyncio.get_running_loop().call_later(REQUEST_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._head += data
        if b"\r\n\r\n" in self._head or b"\n\n" in self._head:
            self._answer(transport, *respond(bytes(self._head), self._routes))
        elif len(self._head) > HEAD_BYTES_MAX:
            too_large = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            self._answer(transport, plain(too_large, "the request is too large"), True)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's name
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._connections.pop(self._transport, None)

    def _answer(self, transport: asyncio.Transport, response: Response, has_body: bool) -> None:
        head = (
            f"HTTP/1.1 {response.status.value} {response.status.phrase}\r\n"
            f"Content-Type: {response.content_type}\r\n"
            f"Content-Length: {len(response.body)}\r\n"
            "Cache-Control: no-store\r\n"
            "Connection: close\r\n\r\n"
        )
        transport.write(head.encode() + (response.body if has_body else b""))
        transport.close()


def bind_http(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 means any free port."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise InputError(
            f"cannot listen on {host}:{port} for HTTP: {error.strerror or error}",
            hint="choose another port with --http-port, or 0 for any free one",
        ) from error


@asynccontextmanager
async def serve_http(bound: socket.socket, routes: Routes) -> AsyncIterator[None]:
    """Serve the routes for as long as the context lasts."""
    connections: dict[asyncio.Transport, None] = {}  # the oldest first
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Exchange(routes, connections), sock=bound)
    try:
        yield
    finally:
        server.close()
        for transport in list(connections):
            transport.abort()
        await server.wait_closed()


def respond(head: bytes, routes: Routes) -> tuple[Response, bool]:
    """Return the answer to a request, and whether to send its body."""
    line = head.split(b"\n", 1)[0].rstrip(b"\r").split(b" ")
    if len(line) != 3 or not line[2].startswith(b"HTTP/1."):
        return plain(HTTPStatus.BAD_REQUEST, "this is not an HTTP/1 request"), True
    method, target, _ = line
    if method not in (b"GET", b"HEAD"):
        return plain(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are served"), True
    path = target.split(b"?", 1)[0].decode("latin-1")
    if path not in routes:
        known = ", ".join(routes)
        response = plain(HTTPStatus.NOT_FOUND, f"not found; this node serves {known}")
    else:
        try:
            response = routes[path]()
        except Exception:  # noqa: BLE001  a bug in a route ends this request only
            _log.exception("request.failed", extra={"path": path})
            failed = HTTPStatus.INTERNAL_SERVER_ERROR
            response = plain(failed, "the node failed to answer; see its log")
    return response, method == b"GET"


def plain(status: HTTPStatus, text: str) -> Response:
    """Return an answer of plain text."""
    return Response(status, "text/plain; charset=utf-8", text.encode() + b"\n")


def json_response(status: HTTPStatus, value: object) -> Response:
    """Return an answer of JSON."""
    return Response(status, "application/json", msgspec.json.encode(value) + b"\n")
