"""A simulated disk for the ledger: a crash loses everything that was not synced.

Writes are ordered and become durable in order, a whole sync at a time: while one is under way
the next collects, as the native store's writer does it. A crash in the middle of a sync leaves
all of it or nothing.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from hyperscale._native import GroupImage, LedgerError, WriteBatch
from hyperscale.ledger.replica import HistoryRow
from hyperscale.ledger.store import Snapshot

Entry = tuple[int, int, int, bytes]


@dataclass(slots=True)
class GroupFile:
    """The contents of the disk about one group."""

    hard: tuple[int, int, int]
    snapshot: Snapshot
    entries: dict[int, Entry] = field(default_factory=dict)
    last: int = 0
    """The index of the last entry; the log has no holes up to it."""

    @classmethod
    def of(cls, image: GroupImage) -> "GroupFile":
        entries = {entry[0]: entry for entry in image.entries}
        last = max(entries, default=image.snapshot[0])
        return cls(image.hard, image.snapshot, entries, last)

    def image(self, group: int) -> GroupImage:
        ordered = [self.entries[index] for index in sorted(self.entries)]
        return GroupImage(group, self.hard, self.snapshot, ordered)

    def holds(self, index: int, term: int) -> bool:
        """Return True if the log or the snapshot includes this entry."""
        if index <= self.snapshot[0]:
            return True
        entry = self.entries.get(index)
        return entry is not None and entry[1] == term

    def append(self, entries: Sequence[Entry]) -> None:
        if entries:
            first = entries[0][0]
            for index in range(first, self.last + 1):
                self.entries.pop(index, None)
            for entry in entries:
                self.entries[entry[0]] = entry
            self.last = entries[-1][0]

    def replace(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.entries = {}
        self.last = snapshot[0]

    def compact(self, snapshot: Snapshot, keep_from: int) -> None:
        self.snapshot = snapshot
        for index in [index for index in self.entries if index < keep_from]:
            del self.entries[index]
        self.last = max(self.last, snapshot[0])


class CrashableStore:
    """The disk of one node. It survives processes; `crash` drops their unsynced writes."""

    def __init__(self) -> None:
        self.groups: dict[int, GroupFile] = {}
        """The durable state of each group."""
        self.meta: dict[str, bytes] = {}
        self.history: dict[tuple[str, int, int, str], HistoryRow] = {}
        self.has_failed = False
        self.lost: set[int] = set()
        """Numbers of the nodes that lost this disk before."""
        self.syncs = 0
        self._queue: list[tuple[int, str, Any]] = []
        self._ticket = 0
        self._durable = 0
        self._syncing = 0
        """The last ticket of the sync under way; 0: no sync is under way."""
        self._pending_bytes = 0

    # -- Store ----------------------------------------------------------------------------

    @property
    def pending_bytes(self) -> int:
        return self._pending_bytes

    def write(self, batch: WriteBatch) -> int:
        groups = batch.groups
        self._pending_bytes += sum(len(e[3]) for _, _, entries, _ in groups for e in entries)
        return self._put("write", groups)

    def save_snapshot(self, group: int, image: Snapshot, keep_from: int) -> int:
        return self._put("snapshot", (group, image, keep_from))

    def create(self, image: GroupImage) -> int:
        return self._put("create", image)

    def destroy(self, group: int) -> int:
        return self._put("destroy", group)

    def put_meta(self, key: str, value: bytes) -> int:
        return self._put("meta", (key, value))

    def add_history(self, rows: Sequence[HistoryRow]) -> int:
        return self._put("history", list(rows))

    def durable(self) -> int:
        if self.has_failed:
            raise LedgerError("the disk has failed")
        return self._durable

    # -- the world's side -----------------------------------------------------------------

    @property
    def wants_sync(self) -> bool:
        return bool(self._queue) and not self._syncing and not self.has_failed

    def begin_sync(self) -> None:
        self._syncing = self._ticket

    def end_sync(self) -> None:
        """Make durable what was written before the sync began."""
        upto, self._syncing = self._syncing, 0
        self._settle(upto)
        self._pending_bytes = 0 if not self._queue else self._pending_bytes
        self._durable = upto
        self.syncs += 1

    def fail(self) -> None:
        """Fail the disk: nothing more becomes durable until the next process."""
        self.has_failed = True

    def crash(self, *, keeps_sync: bool) -> None:
        """End the process. `keeps_sync`: the sync under way is completed."""
        if self._syncing and keeps_sync:
            self._settle(self._syncing)
        self._queue.clear()
        self._syncing = self._pending_bytes = 0
        self._durable = self._ticket
        self.has_failed = False

    def wipe(self) -> None:
        """Lose the disk, and with it the votes and entries of its node."""
        if number := self.meta.get("number"):
            self.lost.add(int(number))
        self.groups.clear()
        self.meta.clear()
        self.history.clear()

    def images(self) -> list[GroupImage]:
        return [self.groups[group].image(group) for group in sorted(self.groups)]

    def twin(self) -> "CrashableStore":
        """Return another disk with the same durable contents."""
        other = CrashableStore()
        for group, kept in self.groups.items():
            other.groups[group] = copy(kept)
            other.groups[group].entries = dict(kept.entries)
        other.meta = dict(self.meta)
        return other

    def _put(self, kind: str, what: Any) -> int:
        if self.has_failed:
            raise LedgerError("the disk has failed")
        self._ticket += 1
        self._queue.append((self._ticket, kind, what))
        return self._ticket

    def _settle(self, upto: int) -> None:
        at = 0
        for ticket, kind, what in self._queue:
            if ticket > upto:
                break
            at += 1
            self._do(kind, what)
        del self._queue[:at]

    def _do(self, kind: str, what: Any) -> None:
        match kind:
            case "write":
                for group, hard, entries, snapshot in what:
                    kept = self.groups.get(group)
                    if kept is None:
                        continue  # left meanwhile
                    kept.hard = hard
                    if snapshot is not None:
                        kept.replace(snapshot)
                    kept.append(entries)
            case "snapshot":
                group, image, keep_from = what
                if group in self.groups:
                    self.groups[group].compact(image, keep_from)
            case "create":
                self.groups[what.group] = GroupFile.of(what)
            case "destroy":
                self.groups.pop(what, None)
            case "meta":
                self.meta[what[0]] = what[1]
            case "history":
                for row in what:
                    self.history[row[0], row[1], row[2], row[4]] = row
