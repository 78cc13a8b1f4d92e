"""Renders the arguments of a call into the request that the engine sends.

A call on a URL alone, or on request parts that were prepared before the run started, is rendered
once and looked up from then on.
"""

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, cast

from hyperscale._native import Route, Template, Tls
from hyperscale.clients.bodies import (
    Body,
    encode_data,
    encode_form,
    encode_json,
    encode_multipart,
    encode_pairs,
)
from hyperscale.config import parse_duration_s
from hyperscale.errors import InputError
from hyperscale.testing.arguments import AuthScheme, FilesValue, OptimizedArg, authorization
from hyperscale.testing.network import NETWORK_OPTIONS, Network, NetworkOptions

CONNECT_TIMEOUT_S = 10.0
REDIRECTS_MAX = 10
BODY_BYTES_MAX = 64 * 1024 * 1024

# Of its own: a test that seeds `random` must not give all executors the same trace ids.
_random = Random()  # noqa: S311 - identifies, protects nothing

_KEPT_MAX = 4096
"""Rendered requests that are kept. Without a limit, steps that build URLs would use more and more
memory..."""
_KEPT_ROWS_MAX = 100_000
"""... and those of rows of feeds beside them."""


class PlainCall(NetworkOptions, total=False):
    """The arguments of a call without a body, beside its URL."""

    headers: Mapping[str, str] | None
    params: Mapping[str, Any] | None
    """Query parameters; a list repeats its name, None leaves it out."""
    cookies: Mapping[str, str] | None
    """Sent with the cookies of the virtual user, and instead of those with the same name."""
    auth: tuple[str, str] | str | AuthScheme | None
    """("user", "password"), "user:password", a bearer token, a whole header value, or `OAuth2`,
    `SigV4`, `Digest` or `Bearer`."""
    timeout: str | float
    """Longest time for the whole call, redirects included."""
    connect_timeout: str | float
    read_timeout: str | float
    """Longest time between two reads from the server."""
    redirects: int
    """How many redirects to follow; 0 returns them as they are."""
    body_limit: int
    """Largest response body accepted, in bytes."""
    verify: bool
    """False accepts any server certificate."""
    ca: str
    """Path of a PEM file of certificate authorities to trust instead of the system's."""
    cert: str
    """Path of a client certificate (PEM); its key may be in the same file or in `key`."""
    key: str
    version: str | float
    """Of HTTP: 1.1, 2, 3, or "auto" for what the server chooses with TLS. `self.client.http` uses
    1.1, `self.client.http2` uses 2, `self.client.http3` uses 3."""


class BodyCall(PlainCall, total=False):
    """The arguments of a call with a body: one of these, or `files` with `form`."""

    data: Any
    """A dict or list (sent as JSON), text, bytes, a `File`, or an iterator (sent in chunks)."""
    json: Any
    form: Mapping[str, Any] | None
    """Sent url-encoded; beside `files`, the other fields of the multipart body."""
    files: Mapping[str, Any] | FilesValue | None
    """A multipart body: name to bytes, `File`, or (file name, bytes, content type); or a
    `Directory` or `FileGlob`, whose files all have the name "file"."""


class StreamOptions(NetworkOptions, total=False):
    """The arguments of a call on a stream: of those of `PlainCall`, the ones that apply."""

    headers: Mapping[str, str] | None
    params: Mapping[str, Any] | None
    cookies: Mapping[str, str] | None
    auth: tuple[str, str] | str | None
    timeout: str | float
    """Longest time for the whole call, connecting included."""
    connect_timeout: str | float
    body_limit: int
    """Largest message accepted, in bytes."""
    verify: bool
    ca: str
    cert: str
    key: str


_STREAM_KNOWN = frozenset(StreamOptions.__annotations__) | {"subprotocols", "compress"}
_PARTS = frozenset(("headers", "params", "cookies", "auth", "data", "json", "form", "files"))
_KNOWN = frozenset(PlainCall.__annotations__) | frozenset(BodyCall.__annotations__)
_BODIES = ("data", "json", "form", "files")


_PROTOCOLS = {
    "1.1": "http1",
    "2": "http2",
    "2.0": "http2",
    "3": "http3",
    "3.0": "http3",
    "auto": "auto",
}
"""Versions of HTTP as users write them, and what the engine calls them."""


class TemplateBook:
    """Renders the requests of one client. `timeout_s` is the default of every call.

    A connection of HTTP/2 or HTTP/3 carries up to `streams` requests at once. `response_type` is
    what a step receives, if that is not an `HTTPResponse`. `tracing` is the share of requests that
    get a `traceparent` header. `network` is the way of connections, unless a call says otherwise.
    """

    def __init__(
        self,
        timeout_s: float,
        *,
        protocol: str = "http1",
        streams: int = 100,
        response_type: type | None = None,
        tracing: float = 0.0,
        network: Network = Network(),  # noqa: B008 - immutable
    ) -> None:
        self._timeout_s = timeout_s
        self._tracing = tracing
        self._protocol = protocol
        self._streams = streams
        self._response_type = response_type
        self._kept: dict[tuple[object, ...], Template] = {}
        self._kept_max = _KEPT_MAX
        self.gets: dict[str, Template] = {}  # those of GET on a URL alone: the commonest call
        self._tls: dict[tuple[object, ...], Tls] = {}
        self._network = network
        self._routes: dict[Network, Route | None] = {Network(): None}

    def keep_more(self, requests: int) -> None:
        """Keep as many further requests: those of the rows of a feed."""
        self._kept_max = min(self._kept_max + requests, _KEPT_MAX + _KEPT_ROWS_MAX)

    def template(
        self, method: str, url: str, call: Mapping[str, object], *, continues: bool = False
    ) -> Template:
        """Return the request of a call. If it `continues`, more of its body follows."""
        if continues:
            return self._render(method, url, cast(BodyCall, call), continues=True)
        if self._tracing and _random.random() < self._tracing:
            return self._render(method, url, _traced(cast(BodyCall, call)))
        key = _key(method, url, call) if call else (method, url)
        if key is None:
            return self._render(method, url, cast(BodyCall, call))
        found = self._kept.get(key)
        if found is None:
            if len(self._kept) >= self._kept_max:
                self._kept.clear()
                self.gets.clear()
            found = self._kept[key] = self._render(method, url, cast(BodyCall, call))
            if method == "GET" and not call and not self._tracing:
                self.gets[url] = found
        return found

    def kept(self, key: tuple[object, ...]) -> Template | None:
        """Return a request that was kept under a key. Raises TypeError if it cannot be one."""
        return self._kept.get(key)

    def keep(self, key: tuple[object, ...], template: Template) -> None:
        if len(self._kept) >= _KEPT_MAX:
            self._kept.clear()
        self._kept[key] = template

    def stream_template(
        self,
        verb: str,
        url: str,
        call: Mapping[str, Any],
        response_type: type,
        stream: Mapping[str, Any],
    ) -> Template:
        """Render a call on a stream, without its message. Raises InputError."""
        where = f"{verb.lower()} {url}"
        _refuse_unknown(where, call, _STREAM_KNOWN)
        total_s = self._seconds(where, call, "timeout", self._timeout_s)
        params, subprotocols = call.get("params"), call.get("subprotocols")
        if isinstance(subprotocols, str):
            raise InputError(f"{where}: subprotocols is a text", hint='write ["one", "other"]')
        try:
            return Template.stream(
                verb,
                _with_query(url, params) if params else url,
                _headers(cast(BodyCall, {**call, "headers": dict(call.get("headers") or ())})),
                response_type=response_type,
                subprotocols=", ".join(subprotocols) if subprotocols else None,
                deflate=bool(call.get("compress")),
                connect_timeout_s=self._seconds(
                    where, call, "connect_timeout", min(CONNECT_TIMEOUT_S, total_s)
                ),
                read_timeout_s=total_s,
                total_timeout_s=total_s,
                body_bytes_max=call.get("body_limit", BODY_BYTES_MAX),
                tls=self._tls_of(cast(BodyCall, call)),
                route=self._route_of(where, call),
                **stream,
            )
        except (ValueError, OverflowError, TypeError) as error:
            raise InputError(f"{where}: {error}") from error

    def _seconds(self, where: str, call: Mapping[str, Any], name: str, default_s: float) -> float:
        value = call.get(name)
        return default_s if value is None else parse_duration_s(value, where=f"{where}: {name}")

    def body_of(self, method: str, url: str, call: Mapping[str, object]) -> bytes:
        """Return the body that a call sends; a signature covers it."""
        body = _body(f"{method} {url}", cast(BodyCall, call))
        return body.content if body is not None else b""

    def _render(
        self, method: str, url: str, call: BodyCall, *, continues: bool = False
    ) -> Template:
        where = f"{method} {url}"
        _refuse_unknown(where, call, _KNOWN)

        def seconds(name: str, default_s: float) -> float:
            return self._seconds(where, call, name, default_s)

        total_s = seconds("timeout", self._timeout_s)
        body = _body(where, call)
        params = call.get("params")
        try:
            return Template(
                method,
                _with_query(url, params) if params else url,
                _headers(call),
                body.content if body else None,
                body.content_type if body else None,
                chunked=body.chunked if body else False,
                connect_timeout_s=seconds("connect_timeout", min(CONNECT_TIMEOUT_S, total_s)),
                read_timeout_s=seconds("read_timeout", total_s),
                total_timeout_s=total_s,
                redirects_max=call.get("redirects", REDIRECTS_MAX),
                body_bytes_max=call.get("body_limit", BODY_BYTES_MAX),
                tls=self._tls_of(call),
                route=self._route_of(where, call),
                protocol=self._protocol_of(where, call),
                streams_max=self._streams,
                response_type=self._response_type,
                continues=continues,
            )
        except (ValueError, OverflowError, TypeError) as error:
            raise InputError(f"{where}: {error}") from error

    def _protocol_of(self, where: str, call: BodyCall) -> str:
        version = call.get("version")
        if version is None:
            return self._protocol
        protocol = _PROTOCOLS.get(str(version))
        if protocol is None or self._protocol not in ("http1", protocol):
            own = self._protocol.removeprefix("http")
            allowed = '1.1, 2, 3 or "auto"' if self._protocol == "http1" else own
            raise InputError(f"{where}: version={version!r} is not possible", hint=f"use {allowed}")
        return protocol

    def _route_of(self, where: str, call: Mapping[str, Any]) -> Route | None:
        network = self._network
        if any(name in call for name in NETWORK_OPTIONS):
            network = network.with_options(call, lambda name: f"{where}: {name}")
        if network not in self._routes:
            self._routes[network] = Route(
                resolve=[(host, list(addresses)) for host, addresses in network.resolve],
                bind=list(network.bind),
                unix_socket=network.unix_socket,
                proxy=None if network.proxy is None else network.proxy.parts,
            )
        return self._routes[network]

    def _tls_of(self, call: BodyCall) -> Tls | None:
        chosen = (call.get("verify"), call.get("ca"), call.get("cert"), call.get("key"))
        if all(value is None for value in chosen):
            return None
        if chosen not in self._tls:
            verify, ca, cert, key = chosen
            pems = _pem(ca), _pem(cert), _pem(key or cert)
            try:
                self._tls[chosen] = Tls(verify is not False, *pems)
            except ValueError as error:
                raise InputError(f"TLS options: {error}") from error
        return self._tls[chosen]


def _refuse_unknown(where: str, call: Mapping[str, Any], known: frozenset[str]) -> None:
    for name in call:
        if name not in known:
            hint = f"it takes {', '.join(sorted(known))}"
            raise InputError(f"{where}: unknown argument {name!r}", hint=hint)


def _pem(path: object) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(str(path)).read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error


def _key(method: str, url: str, call: Mapping[str, object]) -> tuple[object, ...] | None:
    """Return a key for a request made of prepared parts only, else None."""
    key: list[object] = [method, url]
    for name, value in call.items():
        if name not in _PARTS:
            key += (name, value)
        elif value is not None:
            if not isinstance(value, OptimizedArg) or value.optimized is None:
                return None
            key += (name, id(value))  # prepared parts live as long as the book
    found = tuple(key)
    try:
        hash(found)
    except TypeError:  # an option of a wrong type: `_render` reports it
        return None
    return found


def _traced(call: BodyCall) -> BodyCall:
    """Return the call with a `traceparent` of its own, unless the test has set one."""
    headers = call.get("headers") or {}
    if any(str(name).lower() == "traceparent" for name in headers):
        return call
    return {**call, "headers": {**headers, "traceparent": new_traceparent()}}


def new_traceparent() -> str:
    """Return a new trace context that asks for its trace to be recorded (W3C Trace Context 1)."""
    # Zero is not valid.
    trace_id, parent_id = _random.getrandbits(128) or 1, _random.getrandbits(64) or 1
    return f"00-{trace_id:032x}-{parent_id:016x}-01"


def _headers(call: BodyCall) -> list[tuple[str, str]]:
    headers = [(str(name), str(value)) for name, value in (call.get("headers") or {}).items()]
    cookies = call.get("cookies")
    if cookies:
        headers.append(("Cookie", "; ".join(f"{name}={v}" for name, v in cookies.items())))
    auth = call.get("auth")
    if isinstance(auth, AuthScheme):
        raise InputError(f"auth: {type(auth).__name__} cannot be used here")
    if auth is not None:
        headers.append(("Authorization", authorization(auth)))
    return headers


def _body(where: str, call: BodyCall) -> Body | None:
    given = [name for name in _BODIES if call.get(name) is not None]
    if len(given) > 1 and given != ["form", "files"]:
        hint = "give one body, or files with form"
        raise InputError(f"{where}: both {' and '.join(given)} are given", hint=hint)
    files, form, data = call.get("files"), call.get("form"), call.get("data")
    if files is not None:
        return encode_multipart(files, form)
    if form is not None:
        return encode_form(form)
    if call.get("json") is not None:
        return encode_json(call.get("json"))
    if data is None:
        return None
    prepared = getattr(data, "optimized", None)
    return prepared if isinstance(prepared, Body) else encode_data(data)


def _with_query(url: str, params: Mapping[str, Any]) -> str:
    query = encode_pairs(params)
    if not query:
        return url
    base, mark, fragment = url.partition("#")
    return f"{base}{'&' if '?' in base else '?'}{query}{mark}{fragment}"
