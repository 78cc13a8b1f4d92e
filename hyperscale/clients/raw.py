"""Raw TCP and UDP: bytes to a server and back."""

from typing import Any, TypeVar, Unpack

from hyperscale.clients.library import Reply
from hyperscale.clients.streams import StreamClient, message_of
from hyperscale.clients.templates import StreamOptions
from hyperscale.errors import InputError
from hyperscale.testing.streams import StreamResponse

_R = TypeVar("_R", bound=StreamResponse)


class RawOptions(StreamOptions, total=False):
    """The arguments of a call. Where a message ends: after `length` bytes, or after the bytes
    `until`; without either it is what arrives together."""

    length: int
    until: bytes


class RawClient(StreamClient[_R]):
    """Connections of one virtual user, one for each address."""

    __slots__ = ()

    def connect(self, url: str, **call: Unpack[RawOptions]) -> Reply[_R]:
        """Open the connection."""
        return self._raw("OPEN", url, call)

    def send(
        self,
        url: str,
        *,
        data: bytes | None = None,
        text: str | None = None,
        **call: Unpack[RawOptions],
    ) -> Reply[_R]:
        """Send bytes, and wait only until they are written."""
        message = message_of(f"send {url}", text, data, None)
        return self._raw("SEND", url, call, message)

    def receive(self, url: str, *, count: int = 1, **call: Unpack[RawOptions]) -> Reply[_R]:
        """Wait for messages."""
        return self._raw("RECEIVE", url, call, count=count)

    def exchange(
        self,
        url: str,
        *,
        data: bytes | None = None,
        text: str | None = None,
        count: int = 1,
        **call: Unpack[RawOptions],
    ) -> Reply[_R]:
        r"""Send bytes and wait for the reply: `exchange(url, data=b"PING\n", until=b"\n")`.

        The latency is the round trip.
        """
        message = message_of(f"exchange {url}", text, data, None)
        return self._raw("EXCHANGE", url, call, message, count=count)

    def close(self, url: str, **call: Unpack[RawOptions]) -> Reply[_R]:
        """Close the connection."""
        return self._raw("CLOSE", url, call)

    def _raw(
        self,
        verb: str,
        url: str,
        call: RawOptions,
        message: str | bytes | None = None,
        count: int = 1,
    ) -> Reply[_R]:
        options: dict[str, Any] = dict(call)
        length, until = options.pop("length", None), options.pop("until", None)
        where = f"{verb.lower()} {url}"
        if length is not None and until is not None:
            raise InputError(f"{where}: both length and until are given")
        if length is not None and length < 1:
            raise InputError(f"{where}: length={length} is not 1 or more")
        if until is not None and (not isinstance(until, bytes) or not until):
            raise InputError(f"{where}: until={until!r} is not bytes", hint=r'write until=b"\n"')
        if count < 1:
            raise InputError(f"{where}: count={count} is not 1 or more")
        data = message.encode() if isinstance(message, str) else message
        return self._call(verb, url, options, data, until_bytes=length, until=until, count=count)
