"""The reports of a slot: makes them, numbers them and sends them on a timer."""

import asyncio
import time
from collections.abc import Callable

from hyperscale._native import Recorder, Report
from hyperscale.execution.capture import complain
from hyperscale.execution.limits import HISTOGRAMS_EVERY_S, REPORT_EVERY_S
from hyperscale.execution.protocol import FromExecutor, PrepareSlot, SlotReport
from hyperscale.execution.slot_clock import SlotClock
from hyperscale.execution.static import NativeCrew
from hyperscale.execution.usage import ExecutorUsage
from hyperscale.execution.virtual_users import UserCrew

Send = Callable[[FromExecutor], None]

SERIES_S = 15
"""The newest seconds that go with a report that has histograms: enough for a receiver that missed
several reports."""

_BEAT_S = 0.05
_BEATS_PER_REPORT = round(REPORT_EVERY_S / _BEAT_S)
_BEATS_SHORT = round(1.0 / _BEAT_S)
_BEATS_PER_HISTOGRAMS = round(HISTOGRAMS_EVERY_S / _BEAT_S)


class SlotReports:
    """Sends a cumulative report ten times a second, and calls `on_beat` twice as often.

    The timer keeps running during teardown hooks, so that the pool can tell a slow hook from code
    that blocks the event loop.
    """

    def __init__(
        self,
        assignment: PrepareSlot,
        clock: SlotClock,
        recorder: Recorder,
        names: tuple[str, ...],
        crew: UserCrew | NativeCrew,
        *,
        send: Send,
        on_beat: Callable[[], None],
    ) -> None:
        self._assignment = assignment
        self._clock = clock
        self._recorder = recorder
        self._names = names  # of the recorded hooks
        self._crew = crew
        self._send = send
        self._on_beat = on_beat
        self._usage = ExecutorUsage()
        self._sequence = self._beats = 0
        self._ended_s: float | None = None
        self._lag_s = self._due_s = 0.0
        self._short_beats = 0  # since users wait for rows
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the timer."""
        # From now, not from when the last beat was due: missed beats are not made up. Not by the
        # loop's own clock, which does not advance while callbacks run.
        self._due_s = time.monotonic() + _BEAT_S
        self._timer = asyncio.get_running_loop().call_later(_BEAT_S, self._beat)

    def begin_load(self) -> None:
        """Start the clock of the virtual users."""
        self._usage.begin()
        self._clock.begin()

    def end_load(self) -> None:
        self._ended_s = time.monotonic()

    def make(self, *, histograms: bool, whole_series: bool = False) -> Report:
        """Return the next report; without `whole_series` it has the newest seconds only."""
        self._sequence += 1
        assignment, crew, elapsed_s = self._assignment, self._crew, 0.0
        offset_s = self._clock.offset_s
        if self._clock.began_s is not None:
            elapsed_s = (self._ended_s or time.monotonic()) - self._clock.began_s
        lag_s, self._lag_s = self._lag_s, 0.0
        return self._recorder.report(
            self._names,
            workflow=assignment.workflow,
            slot=assignment.slot,
            sequence=self._sequence,
            elapsed_s=offset_s + elapsed_s,
            vus=crew.looping,
            raised=crew.raised,
            histograms=histograms,
            series_from=0 if whole_series else max(0, int(elapsed_s) - SERIES_S),
            offset_s=int(offset_s),
            checks=[tally.report() for tally in crew.checks],
            metrics=[tally.report(histograms=histograms) for tally in crew.metrics],
            cpu_s=self._usage.cpu_s,
            loop_lag_s=lag_s,  # the worst since the last report
            rss_bytes=self._usage.rss_bytes,
            cpu_wait_s=self._usage.cpu_wait_s,
            loop_s=elapsed_s,
        )

    def send(self, *, histograms: bool) -> None:
        report = self.make(histograms=histograms)
        self._send(SlotReport(report=report, drawn=self._crew.drawn))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._usage.close()

    def _beat(self) -> None:
        self._lag_s = max(self._lag_s, time.monotonic() - self._due_s)
        self.start()
        self._on_beat()
        self._beats += 1
        self._watch_rows()
        if self._beats % _BEATS_PER_REPORT == 0:
            self.send(histograms=self._beats % _BEATS_PER_HISTOGRAMS == 0)

    def _watch_rows(self) -> None:
        """Say once that users wait, if the cluster does not grant rows as fast as they use them."""
        short = self._crew.short_of_rows
        self._short_beats = self._short_beats + 1 if short else 0
        if self._short_beats == _BEATS_SHORT:
            complain(f"{short} virtual users wait for rows that the job leader has yet to grant\n")
