"""Events and effects of the ledger core."""

from enum import Enum, StrEnum, auto

from msgspec import Struct

from hyperscale.ledger.records import Record
from hyperscale.ledger.replica import AppliedEntry
from hyperscale.ledger.topology import Topology


class RaftRole(StrEnum):
    """What a node is in a group."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


class GroupRole(Struct, frozen=True):
    """The role of this node in one group, and the leader it knows there. As an effect: log that
    one of them, or the term, has changed."""

    group: int
    term: int
    role: RaftRole
    leader: int | None
    """The number of the leader; None: no leader is known."""

    @property
    def is_leader(self) -> bool:
        return self.role is RaftRole.LEADER


class ProposalFailure(Enum):
    """Why a proposal has no result."""

    SUPERSEDED = auto()
    """It will never be committed: another leader's log took its place."""
    UNKNOWN = auto()
    """It may have been committed: a snapshot replaced the replica, or the group was left."""


ProposalResult = AppliedEntry | ProposalFailure


# -- events -------------------------------------------------------------------------------


class RecordsProposed(Struct, frozen=True):
    """Records wait to be stamped and committed. Answered by token."""

    proposals: list[tuple[int, int, Record]]
    """Token, group and record."""


class ReadRequested(Struct, frozen=True):
    """A linearizable read waits for its read index. Answered by token once this node's replica
    has applied that index; never answered while the group has no leader."""

    token: int
    group: int


class MessagesReceived(Struct, frozen=True):
    """A peer sent consensus messages of any number of groups."""

    sender: int
    packed: bytes


class SnapshotReceived(Struct, frozen=True):
    """The data of an offered snapshot arrived."""

    group: int
    message: bytes
    data: bytes


class PeerUnreachable(Struct, frozen=True):
    """Messages for a peer could not be sent."""

    peer: int


class SnapshotDelivered(Struct, frozen=True):
    """A peer fetched the snapshot it was offered, or failed to (`arrived` False)."""

    group: int
    peer: int
    arrived: bool


class LeadershipTransferRequested(Struct, frozen=True):
    """Another voter of a group led by this node should lead it."""

    group: int
    target: int


class VoterChangeRequested(Struct, frozen=True):
    """The leader of a group wants voters and learners added, demoted or removed."""

    group: int
    voters: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()


class SnapshotRequested(Struct, frozen=True):
    """An operator wants a snapshot of a group, and the log before it dropped."""

    group: int


class LedgerOpened(Struct, frozen=True):
    """This node belongs to a ledger and needs group 0, unless its disk has it already."""

    topology: Topology | None = None
    """Not None: this node founded the ledger and is the only voter of group 0. None: this node
    joined the ledger, and the leader of group 0 will send it a snapshot."""


class BatchEnded(Struct, frozen=True):
    """No more input is at hand: process everything queued in one pass over all groups."""

    wall_ms: int
    """The wall clock, for the stamps of entries."""


GroupEvent = (
    ReadRequested
    | SnapshotReceived
    | SnapshotDelivered
    | LeadershipTransferRequested
    | VoterChangeRequested
    | SnapshotRequested
)
"""Dropped if this node has left the group."""
LedgerEvent = (
    RecordsProposed | MessagesReceived | PeerUnreachable | LedgerOpened | BatchEnded | GroupEvent
)


# -- effects ------------------------------------------------------------------------------


class SendMessages(Struct, frozen=True):
    """Send consensus messages of any number of groups to a peer."""

    peer: int
    packed: bytes


class SendSnapshotOffer(Struct, frozen=True):
    """Offer a peer a snapshot; the peer fetches the data."""

    peer: int
    group: int
    index: int
    message: bytes


class DropMessages(Struct, frozen=True):
    """Log that messages of a peer were malformed and dropped."""

    sender: int | None
    reason: str


class AnswerRequests(Struct, frozen=True):
    """Tell proposers what became of their proposals, by token, and readers that the replica is
    fresh enough now (None)."""

    answers: list[tuple[int, ProposalResult | None]]


class AnnounceLeadership(Struct, frozen=True):
    """Announce that this node leads a group in this term and has applied everything before it, or
    (None) that it no longer acts as the leader."""

    group: int
    term: int | None


class AnnounceEntries(Struct, frozen=True):
    """Announce commands that were applied, in the order of their groups' logs."""

    entries: list[AppliedEntry]


class AnnounceRestore(Struct, frozen=True):
    """Announce that a snapshot replaced a replica: rows of its history may be missing."""

    group: int


class ReportMismatch(Struct, frozen=True):
    """Report that a replica differs from its leader's; a snapshot will replace it."""

    group: int


class AnnounceTopology(Struct, frozen=True):
    """Announce that the topology may have changed."""


LedgerEffect = (
    SendMessages
    | SendSnapshotOffer
    | DropMessages
    | AnswerRequests
    | GroupRole
    | AnnounceLeadership
    | AnnounceEntries
    | AnnounceRestore
    | ReportMismatch
    | AnnounceTopology
)
