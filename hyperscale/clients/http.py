"""`self.client.http`, `http2` and `http3`: HTTP through the native engine.

A method sends the request and returns at once; no code here runs when the response arrives.
"""

from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack

from hyperscale.clients.auth import SignedRequest
from hyperscale.clients.bodies import encode_json
from hyperscale.clients.parts import BodyStream, Send
from hyperscale.clients.templates import BodyCall, PlainCall, StreamOptions, TemplateBook
from hyperscale.testing.arguments import AuthScheme
from hyperscale.testing.http import HTTP2Response, HTTP3Response, HTTPResponse
from hyperscale.testing.streams import StreamedResponse

if TYPE_CHECKING:
    from hyperscale._native import Exchange, Template
    from hyperscale.clients.auth import Authorizer

_R = TypeVar("_R", bound=HTTPResponse)

Request = Coroutine[Any, Any, _R]
"""A request that was sent, to be awaited or made a task."""

_CHUNKS_MAX = 1_000_000_000


class RequestError(Exception):
    """A request without a usable response.

    `error` is its class in the results: dns, connect, tls, proxy, timeout, reset, protocol or
    too_large.
    """

    def __init__(self, exchange: "Exchange") -> None:
        self.exchange = exchange
        self.error = exchange.error or "protocol"
        super().__init__(f"{exchange.method} {exchange.url}: {self.error}: {exchange.error_detail}")


class EngineCalls:
    """The calls of one virtual user to the native engine; its clients share them."""

    __slots__ = ("_authorizer", "_book", "_send", "_template", "_user", "_vu")

    def __init__(
        self,
        book: TemplateBook,
        send: Send,
        vu: int,
        authorizer: "Authorizer | None" = None,
        user: object = None,
    ) -> None:
        """`user` is the instance of the workflow that has a context."""
        self._book = book
        self._template = book.template
        self._send = send
        self._vu = vu
        self._authorizer = authorizer
        self._user = user

    @property
    def book(self) -> TemplateBook:
        """The requests that all users of the workflow render."""
        return self._book

    def send_template(self, template: "Template") -> Coroutine[Any, Any, Any]:
        """Send a request that was rendered before; its response is of the type it names."""
        return self._send(template, self._vu, True)

    def send(
        self, method: str, url: str, call: Mapping[str, Any], *, needs_body: bool = False
    ) -> Coroutine[Any, Any, Any]:
        """Send a request; `call` has the arguments of `BodyCall`."""
        auth = call.get("auth")
        if isinstance(auth, AuthScheme) and self._authorizer is not None:
            return self._authenticate(self._authorizer, auth, method, url, call, needs_body)
        return self._send(self._template(method, url, call), self._vu, needs_body)

    async def _authenticate(
        self,
        authorizer: "Authorizer",
        auth: AuthScheme,
        method: str,
        url: str,
        call: Mapping[str, Any],
        needs_body: bool,
    ) -> HTTPResponse:
        plain = {name: value for name, value in call.items() if name != "auth"}

        def send(headers: Mapping[str, str]) -> Coroutine[Any, Any, Any]:
            with_headers = {**(call.get("headers") or {}), **headers}
            template = self._template(method, url, {**plain, "headers": with_headers})
            return self._send(template, self._vu, needs_body)

        def fetch(
            token_url: str, form: Mapping[str, str], headers: Mapping[str, str]
        ) -> Coroutine[Any, Any, Any]:
            # With the certificates and the time limits of the request that needs the token.
            kept = ("verify", "ca", "cert", "key", "timeout", "connect_timeout")
            options = {name: call[name] for name in kept if name in call}
            template = self._template(
                "POST", token_url, {**options, "form": form, "headers": headers}
            )
            return self._send(template, self._vu, True)

        body = self._book.body_of(method, url, plain)
        request = SignedRequest(method, self._template(method, url, plain).url, body)
        context = getattr(self._user, "context", {})
        return await authorizer.send(auth, request, send, fetch, context)


class HTTPCalls(EngineCalls, Generic[_R]):
    """The calls of an HTTP client, which belongs to one virtual user.

    Every argument may be a plain value or one of the request parts of `hyperscale.testing`.
    `PlainCall` and `BodyCall` list the arguments of a call.
    """

    __slots__ = ()

    def get(self, url: str, **call: Unpack[PlainCall]) -> Request[_R]:
        """Send a GET request: `await self.client.http.get(url, params={"page": 1})`."""
        if not call:
            template = self._book.gets.get(url) or self._template("GET", url, call)
            return self._send(template, self._vu, False)
        return self.send("GET", url, call)

    def head(self, url: str, **call: Unpack[PlainCall]) -> Request[_R]:
        """Send a HEAD request; its response has headers and no body."""
        if "auth" in call:
            return self.send("HEAD", url, call)
        return self._send(self._template("HEAD", url, call), self._vu, False)

    def options(self, url: str, **call: Unpack[PlainCall]) -> Request[_R]:
        """Send an OPTIONS request."""
        if "auth" in call:
            return self.send("OPTIONS", url, call)
        return self._send(self._template("OPTIONS", url, call), self._vu, False)

    def post(self, url: str, **call: Unpack[BodyCall]) -> Request[_R]:
        """Send a POST request: `await self.client.http.post(url, json={"id": 1})`.

        The body is one of `json`, `data`, `form`, `files`.
        """
        if "auth" in call:
            return self.send("POST", url, call)
        return self._send(self._template("POST", url, call), self._vu, False)

    def put(self, url: str, **call: Unpack[BodyCall]) -> Request[_R]:
        """Send a PUT request; the body is given as for `post`."""
        if "auth" in call:
            return self.send("PUT", url, call)
        return self._send(self._template("PUT", url, call), self._vu, False)

    def patch(self, url: str, **call: Unpack[BodyCall]) -> Request[_R]:
        """Send a PATCH request; the body is given as for `post`."""
        if "auth" in call:
            return self.send("PATCH", url, call)
        return self._send(self._template("PATCH", url, call), self._vu, False)

    def delete(self, url: str, **call: Unpack[BodyCall]) -> Request[_R]:
        """Send a DELETE request; a body is given as for `post`."""
        if "auth" in call:
            return self.send("DELETE", url, call)
        return self._send(self._template("DELETE", url, call), self._vu, False)

    def request(self, method: str, url: str, **call: Unpack[BodyCall]) -> Request[_R]:
        """Send a request with any method, such as `TRACE`."""
        return self.send(method, url, call)


class HTTPClient(HTTPCalls[HTTPResponse]):
    """`self.client.http`: HTTP/1.1, or with `version=` another one."""

    __slots__ = ()

    def stream(
        self,
        url: str,
        *,
        method: Literal["GET", "POST"] = "GET",
        json: Any = None,
        **call: Unpack[StreamOptions],
    ) -> BodyStream:
        """Send a request and note when each piece of its body arrives.

        The response has `chunks`, `first_s` (time to the first token), `gaps_s` and `rate`.
        `async for chunk in self.client.http.stream(url)` reads the pieces as they arrive.
        """
        body = encode_json(json).content if json is not None else None
        template = self._book.stream_template(
            method,
            url,
            call,
            StreamedResponse,
            {
                "body": body,
                "content_type": "application/json" if body is not None else None,
                "count": _CHUNKS_MAX,
            },
        )
        return BodyStream(self._send, template, self._vu)


class HTTP2Client(HTTPCalls[HTTP2Response]):
    """`self.client.http2`: HTTP/2, asked for by ALPN with https, taken for granted with http.

    Requests that a virtual user makes at the same time share its connection.
    """

    __slots__ = ()


class HTTP3Client(HTTPCalls[HTTP3Response]):
    """`self.client.http3`: HTTP/3 over QUIC, for URLs that begin with https.

    Requests that a virtual user makes at the same time share its connection.
    """

    __slots__ = ()
