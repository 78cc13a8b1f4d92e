"""`GRPCResponse`: a finished call of gRPC. Values are computed when they are read."""

import gzip
import zlib
from enum import IntEnum
from functools import cache
from typing import Any, ClassVar
from urllib.parse import unquote

from hyperscale.testing.http import HTTPResponse, ResponseHeaders

_PREFIX_BYTES = 5


class GRPCCode(IntEnum):
    """Statuses of calls, as the standard numbers them."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class GRPCResponse(HTTPResponse):
    """The replies and the status of a call. A call without any response raises `RequestError`."""

    __slots__ = ()
    protocol = "grpc"
    reply_type: ClassVar[Any] = None  # the generated class of the replies; None: they are bytes

    @property
    def code(self) -> GRPCCode:
        """The status of the call; UNKNOWN if the server answered with HTTP alone."""
        code = self.exchange.grpc_status
        if code is None or code >= len(GRPCCode):
            return GRPCCode.UNKNOWN
        return GRPCCode(code)

    @property
    def ok(self) -> bool:
        """Whether the status is OK."""
        return self.exchange.grpc_status == 0

    @property
    def details(self) -> str:
        """The words of the server about the status."""
        text = self.trailers.get("grpc-message", self.headers.get("grpc-message", ""))
        return unquote(text)

    @property
    def messages(self) -> list[Any]:
        """The replies in order, as instances of `reply=`, else as bytes.

        Raises ValueError if they are cut off or compressed in an unknown way.
        """
        parse = bytes if self.reply_type is None else self.reply_type.FromString
        return [parse(message) for message in self._split()]

    @property
    def message(self) -> Any:
        """The first reply; None if there is none."""
        found = self.messages
        return found[0] if found else None

    @property
    def trailers(self) -> ResponseHeaders:
        """The trailing metadata, by name in any case."""
        return ResponseHeaders(self.exchange.raw_trailers)

    metadata = HTTPResponse.headers
    """The initial metadata, by name in any case."""

    def __repr__(self) -> str:
        return f"<GRPCResponse {self.url} {self.code.name}>"

    def _split(self) -> list[bytes]:
        body, at, found = self.exchange.body, 0, []
        while at < len(body):
            prefix = body[at : at + _PREFIX_BYTES]
            end = at + _PREFIX_BYTES + int.from_bytes(prefix[1:], "big")
            if len(prefix) < _PREFIX_BYTES or end > len(body):
                raise ValueError(f"the replies of {self.url} are cut off")
            message = body[at + _PREFIX_BYTES : end]
            found.append(self._inflated(message) if prefix[0] else message)
            at = end
        return found

    def _inflated(self, message: bytes) -> bytes:
        encoding = self.exchange.header("grpc-encoding")
        try:
            if encoding == "gzip":
                return gzip.decompress(message)
            if encoding == "deflate":
                return zlib.decompress(message)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"a reply of {self.url} cannot be decompressed: {error}") from error
        raise ValueError(f"a reply of {self.url} is compressed with {encoding!r}")


@cache
def response_type(reply: type | None) -> type[GRPCResponse]:
    """Return the response type for replies of this class."""
    if reply is None:
        return GRPCResponse
    return type("GRPCResponse", (GRPCResponse,), {"__slots__": (), "reply_type": reply})
