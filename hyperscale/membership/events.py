"""What goes into the membership core, and what comes out of it."""

from enum import StrEnum

from msgspec import Struct

from hyperscale.membership.messages import Claim, Datagram, View
from hyperscale.wire.roles import Role


class State(StrEnum):
    """Where a member stands. Only confirmed members (all but the first) are ever judged."""

    UNCONFIRMED = "unconfirmed"
    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"
    LEFT = "left"


LIVING = (State.ALIVE, State.SUSPECT)
"""The states of who takes part: a suspect may still be there."""


# Events.


class Tick(Struct, frozen=True):
    """The time `wake_at_s` asked for has come."""


class Received(Struct, frozen=True, gc=False):
    """A datagram that opened: who sealed it, where it came from."""

    source: str
    node: str
    incarnation: int
    datagram: Datagram


class Contact(Struct, frozen=True):
    """Discovery found a member at this stream address: exchange views with it."""

    address: str


class Synced(Struct, frozen=True):
    """A push-pull this node asked for was answered by `node` in this incarnation."""

    node: str
    incarnation: int
    view: View


class SyncAsked(Struct, frozen=True):
    """A push-pull another member asked for; answer with `token`."""

    node: str
    incarnation: int
    view: View
    token: object


class SyncFailed(Struct, frozen=True):
    node: str


class Refused(Struct, frozen=True):
    """The session with this life of a node ended, and its address refused a new one."""

    node: str
    incarnation: int
    address: str


class Answered(Struct, frozen=True):
    """A fresh stream handshake at the address of this life of a node succeeded. Who answered,
    `by` in its own `life`, need not be the one that was looked for."""

    node: str
    incarnation: int
    address: str
    by: str
    life: int


class Describe(Struct, frozen=True):
    """This node's own metadata, as others shall see it."""

    metadata: bytes


class Move(Struct, frozen=True):
    """This node is reached at another address from now on."""

    address: str
    stream_port: int = 0


class Leave(Struct, frozen=True):
    """This node goes. `Gone` says when it has been told to enough others."""


Event = (
    Tick
    | Received
    | Contact
    | Synced
    | SyncAsked
    | SyncFailed
    | Refused
    | Answered
    | Describe
    | Move
    | Leave
)


# Effects.


class Send(Struct, frozen=True, gc=False):
    address: str
    datagram: Datagram


class Sync(Struct, frozen=True):
    """Exchange views over a stream: `Synced` or `SyncFailed` comes back, with `Refused` if the
    address refused and the node is known (else its name is empty)."""

    address: str
    node: str
    incarnation: int
    view: View


class SyncAnswer(Struct, frozen=True):
    token: object
    view: View


class Dial(Struct, frozen=True):
    """Connect to this node to see whose process is there: `Answered`, `Refused` or nothing."""

    node: str
    incarnation: int
    address: str


class Watch(Struct, frozen=True):
    """Keep a session with this node; when it ends, connect again: `Refused` or `Answered`."""

    node: str
    incarnation: int
    address: str


class Unwatch(Struct, frozen=True):
    node: str


class Drain(Struct, frozen=True):
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
    state: State
    since_s: float
    rtt_s: float | None = None
    metadata: bytes = b""
    metadata_version: int = 0


class Changed(Struct, frozen=True):
    """A member's state, address, incarnation or metadata changed."""

    member: Member
    before: State | None


class Died(Struct, frozen=True):
    """A confirmed member is dead: once per death, whoever found out."""

    member: Member
    evidence: Claim
    is_from_gossip: bool


class Reborn(Struct, frozen=True):
    """This node goes on as a new incarnation: seal with it from here on."""

    incarnation: int


class Gone(Struct, frozen=True):
    """The farewell has been told; the process may end."""


Effect = Send | Sync | SyncAnswer | Dial | Watch | Unwatch | Drain | Changed | Died | Reborn | Gone
