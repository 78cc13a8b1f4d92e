"""The deadlines of calls, in buckets of `QUANTUM_S`: removing one is a set operation.

Never early, and at most `QUANTUM_S` late. Most deadlines are never reached: a heap would keep
every finished call until its deadline, and a timer per call costs more than the call.
"""

import heapq
from collections.abc import Iterator

QUANTUM_S = 0.02


class CallDeadlines:
    """Request ids and their deadlines, on the clock of the caller."""

    def __init__(self) -> None:
        self._buckets: dict[int, set[int]] = {}
        self._order: list[int] = []

    def add(self, number: int, deadline_s: float) -> int:
        """Add a deadline; return its bucket, which `remove` needs."""
        bucket = int(deadline_s / QUANTUM_S) + 1
        members = self._buckets.get(bucket)
        if members is None:
            self._buckets[bucket] = {number}
            heapq.heappush(self._order, bucket)
        else:
            members.add(number)
        return bucket

    def remove(self, number: int, bucket: int) -> None:
        members = self._buckets.get(bucket)
        if members is not None:
            members.discard(number)

    def wake_at_s(self) -> float | None:
        """Return when a deadline may expire next; None if there is none."""
        while self._order:
            bucket = self._order[0]
            if self._buckets[bucket]:
                return bucket * QUANTUM_S
            heapq.heappop(self._order)
            del self._buckets[bucket]
        return None

    def expired(self, *, now_s: float) -> Iterator[int]:
        """Yield every id whose deadline has passed, once."""
        while self._order and self._order[0] * QUANTUM_S <= now_s:
            yield from self._buckets.pop(heapq.heappop(self._order))
