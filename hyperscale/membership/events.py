"""What goes into the membership core, and what comes out of it."""

from enum import StrEnum

from msgspec import Struct

from hyperscale.membership.messages import ClaimedState, Datagram, View
from hyperscale.wire.roles import Role


class MemberState(StrEnum):
    """Where a member stands. Only confirmed members (all but the first) are ever judged."""

    UNCONFIRMED = "unconfirmed"
    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"
    LEFT = "left"


LIVING = (MemberState.ALIVE, MemberState.SUSPECT)
"""The states of who takes part: a suspect may still be there."""


# Events.


class Tick(Struct, frozen=True):
    """The time `wake_at_s` asked for has come."""


class DatagramReceived(Struct, frozen=True, gc=False):
    """A datagram that opened: who sealed it, where it came from."""

    source: str
    node: str
    incarnation: int
    datagram: Datagram


class MemberDiscovered(Struct, frozen=True):
    """Discovery found a member at this stream address: exchange views with it."""

    address: str


class PushPullCompleted(Struct, frozen=True):
    """A push-pull this node asked for was answered by `node` in this incarnation."""

    node: str
    incarnation: int
    view: View


class PushPullRequested(Struct, frozen=True):
    """A push-pull another member asked for; answer with `token`."""

    node: str
    incarnation: int
    view: View
    token: object


class PushPullFailed(Struct, frozen=True):
    node: str


class DialRefused(Struct, frozen=True):
    """The session with this life of a node ended, and its address refused a new one."""

    node: str
    incarnation: int
    address: str


class DialAnswered(Struct, frozen=True):
    """A fresh stream handshake at the address of this life of a node succeeded. Who answered,
    `by` in its own `life`, need not be the one that was looked for."""

    node: str
    incarnation: int
    address: str
    by: str
    life: int


class MetadataChanged(Struct, frozen=True):
    """This node's own metadata, as others shall see it."""

    metadata: bytes


class AddressChanged(Struct, frozen=True):
    """This node is reached at another address from now on."""

    address: str
    stream_port: int = 0


class LeaveRequested(Struct, frozen=True):
    """This node goes. `LeaveCompleted` says when it has been told to enough others."""


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
)


# Effects.


class SendDatagram(Struct, frozen=True, gc=False):
    address: str
    datagram: Datagram


class StartPushPull(Struct, frozen=True):
    """Exchange member tables over a stream; report `PushPullCompleted` or `PushPullFailed`.

    Report `DialRefused` as well if the address refused and `node` is known (not empty).
    """

    address: str
    node: str
    incarnation: int
    view: View


class ReplyToPushPull(Struct, frozen=True):
    token: object
    view: View


class DialMember(Struct, frozen=True):
    """Connect to this node; report `DialAnswered`, `DialRefused`, or nothing on a timeout."""

    node: str
    incarnation: int
    address: str


class KeepSession(Struct, frozen=True):
    """Keep a session with this node. When it ends, dial again: `DialRefused` or `DialAnswered`."""

    node: str
    incarnation: int
    address: str


class DropSession(Struct, frozen=True):
    node: str


class DrainSocket(Struct, frozen=True):
    """This node stood still: hand over every datagram that waits before the next `Tick`."""

    late_s: float


class Member(Struct, frozen=True):
    """One member as others in this process see it."""

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
    """A member's state, address, incarnation or metadata changed."""

    member: Member
    before: MemberState | None


class MemberDied(Struct, frozen=True):
    """A confirmed member is dead: once per death, whoever found out."""

    member: Member
    evidence: ClaimedState
    is_from_gossip: bool


class IncarnationRaised(Struct, frozen=True):
    """This node goes on as a new incarnation: seal with it from here on."""

    incarnation: int


class LeaveCompleted(Struct, frozen=True):
    """The farewell has been told; the process may end."""


MembershipEffect = (
    SendDatagram
    | StartPushPull
    | ReplyToPushPull
    | DialMember
    | KeepSession
    | DropSession
    | DrainSocket
    | MemberChanged
    | MemberDied
    | IncarnationRaised
    | LeaveCompleted
)
