"""`self.client.udp`: datagrams.

An exchange whose reply does not come in time fails with the class `lost`, and the next one uses
another port: a late reply is never taken for that to another datagram.
"""

from typing import Unpack

from hyperscale.clients.library import Reply
from hyperscale.clients.raw import RawClient, RawOptions
from hyperscale.testing.arguments import CLIENT_SCHEMES
from hyperscale.testing.streams import UDPResponse


class UDPClient(RawClient[UDPResponse]):
    """The UDP sockets of one virtual user: `udp://host:port`."""

    __slots__ = ()
    response_type = UDPResponse
    schemes = tuple(CLIENT_SCHEMES["udp"])

    def ping(self, url: str, **call: Unpack[RawOptions]) -> Reply[UDPResponse]:
        """Send an empty line and wait for a datagram."""
        return self.exchange(url, data=b"\n", **call)


CLIENT = UDPClient
