"""Deadlines of calls: one timer for all of them.

A timer for each call would cost as much as everything else that a call does. Most calls have the
same timeout and end long before it, so a look at all calls in flight, once in a timeout, is cheap.
"""

import asyncio
from time import perf_counter_ns
from typing import Any

_PAUSE_NS = 5_000_000
"""Shortest time between two looks at the calls in flight."""


class Deadlines:
    """The calls in flight of an executor: a task makes one call at a time.

    A call puts its task and the end of its time (of `perf_counter_ns`) into `in_flight`, calls
    `watch` if that is before `look_ns`, and takes the task out when it is over.
    """

    __slots__ = ("_expired", "_timer", "in_flight", "look_ns")

    def __init__(self) -> None:
        self.in_flight: dict[asyncio.Task[Any], int] = {}
        self.look_ns: int = 1 << 63  # when the calls are looked at next
        self._expired: dict[asyncio.Task[Any], int] = {}  # with its cancellations before
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, at_ns: int) -> None:
        """Look at the calls in flight at this time."""
        self.close()
        self.look_ns = at_ns
        delay_s = max(_PAUSE_NS, at_ns - perf_counter_ns()) / 1e9
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def has_expired(self, task: "asyncio.Task[Any]") -> bool:
        """Return True if this cancelled the task, and nothing else did; undo that."""
        before = self._expired.pop(task, None)
        return before is not None and task.uncancel() <= before

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self.look_ns = None, 1 << 63

    def _look(self) -> None:
        """Cancel the calls that are late; wait for the next one."""
        self._timer, self.look_ns = None, 1 << 63
        now_ns = perf_counter_ns()
        for task in [task for task, at_ns in self.in_flight.items() if at_ns <= now_ns]:
            del self.in_flight[task]
            self._expired[task] = task.cancelling()
            task.cancel()
        if self.in_flight:
            self.watch(min(self.in_flight.values()))
