"""`self.client.grpc`: calls of gRPC through the native engine.

A call becomes one request of HTTP/2. Its messages are laid out before it is sent, and its replies
are read when it has ended, so a call costs the interpreter as little as an HTTP request.
"""

import base64
import gzip
from collections.abc import Iterable, Mapping
from typing import Any, Unpack

from hyperscale._native import Template
from hyperscale.clients.grpc_streams import GRPCStream
from hyperscale.clients.http import Request
from hyperscale.clients.parts import Send
from hyperscale.clients.templates import TemplateBook
from hyperscale.config import parse_duration_s
from hyperscale.errors import InputError
from hyperscale.testing.arguments import ProtobufBytes, ProtobufDict, encode_message
from hyperscale.testing.grpc import GRPCResponse, response_type
from hyperscale.testing.network import Network, NetworkOptions
from hyperscale.testing.services import Method, Services, files_of

_DEADLINE_MS_MOST = 99_999_999  # the standard has eight digits


class GRPCCall(NetworkOptions, total=False):
    """The arguments of a call beside its URL, method and messages."""

    reply: type | None
    """The generated class of the replies; without it, replies are bytes."""
    metadata: Mapping[str, str | bytes] | None
    """Sent as headers; the values of names that end with `-bin` are bytes."""
    timeout: str | float
    """Longest time for the whole call. The server gets it too (`grpc-timeout`)."""
    compression: str | None
    """ "gzip" compresses the messages."""
    connect_timeout: str | float
    body_limit: int
    """Most bytes of replies accepted."""
    verify: bool
    """False accepts any server certificate."""
    ca: str
    """Path of a PEM file of certificate authorities to trust instead of the system's."""
    cert: str
    """Path of a client certificate (PEM); its key may be in the same file or in `key`."""
    key: str


_SELF_DESCRIBING = ("/grpc.health.", "/grpc.reflection.")
"""Services that every server may have; their messages are bytes."""
_OWN = frozenset(("reply", "metadata", "compression"))
_KNOWN = frozenset(GRPCCall.__annotations__)


class GRPCBook:
    """Renders the calls of one workflow. Calls with a prepared message are rendered once."""

    def __init__(
        self, timeout_s: float, *, streams: int, network: Network, descriptors: bytes
    ) -> None:
        self._timeout_s = timeout_s
        self._streams = streams
        self._network = network
        self._files = files_of(descriptors)
        self._services = Services(self._files) if self._files else None
        self._books: dict[type, TemplateBook] = {}
        self._kept: dict[tuple[object, ...], Template] = {}

    def describe(self, files: Iterable[bytes]) -> None:
        """Add descriptions of services. Raises InputError if they are wrong."""
        self._files += files
        self._services = Services(self._files)

    def check(self, method: str) -> None:
        """Raise InputError if services are described, but not this method."""
        if self._services is not None:
            self._services.method(method)

    def one(self, url: str, method: str, message: object, call: GRPCCall) -> Template:
        """Return the request of a call with one message."""
        if not isinstance(message, ProtobufBytes | ProtobufDict) or "metadata" in call:
            return self.many(url, method, (message,), call)
        # Prepared messages live as long as the book.
        key = (url, method, id(message), *call.items())
        try:
            found = self._kept.get(key)
        except TypeError:  # an option that cannot be looked up, such as a list of addresses
            return self.many(url, method, (message,), call)
        if found is None:
            found = self._kept[key] = self.many(url, method, (message,), call)
        return found

    def _described(self, path: str) -> Method | None:
        """Return the method of a path; None if the workflow describes no services."""
        if self._services is None or path.startswith(_SELF_DESCRIBING):
            return None
        return self._services.method(path)

    def many(self, url: str, method: str, messages: Iterable[object], call: GRPCCall) -> Template:
        """Return the request of a call with any number of messages."""
        path = _path(method)
        described = self._described(path)
        is_gzip = call.get("compression") == "gzip"
        frames = (_framed(_encoded(each, described, path), is_gzip=is_gzip) for each in messages)
        return self._template(url, path, call, described, b"".join(frames))

    def stream(self, url: str, method: str, call: GRPCCall, send: Send, vu: int) -> GRPCStream:
        """Return a call that messages are handed to while it is under way."""
        path = _path(method)
        described = self._described(path)
        is_gzip = call.get("compression") == "gzip"
        template = self._template(url, path, call, described, None)
        reply: Any = call.get("reply", described and described.reply)
        return GRPCStream(
            send,
            template,
            vu,
            lambda message: _framed(_encoded(message, described, path), is_gzip=is_gzip),
            bytes if reply is None else reply.FromString,
        )

    def _template(
        self, url: str, path: str, call: GRPCCall, described: Method | None, body: bytes | None
    ) -> Template:
        """Return a request; without a body, one that takes its messages while it runs."""
        where = f"gRPC {path}"
        for name in call:
            if name not in _KNOWN:
                hint = f"it takes {', '.join(sorted(_KNOWN))}"
                raise InputError(f"{where}: unknown argument {name!r}", hint=hint)
        timeout_s = self._timeout_s
        if "timeout" in call:
            timeout_s = parse_duration_s(call["timeout"], where=f"{where}: timeout")
        compression = call.get("compression")
        if compression not in (None, "identity", "gzip"):
            hint = 'use "gzip", or leave it out'
            raise InputError(f"{where}: compression {compression!r} is unknown", hint=hint)
        headers = {
            "content-type": "application/grpc",
            "te": "trailers",
            "grpc-accept-encoding": "identity" if body is None else "identity,gzip",
            "accept-encoding": "identity",
            "grpc-timeout": f"{min(max(1, round(timeout_s * 1000)), _DEADLINE_MS_MOST)}m",
        }
        if compression == "gzip":
            headers["grpc-encoding"] = "gzip"
        headers.update(_metadata(where, call.get("metadata") or {}))
        kind = response_type(call.get("reply", described and described.reply))
        if kind not in self._books:
            self._books[kind] = TemplateBook(
                self._timeout_s,
                protocol="grpc",
                streams=self._streams,
                response_type=kind,
                network=self._network,
            )
        options = {name: value for name, value in call.items() if name not in _OWN}
        return self._books[kind].template(
            "POST",
            f"{url.rstrip('/')}{path}",
            {**options, "headers": headers, "data": body or b"", "redirects": 0},
            continues=body is None,
        )


class GRPCClient:
    """The gRPC client of one virtual user.

    URLs begin with http:// or https://, methods are written "package.Service/Method". Messages are
    instances of generated classes, `Protobuf` request parts or bytes; dicts, if the workflow
    describes its services with `Protos`.
    """

    __slots__ = ("_many", "_one", "_send", "_stream", "_vu")

    def __init__(self, book: GRPCBook, send: Send, vu: int) -> None:
        self._one, self._many, self._stream = book.one, book.many, book.stream
        self._send = send
        self._vu = vu

    def unary(
        self, url: str, method: str, message: Any, **call: Unpack[GRPCCall]
    ) -> Request[GRPCResponse]:
        """Send one message and receive one: `await self.client.grpc.unary(url, "a.B/C", m)`."""
        return self._send(self._one(url, method, message, call), self._vu, False)

    def server_stream(
        self, url: str, method: str, message: Any, **call: Unpack[GRPCCall]
    ) -> Request[GRPCResponse]:
        """Send one message and receive many, as `messages` of the response."""
        return self._send(self._one(url, method, message, call), self._vu, False)

    def client_stream(
        self, url: str, method: str, messages: Iterable[Any], **call: Unpack[GRPCCall]
    ) -> Request[GRPCResponse]:
        """Send many messages and receive one."""
        return self._send(self._many(url, method, messages, call), self._vu, False)

    def bidi_stream(
        self, url: str, method: str, messages: Iterable[Any], **call: Unpack[GRPCCall]
    ) -> Request[GRPCResponse]:
        """Send many messages and receive many; the replies are there when the call has ended."""
        return self._send(self._many(url, method, messages, call), self._vu, False)

    def stream(self, url: str, method: str, **call: Unpack[GRPCCall]) -> GRPCStream:
        """Open a call in which messages go both ways, one by one: `async with ….stream(…)`."""
        return self._stream(url, method, call, self._send, self._vu)


def _path(method: str) -> str:
    path = method if method.startswith("/") else f"/{method}"
    if path.count("/") != 2 or path.endswith("/"):
        hint = 'write "package.Service/Method"'
        raise InputError(f"gRPC {path}: {method!r} is not the name of a method", hint=hint)
    return path


def _encoded(message: object, method: Method | None, path: str) -> bytes:
    if isinstance(message, Mapping) and method is not None:
        return method.encode(message)
    return encode_message(message, where=f"gRPC {path}")


def _framed(message: bytes, *, is_gzip: bool) -> bytes:
    if is_gzip:
        message = gzip.compress(message, mtime=0)
    return bytes((is_gzip,)) + len(message).to_bytes(4, "big") + message


def _metadata(where: str, metadata: Mapping[str, str | bytes]) -> dict[str, str]:
    fields = {}
    for name, value in metadata.items():
        lower = name.lower()
        if lower.startswith("grpc-"):
            hint = "names that begin with grpc- belong to gRPC; use another one, or timeout="
            raise InputError(f"{where}: metadata {name!r} is reserved", hint=hint)
        if lower.endswith("-bin"):
            raw = value.encode() if isinstance(value, str) else bytes(value)
            fields[lower] = base64.b64encode(raw).decode("ascii").rstrip("=")
        elif isinstance(value, str):
            fields[lower] = value
        else:
            hint = "bytes need a name that ends with -bin"
            raise InputError(f"{where}: metadata {name!r} is not text", hint=hint)
    return fields
