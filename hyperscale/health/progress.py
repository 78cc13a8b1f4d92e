"""Is work getting anywhere? Measured in finished actions, not in finished workflows.

A workflow may run for hours and complete nothing, so what counts is whether the number of its
actions moves. Times are the receiver's: clocks of other machines mean nothing here.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from hyperscale.errors import InputError

Seconds = Annotated[float, Meta(gt=0, le=86400)]


class WorkProgress(StrEnum):
    IDLE = "idle"  # nothing to do
    PROGRESSING = "progressing"
    STALLED = "stalled"  # work, and no action finished for a while
    STUCK = "stuck"  # for a long while


class ProgressConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    stalled_s: Seconds = 30.0
    stuck_s: Seconds = 120.0

    def __post_init__(self) -> None:
        if self.stalled_s >= self.stuck_s:
            raise InputError(
                f"stalled_s={self.stalled_s} must be below stuck_s={self.stuck_s}",
                hint="what is stuck was stalled before",
            )


class ProgressMeter:
    """One node's progress, from what it reports."""

    def __init__(self, config: ProgressConfig | None = None) -> None:
        self._config = config or ProgressConfig()
        self._assigned = 0
        self._actions: int | None = None
        self._moved_s: float | None = None  # when work was assigned or an action finished

    def report(self, *, assigned: int, actions: int, now_s: float) -> None:
        """`actions` counts up for the life of the node; any change of it is a movement."""
        is_new_work = assigned > 0 and self._assigned == 0
        if is_new_work or actions != self._actions:
            self._moved_s = now_s
        self._assigned = assigned
        self._actions = actions

    def state(self, *, now_s: float) -> WorkProgress:
        if not self._assigned or self._moved_s is None:
            return WorkProgress.IDLE
        still_s = now_s - self._moved_s
        if still_s >= self._config.stuck_s:
            return WorkProgress.STUCK
        if still_s >= self._config.stalled_s:
            return WorkProgress.STALLED
        return WorkProgress.PROGRESSING
