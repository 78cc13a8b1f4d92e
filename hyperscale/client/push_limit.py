"""How many progress updates a program gets: at most 20 per second, after a burst of 5.

A job with many workflows would otherwise call a callback hundreds of times a second. Workflows take
turns, so none starves; the update that a workflow misses is older than the next one anyway. Reads
no clock: the caller passes `now_s`.
"""

from collections.abc import Sequence
from typing import TypeVar

PUSHES_PER_S = 20.0
BURST = 5

_T = TypeVar("_T")


class PushLimit:
    """A token bucket, and whose turn it is."""

    def __init__(self) -> None:
        self._tokens = float(BURST)
        self._filled_s: float | None = None
        self._turn = 0

    def admit(self, updates: Sequence[_T], *, now_s: float) -> list[_T]:
        """Return the updates that may be passed on now, beginning with those that waited."""
        if self._filled_s is not None:
            earned = (now_s - self._filled_s) * PUSHES_PER_S
            # What is saved in a pause is one round of updates, and never more than a second's.
            limit = max(float(BURST), min(float(len(updates)), PUSHES_PER_S))
            self._tokens = min(limit, self._tokens + max(0.0, earned))
        self._filled_s = now_s
        count = min(len(updates), int(self._tokens))
        self._tokens -= count
        start = self._turn % len(updates) if updates else 0
        self._turn = start + count
        return [updates[(start + n) % len(updates)] for n in range(count)]
