"""The events the membership core handles and the effects it returns."""

from enum import StrEnum

from msgspec import Struct

from hyperscale.membership.messages import ClaimedState, Datagram, PushPull, PushPullReply
from hyperscale.sansio.core import Tick
from hyperscale.wire.roles import Role


class MemberState(StrEnum):
    """The state of a member in this node's table. An unconfirmed member is never suspected."""

    UNCONFIRMED = "unconfirmed"
    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"
    LEFT = "left"


LIVING = (MemberState.ALIVE, MemberState.SUSPECT)
"""The states of members that take part: a suspect may still be running."""


# Events.


class DatagramReceived(Struct, frozen=True, gc=False):
    """A datagram was opened. `node` and `incarnation` sealed it; it came from `source`."""

    source: str
    node: str
    incarnation: int
    datagram: Datagram


class MemberDiscovered(Struct, frozen=True):
    """Discovery found a member at this stream address."""

    address: str


class PushPullCompleted(Struct, frozen=True):
    """A push-pull that this node started was answered by `node` in this incarnation."""

    node: str
    incarnation: int
    reply: PushPullReply


class PushPullRequested(Struct, frozen=True):
    """Another member sent its table. `ReplyToPushPull` carries the same `token`."""

    node: str
    incarnation: int
    request: PushPull
    token: object


class PushPullFailed(Struct, frozen=True):
    """A push-pull with this node failed."""

    node: str


class DialRefused(Struct, frozen=True):
    """The session with this incarnation ended, and its address refused a new connection."""

    node: str
    incarnation: int
    address: str


class DialAnswered(Struct, frozen=True):
    """A handshake at the address of `node` succeeded.

    `by` in incarnation `life` answered; that may be another process than the one dialled.
    """

    node: str
    incarnation: int
    address: str
    by: str
    life: int


class MetadataChanged(Struct, frozen=True):
    """This node has new metadata for other members."""

    metadata: bytes


class AddressChanged(Struct, frozen=True):
    """This node is reached at another address from now on."""

    address: str
    stream_port: int = 0


class LeaveRequested(Struct, frozen=True):
    """This node leaves. `LeaveCompleted` follows once the others had time to hear it."""


class NameClaimed(Struct, frozen=True):
    """A process introduced itself by this name, from this stream address. `key` tells data
    directories apart; empty if it is not known."""

    node: str
    incarnation: int
    address: str
    key: str = ""


class HolderOutcome(StrEnum):
    ANSWERED = "answered"  # the process that has the name answered
    ENDED = "ended"  # its address refuses connections, or another process answered there
    SILENT = "silent"


class HolderVerified(Struct, frozen=True):
    """The outcome of `VerifyHolder`."""

    node: str
    incarnation: int
    address: str
    outcome: HolderOutcome


MembershipEvent = (
    Tick
    | DatagramReceived
    | MemberDiscovered
    | PushPullCompleted
    | PushPullRequested
    | PushPullFailed
    | DialRefused
    | DialAnswered
    | MetadataChanged
    | AddressChanged
    | LeaveRequested
    | NameClaimed
    | HolderVerified
)


# Effects.


class SendDatagram(Struct, frozen=True, gc=False):
    """Send a datagram once; nothing reports whether it arrived."""

    address: str
    datagram: Datagram


class StartPushPull(Struct, frozen=True):
    """Exchange member tables over a stream; report `PushPullCompleted` or `PushPullFailed`.

    Report `DialRefused` as well if the address refused and `node` is known (not empty).
    """

    address: str
    node: str
    incarnation: int
    request: PushPull


class ReplyToPushPull(Struct, frozen=True):
    """Answer the `PushPullRequested` that carried `token`."""

    token: object
    reply: PushPullReply


class DialMember(Struct, frozen=True):
    """Connect to this node; report `DialAnswered`, `DialRefused`, or nothing on a timeout."""

    node: str
    incarnation: int
    address: str


class VerifyHolder(Struct, frozen=True):
    """Connect to the process that has a name; report `HolderVerified`, always."""

    node: str
    incarnation: int
    address: str


class KeepSession(Struct, frozen=True):
    """Keep a session with this node. When it ends, dial again: `DialRefused` or `DialAnswered`."""

    node: str
    incarnation: int
    address: str


class DropSession(Struct, frozen=True):
    """Stop keeping a session with this node."""

    node: str


class DrainSocket(Struct, frozen=True):
    """This node stalled: hand over every datagram in the socket before the next `Tick`."""

    late_s: float


class Member(Struct, frozen=True):
    """One member, as other parts of this process see it."""

    node: str
    incarnation: int
    refutation: int
    role: Role
    address: str
    stream_address: str
    state: MemberState
    since_s: float
    rtt_s: float | None = None
    metadata: bytes = b""
    metadata_version: int = 0


class MemberChanged(Struct, frozen=True):
    """A member's state, address, incarnation or metadata changed. `before` is None if new."""

    member: Member
    before: MemberState | None


class MemberDied(Struct, frozen=True):
    """A confirmed member is dead. Reported once per death."""

    member: Member
    evidence: ClaimedState
    is_from_gossip: bool


class IncarnationRaised(Struct, frozen=True):
    """This node has a new incarnation: seal with it from now on."""

    incarnation: int
    reason: str


class NameLost(Struct, frozen=True):
    """Another process took this node's name while this node was unreachable: stop."""

    address: str


class LeaveCompleted(Struct, frozen=True):
    """The others had time to hear that this node leaves; the process may end."""


MembershipEffect = (
    SendDatagram
    | StartPushPull
    | ReplyToPushPull
    | DialMember
    | VerifyHolder
    | KeepSession
    | DropSession
    | DrainSocket
    | MemberChanged
    | MemberDied
    | IncarnationRaised
    | NameLost
    | LeaveCompleted
)
