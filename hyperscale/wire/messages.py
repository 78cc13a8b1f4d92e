"""What the wire itself says: handshake, answers that are not results, stream control.

Bodies of calls and their results are registered by the packages they belong to.
"""

from msgspec import Struct

from hyperscale.wire.registry import MessagePriority, SizeClass, message
from hyperscale.wire.roles import EVERYONE, Role

SALT_BYTES = 32


@message(kind=1, priority=MessagePriority.CRITICAL, size=SizeClass.DATAGRAM, senders=EVERYONE)
class HandshakeHello(Struct, frozen=True):
    """The first frame each way, in the clear: enough to agree on how to go on."""

    major: int
    minor: int
    security: str
    salt: bytes


@message(kind=2, priority=MessagePriority.CRITICAL, size=SizeClass.SMALL, senders=EVERYONE)
class Introduction(Struct, frozen=True):
    """Who a node is. The second frame each way, sealed where there is a secret."""

    cluster: str
    environment: str
    role: Role
    node_id: str
    incarnation: int
    version: str
    capabilities: list[str] = []
    datacenter: str = ""
    tcp_address: str = ""
    udp_address: str = ""


@message(kind=3, priority=MessagePriority.CRITICAL, size=SizeClass.SMALL, senders=EVERYONE)
class HandshakeRefused(Struct, frozen=True):
    """Instead of either: why not. The last frame."""

    reason: str
    message: str


@message(kind=10, priority=MessagePriority.CRITICAL, size=SizeClass.DATAGRAM, senders=EVERYONE)
class KeepAlive(Struct, frozen=True):
    """Are you there? Any frame is an answer; a Pong if there is nothing else to say."""


@message(kind=11, priority=MessagePriority.CRITICAL, size=SizeClass.DATAGRAM, senders=EVERYONE)
class KeepAliveReply(Struct, frozen=True):
    pass


@message(kind=12, priority=MessagePriority.CRITICAL, size=SizeClass.DATAGRAM, senders=EVERYONE)
class GoAway(Struct, frozen=True):
    """No new request will come from this side; what is in flight is finished."""

    why: str = ""


@message(kind=13, priority=MessagePriority.CRITICAL, size=SizeClass.DATAGRAM, senders=EVERYONE)
class CancelCall(Struct, frozen=True):
    """The caller no longer wants the answer to the request in the header."""


@message(kind=14, priority=MessagePriority.CRITICAL, size=SizeClass.DATAGRAM, senders=EVERYONE)
class CallOverloaded(Struct, frozen=True):
    """Answer: not taken on, nothing was done. Ask again after `retry_after_s`."""

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
    """The answer in parts is complete."""


@message(kind=17, priority=MessagePriority.CRITICAL, size=SizeClass.DATAGRAM, senders=EVERYONE)
class StreamCredit(Struct, frozen=True):
    """The reader of a stream has consumed this many bytes; as many more may be sent."""

    consumed_bytes: int


@message(kind=18, priority=MessagePriority.NORMAL, size=SizeClass.MEDIUM, senders=EVERYONE)
class Chunk(Struct, frozen=True):
    """A piece of something large."""

    data: bytes
