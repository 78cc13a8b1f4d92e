"""Every timer of the core, in one heap of absolute deadlines.

A deadline is set, moved or cancelled by its key; the heap keeps stale entries until they come
up. Nothing here reads a clock.
"""

from enum import IntEnum
from heapq import heapify, heappop, heappush


class TimerKind(IntEnum):
    """What a deadline is for. The last three judge others, and wait out this node's stalls."""

    PROBE_ROUND = 0
    GOSSIP_ROUND = 1
    SYNC_ROUND = 2
    DEAD_ROUND = 3
    GONE_ROUND = 4
    DEAD_SYNC_ROUND = 5
    GREET = 6
    FORGET = 7
    LEAVE = 8
    RELAY = 9
    PROBE = 10
    SUSPICION = 11
    LOOK = 12


TimerKey = tuple[TimerKind, object]
_STALE_ENTRIES_MAX = 256
_NEVER = float("inf")


class TimerHeap:
    """Keys and when they are due. `next_s` is the earliest; infinity if there is none."""

    def __init__(self) -> None:
        self._at_s: dict[TimerKey, float] = {}
        self._heap: list[tuple[float, int, TimerKey]] = []
        self._sequence = 0
        self.next_s = _NEVER

    def __len__(self) -> int:
        return len(self._at_s)

    def set(self, timer: TimerKind, ident: object, at_s: float) -> None:
        """(Re)places a deadline."""
        key = (timer, ident)
        moved_s = self._at_s.get(key)
        self._at_s[key] = at_s
        self._sequence += 1
        heappush(self._heap, (at_s, self._sequence, key))
        if at_s <= self.next_s:
            self.next_s = at_s
        elif moved_s == self.next_s:
            self._find_next()
        if len(self._heap) > 4 * len(self._at_s) + _STALE_ENTRIES_MAX:
            self._rebuild()

    def cancel(self, timer: TimerKind, ident: object) -> None:
        if self._at_s.pop((timer, ident), None) == self.next_s:
            self._find_next()

    def at_s(self, timer: TimerKind, ident: object) -> float | None:
        return self._at_s.get((timer, ident))

    def pop_due(self, now_s: float) -> TimerKey | None:
        """Takes out the earliest deadline that is due."""
        if self.next_s > now_s:
            return None
        self._find_next()  # drops what is stale before it
        key = heappop(self._heap)[2]
        del self._at_s[key]
        self._find_next()
        return key

    def shift(self, timer: TimerKind, by_s: float, *, not_before_s: float) -> None:
        """Moves every deadline of one kind later."""
        for key, at_s in self._at_s.items():
            if key[0] is timer:
                self._at_s[key] = max(at_s + by_s, not_before_s)
        self._rebuild()

    def _find_next(self) -> None:
        heap, at_s = self._heap, self._at_s
        while heap:
            first = heap[0]
            if at_s.get(first[2]) == first[0]:
                self.next_s = first[0]
                return
            heappop(heap)
        self.next_s = _NEVER

    def _rebuild(self) -> None:
        self._heap = [(at_s, n, key) for n, (key, at_s) in enumerate(self._at_s.items())]
        self._sequence = len(self._heap)
        heapify(self._heap)
        self._find_next()
