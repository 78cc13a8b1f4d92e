"""One group's replica on this node: its state machine, its key slots, its applied index.

A replica applies committed entries in order, each exactly once. It knows no consensus and no disk.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec import Struct, field

from hyperscale.errors import InvariantError
from hyperscale.ledger.audit import audit_row
from hyperscale.ledger.machine import Machine
from hyperscale.ledger.records import (
    COUNTER_BITS,
    DigestRequested,
    KeySlotsAdopted,
    KeySlotsHandedOver,
    KeySlotsReleased,
    MachineCommand,
    Record,
    RequestAudited,
    StateDigest,
    decode_known,
)
from hyperscale.ledger.unknown_fields import UnknownFields

HistoryRow = tuple[str, int, int, int, str, bytes]
"""Job, group, index, stamp in ms, kind, data."""
INDEX_MARK: Final = "#"
KEY_SLOTS: Final = 1_024
"""Each key slot belongs to one group of the ledger."""
DIGEST_EVERY: Final = 1_000
_DIGESTS_KEPT = 4
_REQUESTED_DIGESTS_KEPT = 16


def is_index(job: str) -> bool:
    """Return True for what rows of an index have in place of a job: an index collects rows about
    many jobs of all groups, such as the audit."""
    return job.startswith(INDEX_MARK)


def key_slot_of(key: str) -> int:
    """Return the key slot of a key: the same in every process and version."""
    hashed = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(hashed, "big") % KEY_SLOTS


class OutgoingKeySlots(Struct, frozen=True, array_like=True):
    """Key slots that this group released, with their key records, until the target has adopted
    them."""

    key_slots: tuple[int, ...]
    target: int
    keys: bytes


class AppliedEntry(Struct, frozen=True):
    """A committed entry, and what it did to a replica."""

    group: int
    index: int
    term: int
    event: object = None
    """The decoded command, if the entry carried one and it was applied."""
    reply: object = None
    """The state machine's answer to it; None if no command was applied."""
    is_key_foreign: bool = False
    """The command was not applied: this group does not own the key slot of its key."""
    is_digest_different: bool = False
    """The entry carries the leader's digest of a state that has another digest here."""


class LogSize(Struct):
    """The entries that a replica has applied since its last snapshot."""

    entries: int = 0
    bytes: int = 0


class _UnknownInSnapshot(Struct):
    """What this version does not know of the snapshot that a replica was restored from."""

    image: UnknownFields = field(default_factory=UnknownFields)
    state: UnknownFields = field(default_factory=UnknownFields)


class _Image(Struct, omit_defaults=True):
    """The state of a replica in a snapshot. Further fields come last and have defaults."""

    machine: bytes
    key_slots: list[int]
    outgoing: dict[int, OutgoingKeySlots]
    released: list[int]
    adopted: list[int]
    last_ms: int
    time_ms: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode_image = msgspec.msgpack.Decoder(_Image).decode


class Replica:
    """The state machine and the key slots of a group. Group 0 owns no key slots."""

    def __init__(
        self,
        group: int,
        machine: Machine,
        key_slots: Iterable[int] = (),
    ) -> None:
        self.group = group
        self.machine = machine
        self.key_slots = set(key_slots)
        self.outgoing: dict[int, OutgoingKeySlots] = {}
        """What was released and not yet adopted, by migration."""
        self.applied = 0
        self.term = 0
        self.history: list[HistoryRow] = []
        """Rows for the history table that were not written yet."""
        self.digests: dict[int, bytes] = {}
        self.requested_digests: dict[int, bytes] = {}
        """Digests at the entries that requested one, by index; a snapshot clears them."""
        self.log = LogSize()
        self.last_ms = 0
        """The date of the last entry; for people."""
        self.time_ms = 0
        """The time of the group at its last command: ages and durations count from it."""
        self.released: set[int] = set()
        """Migrations: a repeated record changes nothing."""
        self._adopted: set[int] = set()
        self._unknown = _UnknownInSnapshot()

    # -- applying -------------------------------------------------------------------------

    def apply(self, index: int, term: int, data: bytes) -> AppliedEntry:
        """Apply the next entry. Empty entries belong to consensus itself."""
        if index != self.applied + 1:
            raise InvariantError(
                f"group {self.group}: entry {index} comes after entry {self.applied}"
            )
        self.applied = index
        self.term = term
        self.log.entries += 1
        self.log.bytes += len(data)
        record = decode_known(data) if data else None
        entry = None if record is None else self._apply_record(index, record)
        if index % DIGEST_EVERY == 0:
            _keep_last(self.digests, _DIGESTS_KEPT, index, self.digest())
        return AppliedEntry(self.group, index, term) if entry is None else entry

    def _apply_record(self, index: int, record: Record) -> AppliedEntry | None:
        """Return None if the entry did nothing that its proposer or a hook has to know."""
        # Time never runs backwards, whatever the clocks of leaders do.
        stamped_ms = record.stamp >> COUNTER_BITS
        self.last_ms = max(self.last_ms, stamped_ms)
        match record:
            case MachineCommand():
                key = record.key
                if key and key_slot_of(key) not in self.key_slots:
                    return AppliedEntry(self.group, index, self.term, is_key_foreign=True)
                self.time_ms = max(self.time_ms, record.time_ms)
                applied = self.machine.apply(
                    index,
                    self.time_ms,
                    record.body,
                    unix_ms=self.last_ms,
                    version=record.version,
                )
                rows = list(applied.history)
                if record.audit and applied.did_change:
                    rows.append(audit_row(record.audit, rows))
                self._note(index, rows)
                return AppliedEntry(self.group, index, self.term, applied.event, applied.reply)
            case KeySlotsReleased():
                if record.source == self.group:
                    self._release(record.migration, record.key_slots, record.target)
            case KeySlotsAdopted():
                self.adopt(record.migration, record.key_slots, record.keys)
            case KeySlotsHandedOver():
                self.outgoing.pop(record.migration, None)
            case StateDigest():
                if self.digests.get(record.index, record.digest) != record.digest:
                    return AppliedEntry(self.group, index, self.term, is_digest_different=True)
            case RequestAudited():
                self._note(index, [audit_row(record.audit, ())])
            case DigestRequested():
                _keep_last(self.requested_digests, _REQUESTED_DIGESTS_KEPT, index, self.digest())
        return None

    def _note(self, index: int, rows: Iterable[tuple[str, str, bytes]]) -> None:
        """Add rows of an entry (job, kind, data) to the history."""
        self.history += [
            (job, self.group, index, self.last_ms, kind, row) for job, kind, row in rows
        ]

    def adopt(self, migration: int, key_slots: Iterable[int], keys: bytes) -> None:
        """Take over key slots and their key records, once for each migration."""
        if migration not in self._adopted:
            self._adopted.add(migration)
            self.key_slots.update(key_slots)
            self.machine.import_keys(keys)

    def _release(self, migration: int, key_slots: Sequence[int], target: int) -> None:
        given = tuple(key_slot for key_slot in key_slots if key_slot in self.key_slots)
        if migration in self.released or not given:
            return
        self.released.add(migration)
        self.key_slots.difference_update(given)
        moved = frozenset(given)
        keys = self.machine.export_keys(lambda key: key_slot_of(key) in moved)
        self.outgoing[migration] = OutgoingKeySlots(given, target, keys)

    def digest(self) -> bytes:
        """Hash afresh everything a snapshot would hold."""
        own = hashlib.blake2b(self._unknown.image.digest(self._image(b"")), digest_size=16)
        own.update(self._unknown.state.digest(self.machine.state))
        return own.digest()

    # -- snapshots ------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        state = self._unknown.state.add(self.machine.snapshot())
        return self._unknown.image.add(_encode(self._image(state)))

    def _image(self, machine: bytes) -> _Image:
        return _Image(
            machine,
            sorted(self.key_slots),
            self.outgoing,
            sorted(self.released),
            sorted(self._adopted),
            self.last_ms,
            self.time_ms,
        )

    def restore(self, index: int, data: bytes) -> None:
        """Replace the state by that of a snapshot."""
        image = _decode_image(data)
        self.machine.restore(image.machine)
        self._unknown.state.note(image.machine, self.machine.snapshot())
        self._unknown.image.note(data, _encode(image))
        self.key_slots = set(image.key_slots)
        self.outgoing = image.outgoing
        self.released = set(image.released)
        self._adopted = set(image.adopted)
        self.last_ms, self.time_ms = image.last_ms, image.time_ms
        self.applied = index
        self.log = LogSize()
        self.digests.clear()
        self.requested_digests.clear()


def _keep_last(digests: dict[int, bytes], count: int, index: int, digest: bytes) -> None:
    digests[index] = digest
    while len(digests) > count:
        del digests[min(digests)]
