"""The statistics of one workflow, merged from the reports of its parts.

The merge is native (`ReportMerge`); this module adds what the plan knows: which steps make the
*headline* (its TEST steps, or its ACTION steps if it has no TEST step), which send its load (both)
and the kinds of metrics.
"""

from dataclasses import dataclass
from typing import Self

from hyperscale._native import Histogram, MetricTotal, ReportMerge
from hyperscale.plan import RECORDED, MetricKind, StepKind, WorkflowPlan
from hyperscale.plan.changes import LoadSchedule
from hyperscale.plan.thresholds import Threshold
from hyperscale.stats.arrivals import ArrivalCounts
from hyperscale.stats.histograms import METRIC_SCALE

PHASES = ("blocked", "connect", "tls", "first_byte")


@dataclass(frozen=True, slots=True)
class MetricStats:
    """A custom metric over all parts."""

    name: str
    kind: MetricKind
    total: MetricTotal

    def value(self, elapsed_s: float) -> float | None:
        """Return the one number a metric stands for; None if it was never recorded."""
        total = self.total
        if not total.count:
            return None
        match self.kind:
            case MetricKind.COUNT:
                return total.sum
            case MetricKind.RATE:
                return total.sum / elapsed_s if elapsed_s > 0 else 0.0
            case MetricKind.GAUGE:
                return total.last
            case MetricKind.DISTRIBUTION | MetricKind.TIMER:
                return total.sum / total.count

    def quantile(self, q: float) -> float | None:
        """Return the value at quantile `q`; None for kinds that do not sample."""
        distribution = self.total.distribution
        if distribution is None or not distribution.count:
            return None
        # Buckets round up; the true extremes are known and bound the answer.
        value = distribution.quantile_ns(q) / METRIC_SCALE
        return max(self.total.min, min(value, self.total.max))


@dataclass(frozen=True, slots=True)
class WorstWindow:
    """The worst window of a threshold so far."""

    value: float  # in the base unit of the threshold
    begins_s: int  # second of the workflow


class WorkflowStats(ReportMerge):
    """All parts of one workflow. Feed it reports, ask it for totals."""

    plan: WorkflowPlan
    schedule: LoadSchedule
    """The shape of the workflow with the changes of its load so far."""
    headline_steps: tuple[str, ...]
    steps: tuple[tuple[str, StepKind], ...]
    """Name and kind of every step that is recorded, in the plan's order."""
    windows_seen: dict[Threshold, tuple[int, WorstWindow | None]]
    """By threshold over windows: where its next window begins, and its worst one so far."""

    def __new__(cls, plan: WorkflowPlan) -> Self:
        steps = tuple((step.name, step.kind) for step in plan.steps if step.kind in RECORDED)
        tests = tuple(name for name, kind in steps if kind is StepKind.TEST)
        actions = tuple(name for name, kind in steps if kind is StepKind.ACTION)
        headline = tests or actions
        made = super().__new__(
            cls,
            plan.name,
            [name for name, _ in steps],
            headline=headline,
            senders=(*tests, *actions),
            checks=[step.name for step in plan.steps if step.kind is StepKind.CHECK],
        )
        made.plan, made.headline_steps, made.steps = plan, headline, steps
        made.windows_seen = {}
        made.schedule = LoadSchedule(plan)
        return made

    def headline_cut(self) -> Histogram:
        """Return how long the requests that were cut had taken, over all headline steps."""
        merged = Histogram()
        for name in self.headline_steps:
            merged.merge(self.cut(name))
        return merged

    @property
    def counted_s(self) -> float:
        """How long the statistics are of: the time that ran, without pauses and the warm-up."""
        return max(0.0, self.schedule.place_s(self.elapsed_s) - self.plan.warmup_s)

    def headline_service(self) -> Histogram:
        """Return latencies from the send, over all headline steps of an open workflow."""
        merged = Histogram()
        for name in self.headline_steps:
            merged.merge(self.service(name))
        return merged

    def iteration_latency(self) -> Histogram:
        """Return how long whole iterations took."""
        return self.metric_total("hyperscale.iteration").distribution or Histogram()

    def arrivals(self) -> ArrivalCounts:
        """Return the arrivals; a closed workflow has none."""
        if not self.plan.is_open:
            return ArrivalCounts()
        names = ("begun", "late", "dropped")
        return ArrivalCounts(*(self.metric_total(f"hyperscale.{name}").count for name in names))

    def metrics(self) -> list[MetricStats]:
        """Return every metric of the plan."""
        return [
            MetricStats(metric.name, metric.kind, self.metric_total(metric.name))
            for metric in self.plan.metrics
        ]

    def metric(self, name: str) -> MetricStats:
        """Return one metric of the plan."""
        kind = next(metric.kind for metric in self.plan.metrics if metric.name == name)
        return MetricStats(name, kind, self.metric_total(name))
