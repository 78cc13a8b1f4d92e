"""The statistics of one workflow while it runs: every attempt's reports, merged.

The only module of the leader that looks into reports.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from hyperscale.jobs.committed.state import Part
from hyperscale.jobs.leader.gaps import RATE_SPAN_S
from hyperscale.plan import WorkflowPlan
from hyperscale.plan.thresholds import thresholds_of
from hyperscale.stats.merge import PartState, WorkflowStats
from hyperscale.stats.report import MetricReport, PartReport, SeriesPoint, StepReport
from hyperscale.stats.series import counted, thinned
from hyperscale.stats.view import LiveMeter

SERIES_PARTS_MAX = 32
"""Workflows with more parts keep no histograms of single seconds: all of them would make a record
too large for the log."""
COUNTED_POINTS_MAX = 1_600
"""Points without histograms of one such part, some 60 KB..."""
COUNTED_POINTS_OF_ALL = 400_000
"""... and of all of them together."""
SEGMENT_POINTS_MAX = 1_000
"""Points of all steps together that a revoked attempt keeps, the newest."""

Seconds = dict[str, dict[int, SeriesPoint]]
"""By step and second."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(PartReport)


@dataclass(frozen=True, slots=True)
class ReportFigures:
    """What a leader reads off a report."""

    sent: int  # requests; finished steps where a protocol does not count requests
    finished: int  # actions and iterations
    iterations: int


class WorkflowStatistics:
    """All attempts of one workflow."""

    def __init__(self, plan: WorkflowPlan) -> None:
        self.plan = plan
        self.stats = WorkflowStats(plan)
        self.meter = LiveMeter(self.stats)
        self.thresholds = thresholds_of(plan)
        self.has_abort = any(threshold.abort_on_fail for threshold in self.thresholds)
        self.rate_per_core = 0.0  # requests/s: the highest of any part, as measured
        self._steps = {name for name, _ in self.stats.steps}
        self._states: dict[tuple[int, int], PartState] = {}
        self._seconds: dict[tuple[int, int], Seconds] = {}

    def take(
        self, report: PartReport, *, attempt: int, keeps_seconds: bool = True
    ) -> ReportFigures | None:
        """Take a report of one attempt. None: it is older than what is known, or it is not of
        this workflow (workers are not trusted)."""
        if report.workflow != self.plan.name or any(
            s.name not in self._steps for s in report.steps
        ):
            return None
        key = (report.slot, attempt)
        state = self._states.get(key)
        if state is not None and report.sequence <= state.report.sequence:
            return None
        if state is None:
            state = self._states[key] = PartState(report)
        else:
            state.apply(report)
        self.stats.apply(report, attempt=attempt, state=state)
        if keeps_seconds:
            self._keep_seconds(self._seconds.setdefault(key, {}), report)
        return _figures(report)

    def measured(self, rate_per_core: float) -> None:
        self.rate_per_core = max(self.rate_per_core, rate_per_core)

    def remember(self, parts: Iterable[Part]) -> None:
        """Take what is committed of a workflow's parts: segments, ends, checkpoints."""
        for part in parts:
            of_attempts = [(each.attempt, each.elapsed_s, each.report) for each in part.segments]
            of_attempts.append((part.attempt, part.elapsed_s, part.report))
            for attempt, elapsed_s, data in of_attempts:
                report = decode_report(data)
                if report is None:
                    continue
                figures = self.take(report, attempt=attempt, keeps_seconds=False)
                if figures is not None and elapsed_s > RATE_SPAN_S:
                    self.measured(figures.sent / elapsed_s / part.cores)

    def figures(self, slot: int, attempt: int) -> ReportFigures | None:
        """Of the latest report of an attempt."""
        state = self._states.get((slot, attempt))
        return None if state is None else _figures(state.report)

    def checkpoint(self, slot: int, attempt: int) -> bytes:
        """The latest report of an attempt with its latest histograms, without series."""
        state = self._states.get((slot, attempt))
        return b"" if state is None else _encoder.encode(_whole(state, None))

    def last_report(self, slot: int, attempt: int) -> bytes:
        """All that is known of an attempt that will report no more."""
        state = self._states.get((slot, attempt))
        seconds = self._seconds.get((slot, attempt), {})
        return b"" if state is None else _encoder.encode(_whole(state, seconds))

    @staticmethod
    def _keep_seconds(kept: Seconds, report: PartReport) -> None:
        """Each second is reported until it was taken, and a worker that dies repeats none."""
        newest = SEGMENT_POINTS_MAX // max(1, len(report.steps))  # of each step
        for step in report.steps:
            points = kept.setdefault(step.name, {})
            if report.series_s > 1:  # the report holds all seconds, old ones together
                points.clear()
            points.update((point.second, point) for point in step.series)
            while len(points) > newest:
                del points[min(points)]


def final_report(report: PartReport | None, *, parts: int) -> bytes:
    """The report of an attempt that ended, as it is committed."""
    if report is None:
        return b""
    if parts > SERIES_PARTS_MAX:
        points_max = min(COUNTED_POINTS_MAX, COUNTED_POINTS_OF_ALL // parts)
        report = thinned(counted(report, timed_max=0), points_max=points_max)
    return _encoder.encode(report)


def decode_report(data: bytes) -> PartReport | None:
    """None for no report, and for one that cannot be read: statistics end no job."""
    try:
        return _decoder.decode(data) if data else None
    except (msgspec.MsgspecError, ValueError):
        return None


def _figures(report: PartReport) -> ReportFigures:
    sent, finished = 0, report.iterations
    for step in report.steps:
        counts = step.counts
        sent += max(counts.sent, counts.total)
        finished += counts.total
    return ReportFigures(sent, finished, report.iterations)


def _whole(state: PartState, seconds: Seconds | None) -> PartReport:
    """The latest report with the latest histograms; with `seconds` also phases and series."""
    report = state.report
    steps = [
        StepReport(
            name=step.name,
            counts=step.counts,
            latency=state.latency(step.name),
            phases=None if seconds is None else (dict(state.phases(step.name)) or None),
            series=_in_order(seconds.get(step.name, {})) if seconds else [],
        )
        for step in report.steps
    ]
    metrics: list[MetricReport] = [
        msgspec.structs.replace(metric, distribution=state.distribution(metric.name))
        for metric in report.metrics
    ]
    return msgspec.structs.replace(report, steps=steps, metrics=metrics)


def _in_order(points: dict[int, SeriesPoint]) -> list[SeriesPoint]:
    return [points[second] for second in sorted(points)]
