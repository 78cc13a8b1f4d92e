"""What operators ask of a node, and what nodes tell each other about themselves."""

import msgspec
from msgspec import Struct

from hyperscale.wire.registry import MessagePriority, SizeClass, message, nested
from hyperscale.wire.roles import EVERYONE


@nested
class NodeMetadata(Struct, frozen=True, omit_defaults=True):
    """What rides on acks: others see it within a probe or two. Small, and never a secret."""

    version: str = ""
    datacenter: str = ""
    cores: int = 0
    is_ready: bool = False
    overload: str = "healthy"
    progress: str = "idle"
    http: str = ""
    free: int = 0  # of `cores`
    is_draining: bool = False


_metadata = msgspec.msgpack.Decoder(NodeMetadata)


def metadata_of(encoded: bytes) -> NodeMetadata | None:
    """None for what a node of another version says in a way this one does not understand."""
    try:
        return _metadata.decode(encoded) if encoded else None
    except (ValueError, RecursionError):
        return None


@nested
class MemberRow(Struct, frozen=True):
    """One member as the node that was asked sees it."""

    node: str
    role: str
    state: str
    address: str
    incarnation: int
    since_s: float
    rtt_s: float | None = None
    metadata: NodeMetadata | None = None
    is_self: bool = False
    routing: str = ""  # of workers, if a manager was asked: what it does with them


@message(kind=200, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=EVERYONE)
class ListMembers(Struct, frozen=True):
    """Who is there?"""


@message(kind=201, priority=MessagePriority.NORMAL, size=SizeClass.LARGE, senders=EVERYONE)
class ListMembersReply(Struct, frozen=True):
    cluster: str
    environment: str
    members: tuple[MemberRow, ...]
