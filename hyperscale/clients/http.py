"""`self.client.http`: HTTP/1.1 through the native engine.

A method sends the request and returns at once; no code here runs when the response arrives.
"""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Unpack

from hyperscale.clients.templates import BodyCall, PlainCall, TemplateBook
from hyperscale.testing.http import HTTPResponse

if TYPE_CHECKING:
    from hyperscale._native import Exchange, Template

Response = Coroutine[Any, Any, HTTPResponse]
"""A request that was sent, to be awaited or made a task."""

Send = Callable[["Template", int], Response]


class RequestError(Exception):
    """A request without a usable response.

    `error` is its class in the results: dns, connect, tls, timeout, reset, protocol, too_large.
    """

    def __init__(self, exchange: "Exchange") -> None:
        self.exchange = exchange
        self.error = exchange.error or "protocol"
        super().__init__(f"{exchange.method} {exchange.url}: {self.error}: {exchange.error_detail}")


class HTTPClient:
    """The HTTP client of one virtual user.

    Every argument may be a plain value or one of the request parts of `hyperscale.testing`.
    `PlainCall` and `BodyCall` list the arguments of a call.
    """

    __slots__ = ("_send", "_template", "_vu")

    def __init__(self, book: TemplateBook, send: Send, vu: int) -> None:
        self._template = book.template
        self._send = send
        self._vu = vu

    def get(self, url: str, **call: Unpack[PlainCall]) -> Response:
        """Send a GET request: `await self.client.http.get(url, params={"page": 1})`."""
        return self._send(self._template("GET", url, call), self._vu)

    def head(self, url: str, **call: Unpack[PlainCall]) -> Response:
        """Send a HEAD request; its response has headers and no body."""
        return self._send(self._template("HEAD", url, call), self._vu)

    def options(self, url: str, **call: Unpack[PlainCall]) -> Response:
        """Send an OPTIONS request."""
        return self._send(self._template("OPTIONS", url, call), self._vu)

    def post(self, url: str, **call: Unpack[BodyCall]) -> Response:
        """Send a POST request: `await self.client.http.post(url, json={"id": 1})`.

        The body is one of `json`, `data`, `form`, `files`.
        """
        return self._send(self._template("POST", url, call), self._vu)

    def put(self, url: str, **call: Unpack[BodyCall]) -> Response:
        """Send a PUT request; the body is given as for `post`."""
        return self._send(self._template("PUT", url, call), self._vu)

    def patch(self, url: str, **call: Unpack[BodyCall]) -> Response:
        """Send a PATCH request; the body is given as for `post`."""
        return self._send(self._template("PATCH", url, call), self._vu)

    def delete(self, url: str, **call: Unpack[BodyCall]) -> Response:
        """Send a DELETE request; a body is given as for `post`."""
        return self._send(self._template("DELETE", url, call), self._vu)

    def request(self, method: str, url: str, **call: Unpack[BodyCall]) -> Response:
        """Send a request with any method, such as `TRACE`."""
        return self._send(self._template(method, url, call), self._vu)
