"""Messages between the nodes of a tier about their ledger."""

from collections.abc import Iterator
from enum import StrEnum
from struct import Struct as Layout

from msgspec import Struct

from hyperscale.wire.registry import MessagePriority, SizeClass, message, nested
from hyperscale.wire.roles import Role
from hyperscale.wire.versions import OLDEST, Version

_MEMBERS = frozenset({Role.MANAGER, Role.GATE})
_HEAD = Layout("<QI")  # before each packed message: its group, its length


@message(kind=300, priority=MessagePriority.CRITICAL, size=SizeClass.LARGE, senders=_MEMBERS)
class RaftMessages(Struct, frozen=True):
    """Consensus messages of all groups for one peer, packed by the core. One-way."""

    ledger: str
    """The id of the ledger: messages of another tier are dropped."""
    sender: int
    packed: bytes


def pieces(packed: bytes, bytes_max: int) -> Iterator[bytes]:
    """Cut the packed messages for one peer between messages, into pieces of at most `bytes_max`.

    A peer that was away for long gets more at once than one frame holds. A single message that is
    larger stays whole."""
    begins = at = 0
    while at < len(packed):
        ends = at + _HEAD.size + _HEAD.unpack_from(packed, at)[1]
        if ends - begins > bytes_max and at > begins:
            yield packed[begins:at]
            begins = at
        at = ends
    if begins < len(packed):
        yield packed[begins:]


@message(kind=301, priority=MessagePriority.CRITICAL, size=SizeClass.MEDIUM, senders=_MEMBERS)
class OfferSnapshot(Struct, frozen=True):
    """Offers a snapshot to a follower that lags too far behind. One-way."""

    ledger: str
    sender: int
    group: int
    index: int
    raft_message: bytes


@message(kind=302, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MEMBERS)
class FetchSnapshot(Struct, frozen=True):
    """Fetches an offered snapshot. -> stream of `wire.messages.Chunk`"""

    group: int
    index: int
    receiver: int


class CommandRefusal(StrEnum):
    """Why a command was certainly not committed."""

    NOT_LEADER = "not_leader"
    WRONG_GROUP = "wrong_group"
    UNKNOWN_GROUP = "unknown_group"


@message(kind=304, priority=MessagePriority.HIGH, size=SizeClass.LARGE, senders=_MEMBERS)
class ForwardCommand(Struct, frozen=True):
    """Forwards a command towards the leader of its group. -> ForwardCommandReply"""

    group: int
    """-1: the group that owns the key slot of the key."""
    key: str
    body: bytes
    hops: int = 0
    is_record: bool = False
    """The body is an encoded record of the ledger itself, not a command for the state machine."""
    version: Version = OLDEST
    """The cluster version that the proposer knew."""
    audit: bytes = b""
    """Who asked for the command."""


@message(kind=305, priority=MessagePriority.HIGH, size=SizeClass.LARGE, senders=_MEMBERS)
class ForwardCommandReply(Struct, frozen=True):
    """The command was committed, or was certainly not: `refused`."""

    group: int = 0
    index: int = 0
    reply: bytes = b""
    refused: CommandRefusal | None = None
    leader: str = ""
    """The node id of the leader, if it is known."""


@message(kind=306, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MEMBERS)
class GetLedgerOfNode(Struct, frozen=True):
    """Asks a node which ledger it belongs to. -> GetLedgerOfNodeReply"""


@message(kind=307, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MEMBERS)
class GetLedgerOfNodeReply(Struct, frozen=True):
    """`ledger` is empty if the node has none; `pledged` is the node it pledged to."""

    ledger: str = ""
    pledged: str = ""


@message(kind=308, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MEMBERS)
class RequestPledge(Struct, frozen=True):
    """Asks a node to leave the founding of the ledger to the sender. -> RequestPledgeReply"""


@message(kind=309, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MEMBERS)
class RequestPledgeReply(Struct, frozen=True):
    given: bool


@message(kind=310, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MEMBERS)
class RequestJoin(Struct, frozen=True):
    """Asks for a number in the ledger, for a node with an empty disk. -> RequestJoinReply"""

    domain: str
    nonce: str


@message(kind=311, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MEMBERS)
class RequestJoinReply(Struct, frozen=True):
    """`number` is 0 if the node cannot join now; `scope` is the first part of all job ids."""

    ledger: str
    number: int
    scope: str = ""


@message(kind=312, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=_MEMBERS)
class FetchHistory(Struct, frozen=True):
    """Fetches history rows of a group after (stamp, group, index). -> stream of
    `wire.messages.Chunk` with a `HistoryPage`, because one row may be larger than a message."""

    group: int
    after: tuple[int, int, int]


@nested
class HistoryPage(Struct, frozen=True):
    rows: list[tuple[str, int, int, int, str, bytes]]
    is_complete: bool
    """The answering node has all history rows of the group."""
    has_more: bool


@message(kind=314, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=_MEMBERS)
class TakeHistory(Struct, frozen=True):
    """Tells a voter of a group's heir to fetch the history of the group from the sender before
    the group is destroyed. -> TakeHistoryReply"""

    group: int


@message(kind=315, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=_MEMBERS)
class TakeHistoryReply(Struct, frozen=True):
    """The rows are durable."""


@message(kind=342, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=_MEMBERS)
class GetHistoryState(Struct, frozen=True):
    """Asks whether a node has all history rows of a group. -> GetHistoryStateReply"""

    group: int


@message(kind=343, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=_MEMBERS)
class GetHistoryStateReply(Struct, frozen=True):
    is_complete: bool
