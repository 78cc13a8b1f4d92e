"""The timer of a running slot: it sends reports, measures loop lag and checks the lease.

The timer keeps running during teardown hooks, so that the pool can tell a slow hook from code that
holds the interpreter.
"""

import asyncio
import os
import time
from collections.abc import Callable

from hyperscale.execution.limits import HISTOGRAMS_EVERY_S, REPORT_EVERY_S

BEAT_S = 0.05
_BEATS_PER_REPORT = round(REPORT_EVERY_S / BEAT_S)
_BEATS_PER_HISTOGRAMS = round(HISTOGRAMS_EVERY_S / BEAT_S)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ReportTimer:
    """`on_report(with_histograms)` ten times a second, `on_beat()` twice as often."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        on_report: Callable[[bool], None],
        on_beat: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._on_report = on_report
        self._on_beat = on_beat
        self._beats = 0
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._lag_s = 0.0

    def start(self) -> None:
        self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take_lag_s(self) -> float:
        """Return the worst delay of a beat since the last call."""
        lag_s, self._lag_s = self._lag_s, 0.0
        return lag_s

    def _schedule(self) -> None:
        # From now, not from when the last beat was due: missed beats are not made up. Not by the
        # loop's own clock, which does not advance while callbacks run.
        self._due_s = time.monotonic() + BEAT_S
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    def _beat(self) -> None:
        self._lag_s = max(self._lag_s, time.monotonic() - self._due_s)
        self._schedule()
        self._on_beat()
        self._beats += 1
        if self._beats % _BEATS_PER_REPORT == 0:
            self._on_report(self._beats % _BEATS_PER_HISTOGRAMS == 0)


class ResidentMemory:
    """The resident memory of this process. Opened once: descriptors may run out later."""

    def __init__(self) -> None:
        self._statm = open("/proc/self/statm", "rb", buffering=0)  # noqa: SIM115 - see close

    def resident_bytes(self) -> int:
        self._statm.seek(0)
        return int(self._statm.read().split()[1]) * _PAGE_BYTES

    def close(self) -> None:
        self._statm.close()
