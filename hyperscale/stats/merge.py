"""Merging the reports of a workflow's parts into one picture of it.

A part is one slot of one attempt. Its reports are cumulative and sequenced: applying them
in any order, with repeats and losses, ends in the state the highest sequence describes.
Nothing is decoded until somebody asks for a percentile, and then once per change.

Vocabulary: a step's *counts* come from its parts' latest reports; its *latency* and
*phases* from the latest reports that carried histograms; a workflow's *headline* is what
its TEST steps did (its ACTION steps, if it has no TEST step).
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from hyperscale._native import Histogram
from hyperscale.errors import InvariantError
from hyperscale.plan import MetricKind, StepKind, WorkflowPlan
from hyperscale.stats.histograms import METRIC_SCALE, merge_encoded
from hyperscale.stats.report import CheckReport, MetricReport, PartReport, StepCounts
from hyperscale.stats.series import TIERS_S, SeriesValue, StepSeries, tier_for, values

PHASES = ("blocked", "connect", "tls", "first_byte")

# A second is closed, its parts folded into one, once every part is this far past it, so
# that the report which completes it has come. One part that is stuck does not hold it open
# for longer than the second figure; what that part still reports is then added late.
SERIES_OPEN_S = 5
SERIES_OPEN_S_MAX = 60

_RECORDED = (StepKind.TEST, StepKind.ACTION, StepKind.SETUP, StepKind.TEARDOWN)

T = TypeVar("T")


class PartKey(NamedTuple):
    slot: int
    attempt: int


class PartState:
    """What is known of one part: its latest report, and its latest histograms."""

    __slots__ = ("_distributions", "_latencies", "_phases", "report", "series_until_s")

    def __init__(self, report: PartReport) -> None:
        self.report = report
        self.series_until_s = 0.0  # how far into the run its seconds are known
        # Each with the sequence of the report that carried it: a report without
        # histograms means "as last reported".
        self._latencies: dict[str, tuple[int, bytes]] = {}
        self._phases: dict[str, tuple[int, Mapping[str, bytes]]] = {}
        self._distributions: dict[str, tuple[int, bytes]] = {}
        self.apply(report)

    def apply(self, report: PartReport) -> None:
        sequence = report.sequence
        if sequence > self.report.sequence:
            self.report = report
        # Most reports leave histograms and series out: between two that have them, the
        # counts run ahead.
        for step in report.steps:
            if step.latency is not None:
                _keep_latest(self._latencies, step.name, sequence, step.latency)
            elif not step.series and step.phases is None:
                continue
            if step.phases is not None:
                _keep_latest(self._phases, step.name, sequence, step.phases)
            if step.latency is not None or step.series:
                self.series_until_s = max(self.series_until_s, report.elapsed_s)
        for metric in report.metrics:
            if metric.distribution is not None:
                _keep_latest(self._distributions, metric.name, sequence, metric.distribution)

    def latency(self, step: str) -> bytes | None:
        known = self._latencies.get(step)
        return None if known is None else known[1]

    def phases(self, step: str) -> Mapping[str, bytes]:
        known = self._phases.get(step)
        return {} if known is None else known[1]

    def distribution(self, metric: str) -> bytes | None:
        known = self._distributions.get(metric)
        return None if known is None else known[1]


def _keep_latest(kept: dict[str, tuple[int, T]], name: str, sequence: int, value: T) -> None:
    known = kept.get(name)
    if known is None or sequence > known[0]:
        kept[name] = (sequence, value)


@dataclass(frozen=True, slots=True)
class MetricStats:
    """A custom metric over all parts. `distribution` only for the kinds that sample."""

    name: str
    kind: MetricKind
    count: int = 0
    sum: float = 0.0
    min: float = 0.0
    max: float = 0.0
    last: float = 0.0
    distribution: Histogram | None = None

    def value(self, elapsed_s: float) -> float | None:
        """The one number a metric stands for; None if it was never recorded."""
        if not self.count:
            return None
        match self.kind:
            case MetricKind.COUNT:
                return self.sum
            case MetricKind.RATE:
                return self.sum / elapsed_s if elapsed_s > 0 else 0.0
            case MetricKind.GAUGE:
                return self.last
            case MetricKind.DISTRIBUTION | MetricKind.TIMER:
                return self.sum / self.count

    def quantile(self, q: float) -> float | None:
        if self.distribution is None or not self.distribution.count:
            return None
        # Buckets round up; the true extremes are known and bound the answer.
        value = self.distribution.quantile_ns(q) / METRIC_SCALE
        return max(self.min, min(value, self.max))


@dataclass
class _Step:
    """The merged state of one step, and what was decoded of it for which change."""

    name: str
    kind: StepKind
    series: StepSeries = field(default_factory=StepSeries)
    histograms_version: int = 0  # grows when any part brought new histograms
    latency: Histogram | None = None
    latency_version: int = -1


class WorkflowStats:
    """All parts of one workflow. Feed it reports, ask it for totals."""

    def __init__(self, plan: WorkflowPlan) -> None:
        self.plan = plan
        self.version = 0  # grows with every report applied
        self._parts: dict[PartKey, PartState] = {}
        self._steps = {
            step.name: _Step(step.name, step.kind) for step in plan.steps if step.kind in _RECORDED
        }
        self._counts: dict[str, StepCounts] = {}
        self._counts_version = -1
        self._closed_at_s = -1
        self._series_s = 1  # the widest interval of which only the whole was reported
        headline = [step.name for step in self._steps.values() if step.kind is StepKind.TEST]
        self.headline_steps: tuple[str, ...] = tuple(
            headline or (s.name for s in self._steps.values() if s.kind is StepKind.ACTION)
        )

    # -- feeding

    def apply(
        self, report: PartReport, *, attempt: int = 0, state: PartState | None = None
    ) -> None:
        """Takes one report. Late and repeated ones are welcome and change nothing. Whoever keeps
        the part's state too, with this report in it, gives it along: one is enough."""
        if report.workflow != self.plan.name:
            raise InvariantError(f"a report of {report.workflow!r} for {self.plan.name!r}")
        for step_report in report.steps:
            if step_report.name not in self._steps:
                raise InvariantError(f"{self.plan.name} has no step {step_report.name!r}")
        key = PartKey(report.slot, attempt)
        part = self._parts.get(key)
        if state is not None:
            self._parts[key] = state
        elif part is None:
            self._parts[key] = PartState(report)
        else:
            part.apply(report)
        for step_report in report.steps:
            step = self._steps[step_report.name]
            step.series.offer(key, step_report.series)
            if step_report.latency is not None:
                step.histograms_version += 1
        self._series_s = max(self._series_s, report.series_s)
        # Once a second is enough, and looking at a thousand parts for each report is not.
        if int(report.elapsed_s) > self._closed_at_s:
            self._closed_at_s = int(report.elapsed_s)
            self._close_series()
        self.version += 1

    def _close_series(self) -> None:
        elapsed_s = [part.report.elapsed_s for part in self._parts.values()]
        before_s = int(max(min(elapsed_s) - SERIES_OPEN_S, max(elapsed_s) - SERIES_OPEN_S_MAX))
        for step in self._steps.values():
            step.series.close(before_s)

    # -- the workflow as a whole

    @property
    def steps(self) -> tuple[tuple[str, StepKind], ...]:
        """Name and kind of every step that is recorded, in the plan's order."""
        return tuple((step.name, step.kind) for step in self._steps.values())

    @property
    def parts(self) -> int:
        """Attempts of parts that have reported."""
        return len(self._parts)

    @property
    def elapsed_s(self) -> float:
        return max((part.report.elapsed_s for part in self._parts.values()), default=0.0)

    @property
    def finished_s(self) -> int:
        """Seconds that every part has reported whole; at most two behind the foremost part."""
        until_s = [part.series_until_s for part in self._parts.values()] or [0.0]
        return max(int(min(until_s)), int(max(until_s)) - 2)

    @property
    def vus(self) -> int:
        """Virtual users now looping: of each slot's latest attempt, the others are gone."""
        latest: dict[int, PartKey] = {}
        for key in self._parts:
            if key.slot not in latest or key.attempt > latest[key.slot].attempt:
                latest[key.slot] = key
        return sum(self._parts[key].report.vus for key in latest.values())

    @property
    def iterations(self) -> int:
        return sum(part.report.iterations for part in self._parts.values())

    # -- steps

    def counts(self, step: str) -> StepCounts:
        self._merge_counts()
        return self._counts[step]

    def headline_counts(self) -> StepCounts:
        self._merge_counts()
        return merge_counts(self._counts[name] for name in self.headline_steps)

    def total_counts(self) -> StepCounts:
        """All steps together, setup and teardown included."""
        self._merge_counts()
        return merge_counts(self._counts.values())

    def _merge_counts(self) -> None:
        if self._counts_version == self.version and self._counts:
            return
        reported: dict[str, list[StepCounts]] = {name: [] for name in self._steps}
        for part in self._parts.values():
            for step in part.report.steps:
                reported[step.name].append(step.counts)
        self._counts = {name: merge_counts(counts) for name, counts in reported.items()}
        self._counts_version = self.version

    def latency(self, step: str) -> Histogram:
        """The step's histogram over all parts. Shared: copy it before changing it."""
        state = self._steps[step]
        if state.latency is None or state.latency_version != state.histograms_version:
            payloads = (part.latency(step) for part in self._parts.values())
            state.latency = merge_encoded(payload for payload in payloads if payload is not None)
            state.latency_version = state.histograms_version
        return state.latency

    def headline_latency(self) -> Histogram:
        merged = Histogram()
        for name in self.headline_steps:
            merged.merge(self.latency(name))
        return merged

    def phases(self, step: str) -> dict[str, Histogram]:
        """By phase, only those that happened. Decoded on every call: for results, not views."""
        found: dict[str, list[bytes]] = {}
        for part in self._parts.values():
            for phase, payload in part.phases(step).items():
                found.setdefault(phase, []).append(payload)
        return {phase: merge_encoded(found[phase]) for phase in PHASES if phase in found}

    # -- over time

    @property
    def series_interval_s(self) -> int:
        return TIERS_S[self._tier()]

    def _tier(self) -> int:
        """The finest that holds the run whole, and splits nothing that was reported as one."""
        return max(tier_for(self.elapsed_s), bisect_left(TIERS_S[:-1], self._series_s))

    def series(self, step: str) -> list[SeriesValue]:
        tier = self._tier()
        return values(self._steps[step].series.cells(tier), TIERS_S[tier], self.elapsed_s)

    def headline_series(
        self, known: Iterable[SeriesValue] = (), until_s: float = float("inf")
    ) -> list[SeriesValue]:
        """The headline steps together, intervals that end by `until_s`. Values in `known` that
        still hold are not computed again."""
        tier = self._tier()
        width_s = TIERS_S[tier]
        cells = [
            cell
            for name in self.headline_steps
            for cell in self._steps[name].series.cells(tier)
            if cell.at_s + width_s <= until_s
        ]
        found = values(cells, width_s, self.elapsed_s, known)
        return [value for value in found if value.at_s + width_s <= until_s]

    # -- checks and metrics

    def checks(self) -> list[CheckReport]:
        """Every check of the plan and any other that was reported, in that order."""
        merged = {
            step.name: CheckReport(name=step.name)
            for step in self.plan.steps
            if step.kind is StepKind.CHECK
        }
        for _, part in sorted(self._parts.items()):
            for check in part.report.checks:
                into = merged.setdefault(check.name, CheckReport(name=check.name))
                into.passed += check.passed
                into.failed += check.failed
                into.first_failure = into.first_failure or check.first_failure
        return list(merged.values())

    def metrics(self) -> list[MetricStats]:
        return [self.metric(metric.name) for metric in self.plan.metrics]

    def metric(self, name: str) -> MetricStats:
        kind = next(metric.kind for metric in self.plan.metrics if metric.name == name)
        reports: list[tuple[PartKey, PartState, MetricReport]] = [
            (key, part, metric)
            for key, part in sorted(self._parts.items())
            for metric in part.report.metrics
            if metric.name == name and metric.count
        ]
        if not reports:
            return MetricStats(name=name, kind=kind)
        # Each core has a last value of its own; the one reported furthest into the run
        # is the last, and the lowest slot decides between equals.
        latest = max(reports, key=lambda r: (r[1].report.elapsed_s, -r[0].slot, r[0].attempt))
        payloads = [part.distribution(name) for _, part, _ in reports]
        sampled = [payload for payload in payloads if payload is not None]
        return MetricStats(
            name=name,
            kind=kind,
            count=sum(metric.count for _, _, metric in reports),
            sum=sum(metric.sum for _, _, metric in reports),
            min=min(metric.min for _, _, metric in reports),
            max=max(metric.max for _, _, metric in reports),
            last=latest[2].last,
            distribution=merge_encoded(sampled) if sampled else None,
        )


def merge_counts(counts: Iterable[StepCounts]) -> StepCounts:
    """The sum, status codes and error classes key by key."""
    merged = StepCounts()
    for one in counts:
        merged.total += one.total
        merged.ok += one.ok
        merged.failed += one.failed
        merged.cut += one.cut
        merged.skipped += one.skipped
        merged.sent += one.sent
        merged.bytes_sent += one.bytes_sent
        merged.bytes_received += one.bytes_received
        for status, count in one.status_codes.items():
            merged.status_codes[status] = merged.status_codes.get(status, 0) + count
        for error, count in one.errors.items():
            merged.errors[error] = merged.errors.get(error, 0) + count
    return merged
