"""Formats an HTTP exchange as text: what was sent, what was received, and how long it took."""

from typing import TYPE_CHECKING

from hyperscale._native import mask_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hyperscale._native import Exchange

BODY_CHARS_MAX = 2000
MESSAGES_SHOWN = 10


def format_exchange(exchange: "Exchange", *, body_chars_max: int = BODY_CHARS_MAX) -> str:
    """Format request (`>`), response (`<`) and timings, and each redirect before them.

    Credentials in headers and URLs are masked, as in samples of failures.
    """
    lines = []
    for number, hop in enumerate(exchange.hops, 1):
        lines += [*_request(hop, body_chars_max), "", *_response(hop, body_chars_max)]
        lines += ["", f"* redirect {number} of {exchange.redirects}, {_ms(hop.latency_ns)}", ""]
    lines += [*_request(exchange, body_chars_max), "", *_response(exchange, body_chars_max)]
    return "\n".join([*lines, "", f"* {_timings(exchange)}"])


def _timings(exchange: "Exchange") -> str:
    until = "last byte" if exchange.error is None else "failure"
    parts = [f"{_ms(exchange.latency_ns)} from request to {until}"]
    for name, value_ns in (
        ("waiting for a connection", exchange.blocked_ns),
        ("connect", exchange.connect_ns),
        ("TLS", exchange.tls_ns),
        ("first byte", exchange.first_byte_ns),
    ):
        if value_ns:
            parts.append(f"{name} {_ms(value_ns)}")
    if exchange.redirects:
        hops = "redirect" if exchange.redirects == 1 else "redirects"
        parts.append(f"after {exchange.redirects} {hops}")
    if exchange.remote:
        parts.append(f"from {exchange.remote}")
    if exchange.tls_version:
        parts.append(f"{exchange.tls_version} {exchange.tls_cipher or ''}".strip())
    return ", ".join(parts)


def _body_lines(body: bytes, *, chars_max: int) -> list[str]:
    """Return the first lines of a body; binary bodies are described, not shown."""
    if not body:
        return []
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return [f"({len(body):,} bytes that are no text)"]
    lines = text[:chars_max].splitlines() or [""]
    shown = ["".join(c if c.isprintable() or c == "\t" else "·" for c in line) for line in lines]
    if len(text) > chars_max:
        shown.append(f"… {len(text) - chars_max:,} more characters")
    return shown


def _request(exchange: "Exchange", chars_max: int) -> "Iterator[str]":
    first, *headers = exchange.request_head.splitlines() or [""]
    if exchange.version == "HTTP/2":
        first = f"{first} {exchange.version}"
    yield "> " + " ".join(mask_header("", word) for word in first.split(" "))
    for line in filter(None, headers):
        name, _, value = line.partition(":")
        yield f"> {name}: {mask_header(name, value.strip())}"
    for line in _body_lines(exchange.request_body, chars_max=chars_max):
        yield f"> | {line}"


def _response(exchange: "Exchange", chars_max: int) -> "Iterator[str]":
    if exchange.error is not None and not exchange.status and not exchange.messages:
        yield f"< no response: {exchange.error}: {exchange.error_detail or ''}".rstrip(": ")
        return
    if exchange.status:
        yield f"< {exchange.version} {exchange.status} {exchange.reason}".rstrip()
    for name, value in exchange.raw_headers:
        written = name.decode("latin-1")
        yield f"< {written}: {mask_header(written, value.decode('latin-1'))}"
    for line in _body_lines(exchange.body, chars_max=chars_max):
        yield f"< | {line}"
    shown = exchange.messages[:MESSAGES_SHOWN]
    for message in shown:
        content = message.encode() if isinstance(message, str) else message
        yield from (f"< | {line}" for line in _body_lines(content, chars_max=chars_max))
    if len(exchange.messages) > len(shown):
        yield f"< … {len(exchange.messages) - len(shown):,} more messages"
    for name, value in exchange.raw_trailers:
        yield f"< {name.decode('latin-1')}: {value.decode('latin-1')} (trailer)"
    if exchange.error is not None:
        yield f"< broken off: {exchange.error}: {exchange.error_detail or ''}".rstrip(": ")


def _ms(value_ns: int) -> str:
    return f"{value_ns / 1e6:.2f} ms"
