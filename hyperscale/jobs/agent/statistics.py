"""The statistics of one attempt: the reports of its executors as one report with its own sequence.

The merge is native. This module decides how often histograms and phases go with a report.
"""

from hyperscale._native import Report, ReportMerge
from hyperscale.stats.saturation import SaturationWatch

SERIES_S = 15
"""The newest seconds that go with a report that is not whole, at most."""
POINTS_MAX = 4_000
"""Seconds of all steps together that have histograms in a whole report."""
RECENT_S = 120
"""Seconds that stay single in a whole report of a long run, so that a leader which has received
some of them can tell which."""
PHASES_S = 5.0
"""How often phases go with a report: results have them, live views do not."""
MERGED_PER_S = 300
"""Step histograms of executors that are merged in a second at most."""
STILL_S = 10.0
"""A job leader is told about virtual users whose actions take longer than this, so that it does
not take the part for stuck."""


class AttemptStatistics:
    """Reports by place, merged; and how current they are."""

    def __init__(self, workflow: str, first_slot: int, *, offset_s: float = 0.0) -> None:
        self.saturation = SaturationWatch(workflow)
        self.gap_s = 0.0
        """The longest time that a dead executor may have sent load after its last report."""
        self._merge = ReportMerge.of_part(workflow, recent_s=RECENT_S, histograms_max=MERGED_PER_S)
        self._slot = first_slot
        self._offset_s = offset_s  # time since the start of the workflow when it began
        self._sequence = 0
        self._has_new_histograms = False
        # When histograms and phases may go with a report again; None: at once.
        self._histograms_again_s: float | None = None
        self._phases_again_s: float | None = None
        self._reported_s: dict[int, float] = {}  # place -> elapsed time of its last report
        self._actions: dict[int, int] = {}  # place -> finished actions
        self._last_action_s: float | None = None

    def begin_at(self, offset_s: float) -> None:
        """Note at which time since the start of the workflow the load begins."""
        self._offset_s = offset_s

    def add(self, place: int, report: Report, *, now_s: float) -> None:
        """Merge a cumulative report of one executor."""
        self._merge.apply(report)
        self._has_new_histograms = self._has_new_histograms or report.has_histograms
        self.saturation.observe(report)
        self._reported_s[place] = report.elapsed_s - self._offset_s
        if self._actions.get(place) != report.actions:
            self._actions[place] = report.actions
            self._last_action_s = now_s

    def note_gap(self, place: int, ended_s: float) -> None:
        """Note that an executor died `ended_s` after the start without a last report."""
        self.gap_s = max(self.gap_s, ended_s - self._reported_s.get(place, 0.0))

    @property
    def elapsed_s(self) -> float:
        """Elapsed time of this attempt, earlier attempts excluded."""
        return max(0.0, self._merge.elapsed_s - self._offset_s)

    def latest(self, *, now_s: float) -> bytes | None:
        """Return the next report for the job leader; None before the first of an executor.

        It has histograms and the newest seconds if there are new ones. Merging histograms is the
        expensive part, so with very many of them it is done less often.
        """
        has_histograms = self._has_new_histograms and _is_due(self._histograms_again_s, now_s)
        has_phases = has_histograms and _is_due(self._phases_again_s, now_s)
        if has_histograms:
            self._has_new_histograms = False
            self._histograms_again_s = now_s + self._merge.histograms / MERGED_PER_S
        if has_phases:
            self._phases_again_s = now_s + PHASES_S
        report = self._merge.merged(
            slot=self._slot,
            sequence=self._next_sequence(),
            histograms=has_histograms,
            phases=has_phases,
            seconds=SERIES_S if has_histograms else 0,
        )
        return None if report is None else report.encode()

    def whole(self, *, points_max: int = POINTS_MAX) -> bytes | None:
        """Return a report of everything, for a receiver that has received no other."""
        sequence = self._next_sequence()
        report = self._merge.whole(slot=self._slot, sequence=sequence, points_max=points_max)
        return None if report is None else report.encode()

    def acknowledge(self) -> None:
        """Note that the job leader has the latest report."""
        self._merge.acknowledge()

    def leader_changed(self) -> None:
        """Note that the next report goes to a job leader that has none of the earlier ones."""
        self._merge.retell()
        self._phases_again_s = None

    def has_long_actions(self, *, now_s: float) -> bool:
        """Return True if virtual users are in their steps and no action has finished for long."""
        last_s = self._last_action_s
        return last_s is not None and self._merge.vus > 0 and now_s >= last_s + STILL_S

    def _next_sequence(self) -> int:
        if self._merge.parts:
            self._sequence += 1
        return self._sequence


def _is_due(again_s: float | None, now_s: float) -> bool:
    return again_s is None or now_s >= again_s
