"""The reports of a part's executors as one: cumulative, with a sequence of its own.

Works on whatever has been reported so far, in whatever order it came. Histograms are decoded
only where several executors have to become one.
"""

import heapq
from collections.abc import Iterable

from hyperscale.stats.histograms import merge_encoded
from hyperscale.stats.merge import PartState, merge_counts
from hyperscale.stats.report import (
    CheckReport,
    MetricReport,
    PartReport,
    SeriesPoint,
    StepReport,
)
from hyperscale.stats.series import TIERS_S, StepSeries, counted, thinned, tier_for

SERIES_S = 15
"""How many of the newest seconds go with a report that is not whole, at most."""
POINTS_MAX = 4_000
"""Points of all steps together that have histograms in a whole report: what a message can
carry with ease."""
COUNTED_PER_POINT = 10
"""For each of them, so many that have counts only: they are that much smaller."""
RECENT_S = 120
"""How many seconds at least stay as they are in a whole report of a long run: a leader that
has heard some of them can tell which."""
PHASES_S = 5.0
"""How often phases go with a report: results have them, live views do not."""
MERGED_PER_S = 300
"""Steps of executors, each with its histograms, that are merged in a second at most."""

Second = tuple[str, int]
"""Of a step."""


class PartMerge:
    """One run's executors."""

    def __init__(self, workflow: str, slot: int) -> None:
        self._workflow = workflow
        self._slot = slot
        self._sequence = 0
        self._states: dict[int, PartState] = {}
        # The newest seconds by step, second and place, and what came before them.
        self._series: dict[str, dict[int, dict[int, SeriesPoint]]] = {}
        self._past: dict[str, StepSeries] = {}
        self._past_until_s: dict[str, int] = {}
        self._past_of_s: dict[tuple[str, int], int] = {}  # step, place: the last second in it
        # Of the same, the seconds that were merged and did not grow since: most of them.
        self._joined: dict[Second, SeriesPoint] = {}
        self._lag_s = 0.0
        self._has_histograms = False
        self._histograms_again_s = self._phases_again_s = float("-inf")
        # Seconds that grew since a leader took them, and those of them that the report
        # under way tells.
        self._untold: set[Second] = set()
        self._told: set[Second] = set()

    def offer(self, place: int, report: PartReport) -> None:
        state = self._states.get(place)
        if state is None:
            self._states[place] = PartState(report)
        else:
            state.apply(report)
        self._lag_s = max(self._lag_s, report.loop_lag_s)
        for step in report.steps:
            self._has_histograms = self._has_histograms or step.latency is not None
            seconds = self._series.setdefault(step.name, {})
            past_until_s = self._past_until_s.get(step.name, 0)
            for point in step.series:
                if point.second < past_until_s:
                    # Each executor tells all of its seconds again when it ends.
                    if point.second > self._past_of_s.get((step.name, place), -1):
                        self._past[step.name].offer(place, (point,))
                    continue
                places = seconds.setdefault(point.second, {})
                known = places.get(place)
                if known is None or point.total > known.total:
                    places[place] = point
                    self._joined.pop((step.name, point.second), None)
                    self._untold.add((step.name, point.second))
                    self._told.discard((step.name, point.second))
            if len(seconds) > RECENT_S + TIERS_S[1]:
                self._fold(step.name, before_s=max(seconds) - RECENT_S)

    def _fold(self, step: str, *, before_s: int) -> None:
        seconds = self._series[step]
        folded = sorted(second for second in seconds if second < before_s)
        past = self._past.setdefault(step, StepSeries())
        is_affordable = self._histograms() <= MERGED_PER_S
        past.offer(None, self._points(step, folded, timed_max=len(folded) * is_affordable))
        past.close(before_s)
        self._past_until_s[step] = before_s
        for second in folded:
            for place in seconds.pop(second):
                self._past_of_s[step, place] = second
            self._joined.pop((step, second), None)
            self._untold.discard((step, second))

    def _histograms(self) -> int:
        return sum(len(state.report.steps) for state in self._states.values())

    @property
    def elapsed_s(self) -> float:
        return max((state.report.elapsed_s for state in self._states.values()), default=0.0)

    @property
    def vus(self) -> int:
        return sum(state.report.vus for state in self._states.values())

    def latest(self, *, now_s: float) -> PartReport | None:
        """For a live view: with histograms and the newest seconds if there are new ones.

        Merging histograms is the dear part, so with very many of them it is done less often.
        """
        self._told = set()  # nothing more is heard of the last
        if not self._has_histograms or now_s < self._histograms_again_s:
            return self._merged(histograms=False, phases=False, seconds=self._told)
        self._has_histograms = False
        self._histograms_again_s = now_s + self._histograms() / MERGED_PER_S
        self._untold = self._newest(self._untold, SERIES_S)
        self._told = set(self._untold)
        has_phases = now_s >= self._phases_again_s
        if has_phases:
            self._phases_again_s = now_s + PHASES_S
        return self._merged(histograms=True, phases=has_phases, seconds=self._told)

    def taken(self) -> None:
        """Whoever was told the latest has it."""
        self._untold -= self._told

    def untold(self) -> None:
        """Somebody else listens."""
        self._untold = self._all_seconds()
        self._told = set()
        self._phases_again_s = float("-inf")

    def whole(self, *, points_max: int = POINTS_MAX) -> PartReport | None:
        """Everything, for whoever has seen nothing before."""
        timed_max = points_max // max(1, len(self._series))
        report = self._merged(
            histograms=True, phases=True, seconds=self._all_seconds(), timed_max=timed_max
        )
        if report is None:
            return None
        tier = tier_for(report.elapsed_s)
        for step in report.steps:
            if step.name in self._past:
                step.series = [*self._past[step.name].points(tier), *step.series]
                report.series_s = TIERS_S[tier]
        report = counted(report, timed_max=timed_max)
        return thinned(report, points_max=points_max * COUNTED_PER_POINT)

    def _all_seconds(self) -> set[Second]:
        return {(step, second) for step, seconds in self._series.items() for second in seconds}

    @staticmethod
    def _newest(seconds: set[Second], count: int) -> set[Second]:
        """So many of each step."""
        of_steps: dict[str, list[int]] = {}
        for step, second in seconds:
            of_steps.setdefault(step, []).append(second)
        return {
            (step, second)
            for step, found in of_steps.items()
            for second in heapq.nlargest(count, found)
        }

    def _merged(
        self,
        *,
        histograms: bool,
        phases: bool,
        seconds: set[Second],
        timed_max: int = SERIES_S,
    ) -> PartReport | None:
        if not self._states:
            return None
        self._sequence += 1
        states = [state for _, state in sorted(self._states.items())]
        reports = [state.report for state in states]
        lag_s, self._lag_s = self._lag_s, 0.0
        return PartReport(
            workflow=self._workflow,
            slot=self._slot,
            sequence=self._sequence,
            elapsed_s=max(report.elapsed_s for report in reports),
            vus=sum(report.vus for report in reports),
            iterations=sum(report.iterations for report in reports),
            steps=self._steps(
                states, histograms=histograms, phases=phases, seconds=seconds, timed_max=timed_max
            ),
            checks=_checks(reports),
            metrics=_metrics(states, histograms=histograms),
            cpu_s=sum(report.cpu_s for report in reports),
            loop_lag_s=lag_s,
            rss_bytes=sum(report.rss_bytes for report in reports),
            cpu_wait_s=sum(report.cpu_wait_s for report in reports),
        )

    def _steps(
        self,
        states: list[PartState],
        *,
        histograms: bool,
        phases: bool,
        seconds: set[Second],
        timed_max: int,
    ) -> list[StepReport]:
        of_steps: dict[str, list[int]] = {}
        for name, second in sorted(seconds):
            of_steps.setdefault(name, []).append(second)
        names = list(dict.fromkeys(step.name for state in states for step in state.report.steps))
        counts = {
            name: merge_counts(
                step.counts for state in states for step in state.report.steps if step.name == name
            )
            for name in names
        }
        return [
            StepReport(
                name=name,
                counts=counts[name],
                latency=_joined(state.latency(name) for state in states) if histograms else None,
                phases=_phases(states, name) if phases else None,
                series=self._points(name, of_steps.get(name, []), timed_max=timed_max),
            )
            for name in names
        ]

    def _points(self, step: str, chosen: list[int], *, timed_max: int) -> list[SeriesPoint]:
        """Those seconds, in order. Histograms that were not merged yet are only for the newest."""
        seconds = self._series.get(step, {})
        untimed = len(chosen) - timed_max
        found = []
        for place, second in enumerate(chosen):
            point = self._joined.get((step, second))
            if point is None:
                points = list(seconds[second].values())
                is_timed = place >= untimed
                point = SeriesPoint(
                    second=second,
                    total=sum(each.total for each in points),
                    failed=sum(each.failed for each in points),
                    latency=(_joined(each.latency for each in points) or b"") if is_timed else b"",
                )
                if is_timed:
                    self._joined[step, second] = point
            found.append(point)
        return found


def _joined(payloads: Iterable[bytes | None]) -> bytes | None:
    known = [payload for payload in payloads if payload]
    if len(known) < 2:
        return known[0] if known else None
    return merge_encoded(known).encode()


def _phases(states: list[PartState], step: str) -> dict[str, bytes]:
    found: dict[str, list[bytes]] = {}
    for state in states:
        for phase, payload in state.phases(step).items():
            found.setdefault(phase, []).append(payload)
    return {phase: _joined(payloads) or b"" for phase, payloads in found.items()}


def _checks(reports: Iterable[PartReport]) -> list[CheckReport]:
    merged: dict[str, CheckReport] = {}
    for report in reports:
        for check in report.checks:
            into = merged.setdefault(check.name, CheckReport(name=check.name))
            into.passed += check.passed
            into.failed += check.failed
            into.first_failure = into.first_failure or check.first_failure
    return list(merged.values())


def _metrics(states: list[PartState], *, histograms: bool) -> list[MetricReport]:
    merged: dict[str, MetricReport] = {}
    newest_s: dict[str, float] = {}
    for state in states:
        for metric in state.report.metrics:
            into = merged.setdefault(metric.name, MetricReport(name=metric.name, kind=metric.kind))
            if not metric.count:
                continue
            into.min = min(into.min, metric.min) if into.count else metric.min
            into.max = max(into.max, metric.max) if into.count else metric.max
            into.count += metric.count
            into.sum += metric.sum
            if state.report.elapsed_s >= newest_s.get(metric.name, 0.0):
                newest_s[metric.name] = state.report.elapsed_s
                into.last = metric.last
    if histograms:
        for name, metric in merged.items():
            metric.distribution = _joined(state.distribution(name) for state in states)
    return list(merged.values())
