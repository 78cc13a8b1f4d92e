"""The disk of the ledger core: a native or simulated store, and the writes under way to it."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from hyperscale._native import GroupImage, LedgerStore, MultiRaft, WriteBatch
from hyperscale.ledger.replica import HistoryRow, Replica

Snapshot = tuple[int, int, bytes, bytes]
"""Index, term, voters (encoded), data."""
BEFORE_FIRST: Final = (-(2**63), 0, 0)
"""The position before the first row of a history."""


def position_of(row: HistoryRow) -> tuple[int, int, int]:
    """Return where a row is in the history: stamp, group, index. Rows of one entry share it."""
    return row[3], row[1], row[2]


def whole_page(rows: list[HistoryRow], limit: int) -> tuple[list[HistoryRow], bool]:
    """Return a page of at most `limit` rows that ends with the last row of an entry, so that the
    next page begins after it, and whether there may be more."""
    if len(rows) < limit:
        return rows, False
    last = position_of(rows[-1])
    return [row for row in rows if position_of(row) != last] or rows, True


def history_pages(store: LedgerStore, group: int, rows: int) -> Iterator[list[HistoryRow]]:
    """Read the history of a group, oldest first, in pages of `rows` rows."""
    after, has_more = BEFORE_FIRST, True
    while has_more:
        page, has_more = whole_page(store.history(group=group, after=after, limit=rows), rows)
        if page:
            yield page
            after = position_of(page[-1])


class LedgerDisk(Protocol):
    """Takes writes in order and makes them durable in order.

    Every write returns a ticket. `durable` returns the highest ticket that a crash can no longer
    undo, and raises after the disk has failed: from then on nothing more becomes durable.
    """

    @property
    def pending_bytes(self) -> int: ...
    def write(self, batch: WriteBatch) -> int: ...
    def save_snapshot(self, group: int, image: Snapshot, keep_from: int) -> int: ...
    def create(self, image: GroupImage) -> int: ...
    def destroy(self, group: int) -> int: ...
    def put_meta(self, key: str, value: bytes) -> int: ...
    def add_history(self, rows: Sequence[HistoryRow]) -> int: ...
    def durable(self) -> int: ...


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
