"""What operators ask a node, and what nodes announce about themselves."""

from enum import StrEnum

import msgspec
from msgspec import Struct

from hyperscale.health.signals import RoutingDecision, WorkProgress, routing_decision
from hyperscale.membership.events import LIVING, Member, MemberState
from hyperscale.wire.client_access import Permission
from hyperscale.wire.registry import MessagePriority, SizeClass, message, nested
from hyperscale.wire.roles import EVERYONE, Role


class AnnouncedLoad(StrEnum):
    """The overload level of a node, as it announces it to other members."""

    HEALTHY = "healthy"
    BUSY = "busy"
    STRESSED = "stressed"
    OVERLOADED = "overloaded"


@nested
class NodeMetadata(Struct, frozen=True, omit_defaults=True):
    """What a node announces on its acks; others have it within a probe or two. No secrets."""

    version: str = ""
    datacenter: str = ""
    cores: int = 0
    is_ready: bool = False
    overload: AnnouncedLoad = AnnouncedLoad.HEALTHY
    progress: WorkProgress = WorkProgress.IDLE
    http: str = ""
    free: int = 0  # of `cores`
    is_draining: bool = False


_metadata = msgspec.msgpack.Decoder(NodeMetadata)


def metadata_of(encoded: bytes) -> NodeMetadata | None:
    """Decode metadata; return None for that of another version, which cannot be decoded."""
    try:
        return _metadata.decode(encoded) if encoded else None
    except (ValueError, RecursionError):
        return None


def routing_of(member: Member) -> RoutingDecision | None:
    """Return whether a worker gets work; None for other roles and for workers that left or were
    never reached."""
    if member.role is not Role.WORKER or member.state in _NOT_ROUTED:
        return None
    metadata = metadata_of(member.metadata)
    return routing_decision(
        is_live=member.state in LIVING,
        # A suspect may be dead: it keeps its parts and gets no new ones.
        is_ready=member.state is MemberState.ALIVE and metadata is not None and metadata.is_ready,
        progress=WorkProgress.IDLE if metadata is None else metadata.progress,
    )


_NOT_ROUTED = frozenset({MemberState.UNCONFIRMED, MemberState.LEFT})


@nested
class MemberRow(Struct, frozen=True):
    """One member in the view of the node that answers."""

    node: str
    role: Role
    state: MemberState
    address: str
    incarnation: int
    since_s: float
    rtt_s: float | None = None
    metadata: NodeMetadata | None = None
    is_self: bool = False
    routing: RoutingDecision | None = None
    """Whether a worker gets work; set if a manager answers and the member is a worker."""


@message(
    kind=200,
    priority=MessagePriority.NORMAL,
    size=SizeClass.SMALL,
    senders=EVERYONE,
    permission=Permission.LOOK,
)
class ListMembers(Struct, frozen=True):
    """-> ListMembersReply"""


@message(kind=201, priority=MessagePriority.NORMAL, size=SizeClass.LARGE)
class ListMembersReply(Struct, frozen=True):
    """Every member that the node knows, itself first."""

    cluster: str
    environment: str
    members: tuple[MemberRow, ...]
