"""Messages of operators about the ledger, and those that nodes exchange to answer them.

An operator asks any node, which asks other nodes for what it does not have.
"""

from enum import StrEnum

from msgspec import Struct

from hyperscale.ledger.core_events import RaftRole
from hyperscale.ledger.store import BEFORE_FIRST
from hyperscale.ledger.topology import GroupState, NodeRecord
from hyperscale.wire.client_access import Permission
from hyperscale.wire.registry import MessagePriority, SizeClass, message, nested
from hyperscale.wire.roles import Role
from hyperscale.wire.versions import OLDEST, Version

_MEMBERS = frozenset({Role.MANAGER, Role.GATE})
_OPERATORS = frozenset({Role.OPERATOR})
_BOTH = _MEMBERS | _OPERATORS
_STATUS = frozenset({Role.OPERATOR, Role.GATE})  # a gate passes it on for an operator


@nested
class ReplicaRow(Struct, frozen=True, kw_only=True):
    """One replica of the node that was asked."""

    group: int
    role: RaftRole
    term: int
    leader: str
    """Empty: no leader is known."""
    commit: int
    applied: int
    entries: int
    log_bytes: int
    """Size of the entries in memory."""
    voters: list[str]
    learners: list[str]


@nested
class GroupRow(Struct, frozen=True, kw_only=True):
    group: int
    state: GroupState
    voters: list[str]
    """The nodes that should vote."""
    settled: list[str]
    """The nodes that voted before the last change, and may vote still."""
    leader: str
    """The preferred leader."""
    key_slots: int
    heir: int


@nested
class MigrationRow(Struct, frozen=True, kw_only=True):
    """Key slots under way from one group to another."""

    migration: int
    key_slots: int
    source: int
    target: int


@message(
    kind=330,
    priority=MessagePriority.NORMAL,
    size=SizeClass.SMALL,
    senders=_STATUS,
    permission=Permission.LOOK,
)
class GetLedgerStatus(Struct, frozen=True):
    """Asks for the ledger as the node sees it. -> GetLedgerStatusReply"""


@message(kind=331, priority=MessagePriority.NORMAL, size=SizeClass.LARGE, senders=_MEMBERS)
class GetLedgerStatusReply(Struct, frozen=True, kw_only=True):
    ledger: str
    node: str
    number: int
    replicas: list[ReplicaRow]
    nodes: list[NodeRecord]
    groups: list[GroupRow]
    migrations: list[MigrationRow]
    awaited: int
    """How many nodes have to join before the tier creates its groups."""
    pending_bytes: int
    mismatches: int
    version: Version = OLDEST
    """The cluster version."""
    agreed: Version = OLDEST
    """The higher version that all nodes and workers announce; else not above `version`."""
    agreed_for_s: float = 0.0
    workers: dict[str, Version] = {}
    """The versions of the living workers."""


@message(
    kind=332,
    priority=MessagePriority.NORMAL,
    size=SizeClass.SMALL,
    senders=_BOTH,
    rate_per_10s=1_000,
    permission=Permission.OPERATE,
)
class ListEvents(Struct, frozen=True, kw_only=True):
    """Asks for the committed events of a job, of all jobs since a time, or of an index
    (`ledger.replica.is_index`). -> ListEventsReply"""

    job: str = ""
    since_ms: int = 0
    limit: int = 1_000
    after: tuple[int, int, int] = BEFORE_FIRST
    """Only rows after this one: stamp, group, index."""
    of_groups: tuple[int, ...] = ()
    """Set by a node that asks another: answer for these groups, or refuse."""


@message(kind=333, priority=MessagePriority.NORMAL, size=SizeClass.LARGE, senders=_MEMBERS)
class ListEventsReply(Struct, frozen=True):
    """Rows (job, group, index, stamp in ms, kind, data), oldest first."""

    rows: list[tuple[str, int, int, int, str, bytes]]
    has_more: bool = False
    """There are rows after the last of these."""


class MemberChange(StrEnum):
    """A change of a node's part in the ledger."""

    ADD = "add"
    """Cancel the drain of a node."""
    APPROVE = "approve"
    """Let a node take part that waits for approval."""
    DRAIN = "drain"
    """Give the votes and leaderships of a node to other nodes."""
    REMOVE = "remove"
    """Remove a node for good."""
    PROMOTE = "promote"
    """Make a node the leader of a group."""


@message(
    kind=334,
    priority=MessagePriority.HIGH,
    size=SizeClass.SMALL,
    senders=_BOTH,
    permission=Permission.OPERATE,
)
class ChangeMember(Struct, frozen=True, kw_only=True):
    """Asks for a change of a node's part in the ledger. -> ChangeMemberReply"""

    change: MemberChange
    node: str
    group: int = -1
    """PROMOTE: the group the node should lead."""
    is_forced: bool = False
    """REMOVE: also a node that is alive. DRAIN: also if no majority of living nodes is left."""


@message(kind=335, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MEMBERS)
class ChangeMemberReply(Struct, frozen=True, kw_only=True):
    done: str = ""
    refused: str = ""
    hint: str = ""


@message(
    kind=348,
    priority=MessagePriority.HIGH,
    size=SizeClass.SMALL,
    senders=_OPERATORS,
    permission=Permission.OPERATE,
)
class RaiseVersion(Struct, frozen=True, kw_only=True):
    """Asks to raise the cluster version without waiting for the hold. -> ChangeMemberReply"""

    is_forced: bool = False
    """Also if nodes are older that are away: they are refused when they come back."""


@message(
    kind=336,
    priority=MessagePriority.NORMAL,
    size=SizeClass.SMALL,
    senders=_OPERATORS,
    permission=Permission.OPERATE,
)
class Compact(Struct, frozen=True):
    """Asks a node to take a snapshot of each of its replicas. -> CompactReply"""


@message(kind=337, priority=MessagePriority.NORMAL, size=SizeClass.MEDIUM, senders=_MEMBERS)
class CompactReply(Struct, frozen=True):
    """Group and index of each snapshot."""

    taken: list[tuple[int, int]]


@message(
    kind=338,
    priority=MessagePriority.NORMAL,
    size=SizeClass.SMALL,
    senders=_OPERATORS,
    permission=Permission.OPERATE,
)
class Verify(Struct, frozen=True):
    """Asks to compare the state of all replicas of all groups. -> VerifyReply"""


@nested
class DigestRow(Struct, frozen=True, kw_only=True):
    """The digest of one replica at an index, or the reason why it is not known."""

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
    """Asks for the digest of a replica at an entry that requested one. -> GetDigestReply"""

    group: int
    index: int


@message(kind=341, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=_MEMBERS)
class GetDigestReply(Struct, frozen=True):
    digest: bytes = b""
    why_not: str = ""
