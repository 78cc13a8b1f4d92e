"""`self.client.websocket`: messages over sockets that a virtual user keeps open."""

from collections.abc import Sequence
from typing import Any, Unpack

from hyperscale.clients.library import Reply
from hyperscale.clients.streams import StreamClient, message_of
from hyperscale.clients.templates import StreamOptions
from hyperscale.errors import InputError
from hyperscale.testing.arguments import CLIENT_SCHEMES
from hyperscale.testing.streams import WebsocketResponse

_MESSAGES_MAX = 1_000_000


class SocketOptions(StreamOptions, total=False):
    """The arguments of a call on a socket. Calls with other ones use other sockets, except for
    times and limits."""

    subprotocols: Sequence[str]
    """Offered to the server, the best first."""
    compress: bool
    """Offer compressed messages (permessage-deflate)."""


class WebsocketClient(StreamClient[WebsocketResponse]):
    """The sockets of one virtual user, one for each URL.

    A call opens the socket if it is not open: the time to connect and the handshake are phases of
    that call, not part of its latency.
    """

    __slots__ = ()
    response_type = WebsocketResponse
    schemes = tuple(CLIENT_SCHEMES["websocket"])

    def connect(self, url: str, **call: Unpack[SocketOptions]) -> Reply[WebsocketResponse]:
        """Open the socket. The latency is that of the handshake; its status is 101."""
        return self._call("OPEN", url, call)

    def send(
        self,
        url: str,
        *,
        text: str | None = None,
        data: bytes | None = None,
        json: Any = None,
        **call: Unpack[SocketOptions],
    ) -> Reply[WebsocketResponse]:
        """Send a message, and wait only until it is written."""
        return self._call("SEND", url, call, message_of(f"send {url}", text, data, json))

    def receive(
        self, url: str, *, count: int = 1, **call: Unpack[SocketOptions]
    ) -> Reply[WebsocketResponse]:
        """Wait for messages. Those that arrived since the last call count, the oldest first."""
        return self._call("RECEIVE", url, call, count=_count(count))

    def listen(
        self,
        url: str,
        *,
        duration: str | float,
        count: int = _MESSAGES_MAX,
        **call: Unpack[SocketOptions],
    ) -> Reply[WebsocketResponse]:
        """Collect messages for a time, or until there are `count`. Any number is a success."""
        call["timeout"] = duration
        return self._call("RECEIVE", url, call, count=_count(count), ends_in_time=True)

    def exchange(
        self,
        url: str,
        *,
        text: str | None = None,
        data: bytes | None = None,
        json: Any = None,
        count: int = 1,
        **call: Unpack[SocketOptions],
    ) -> Reply[WebsocketResponse]:
        """Send a message and wait for the next one: `await ….exchange(url, text="hello")`.

        The latency is the round trip. With `count`, wait for that many messages.
        """
        message = message_of(f"exchange {url}", text, data, json)
        return self._call("EXCHANGE", url, call, message, count=_count(count))

    def ping(self, url: str, **call: Unpack[SocketOptions]) -> Reply[WebsocketResponse]:
        """Send a ping and wait for the pong."""
        return self._call("PING", url, call)

    def close(
        self, url: str, code: int = 1000, reason: str = "", **call: Unpack[SocketOptions]
    ) -> Reply[WebsocketResponse]:
        """Close the socket and wait for the server's close; `close_code` is its code."""
        if not (code == 1000 or 3000 <= code <= 4999):
            raise InputError(f"close {url}: code {code} is not 1000 or from 3000 to 4999")
        return self._call("CLOSE", url, call, close_code=code, close_reason=reason)


def _count(count: int) -> int:
    if not 1 <= count <= _MESSAGES_MAX:
        raise InputError(f"count={count} is not from 1 to {_MESSAGES_MAX:,}")
    return count


CLIENT = WebsocketClient
