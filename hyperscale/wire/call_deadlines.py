"""Many deadlines, most of them never reached: kept in buckets, so forgetting one costs nothing.

Exact to `QUANTUM_S`, never early. A heap would hold every finished call until its deadline; a
timer per call costs more than the call.
"""

import heapq
from collections.abc import Iterator

QUANTUM_S = 0.02


class CallDeadlines:
    """Integers with deadlines on the caller's clock."""

    def __init__(self) -> None:
        self._buckets: dict[int, set[int]] = {}
        self._order: list[int] = []

    def add(self, number: int, deadline_s: float) -> int:
        """Returns the bucket, which `remove` wants back."""
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
        """When `expired` may next have something; None if never."""
        while self._order:
            bucket = self._order[0]
            if self._buckets[bucket]:
                return bucket * QUANTUM_S
            heapq.heappop(self._order)
            del self._buckets[bucket]
        return None

    def expired(self, *, now_s: float) -> Iterator[int]:
        """Every number whose deadline has passed, once."""
        while self._order and self._order[0] * QUANTUM_S <= now_s:
            yield from self._buckets.pop(heapq.heappop(self._order))
