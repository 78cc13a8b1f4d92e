"""The reports of a part's executors as one report, with a sequence of its own.

The merge is native. This module decides how often histograms and phases go with a report.
"""

from hyperscale.stats.report import Report, ReportMerge

SERIES_S = 15
"""The newest seconds that go with a report that is not whole, at most."""
POINTS_MAX = 4_000
"""Seconds of all steps together that have histograms in a whole report."""
RECENT_S = 120
"""Seconds that stay single in a whole report of a long run, so that a leader which has heard some
of them can tell which."""
PHASES_S = 5.0
"""How often phases go with a report: results have them, live views do not."""
MERGED_PER_S = 300
"""Step histograms of executors that are merged in a second at most."""


class PartMerge:
    """The executors of one attempt."""

    def __init__(self, workflow: str, slot: int) -> None:
        self._merge = ReportMerge.of_part(workflow, recent_s=RECENT_S, histograms_max=MERGED_PER_S)
        self._slot = slot
        self._sequence = 0
        self._has_new_histograms = False
        # When histograms and phases may go with a report again; None: at once.
        self._histograms_again_s: float | None = None
        self._phases_again_s: float | None = None

    def add(self, report: Report) -> None:
        """Merge a report of one executor."""
        self._merge.apply(report)
        self._has_new_histograms = self._has_new_histograms or report.has_histograms

    @property
    def elapsed_s(self) -> float:
        return self._merge.elapsed_s

    @property
    def vus(self) -> int:
        return self._merge.vus

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
        return _encoded(
            self._merge.merged(
                slot=self._slot,
                sequence=self._next_sequence(),
                histograms=has_histograms,
                phases=has_phases,
                seconds=SERIES_S if has_histograms else 0,
            )
        )

    def whole(self, *, points_max: int = POINTS_MAX) -> bytes | None:
        """Return a report of everything, for a receiver that has seen no other."""
        return _encoded(
            self._merge.whole(
                slot=self._slot, sequence=self._next_sequence(), points_max=points_max
            )
        )

    def acknowledge(self) -> None:
        """Note that the job leader has the latest report."""
        self._merge.acknowledge()

    def retell(self) -> None:
        """Note that the next report goes to a job leader that has none of the earlier ones."""
        self._merge.retell()
        self._phases_again_s = None

    def _next_sequence(self) -> int:
        if self._merge.parts:
            self._sequence += 1
        return self._sequence


def _is_due(again_s: float | None, now_s: float) -> bool:
    return again_s is None or now_s >= again_s


def _encoded(report: Report | None) -> bytes | None:
    return None if report is None else report.encode()
