"""The clock of one slot: where it is in its workflow, and when its load ends."""

import time
from collections.abc import Sequence

from hyperscale.execution.protocol import PrepareSlot, SlotRole
from hyperscale.plan.changes import AppliedChange, LoadSchedule


class SlotClock:
    """Counts the own time of the workflow (`plan.changes`) on the monotonic clock.

    A slot that takes over from a lost one begins in the middle: `start` says where.
    """

    def __init__(self, assignment: PrepareSlot) -> None:
        self._plan = assignment.plan
        self._has_load = assignment.role is not SlotRole.TEAR_DOWN
        self._changes = len(assignment.changes)
        self.schedule = LoadSchedule(assignment.plan, assignment.changes)
        self.offset_s = self._plan.offset_s(assignment.elapsed_s)
        """The own time at which the slot begins."""
        self.missed_from_s = self.schedule.place_s(self.offset_s)
        """The place from which on arrivals did not begin before the slot did."""
        self.began_s: float | None = None  # monotonic

    def start(self, since_s: float | None) -> None:
        """Take the own time at which the slot begins; None: where earlier attempts ended."""
        if since_s is not None:
            self.offset_s = self._plan.offset_s(since_s)

    def begin(self) -> float:
        """Begin now; return the time."""
        self.began_s = time.monotonic()
        return self.began_s

    def change(self, changes: Sequence[AppliedChange]) -> bool:
        """Take all changes so far; return False if they are not news."""
        if len(changes) <= self._changes:
            return False
        self._changes = len(changes)
        self.schedule = LoadSchedule(self._plan, changes)
        return True

    @property
    def own_s(self) -> float:
        """The own time now."""
        began_s, now_s = self.began_s, time.monotonic()
        return self.offset_s + (0.0 if began_s is None else now_s - began_s)

    @property
    def place_s(self) -> float:
        """The place in the shape now."""
        return self.schedule.place_s(self.own_s)

    @property
    def warmup_s(self) -> float:
        """How much of the warm-up the slot runs."""
        return max(0.0, self._plan.warmup_s - self.schedule.place_s(self.offset_s))

    @property
    def left_s(self) -> float | None:
        """How long the load goes on; None: it is paused."""
        return self.schedule.remaining_s(self.own_s) if self._has_load else 0.0
