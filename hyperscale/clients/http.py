"""`self.client.http`: HTTP/1.1 through the native engine.

A method returns at once with something to await; nothing here runs per response.
"""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Unpack

from hyperscale.clients.templates import BodyCall, PlainCall, TemplateBook
from hyperscale.testing.http import HTTPResponse

if TYPE_CHECKING:
    from hyperscale._native import Template

Response = Coroutine[Any, Any, HTTPResponse]
"""A request under way, to be awaited or made a task; it was sent when it was made."""

Send = Callable[["Template", int], Response]


class HTTPClient:
    """The HTTP client of one virtual user.

    Every argument may be a plain value or one of the request parts of `hyperscale.testing`.
    `PlainCall` and `BodyCall` say what a call can be given.
    """

    __slots__ = ("_send", "_template", "_vu")

    def __init__(self, book: TemplateBook, send: Send, vu: int) -> None:
        self._template = book.template
        self._send = send
        self._vu = vu

    def get(self, url: str, **call: Unpack[PlainCall]) -> Response:
        return self._send(self._template("GET", url, call), self._vu)

    def head(self, url: str, **call: Unpack[PlainCall]) -> Response:
        return self._send(self._template("HEAD", url, call), self._vu)

    def options(self, url: str, **call: Unpack[PlainCall]) -> Response:
        return self._send(self._template("OPTIONS", url, call), self._vu)

    def post(self, url: str, **call: Unpack[BodyCall]) -> Response:
        return self._send(self._template("POST", url, call), self._vu)

    def put(self, url: str, **call: Unpack[BodyCall]) -> Response:
        return self._send(self._template("PUT", url, call), self._vu)

    def patch(self, url: str, **call: Unpack[BodyCall]) -> Response:
        return self._send(self._template("PATCH", url, call), self._vu)

    def delete(self, url: str, **call: Unpack[BodyCall]) -> Response:
        return self._send(self._template("DELETE", url, call), self._vu)

    def request(self, method: str, url: str, **call: Unpack[BodyCall]) -> Response:
        """Any method: `TRACE`, or one of the target's own."""
        return self._send(self._template(method, url, call), self._vu)
