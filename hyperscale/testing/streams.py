"""Results of calls on streams: WebSockets, server-sent events, streamed bodies, TCP and UDP."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from hyperscale.testing.http import HTTPResponse, Phases, ResponseHeaders, decode_json
from hyperscale.testing.results import CallResult

if TYPE_CHECKING:
    from hyperscale._native import Exchange

_NS_PER_S = 1_000_000_000


class MessageTimes:
    """When the messages of a call arrived."""

    __slots__ = ()
    exchange: "Exchange"

    @property
    def times_s(self) -> Sequence[float]:
        """When each message arrived, in seconds since the call began."""
        return [ns / _NS_PER_S for ns in self.exchange.message_times_ns]

    @property
    def first_s(self) -> float | None:
        """Seconds until the first message; None if there is none."""
        times = self.exchange.message_times_ns
        return times[0] / _NS_PER_S if times else None

    @property
    def gaps_s(self) -> Sequence[float]:
        """Seconds between each message and the next."""
        times = self.times_s
        return [after - before for before, after in pairwise(times)]

    @property
    def rate(self) -> float | None:
        """Messages per second from the first to the last; None if there are fewer than two."""
        times = self.times_s
        if len(times) < 2 or times[-1] <= times[0]:
            return None
        return (len(times) - 1) / (times[-1] - times[0])


class StreamResponse(MessageTimes, CallResult):
    """What a call on a stream received: any number of messages, each with its time."""

    __slots__ = ("exchange",)

    def __init__(self, exchange: "Exchange") -> None:
        self.exchange = exchange

    @property
    def status(self) -> int:
        """The status of the handshake if this call made it, else 0."""
        return self.exchange.status

    @property
    def ok(self) -> bool:
        """Whether the server did not refuse the handshake."""
        return self.exchange.status < 400

    @property
    def messages(self) -> Sequence[Any]:
        """The messages, in order."""
        return self.exchange.messages

    @property
    def message(self) -> Any:
        """The first message; None if there is none."""
        messages = self.exchange.messages
        return messages[0] if messages else None

    @property
    def text(self) -> str:
        """The first message as text; empty if there is none."""
        message = self.message
        return message.decode() if isinstance(message, bytes) else message or ""

    @property
    def content(self) -> bytes:
        """The first message as bytes; empty if there is none."""
        message = self.message
        return message.encode() if isinstance(message, str) else message or b""

    def json(self) -> Any:
        """Decode the first message as JSON. Raises ValueError if it is not JSON."""
        return decode_json(self.content)

    @property
    def elapsed_s(self) -> float:
        """Seconds from the first byte sent to the end of the call."""
        return self.exchange.latency_ns / _NS_PER_S

    @property
    def phases(self) -> Phases:
        """Seconds spent waiting for a connection, connecting and until the first byte."""
        exchange = self.exchange
        phases_ns = (
            exchange.blocked_ns,
            exchange.connect_ns,
            exchange.tls_ns,
            exchange.first_byte_ns,
        )
        return Phases(*(None if ns is None else ns / _NS_PER_S for ns in phases_ns))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self.messages)} messages>"


class WebsocketResponse(StreamResponse):
    """Messages of a WebSocket: `str` if the server sent text, else `bytes`."""

    __slots__ = ()
    protocol = "websocket"

    @property
    def headers(self) -> ResponseHeaders:
        """The headers of the handshake, if this call made it."""
        return ResponseHeaders(self.exchange.raw_headers)

    @property
    def subprotocol(self) -> str | None:
        """The subprotocol that the server chose, if this call made the handshake."""
        return self.exchange.header("sec-websocket-protocol")

    @property
    def close_code(self) -> int | None:
        """The code that the server answered a close with."""
        reason = self.exchange.close_reason
        return None if reason is None else reason[0]


class Event(NamedTuple):
    """A server-sent event."""

    data: str
    event: str = "message"
    id: str = ""
    retry_ms: int | None = None
    at_s: float = 0.0  # since the call began

    @classmethod
    def parse(cls, block: bytes, at_s: float = 0.0) -> "Event":
        """Return the event that a block of lines means, as browsers read it."""
        data: list[str] = []
        fields = {"event": "message", "id": ""}
        retry_ms = None
        for line in block.decode(errors="replace").splitlines():
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "data":
                data.append(value)
            elif name == "retry":
                retry_ms = int(value) if value.isdigit() else retry_ms
            elif name == "event" or (name == "id" and "\0" not in value):
                fields[name] = value
        return cls("\n".join(data), fields["event"] or "message", fields["id"], retry_ms, at_s)


class SSEResponse(MessageTimes, HTTPResponse):
    """Server-sent events, each with its time."""

    __slots__ = ()
    protocol = "sse"

    @property
    def events(self) -> Sequence[Event]:
        """The events that have data, in order."""
        blocks = cast(list[bytes], self.exchange.messages)
        pairs = zip(blocks, self.times_s, strict=True)
        events = (Event.parse(block, at_s) for block, at_s in pairs)
        return [event for event in events if event.data]

    @property
    def last_id(self) -> str:
        """The id of the last event that has one; empty if none has."""
        return next((event.id for event in reversed(self.events) if event.id), "")


class StreamedResponse(MessageTimes, HTTPResponse):
    """A response whose body was read in pieces, each with its time."""

    __slots__ = ()
    protocol = "http"

    @property
    def chunks(self) -> Sequence[bytes]:
        """The pieces of the body, as they arrived."""
        return cast(list[bytes], self.exchange.messages)

    @property
    def content(self) -> bytes:
        """The whole body."""
        return b"".join(self.chunks) or self.exchange.body

    def json(self) -> Any:
        """Decode the whole body as JSON. Raises ValueError if it is not JSON."""
        return decode_json(self.content)

    @property
    def text(self) -> str:
        """The whole body as text."""
        return self.content.decode(errors="replace")


class TCPResponse(StreamResponse):
    """What a TCP connection received, cut where the call said."""

    __slots__ = ()
    protocol = "tcp"


class UDPResponse(StreamResponse):
    """Datagrams that were received."""

    __slots__ = ()
    protocol = "udp"
