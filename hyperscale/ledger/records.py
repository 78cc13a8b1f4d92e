"""The records that entries of a group's log carry, and their encoding.

The leader of a group stamps every record that it proposes: state machines know no other clock.
Records are encoded as arrays, because they are many and small and all nodes of a tier write the
same format. A new kind of record gets a new tag.
"""

import msgspec
from msgspec import Struct


class MachineCommand(Struct, array_like=True, tag=0):
    """A command for the state machine. A command with a key is applied only by the group that
    owns the key slot of the key."""

    stamp: int
    key: str
    body: bytes


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


Record = (
    MachineCommand
    | KeySlotsReleased
    | KeySlotsAdopted
    | KeySlotsHandedOver
    | StateDigest
    | DigestRequested
)

encode_record = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)
decode_record = _decoder.decode
"""Raises `msgspec.MsgspecError` for bytes that are no record."""
