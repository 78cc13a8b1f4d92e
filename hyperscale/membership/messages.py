"""What members say to each other: datagrams, and the exchange of whole views over a stream.

Who sent a datagram (node id, incarnation) and for which cluster and environment is on its sealed
envelope (`wire.sealing`), so no datagram repeats it. Field names are short on the wire: a
datagram carries as much news as fits.

Two numbers order what is said about a node. Its *incarnation* is one life of its process: wall
clock milliseconds at its start, so a restarted node outranks its past. Its *refutation* counts
how often it has contradicted a suspicion within that life.
"""

from enum import IntEnum

from msgspec import Struct, field

from hyperscale.wire.registry import MessagePriority, SizeClass, message, nested
from hyperscale.wire.roles import Role

METADATA_BYTES_MAX = 512
"""Metadata rides on acks, beside news; what is larger goes over streams."""


class ClaimedState(IntEnum):
    """What is said about a node. Within one (incarnation, refutation) the higher number wins."""

    ALIVE = 0
    SUSPECT = 1
    SILENT = 2  # dead: nobody hears from it; it can still refute
    REFUSED = 3  # dead: its process is gone for certain; only a new incarnation is alive
    LEFT = 4  # it said goodbye


FINAL_STATES = frozenset({ClaimedState.REFUSED, ClaimedState.LEFT})
"""They end an incarnation: no refutation of the same life outranks them."""


@nested
class MemberUpdate(Struct, frozen=True, omit_defaults=True, gc=False):
    """One claim about one node."""

    node: str = field(name="n")
    incarnation: int = field(name="i")
    claim: ClaimedState = field(name="c")
    refutation: int = field(name="r", default=0)
    by: str = field(name="b", default="")  # who suspects it
    role: Role = field(name="o", default=Role.WORKER)
    address: str = field(name="a", default="")
    stream_port: int = field(name="p", default=0)  # 0: the same as the datagrams'


@nested
class Sender(Struct, frozen=True, omit_defaults=True, gc=False):
    """What a member says about itself with every datagram."""

    address: str = field(name="a")
    role: Role = field(name="o", default=Role.WORKER)
    refutation: int = field(name="r", default=0)
    stream_port: int = field(name="p", default=0)


@message(kind=100, priority=MessagePriority.CRITICAL, size=SizeClass.DATAGRAM)
class Ping(Struct, frozen=True, omit_defaults=True):
    """Are you there? `target` is whom the sender expects at this address."""

    sender: Sender = field(name="s")
    sequence: int = field(name="q")
    target: str = field(name="t", default="")
    metadata_seen: int = field(name="m", default=0)
    news: tuple[MemberUpdate, ...] = field(name="g", default=())


@message(kind=101, priority=MessagePriority.CRITICAL, size=SizeClass.DATAGRAM)
class Ack(Struct, frozen=True, omit_defaults=True):
    """Yes. Metadata only if it is newer than what the asker has seen."""

    sender: Sender = field(name="s")
    sequence: int = field(name="q")
    metadata_version: int = field(name="v", default=0)
    metadata: bytes = field(name="m", default=b"")
    news: tuple[MemberUpdate, ...] = field(name="g", default=())


@message(kind=102, priority=MessagePriority.CRITICAL, size=SizeClass.DATAGRAM)
class PingRequest(Struct, frozen=True, omit_defaults=True):
    """Please ping `target` for me; say so also if it does not answer."""

    sender: Sender = field(name="s")
    sequence: int = field(name="q")
    target: str = field(name="t")
    target_address: str = field(name="x")
    news: tuple[MemberUpdate, ...] = field(name="g", default=())


@message(kind=103, priority=MessagePriority.CRITICAL, size=SizeClass.DATAGRAM)
class IndirectAck(Struct, frozen=True, omit_defaults=True):
    """The relay's answer: the target is there, in this life, with this refutation."""

    sender: Sender = field(name="s")
    sequence: int = field(name="q")
    target: str = field(name="t")
    incarnation: int = field(name="i")
    refutation: int = field(name="r", default=0)
    news: tuple[MemberUpdate, ...] = field(name="g", default=())


@message(kind=104, priority=MessagePriority.CRITICAL, size=SizeClass.DATAGRAM)
class Nack(Struct, frozen=True, omit_defaults=True):
    """The relay's answer: I am here and heard you, the target has not answered me."""

    sender: Sender = field(name="s")
    sequence: int = field(name="q")
    news: tuple[MemberUpdate, ...] = field(name="g", default=())


@message(kind=105, priority=MessagePriority.CRITICAL, size=SizeClass.DATAGRAM)
class Gossip(Struct, frozen=True, omit_defaults=True):
    """Nothing but news."""

    sender: Sender = field(name="s")
    news: tuple[MemberUpdate, ...] = field(name="g", default=())


Datagram = Ping | Ack | PingRequest | IndirectAck | Nack | Gossip


@nested
class MemberSnapshot(Struct, frozen=True, omit_defaults=True):
    """One node as one member sees it, metadata included."""

    news: MemberUpdate = field(name="w")
    metadata_version: int = field(name="v", default=0)
    metadata: bytes = field(name="m", default=b"")


@message(kind=110, priority=MessagePriority.HIGH, size=SizeClass.LARGE)
class View(Struct, frozen=True):
    """Everything a member knows: the request and the answer of a push-pull over a stream."""

    sender: Sender
    records: tuple[MemberSnapshot, ...] = ()
    is_join: bool = False
