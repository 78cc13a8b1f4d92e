"""`self.client.tcp`: bytes over TCP, with TLS for `tls://` URLs."""

from typing import Unpack

from hyperscale.clients.library import Reply
from hyperscale.clients.raw import RawClient, RawOptions
from hyperscale.testing.arguments import CLIENT_SCHEMES
from hyperscale.testing.streams import TCPResponse


class TCPClient(RawClient[TCPResponse]):
    """The TCP connections of one virtual user: `tcp://host:port`, `tls://host:port`."""

    __slots__ = ()
    response_type = TCPResponse
    schemes = tuple(CLIENT_SCHEMES["tcp"])

    def ping(self, url: str, **call: Unpack[RawOptions]) -> Reply[TCPResponse]:
        """Open a connection."""
        return self.connect(url, **call)


CLIENT = TCPClient
