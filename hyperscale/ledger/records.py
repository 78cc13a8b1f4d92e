"""What an entry of a group's log says, and how it is written.

Every entry carries the stamp its leader gave it: state machines know no other clock. Arrays,
not maps: entries are many and small, and all nodes of a tier write the same format; a new kind
of record gets a new tag.
"""

import msgspec
from msgspec import Struct


class Command(Struct, frozen=True, array_like=True, tag=0):
    """Something for the state machine. With a key, only the owner of its slot takes it."""

    stamp: int
    key: str
    body: bytes


class Released(Struct, frozen=True, array_like=True, tag=1):
    """This group gives slots away. Their key records wait here until the target has them."""

    stamp: int
    move: int
    slots: tuple[int, ...]
    source: int  # what is told to a group that is gone comes to its heir, who gives nothing away
    target: int


class Adopted(Struct, frozen=True, array_like=True, tag=2):
    """This group owns these slots now, and knows the keys that came with them."""

    stamp: int
    move: int
    slots: tuple[int, ...]
    source: int
    keys: bytes


class Handed(Struct, frozen=True, array_like=True, tag=3):
    """The target has what was released: it need not wait here any longer."""

    stamp: int
    move: int


class Checked(Struct, frozen=True, array_like=True, tag=4):
    """The leader's digest of the state at `index`; whoever has another one has gone astray."""

    stamp: int
    index: int
    digest: bytes


class Surveyed(Struct, frozen=True, array_like=True, tag=5):
    """Every replica keeps the digest of its state here, for whoever compares them."""

    stamp: int


Record = Command | Released | Adopted | Handed | Checked | Surveyed

_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def encode_record(record: Record) -> bytes:
    return _encode(record)


def decode_record(data: bytes) -> Record:
    """Raises `msgspec.MsgspecError` for what no version of ours wrote."""
    return _decoder.decode(data)
