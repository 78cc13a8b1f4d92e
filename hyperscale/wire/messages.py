"""The messages of the wire itself: handshake, error replies, keep-alive, stream control.

Requests and replies are registered by the packages they belong to.
"""

from msgspec import Struct

from hyperscale.wire.registry import MessagePriority, SizeClass, message
from hyperscale.wire.roles import EVERYONE, Role


@message(kind=1, priority=MessagePriority.CRITICAL, size=SizeClass.DATAGRAM, senders=EVERYONE)
class HandshakeHello(Struct, frozen=True):
    """The first frame of each side, not sealed: protocol version, security mode, ephemeral key."""

    major: int
    minor: int
    security: str
    exchange: bytes = b""
    """The sender's message of the key exchange if there is a secret; says nothing about it."""


@message(kind=2, priority=MessagePriority.CRITICAL, size=SizeClass.SMALL, senders=EVERYONE)
class Introduction(Struct, frozen=True):
    """The identity of a node. The second frame of each side, sealed if there is a secret."""

    cluster: str
    environment: str
    role: Role
    node_id: str
    incarnation: int
    version: str
    capabilities: list[str] = []
    datacenter: str = ""
    key: str = ""
    """Fingerprint of the key in the node's data directory; empty for clients. It tells two nodes of
    one name apart; the secret or the certificate authenticates them."""
    address: str = ""
    """Where others reach the node; empty if it accepts no connections."""


@message(kind=3, priority=MessagePriority.CRITICAL, size=SizeClass.SMALL, senders=EVERYONE)
class HandshakeRefused(Struct, frozen=True):
    """Refuse the peer, instead of either of the above. The last frame of a connection."""

    reason: str
    message: str
    hint: str = ""


@message(kind=10, priority=MessagePriority.CRITICAL, size=SizeClass.DATAGRAM, senders=EVERYONE)
class KeepAlive(Struct, frozen=True):
    """Ask a silent peer for any frame. It sends `KeepAliveReply` if it has no other."""


@message(kind=11, priority=MessagePriority.CRITICAL, size=SizeClass.DATAGRAM, senders=EVERYONE)
class KeepAliveReply(Struct, frozen=True):
    """Show that this side is alive."""


@message(kind=12, priority=MessagePriority.CRITICAL, size=SizeClass.DATAGRAM, senders=EVERYONE)
class GoAway(Struct, frozen=True):
    """Announce that no new request follows; calls in flight are finished."""

    why: str = ""


@message(kind=13, priority=MessagePriority.CRITICAL, size=SizeClass.DATAGRAM, senders=EVERYONE)
class CancelCall(Struct, frozen=True):
    """Cancel the request whose id is in the header."""


@message(kind=14, priority=MessagePriority.CRITICAL, size=SizeClass.DATAGRAM, senders=EVERYONE)
class CallOverloaded(Struct, frozen=True):
    """Reply: the request was not admitted and not executed. Retry after `retry_after_s`."""

    retry_after_s: float
    operation: str = ""


@message(kind=15, priority=MessagePriority.CRITICAL, size=SizeClass.SMALL, senders=EVERYONE)
class CallFailed(Struct, frozen=True):
    """Reply: the call failed. `code` is the text of a `RemoteErrorCode`; the rest is for people."""

    code: str
    message: str = ""
    hint: str = ""


@message(kind=16, priority=MessagePriority.NORMAL, size=SizeClass.DATAGRAM, senders=EVERYONE)
class StreamEnd(Struct, frozen=True):
    """End a stream."""


@message(kind=17, priority=MessagePriority.CRITICAL, size=SizeClass.DATAGRAM, senders=EVERYONE)
class StreamCredit(Struct, frozen=True):
    """Allow the sender of a stream to send as many bytes as the reader has consumed."""

    consumed_bytes: int


@message(kind=18, priority=MessagePriority.NORMAL, size=SizeClass.MEDIUM)
class Chunk(Struct, frozen=True):
    """Carry one piece of a large object."""

    data: bytes
