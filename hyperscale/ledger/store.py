"""The disk as the ledger core needs it: the native store, or a simulated one."""

from collections.abc import Sequence
from typing import Protocol

from hyperscale._native import GroupImage, WriteBatch

Snapshot = tuple[int, int, bytes, bytes]
"""Index, term, voters (encoded), data."""
HistoryRow = tuple[str, int, int, int, str, bytes]
"""Job, group, index, stamp in ms, kind, data."""


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
