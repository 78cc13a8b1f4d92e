"""The messages of membership: SWIM's datagrams, and the push-pull of member tables over a stream.

The sealed envelope of a datagram (`wire.sealing`) names its sender (node id, incarnation), the
cluster and the environment, so datagrams do not repeat them. Field names are short on the wire:
a datagram carries as many updates as fit.

Two numbers order the updates about a node. Its *incarnation* is one life of its process: the wall
clock in milliseconds at the start, so a restarted node outranks its past. Its *refutation* counts
the suspicions the node has refuted within that life.
"""

from enum import IntEnum

from msgspec import Struct, field

from hyperscale.wire.registry import MessagePriority, SizeClass, message, nested
from hyperscale.wire.roles import Role

METADATA_BYTES_MAX = 512
"""Metadata travels on acks, beside updates; anything larger needs a stream."""


class ClaimedState(IntEnum):
    """The state an update claims a node is in. Within one (incarnation, refutation) the higher
    number wins."""

    ALIVE = 0
    SUSPECT = 1
    SILENT = 2  # dead: no member hears from it; it can still refute
    REFUSED = 3  # dead: its process has certainly ended; only a new incarnation is alive
    LEFT = 4  # it announced that it leaves


FINAL_STATES = frozenset({ClaimedState.REFUSED, ClaimedState.LEFT})
"""These end an incarnation: no refutation within the same incarnation outranks them."""


@nested
class MemberUpdate(Struct, frozen=True, omit_defaults=True, gc=False):
    """One claim about one node, as it is gossiped."""

    node: str = field(name="n")
    incarnation: int = field(name="i")
    claim: ClaimedState = field(name="c")
    refutation: int = field(name="r", default=0)
    by: str = field(name="b", default="")  # the member that suspects the node
    role: Role = field(name="o", default=Role.WORKER)
    address: str = field(name="a", default="")
    stream_port: int = field(name="p", default=0)  # 0: the port of the datagrams


@nested
class Sender(Struct, frozen=True, omit_defaults=True, gc=False):
    """What a member says about itself in every datagram."""

    address: str = field(name="a")
    role: Role = field(name="o", default=Role.WORKER)
    refutation: int = field(name="r", default=0)
    stream_port: int = field(name="p", default=0)


@message(kind=100, priority=MessagePriority.CRITICAL, size=SizeClass.DATAGRAM)
class Ping(Struct, frozen=True, omit_defaults=True):
    """Ask for an `Ack`. `target` is the node the sender expects at this address."""

    sender: Sender = field(name="s")
    sequence: int = field(name="q")
    target: str = field(name="t", default="")
    metadata_seen: int = field(name="m", default=0)
    updates: tuple[MemberUpdate, ...] = field(name="g", default=())


@message(kind=101, priority=MessagePriority.CRITICAL, size=SizeClass.DATAGRAM)
class Ack(Struct, frozen=True, omit_defaults=True):
    """Answer a `Ping`, with metadata if it is newer than `metadata_seen` of the ping."""

    sender: Sender = field(name="s")
    sequence: int = field(name="q")
    metadata_version: int = field(name="v", default=0)
    metadata: bytes = field(name="m", default=b"")
    updates: tuple[MemberUpdate, ...] = field(name="g", default=())


@message(kind=102, priority=MessagePriority.CRITICAL, size=SizeClass.DATAGRAM)
class PingRequest(Struct, frozen=True, omit_defaults=True):
    """Ask a relay to ping `target`. The relay answers with `IndirectAck` or `Nack`."""

    sender: Sender = field(name="s")
    sequence: int = field(name="q")
    target: str = field(name="t")
    target_address: str = field(name="x")
    updates: tuple[MemberUpdate, ...] = field(name="g", default=())


@message(kind=103, priority=MessagePriority.CRITICAL, size=SizeClass.DATAGRAM)
class IndirectAck(Struct, frozen=True, omit_defaults=True):
    """Answer a `PingRequest`: the target acked in this incarnation, with this refutation."""

    sender: Sender = field(name="s")
    sequence: int = field(name="q")
    target: str = field(name="t")
    incarnation: int = field(name="i")
    refutation: int = field(name="r", default=0)
    updates: tuple[MemberUpdate, ...] = field(name="g", default=())


@message(kind=104, priority=MessagePriority.CRITICAL, size=SizeClass.DATAGRAM)
class Nack(Struct, frozen=True, omit_defaults=True):
    """Answer a `PingRequest`: the relay received it, but the target has not acked."""

    sender: Sender = field(name="s")
    sequence: int = field(name="q")
    updates: tuple[MemberUpdate, ...] = field(name="g", default=())


@message(kind=105, priority=MessagePriority.CRITICAL, size=SizeClass.DATAGRAM)
class Gossip(Struct, frozen=True, omit_defaults=True):
    """Carry updates and nothing else."""

    sender: Sender = field(name="s")
    updates: tuple[MemberUpdate, ...] = field(name="g", default=())


Datagram = Ping | Ack | PingRequest | IndirectAck | Nack | Gossip


@nested
class MemberSnapshot(Struct, frozen=True, omit_defaults=True):
    """One row of a member table, with the metadata of the node."""

    update: MemberUpdate = field(name="w")
    metadata_version: int = field(name="v", default=0)
    metadata: bytes = field(name="m", default=b"")


@message(kind=110, priority=MessagePriority.HIGH, size=SizeClass.LARGE)
class PushPull(Struct, frozen=True):
    """Send the whole member table over a stream and ask for the receiver's."""

    sender: Sender
    members: tuple[MemberSnapshot, ...] = ()


@message(kind=111, priority=MessagePriority.HIGH, size=SizeClass.LARGE)
class PushPullReply(Struct, frozen=True):
    """Answer a `PushPull` with the member table as it was before the request was merged."""

    sender: Sender
    members: tuple[MemberSnapshot, ...] = ()
