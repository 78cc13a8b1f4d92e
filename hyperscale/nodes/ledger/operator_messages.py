"""What operators ask of a node about its ledger, and what the nodes ask each other for it.

An operator asks any node; that one asks the others where it must.
"""

from msgspec import Struct

from hyperscale.wire.registry import MessagePriority, SizeClass, message, nested
from hyperscale.wire.roles import Role

_MEMBERS = frozenset({Role.MANAGER, Role.GATE})
_OPERATORS = frozenset({Role.OPERATOR})
_BOTH = _MEMBERS | _OPERATORS


@nested
class ReplicaRow(Struct, frozen=True, kw_only=True):
    """One group as the node that was asked takes part in it."""

    group: int
    role: str
    term: int
    leader: str
    """Empty: nobody is known to lead."""
    commit: int
    applied: int
    entries: int
    log_bytes: int
    """Of the entries in memory."""
    voters: list[str]
    learners: list[str]


@nested
class NodeRow(Struct, frozen=True, kw_only=True):
    number: int
    name: str
    domain: str
    state: str


@nested
class GroupRow(Struct, frozen=True, kw_only=True):
    group: int
    state: str
    voters: list[str]
    """Who should vote."""
    settled: list[str]
    """Who is known to."""
    leader: str
    """Who should lead."""
    slots: int
    heir: int


@nested
class MoveRow(Struct, frozen=True, kw_only=True):
    """Slots on their way from one group to another."""

    move: int
    slots: int
    source: int
    target: int


@message(kind=330, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=_OPERATORS)
class GetLedgerStatus(Struct, frozen=True):
    """How is the ledger, as you see it? -> GetLedgerStatusReply"""


@message(kind=331, priority=MessagePriority.NORMAL, size=SizeClass.LARGE, senders=_MEMBERS)
class GetLedgerStatusReply(Struct, frozen=True, kw_only=True):
    ledger: str
    node: str
    number: int
    replicas: list[ReplicaRow]
    nodes: list[NodeRow]
    groups: list[GroupRow]
    moves: list[MoveRow]
    awaited: int
    """How many nodes the tier waits for before it makes its groups."""
    pending_bytes: int
    mismatches: int


@message(
    kind=332,
    priority=MessagePriority.NORMAL,
    size=SizeClass.SMALL,
    senders=_BOTH,
    rate_per_10s=1_000,
)
class ListEvents(Struct, frozen=True, kw_only=True):
    """What was committed about a job, or about all jobs since a time. -> ListEventsReply"""

    job: str = ""
    since_ms: int = 0
    limit: int = 1_000
    of_groups: tuple[int, ...] = ()
    """Passed on by another node: answer for these yourself, or say that you cannot."""


@message(kind=333, priority=MessagePriority.NORMAL, size=SizeClass.LARGE, senders=_MEMBERS)
class ListEventsReply(Struct, frozen=True):
    """Rows (job, group, index, stamp in ms, kind, data), oldest first."""

    rows: list[tuple[str, int, int, int, str, bytes]]
    has_more: bool = False


@message(kind=334, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_BOTH)
class ChangeMember(Struct, frozen=True, kw_only=True):
    """`add`, `drain`, `remove` or `promote` a node. -> ChangeMemberReply"""

    change: str
    node: str
    group: int = -1
    """promote: the group it is to lead."""


@message(kind=335, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MEMBERS)
class ChangeMemberReply(Struct, frozen=True, kw_only=True):
    done: str = ""
    refused: str = ""
    hint: str = ""


@message(kind=336, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=_OPERATORS)
class Compact(Struct, frozen=True):
    """Take a snapshot of every group you take part in. -> CompactReply"""


@message(kind=337, priority=MessagePriority.NORMAL, size=SizeClass.MEDIUM, senders=_MEMBERS)
class CompactReply(Struct, frozen=True):
    """Group and index of each."""

    taken: list[tuple[int, int]]


@message(kind=338, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=_OPERATORS)
class Verify(Struct, frozen=True):
    """Are all replicas of all groups equal? -> VerifyReply"""


@nested
class DigestRow(Struct, frozen=True, kw_only=True):
    """The state of one replica at an index; without a digest, why it is not known."""

    group: int
    index: int
    node: str
    digest: str = ""
    why_not: str = ""


@message(kind=339, priority=MessagePriority.NORMAL, size=SizeClass.LARGE, senders=_MEMBERS)
class VerifyReply(Struct, frozen=True):
    rows: list[DigestRow]


@message(kind=340, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=_MEMBERS)
class GetDigest(Struct, frozen=True):
    """The hash of your replica at this entry, which is a `Surveyed`. -> GetDigestReply"""

    group: int
    index: int


@message(kind=341, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=_MEMBERS)
class GetDigestReply(Struct, frozen=True):
    digest: bytes = b""
    why_not: str = ""
