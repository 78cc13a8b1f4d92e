"""One group's state on this node: the machine, which slots of keys it owns, how far it is.

Fed with committed entries in order, each exactly once. Knows no consensus and no disk.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from hyperscale.errors import InvariantError
from hyperscale.ledger.entry_clock import stamp_ms
from hyperscale.ledger.machine import Machine
from hyperscale.ledger.records import (
    Adopted,
    Checked,
    Command,
    Handed,
    Record,
    Released,
    Surveyed,
    decode_record,
)

SLOTS: Final = 1_024
DIGEST_EVERY: Final = 1_000
_DIGESTS_KEPT = 4
_SURVEYS_KEPT = 16


class Move(Struct, frozen=True, array_like=True):
    """Slots on their way to another group, with the keys they bring."""

    slots: tuple[int, ...]
    target: int
    keys: bytes


class EntryResult(Struct, frozen=True):
    """What one committed entry did to a replica."""

    index: int
    event: object = None
    """The decoded command, if the entry carried one and it was applied."""
    reply: object = None
    """The state machine's answer to it."""
    moved_to: int | None = None
    """Not None: the command was not applied, because this group owns the key slot of its key.
    0: the topology says which group owns it."""
    is_digest_different: bool = False
    """The entry carries the leader's digest of a state that has another digest here."""


class _Image(Struct, array_like=True):
    """The whole of a replica, as a snapshot carries it."""

    machine: bytes
    slots: list[int]
    outgoing: dict[int, Move]
    released: list[int]
    adopted: dict[int, int]
    heirs: dict[int, int]
    last_ms: int


_encode_image = msgspec.msgpack.Encoder().encode
_decode_image = msgspec.msgpack.Decoder(_Image).decode


class Replica:
    """A group's machine and slots. `owns` restricts keyed commands; group 0 owns no slots."""

    def __init__(
        self,
        group: int,
        machine: Machine,
        key_slot_of: Callable[[str], int],
        slots: Iterable[int] = (),
    ) -> None:
        self.group = group
        self.machine = machine
        self.slots = set(slots)
        self.outgoing: dict[int, Move] = {}
        """Released and not yet taken over, by move."""
        self.applied = 0
        self.term = 0
        self.history: list[tuple[str, int, int, int, str, bytes]] = []
        """Rows for the audit table since they were last taken."""
        self.digests: dict[int, bytes] = {}
        self.surveys: dict[int, bytes] = {}
        """Digests that were asked for, by index; those of a former state go with a snapshot."""
        self.log_since_snapshot = (0, 0)
        """Entries and bytes applied since the last snapshot."""
        self.last_ms = 0
        self._released: set[int] = set()  # moves; a repeat changes nothing, also if slots came back
        self._adopted: dict[int, int] = {}  # move -> how many slots; a repeat changes nothing
        self._heirs: dict[int, int] = {}  # slot given away -> where it went
        self._key_slot_of = key_slot_of

    # -- applying -------------------------------------------------------------------------

    def apply(self, index: int, term: int, data: bytes) -> EntryResult:
        """Applies the next entry. Empty entries are the consensus core's own."""
        if index != self.applied + 1:
            raise InvariantError(
                f"group {self.group}: entry {index} comes after entry {self.applied}"
            )
        self.applied = index
        self.term = term
        entries, size = self.log_since_snapshot
        self.log_since_snapshot = (entries + 1, size + len(data))
        result = EntryResult(index) if not data else self._applied(index, decode_record(data))
        if index % DIGEST_EVERY == 0:
            self.digests[index] = self.digest()
            while len(self.digests) > _DIGESTS_KEPT:
                del self.digests[min(self.digests)]
        return result

    def _applied(self, index: int, record: Record) -> EntryResult:
        # Time never runs backwards for the machine, whatever the clocks of the leaders do.
        self.last_ms = max(self.last_ms, stamp_ms(record.stamp))
        match record:
            case Command(key=key, body=body):
                if key and (slot := self._key_slot_of(key)) not in self.slots:
                    return EntryResult(index, moved_to=self._heirs.get(slot, 0))
                applied = self.machine.apply(index, self.last_ms, body)
                for job, kind, row in applied.history:
                    self.history.append((job, self.group, index, self.last_ms, kind, row))
                return EntryResult(index, applied.event, applied.reply)
            case Released(move=move, slots=slots, source=source, target=target):
                if source == self.group:
                    self._release(move, slots, target)
            case Adopted(move=move, slots=slots, keys=keys):
                if move not in self._adopted:
                    self._adopted[move] = len(slots)
                    self.slots.update(slots)
                    for slot in slots:
                        self._heirs.pop(slot, None)
                    self.machine.import_keys(keys)
            case Handed(move=move):
                self.outgoing.pop(move, None)
            case Checked(index=checked, digest=digest):
                own = self.digests.get(checked, digest)
                return EntryResult(index, is_digest_different=own != digest)
            case Surveyed():
                self.surveys[index] = self.digest()
                while len(self.surveys) > _SURVEYS_KEPT:
                    del self.surveys[min(self.surveys)]
        return EntryResult(index)

    def _release(self, move: int, slots: Sequence[int], target: int) -> None:
        given = tuple(slot for slot in slots if slot in self.slots)
        if move in self._released or not given:
            return
        self._released.add(move)
        self.slots.difference_update(given)
        self._heirs.update(dict.fromkeys(given, target))
        keys = self.machine.export_keys(frozenset(given))
        self.outgoing[move] = Move(given, target, keys)

    def has_released(self, move: int) -> bool:
        return move in self._released

    def digest(self) -> bytes:
        """A hash of everything a snapshot would hold, computed afresh."""
        own = hashlib.blake2b(_encode_image(self._image(b"")), digest_size=16)
        own.update(self.machine.digest())
        return own.digest()

    # -- snapshots ------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        return _encode_image(self._image(self.machine.snapshot()))

    def _image(self, machine: bytes) -> _Image:
        return _Image(
            machine,
            sorted(self.slots),
            self.outgoing,
            sorted(self._released),
            self._adopted,
            self._heirs,
            self.last_ms,
        )

    def restore(self, index: int, data: bytes) -> None:
        """Becomes what a snapshot says; the digests of the former state go with it."""
        image = _decode_image(data)
        self.machine.restore(image.machine)
        self.slots = set(image.slots)
        self.outgoing = image.outgoing
        self._released = set(image.released)
        self._adopted = image.adopted
        self._heirs = image.heirs
        self.last_ms = image.last_ms
        self.applied = index
        self.log_since_snapshot = (0, 0)
        self.digests.clear()
        self.surveys.clear()
