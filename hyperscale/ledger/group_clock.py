"""The time of a group: milliseconds since it was created, as monotonic clocks measure them.

The leader puts its reading of the group's time into every command that it proposes, and state
machines measure all ages and durations by it. No wall clock is involved: one that is wrong or that
jumps changes none of them. Every replica derives the time from its own monotonic clock and from the
entries that it applies, so a new leader continues where the last one was, and the time of an
election counts.

A node that restarts knows neither when the entries of its log were proposed nor how long it was
down. Until it applies a new entry of a leader it estimates both by the dates of the entries, up to
a minute.
"""

from enum import Enum, auto

ESTIMATE_MAX_S = 60.0
FIRST_MS = 1
"""The time at which a group is created; 0 means "never"."""


class TimeSource(Enum):
    """What a replica knows the time of its group from."""

    NOTHING = auto()
    CREATION = auto()  # no entry was applied yet: the group was created just now
    DATES = auto()  # of entries that were on this node's disk when it started
    ENTRIES = auto()  # that were applied as they were committed


class GroupClock:
    """A replica's reading of its group's time."""

    def __init__(self) -> None:
        self.source = TimeSource.NOTHING
        self._ahead_ms = 0.0  # of this node's monotonic clock

    def read_ms(self, now_s: float) -> int:
        """Return the group's time, at an instant of this node's monotonic clock."""
        return max(FIRST_MS, round(now_s * 1000 + self._ahead_ms))

    def observe(self, time_ms: int, *, now_s: float) -> None:
        """Take the time of an entry that was applied now, and was proposed at most a moment ago.

        The first one replaces an estimate, which may be too high. Then the one that travelled
        fastest counts.
        """
        ahead_ms = time_ms - now_s * 1000
        is_first = self.source is not TimeSource.ENTRIES
        self._ahead_ms = ahead_ms if is_first else max(ahead_ms, self._ahead_ms)
        self.source = TimeSource.ENTRIES

    def estimate(self, time_ms: int, *, age_s: float, now_s: float) -> None:
        """Take the time of an entry that this node had on its disk when it started; by its date the
        entry is `age_s` old. `time_ms` 0: there is no entry."""
        if time_ms < FIRST_MS:
            self.source, self._ahead_ms = TimeSource.CREATION, FIRST_MS - now_s * 1000
            return
        age_ms = min(max(age_s, 0.0), ESTIMATE_MAX_S) * 1000
        ahead_ms = time_ms + age_ms - now_s * 1000
        is_first = self.source is not TimeSource.DATES
        self._ahead_ms = ahead_ms if is_first else max(ahead_ms, self._ahead_ms)
        self.source = TimeSource.DATES


class GroupClocks:
    """The clocks of all groups of one node."""

    def __init__(self) -> None:
        self.now_s = 0.0
        """This node's monotonic clock as of the event that is being handled."""
        self._clocks: dict[int, GroupClock] = {}
        self._on_disk: dict[int, int] = {}  # group -> last index of its log when it was opened

    def open(self, group: int, last_index: int) -> None:
        self._clocks[group] = GroupClock()
        self._on_disk[group] = last_index

    def close(self, group: int) -> None:
        self._clocks.pop(group, None)
        self._on_disk.pop(group, None)

    def get(self, group: int) -> GroupClock:
        return self._clocks[group]

    def applied(self, group: int, index: int, time_ms: int, *, age_s: float) -> None:
        """Take the time of a command that was applied; by its date it is `age_s` old."""
        clock = self._clocks[group]
        if index <= self._on_disk[group]:
            clock.estimate(time_ms, age_s=age_s, now_s=self.now_s)
        else:
            clock.observe(time_ms, now_s=self.now_s)
