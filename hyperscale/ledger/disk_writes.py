"""Writes of one node under way to its disk, and how far they are durable."""

from collections import deque
from collections.abc import Iterable

from hyperscale._native import MultiRaft, WriteBatch
from hyperscale.ledger.replica import Replica
from hyperscale.ledger.store import LedgerDisk


class DiskWrites:
    """Gives batches to the store and tells consensus when they are durable."""

    def __init__(self, store: LedgerDisk) -> None:
        self.store = store
        self.durable_ticket = 0
        """The highest ticket that a crash can no longer undo, as of the last pass."""
        self.history_ticket = 0
        """The ticket of the last history rows given to the store."""
        self.unconfirmed: deque[tuple[int, int]] = deque()
        """Ticket and batch number of each write that consensus does not know to be durable."""

    def write(self, batch: WriteBatch) -> None:
        self.unconfirmed.append((self.store.write(batch), batch.number))

    def confirm(self, raft: MultiRaft) -> None:
        """Tell consensus which batches have become durable."""
        self.durable_ticket = self.store.durable()
        while self.unconfirmed and self.unconfirmed[0][0] <= self.durable_ticket:
            raft.persisted(self.unconfirmed.popleft()[1])

    def add_history(self, replicas: Iterable[Replica]) -> None:
        """Write the history rows that applied entries have brought."""
        for replica in replicas:
            if replica.history:
                self.history_ticket = self.store.add_history(replica.history)
                replica.history = []
