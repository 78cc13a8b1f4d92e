"""How often a part is tried again, and on which workers. Pure functions of committed state.

Attempts that failed count together if the part had less load between them than the window: a soak
of hours survives a death now and then, and a part that never gets to its load ends after a few
attempts, however long each of them takes.

A worker on which a part failed is excluded from that part for as long as the window, counted in the
time of the group. Everything follows from committed segments, so a new leader decides the same.
"""

from typing import Annotated

from msgspec import Meta, Struct

from hyperscale.config import format_duration
from hyperscale.jobs.committed.events import AttemptFault
from hyperscale.jobs.committed.state import Part, Segment


class RetryLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max: Annotated[int, Meta(ge=0, le=100)] = 3
    """New attempts of a part within the window."""
    window_s: Annotated[float, Meta(gt=0, le=86_400)] = 300.0

    def failures(self, part: Part) -> list[Segment]:
        """Return the failed attempts that count together with the last one, oldest first."""
        counted = [segment for segment in part.segments if segment.costs_retry]
        return [
            each for each in counted if counted[-1].load_until_s - each.load_until_s < self.window_s
        ]

    def is_used_up(self, part: Part) -> bool:
        return len(self.failures(part)) > self.max

    def excluded(self, part: Part, *, time_ms: int, returned: set[str]) -> list[str]:
        """Return the workers that should not get a part now, the one excluded longest ago first.

        `time_ms`: the time of the group. `returned`: workers that came back; whatever was lost with
        their last process says nothing about the new one.
        """
        since_ms: dict[str, int] = {}
        for segment in part.segments:
            is_over = time_ms - segment.ended_ms >= self.window_s * 1000
            is_healed = segment.fault is AttemptFault.WORKER_LOST and segment.worker in returned
            if segment.costs_retry and not is_over and not is_healed:
                since_ms[segment.worker] = segment.ended_ms
        return sorted(since_ms, key=lambda worker: (since_ms[worker], worker))

    def describe(self, part: Part) -> str:
        """Return how often a part was tried, and why its last attempt ended."""
        last = part.segments[-1].reason if part.segments else "it never ran"
        failures = self.failures(part)
        if not failures:
            return f"it could not begin: {last}"
        tried = f"given up after {len(failures)} attempt{'' if len(failures) == 1 else 's'}"
        if not self.is_used_up(part):
            return f"{tried}: {last}"
        if not any(each.elapsed_s for each in failures):
            return f"{tried} without any load: {last}"
        return f"{tried} within {format_duration(self.window_s)} of load: {last}"
