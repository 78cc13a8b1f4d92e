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

SERIES_S = 15
"""How many of the newest seconds go with a report that is not whole, at most."""
POINTS_MAX = 4_000
"""Points of all steps together in a whole report: what a message can carry with ease."""
SECONDS_MAX = 600
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
        self._series: dict[str, dict[int, dict[int, SeriesPoint]]] = {}  # step, second, place
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
            for point in step.series:
                places = seconds.setdefault(point.second, {})
                known = places.get(place)
                if known is None or point.total > known.total:
                    places[place] = point
                    self._joined.pop((step.name, point.second), None)
                    self._untold.add((step.name, point.second))
                    self._told.discard((step.name, point.second))
            if len(seconds) > SECONDS_MAX:
                for second in sorted(seconds)[: len(seconds) - SECONDS_MAX]:
                    del seconds[second]
                    self._joined.pop((step.name, second), None)
                    self._untold.discard((step.name, second))

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
        histograms = sum(len(state.report.steps) for state in self._states.values())
        self._histograms_again_s = now_s + histograms / MERGED_PER_S
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
        newest = min(SECONDS_MAX, points_max // max(1, len(self._series)))
        seconds = self._newest(self._all_seconds(), newest)
        return self._merged(histograms=True, phases=True, seconds=seconds)

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

    def _merged(self, *, histograms: bool, phases: bool, seconds: set[Second]) -> PartReport | None:
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
            steps=self._steps(states, histograms=histograms, phases=phases, seconds=seconds),
            checks=_checks(reports),
            metrics=_metrics(states, histograms=histograms),
            cpu_s=sum(report.cpu_s for report in reports),
            loop_lag_s=lag_s,
            rss_bytes=sum(report.rss_bytes for report in reports),
            cpu_wait_s=sum(report.cpu_wait_s for report in reports),
        )

    def _steps(
        self, states: list[PartState], *, histograms: bool, phases: bool, seconds: set[Second]
    ) -> list[StepReport]:
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
                series=self._points(name, seconds),
            )
            for name in names
        ]

    def _points(self, step: str, chosen: set[Second]) -> list[SeriesPoint]:
        seconds = self._series.get(step, {})
        found = []
        for second in sorted(second for name, second in chosen if name == step):
            point = self._joined.get((step, second))
            if point is None:
                points = list(seconds[second].values())
                point = SeriesPoint(
                    second=second,
                    total=sum(each.total for each in points),
                    failed=sum(each.failed for each in points),
                    latency=_joined(each.latency for each in points) or b"",
                )
                self._joined[step, second] = point
            found.append(point)
        return found


def _joined(payloads: Iterable[bytes | None]) -> bytes | None:
    known = [payload for payload in payloads if payload is not None]
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
