"""Sending one HTTP/1.1 request: all that reporters of HTTP APIs need.

Each request has a connection of its own. Responses are read whole, up to a limit.
"""

import asyncio
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import ClassVar
from urllib.parse import urlsplit

from hyperscale.errors import InputError
from hyperscale.reporting.delivery import Backend, Batch, RejectedError, TransientError
from hyperscale.reporting.settings import DeliverySettings

REPLY_BYTES_MAX = 1024 * 1024
_SHOWN_CHARS = 300
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504, 507, 509, 529})
_REJECTED = frozenset({400, 409, 413, 419, 422})


class HttpSettings(DeliverySettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Delivery over HTTP."""

    ca_file: str = ""  # PEM file of the authorities to trust; empty: those of the system


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def with_headers(self, **headers: str) -> "HttpRequest":
        """Return the request with further headers; underscores in names are dashes."""
        added = {name.replace("_", "-"): value for name, value in headers.items()}
        return replace(self, headers={**self.headers, **added})


@dataclass(frozen=True, slots=True)
class HttpReply:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    def text(self) -> str:
        """Return the start of the body, on one line."""
        shown = " ".join(self.body[: 4 * _SHOWN_CHARS].decode("utf-8", "replace").split())
        return shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}…"


class HttpStatusError(Exception):
    """The server refuses the request, and would refuse any other: credentials, address."""


async def exchange(request: HttpRequest, *, ca_file: str = "") -> HttpReply:
    """Send a request and return the reply. The caller sets the timeout by cancelling."""
    parts = urlsplit(request.url)
    host = parts.hostname or ""
    tls = _tls(ca_file) if parts.scheme == "https" else None
    port = parts.port or (443 if tls else 80)
    reader, writer = await asyncio.open_connection(
        host, port, ssl=tls, server_hostname=host if tls else None, limit=REPLY_BYTES_MAX
    )
    try:
        writer.write(_head(request))
        writer.write(request.body)
        await writer.drain()
        return await _read_reply(reader)
    finally:
        writer.close()


def _tls(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        raise InputError(f"ca_file={ca_file!r} cannot be used: {error}") from error


def _head(request: HttpRequest) -> bytes:
    parts = urlsplit(request.url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {
        "Host": parts.netloc.rpartition("@")[2],
        "User-Agent": "hyperscale",
        "Accept": "*/*",
        "Connection": "close",
        "Content-Length": str(len(request.body)),
        **request.headers,
    }
    lines = [f"{request.method} {target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if any("\r" in line or "\n" in line for line in lines):
        raise InputError("a header of an HTTP request contains a line break")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8")


async def _read_reply(reader: asyncio.StreamReader) -> HttpReply:
    while True:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        words = lines[0].split(" ", 2)
        if not words[0].startswith("HTTP/1.") or len(words) < 2 or not words[1].isdigit():
            raise ConnectionError(f"not an HTTP/1.1 reply: {lines[0][:80]!r}")
        status = int(words[1])
        if status >= 200:
            break
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines[1:] if line)
    }
    if status in (204, 304):
        body = b""
    elif headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _read_chunks(reader)
    elif headers.get("content-length", "").isdigit():
        body = await reader.readexactly(min(int(headers["content-length"]), REPLY_BYTES_MAX))
    else:
        body = await reader.read(REPLY_BYTES_MAX)
    return HttpReply(status, headers, body)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while len(body) < REPLY_BYTES_MAX:
        size_text = (await reader.readuntil(b"\r\n")).split(b";")[0].strip()
        try:
            size = int(size_text, 16)
        except ValueError:
            raise ConnectionError(f"not a chunk of an HTTP reply: {size_text[:20]!r}") from None
        if size == 0:
            break
        body += await reader.readexactly(min(size, REPLY_BYTES_MAX))
        await reader.readexactly(2)
    return body


def raise_for_status(request: HttpRequest, reply: HttpReply) -> None:
    """Raise the error that says what a status other than 2xx means for the delivery."""
    if 200 <= reply.status < 300:
        return
    host = urlsplit(request.url).netloc.rpartition("@")[2]
    text = f"{request.method} {host}: HTTP {reply.status}"
    text = f"{text}: {reply.text()}" if reply.body else text
    if reply.status in _TRANSIENT:
        raise TransientError(text, retry_after_s=retry_after_s(reply))
    if reply.status in _REJECTED:
        raise RejectedError(text)
    raise HttpStatusError(text)


def retry_after_s(reply: HttpReply) -> float:
    """Return the pause that the server asks for, in seconds or as a date; 0 if it asks for none."""
    value = reply.headers.get("retry-after", "")
    if value.isdigit():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return 0.0


class HttpBackend(Backend[HttpRequest]):
    """A backend whose batches are HTTP requests."""

    hidden_headers: ClassVar[tuple[str, ...]] = ("authorization",)

    def __init__(self, settings: HttpSettings) -> None:
        self._http = settings

    async def prepare(self, request: HttpRequest) -> HttpRequest:
        """Return the request with what depends on the time of sending, such as a signature."""
        return request

    def check(self, request: HttpRequest, reply: HttpReply) -> None:
        """Raise unless the reply says that everything was accepted."""
        raise_for_status(request, reply)

    async def send(self, batch: Batch[HttpRequest]) -> None:
        request = await self.prepare(batch.payload)
        self.check(request, await exchange(request, ca_file=self._http.ca_file))

    def preview(self, batch: Batch[HttpRequest]) -> str:
        return "\n".join(_preview(batch.payload))


def _preview(request: HttpRequest) -> Iterator[str]:
    yield f"{request.method} {request.url}"
    for name, value in request.headers.items():
        yield f"{name}: {value}"
    yield ""
    try:
        yield request.body.decode("utf-8").rstrip("\n")
    except UnicodeDecodeError:
        yield f"({len(request.body):,} bytes: {request.body[:64].hex(' ')} …)"
