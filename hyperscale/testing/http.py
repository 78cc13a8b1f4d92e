"""`HTTPResponse` and those of other versions: a finished exchange.

Values are computed when they are read.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from hyperscale.testing.results import CallResult

if TYPE_CHECKING:
    from hyperscale._native import Exchange

_NS_PER_S = 1_000_000_000


@cache
def _json_decoder() -> Callable[[bytes], Any]:
    import msgspec  # noqa: PLC0415  annotating with `HTTPResponse` should cost no import

    return msgspec.json.Decoder().decode


def decode_json(content: bytes) -> Any:
    """Decode JSON. Raises ValueError."""
    return _json_decoder()(content)


class Phases(NamedTuple):
    """Where the time of an exchange went, in seconds; None where a phase did not happen."""

    blocked_s: float | None
    connect_s: float | None
    tls_s: float | None
    first_byte_s: float | None


class ResponseHeaders(Mapping[str, str]):
    """Headers by name in any case; a name sent several times reads as one, joined by commas."""

    __slots__ = ("_fields",)

    def __init__(self, raw: list[tuple[bytes, bytes]]) -> None:
        fields: dict[str, list[str]] = {}
        for name, value in raw:
            fields.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        self._fields = fields

    def __getitem__(self, name: str) -> str:
        return ", ".join(self._fields[name.lower()])

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return f"ResponseHeaders({dict(self)!r})"

    def get_list(self, name: str) -> list[str]:
        """Return every value sent under `name`, in order."""
        return list(self._fields.get(name.lower(), ()))


class HTTPResponse(CallResult):
    """A response, whatever its status. A request without a response raises `RequestError`."""

    __slots__ = ("exchange",)
    protocol = "http"

    def __init__(self, exchange: "Exchange") -> None:
        self.exchange = exchange

    if TYPE_CHECKING:

        @property
        def status(self) -> int:
            """The status code, such as 200."""

    else:
        # Read by most steps, so without a frame of ours in between.
        status = property(attrgetter("exchange.status"), doc="The status code, such as 200.")

    status_code = status

    @property
    def ok(self) -> bool:
        """Whether the status is below 400."""
        return self.exchange.status < 400

    @property
    def reason(self) -> str:
        """The words after the status code, such as "Not Found"."""
        return self.exchange.reason

    @property
    def version(self) -> str:
        """ "HTTP/1.1", "HTTP/1.0", "HTTP/2" or "HTTP/3"."""
        return self.exchange.version

    @property
    def headers(self) -> ResponseHeaders:
        """The headers, by name in any case."""
        return ResponseHeaders(self.exchange.raw_headers)

    @property
    def content(self) -> bytes:
        """The body, decompressed."""
        return self.exchange.body

    body = content

    @property
    def text(self) -> str:
        """The body as text, in the charset the response names, else UTF-8."""
        try:
            return self.exchange.body.decode(self._charset(), errors="replace")
        except LookupError:  # an unknown charset
            return self.exchange.body.decode("utf-8", errors="replace")

    def json(self) -> Any:
        """Decode the body as JSON. Raises ValueError if it is not JSON."""
        try:
            return _json_decoder()(self.exchange.body)
        except ValueError as error:
            raise ValueError(
                f"the body of {self.method} {self.url} is not JSON: {error}"
            ) from error

    @property
    def url(self) -> str:
        """The URL that responded: after redirects, the last one."""
        return self.exchange.url

    @property
    def method(self) -> str:
        """The method of the request that got this response."""
        return self.exchange.method

    @property
    def redirects(self) -> int:
        """How many redirects were followed."""
        return self.exchange.redirects

    @property
    def cookies(self) -> dict[str, str]:
        """The cookies that this response sets, by name."""
        raw = self.exchange.raw_headers
        fields = [value.decode("latin-1") for name, value in raw if name.lower() == b"set-cookie"]
        pairs = (field.partition(";")[0].partition("=") for field in fields)
        return {name.strip(): value.strip() for name, equals, value in pairs if equals}

    @property
    def elapsed_s(self) -> float:
        """Seconds from the first byte sent to the last byte received, redirects included."""
        return self.exchange.latency_ns / _NS_PER_S

    @property
    def phases(self) -> Phases:
        """Seconds spent waiting for a connection, connecting, on TLS, and until the first byte."""
        one = self.exchange
        phases_ns = (one.blocked_ns, one.connect_ns, one.tls_ns, one.first_byte_ns)
        return Phases(*(None if ns is None else ns / _NS_PER_S for ns in phases_ns))

    @property
    def bytes_sent(self) -> int:
        """Bytes sent, headers included."""
        return self.exchange.bytes_sent

    @property
    def bytes_received(self) -> int:
        """Bytes received, headers included."""
        return self.exchange.bytes_received

    @property
    def remote(self) -> str | None:
        """The address that answered, `ip:port`."""
        return self.exchange.remote

    @property
    def tls_version(self) -> str | None:
        """The version of TLS, such as "TLSv1_3"; None without TLS."""
        return self.exchange.tls_version

    @property
    def tls_cipher(self) -> str | None:
        """The cipher suite; None without TLS, and over HTTP/3."""
        return self.exchange.tls_cipher

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.method} {self.url} {self.status}>"

    def _charset(self) -> str:
        content_type = self.exchange.header("content-type") or ""
        for parameter in content_type.split(";")[1:]:
            name, _, value = parameter.partition("=")
            if name.strip().lower() == "charset":
                return value.strip().strip('"') or "utf-8"
        return "utf-8"


class HTTP2Response(HTTPResponse):
    """A response over HTTP/2, whatever its status."""

    __slots__ = ()
    protocol = "http2"

    @property
    def trailers(self) -> ResponseHeaders:
        """The header fields that followed the body, by name in any case."""
        return ResponseHeaders(self.exchange.raw_trailers)


class HTTP3Response(HTTP2Response):
    """A response over HTTP/3, whatever its status."""

    __slots__ = ()
    protocol = "http3"
