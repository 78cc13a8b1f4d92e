"""Every timer of the membership core, in one heap of absolute times.

A timer is set, moved or cancelled by its key; the heap keeps stale entries until they reach the
top. Nothing here reads a clock.
"""

from enum import IntEnum
from heapq import heapify, heappop, heappush


class TimerKind(IntEnum):
    """What a timer is for. The last three may end in a verdict, so a stall of this node delays
    them."""

    PROBE_ROUND = 0
    GOSSIP_ROUND = 1
    PUSH_PULL_ROUND = 2
    SILENT_ROUND = 3
    REFUSED_ROUND = 4
    SILENT_PUSH_PULL_ROUND = 5
    CONTACT = 6
    FORGET = 7
    LEAVE = 8
    RELAY = 9
    PROBE = 10
    SUSPICION = 11
    FINAL_PROBE = 12


TimerKey = tuple[TimerKind, object]
_STALE_ENTRIES_MAX = 256


class TimerHeap:
    """Timers by key. `next_s` is the earliest time; None if no timer is set."""

    def __init__(self) -> None:
        self._at_s: dict[TimerKey, float] = {}
        self._heap: list[tuple[float, int, TimerKey]] = []
        self._sequence = 0
        self.next_s: float | None = None

    def __len__(self) -> int:
        return len(self._at_s)

    def set(self, kind: TimerKind, ident: object, at_s: float) -> None:
        """Set a timer, or move it if it is set already."""
        key = (kind, ident)
        moved_s = self._at_s.get(key)
        self._at_s[key] = at_s
        self._sequence += 1
        heappush(self._heap, (at_s, self._sequence, key))
        if self.next_s is None or at_s <= self.next_s:
            self.next_s = at_s
        elif moved_s == self.next_s:
            self._find_next()
        if len(self._heap) > 4 * len(self._at_s) + _STALE_ENTRIES_MAX:
            self._rebuild()

    def cancel(self, kind: TimerKind, ident: object) -> None:
        """Remove a timer, if it is set."""
        at_s = self._at_s.pop((kind, ident), None)
        if at_s is not None and at_s == self.next_s:
            self._find_next()

    def at_s(self, kind: TimerKind, ident: object) -> float | None:
        """Return when a timer fires; None if it is not set."""
        return self._at_s.get((kind, ident))

    def pop_due(self, now_s: float) -> TimerKey | None:
        """Remove the earliest timer that is due and return its key; None if none is due."""
        if self.next_s is None or self.next_s > now_s:
            return None
        self._find_next()  # drops stale entries from the top
        key = heappop(self._heap)[2]
        del self._at_s[key]
        self._find_next()
        return key

    def shift(self, kind: TimerKind, by_s: float, *, not_before_s: float) -> None:
        """Delay every timer of one kind."""
        for key, at_s in self._at_s.items():
            if key[0] is kind:
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
        self.next_s = None

    def _rebuild(self) -> None:
        self._heap = [(at_s, n, key) for n, (key, at_s) in enumerate(self._at_s.items())]
        self._sequence = len(self._heap)
        heapify(self._heap)
        self._find_next()
