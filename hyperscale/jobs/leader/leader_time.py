"""The time of a group as the leader of its jobs reads it: committed ages are measured by it."""

from hyperscale.jobs.leader.events import BecameLeader
from hyperscale.jobs.leader.gaps import TAKEOVER_S
from hyperscale.jobs.leader.timeouts import LeaderTimeouts


class LeaderTime:
    """Converts between the time of the group and this node's clock, during one leadership."""

    def __init__(self) -> None:
        self.doubt_s = TAKEOVER_S
        """How much older a committed entry may be than it seems."""
        self.committed_s = 0.0
        """When an entry with the time of the group was last applied."""
        self.statistics_from_s = 0.0
        """When every attempt that the last leader started has reported, or has lost its lease."""
        self._ahead_ms = 0.0  # of this node's clock

    def begin(self, event: BecameLeader, timeouts: LeaderTimeouts, *, now_s: float) -> None:
        self._ahead_ms = event.time_ms - now_s * 1000
        if event.is_estimate:
            # The load of the last leader ended with its leases, however long ago that was.
            self.doubt_s = TAKEOVER_S + timeouts.lease_s + 2 * timeouts.checkpoint_s

    def read_ms(self, now_s: float) -> int:
        """Return the time of the group at an instant of this node's clock."""
        return round(now_s * 1000 + self._ahead_ms)

    def instant_s(self, time_ms: int, *, now_s: float) -> float:
        """Return when it was this time in the group, on this node's clock; at the latest now."""
        return min(now_s, (time_ms - self._ahead_ms) / 1000)
