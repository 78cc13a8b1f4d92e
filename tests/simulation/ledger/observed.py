"""A real ledger core that reports to an observer, so that a monitor can check it."""

from typing import Any

from hyperscale.ledger.core import CommittedEntry, LedgerCore, PassOutput
from hyperscale.ledger.replica import AppliedEntry


class Observer:
    """Callbacks of observed cores. The monitor is one."""

    def applied(self, core: "ObservedCore", group: int, index: int, term: int, data: bytes) -> None:
        """An entry was applied."""

    def acknowledged(
        self, core: "ObservedCore", group: int, outcome: AppliedEntry, data: bytes
    ) -> None:
        """A proposer was answered that its entry is committed."""

    def restored(self, core: "ObservedCore", group: int) -> None:
        """A replica was replaced by a snapshot."""

    def born(self, core: "ObservedCore", group: int) -> None:
        """A replica was created from a group's first image."""

    def wrote(self, group: int, entries: Any) -> None:
        """Entries were given to the disk."""

    def voted(self, core: "ObservedCore", packed: bytes) -> None:
        """Messages that contain a vote were sent."""


class ObservedCore(LedgerCore):
    """A ledger core that reports what it applies."""

    def __init__(self, *args: Any, observer: Observer, **kwargs: Any) -> None:
        self.observer = observer
        self.last_reply: object = None
        self.seats: dict[int, list[tuple[int, list[int], list[int]]]] = {}
        """Per group: index, voters, and outgoing voters of each configuration."""
        super().__init__(*args, **kwargs)

    def _seated(self, group: int, index: int) -> None:
        voters, outgoing, _ = self.raft.seats(group)
        self.seats[group] = [(index, voters, outgoing)]

    def _open(self, image: Any) -> None:
        super()._open(image)
        self._seated(image.group, image.snapshot[0])
        if image.snapshot[0] == 1:
            self.observer.born(self, image.group)

    def _apply(self, committed: CommittedEntry, out: PassOutput) -> AppliedEntry:
        entry = super()._apply(committed, out)
        self.last_reply = entry.reply
        self.observer.applied(self, entry.group, entry.index, entry.term, committed[4])
        return entry

    def _take(self, turn: Any, out: PassOutput) -> None:
        if (write := turn.write) is not None:
            for group, _, entries, _ in write.groups:
                self.observer.wrote(group, entries)
        for group, index, _, _, _, seats in turn.committed:
            if seats is not None:
                self.seats[group].append((index, seats[0], seats[1]))
        for group, index, _ in turn.restored:
            self._seated(group, index)
        super()._take(turn, out)
        for group, _, _ in turn.restored:
            self.observer.restored(self, group)
