"""The records that entries of a group's log carry, their encoding, and the clock of their stamps.

The leader of a group stamps every record that it proposes with its date, and every command with
the time of its group as well (`group_clock`). State machines know no other clocks: dates are for
people, ages and durations are differences of the group's time.
Records are encoded as arrays, because they are many and small and all nodes of a tier write the
same format. A new kind of record gets a new tag, and is proposed only where every node knows it
(`wire.versions`); a replica that does not know a record skips it.
"""

from typing import get_args

import msgspec
from msgspec import Struct

from hyperscale.wire.versions import OLDEST, Version

COUNTER_BITS = 16
"""A stamp is one integer: milliseconds of the wall clock, and a counter in these low bits."""
AHEAD_MAX_MS = 60_000


class MachineCommand(Struct, array_like=True, tag=0):
    """A command for the state machine. A command with a key is applied only by the group that
    owns the key slot of the key."""

    stamp: int
    key: str
    body: bytes
    time_ms: int = 0  # of the group
    version: Version = OLDEST
    """The cluster version that its proposer knew: what is above it is not applied."""
    audit: bytes = b""  # who asked for it (`ledger.audit`); empty: the cluster itself


class KeySlotsReleased(Struct, array_like=True, tag=1):
    """The source group gives up key slots. It keeps their key records until the target has
    adopted them."""

    stamp: int
    migration: int
    key_slots: tuple[int, ...]
    source: int  # checked, because a record for a destroyed group is routed to its heir
    target: int


class KeySlotsAdopted(Struct, array_like=True, tag=2):
    """The target group owns these key slots now, and has their key records."""

    stamp: int
    migration: int
    key_slots: tuple[int, ...]
    source: int
    keys: bytes


class KeySlotsHandedOver(Struct, array_like=True, tag=3):
    """The target group has adopted what the source group released: the source may forget it."""

    stamp: int
    migration: int


class StateDigest(Struct, array_like=True, tag=4):
    """The leader's digest of the state at `index`. A replica with another digest is corrupt."""

    stamp: int
    index: int
    digest: bytes


class DigestRequested(Struct, array_like=True, tag=5):
    """Every replica keeps the digest of its state at this entry, so that they can be compared."""

    stamp: int


class RequestAudited(Struct, array_like=True, tag=6):
    """Somebody asked for what changes no state machine, as a backup."""

    stamp: int
    audit: bytes


Record = (
    MachineCommand
    | KeySlotsReleased
    | KeySlotsAdopted
    | KeySlotsHandedOver
    | StateDigest
    | DigestRequested
    | RequestAudited
)

encode_record = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)
decode_record = _decoder.decode
"""Raises `msgspec.MsgspecError` for bytes that are no record."""
_TAGS = frozenset(kind.__struct_config__.tag for kind in get_args(Record))


def decode_known(data: bytes) -> Record | None:
    """Return a record; None if this version does not know its kind."""
    try:
        return decode_record(data)
    except msgspec.ValidationError:
        tag, *_ = msgspec.msgpack.decode(data, type=list[msgspec.Raw])
        if msgspec.msgpack.decode(tag) in _TAGS:
            raise  # skipping it would change the state
        return None


class EntryClock:
    """The clock of one node that stamps records: hybrid logical time.

    It advances past every stamp that the node applies, so that no entry is stamped before one that
    it follows. Stamps of a clock too far ahead are ignored: following them would set every clock
    of the tier wrong for good.
    """

    def __init__(self) -> None:
        self.now_ms = 0
        """The wall clock as of the last batch of input."""
        self.last = 0
        self.ignored_total = 0
        """Stamps over a minute ahead of this node's wall clock."""

    def next(self) -> int:
        """Return a stamp above every one given or observed before."""
        self.last = max(self.last + 1, self.now_ms << COUNTER_BITS)
        return self.last

    def observe_ms(self, stamped_ms: int) -> None:
        """Advance past an entry's time, unless it is over a minute ahead."""
        if stamped_ms - self.now_ms > AHEAD_MAX_MS:
            self.ignored_total += 1
        else:
            self.last = max(self.last, stamped_ms << COUNTER_BITS)
