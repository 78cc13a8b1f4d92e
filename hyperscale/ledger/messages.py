"""What the nodes of a tier say to each other about the ledger."""

from collections.abc import Iterator
from enum import StrEnum
from struct import Struct as Layout

from msgspec import Struct

from hyperscale.wire.registry import MessagePriority, SizeClass, message, nested
from hyperscale.wire.roles import Role

_MEMBERS = frozenset({Role.MANAGER, Role.GATE})
_HEAD = Layout("<QI")  # before each packed message: its group, its length


@message(
    kind=300,
    priority=MessagePriority.CRITICAL,
    size=SizeClass.LARGE,
    senders=_MEMBERS,
)
class RaftMessages(Struct, frozen=True):
    """Consensus messages of all groups for one peer, packed by the core. One-way."""

    ledger: str
    """Of which ledger: two tiers that should never have met do not mix."""
    sender: int
    packed: bytes


def pieces(packed: bytes, bytes_max: int) -> Iterator[bytes]:
    """What the core has packed for one peer, cut between messages: whoever was away for long
    gets more at once than one frame holds. A message that is larger by itself stays whole."""
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
    """The receiver is too far behind: it should pull this snapshot. One-way."""

    ledger: str
    sender: int
    group: int
    index: int
    raft_message: bytes


@message(kind=302, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MEMBERS)
class FetchSnapshot(Struct, frozen=True):
    """Answered by `wire.messages.Chunk`s."""

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
    """A command for a group's leader, from a node that does not lead it. -> ForwardCommandReply"""

    group: int
    """-1: whichever owns the slot of the key."""
    key: str
    body: bytes
    hops: int = 0
    is_record: bool = False
    """The body is a whole record of the ledger's own, not a command for the machine."""


@message(kind=305, priority=MessagePriority.HIGH, size=SizeClass.LARGE, senders=_MEMBERS)
class ForwardCommandReply(Struct, frozen=True):
    """What became of a command: committed, or certainly not, and who to ask instead."""

    group: int = 0
    index: int = 0
    reply: bytes = b""
    refused: CommandRefusal | None = None
    leader: str = ""
    """The node id of the leader, if it is known."""
    term: int = 0


@message(kind=306, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MEMBERS)
class GetLedgerOfNode(Struct, frozen=True):
    """Which ledger do you belong to?"""


@message(kind=307, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MEMBERS)
class GetLedgerOfNodeReply(Struct, frozen=True):
    """Empty `ledger`: none yet. `pledged`: the node this one leaves the founding to."""

    ledger: str = ""
    pledged: str = ""


@message(kind=308, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MEMBERS)
class RequestPledge(Struct, frozen=True):
    """The sender wants to found the ledger: will you leave it to me, for good?"""


@message(kind=309, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MEMBERS)
class RequestPledgeReply(Struct, frozen=True):
    given: bool


@message(kind=310, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MEMBERS)
class RequestJoin(Struct, frozen=True):
    """A node with an empty disk wants to take part."""

    domain: str
    nonce: str


@message(kind=311, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MEMBERS)
class RequestJoinReply(Struct, frozen=True):
    ledger: str
    number: int


@message(kind=312, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=_MEMBERS)
class FetchHistory(Struct, frozen=True):
    """Rows of a group's history after (stamp, group, index). Answered by `wire.messages.Chunk`s
    of a `HistoryPage`: one row may be larger than a message."""

    group: int
    after: tuple[int, int, int]


@nested
class HistoryPage(Struct, frozen=True):
    rows: list[tuple[str, int, int, int, str, bytes]]
    is_complete: bool
    """The teller votes in the group, and lacks nothing itself."""
    has_more: bool


@message(kind=314, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=_MEMBERS)
class TakeHistory(Struct, frozen=True):
    """A group is about to be destroyed: a voter of its heir is to take its history over from
    the sender. `TakeHistoryReply` when it is on its disk."""

    group: int


@message(kind=315, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=_MEMBERS)
class TakeHistoryReply(Struct, frozen=True):
    """It is."""


@message(kind=342, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=_MEMBERS)
class GetHistoryState(Struct, frozen=True):
    """Have you all of a group's history, so that others may lose it? -> GetHistoryStateReply"""

    group: int


@message(kind=343, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=_MEMBERS)
class GetHistoryStateReply(Struct, frozen=True):
    is_complete: bool
