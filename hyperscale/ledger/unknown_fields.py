"""Fields of a snapshot that this version does not know: kept, and handed on in its own snapshots.

A newer node may have sent the snapshot, and may be sent one later: what it wrote must not get lost
on the way through an older node, nor make the states of both differ. New fields are the last of
their structs, and fields with default values are not written, so adding the unknown ones at the
end gives what the newer node would have written. States are compared as JSON: in MessagePack the
head of a struct depends on how many fields its class has, used or not.
"""

import hashlib
from typing import Any

import msgspec
from msgspec import Struct, field

_decode = msgspec.msgpack.decode
_encode = msgspec.msgpack.Encoder().encode
_as_json = msgspec.json.Encoder().encode


class _Unknown(Struct):
    """What is missing in one map or list of a state, and in what it contains."""

    entries: dict[Any, Any] = field(default_factory=dict)
    inside: dict[Any, "_Unknown"] = field(default_factory=dict)  # by key, or by position in a list


class UnknownFields:
    """The unknown fields of one encoded state."""

    def __init__(self) -> None:
        self._root: _Unknown | None = None

    def note(self, received: bytes, encoded: bytes) -> None:
        """Keep what is in a received state and not in the same state encoded by this version."""
        self._root = None
        if received and received != encoded:
            self._root = _missing(_decode(received), _decode(encoded))

    def add(self, encoded: bytes) -> bytes:
        """Return an encoded state of this version with the unknown fields, where they still
        belong."""
        if self._root is None:
            return encoded
        state = _decode(encoded)
        _add(state, self._root)
        return _encode(state)

    def digest(self, state: object) -> bytes:
        """Hash a state with the unknown fields: the same in versions that have further fields, as
        long as those are not used."""
        if self._root is not None:
            state = _decode(self.add(_encode(state)))
        return hashlib.blake2b(_as_json(state), digest_size=16).digest()


def _missing(received: Any, known: Any) -> _Unknown | None:
    if isinstance(received, dict) and isinstance(known, dict):
        entries = {key: value for key, value in received.items() if key not in known}
        pairs = [(key, value, known[key]) for key, value in received.items() if key in known]
    elif isinstance(received, list) and isinstance(known, list):
        entries = {}
        pairs = [(at, *pair) for at, pair in enumerate(zip(received, known, strict=False))]
    else:
        return None
    inside = {key: found for key, one, other in pairs if (found := _missing(one, other))}
    return _Unknown(entries, inside) if entries or inside else None


def _add(state: Any, unknown: _Unknown) -> None:
    for key, inside in unknown.inside.items():
        is_there = key in state if isinstance(state, dict) else key < len(state)
        if is_there and isinstance(state[key], dict | list):
            _add(state[key], inside)
    for key, value in unknown.entries.items():
        state.setdefault(key, value)
