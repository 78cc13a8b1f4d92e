"""Arrivals of an open workflow: those that began, began late or were dropped."""

from dataclasses import dataclass

LATE_MS = 10
"""An arrival that began this much after it was due is late."""

DROPPED_SHARE_NAMED = 0.001


@dataclass(frozen=True, slots=True)
class ArrivalCounts:
    """Arrivals that were due so far."""

    begun: int = 0
    late: int = 0  # of those that began
    dropped: int = 0  # no user was free, or the slot did not run

    @property
    def due(self) -> int:
        return self.begun + self.dropped

    def warning(self, workflow: str) -> str | None:
        """Return what makes the numbers less trustworthy than they look; None: nothing."""
        # The last arrivals of a run may be due too shortly before its end to begin.
        if self.dropped < DROPPED_SHARE_NAMED * self.due or not self.dropped:
            return None
        return (
            f"{workflow}: {self.dropped:,} of {self.due:,} arrivals were dropped, because all "
            "max_vus users were busy or an executor did not run: the load was lower than asked, "
            "and latencies lack these iterations (hint: raise max_vus)"
        )
