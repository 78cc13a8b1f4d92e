"""Simulated executors: they count requests and report them as real executors do."""

from dataclasses import dataclass, field

from msgspec.structs import replace

from hyperscale._native import Histogram, Report
from hyperscale.plan import (
    MetricKind,
    MetricPlan,
    StepKind,
    StepPlan,
    ThresholdPlan,
    WorkflowPlan,
)
from tests.lab.reports import (
    CheckReport,
    HoldReport,
    MetricReport,
    PartReport,
    SeriesPoint,
    StepCounts,
    StepReport,
    native,
)

STEPS = ("login", "pay")


def make_plan(
    *,
    thresholds: tuple[ThresholdPlan, ...] = (),
    duration_s: float = 60.0,
    iterations: int | None = None,
    allow_failures: bool = False,
    metrics: tuple[tuple[str, MetricKind], ...] = (
        ("carts", MetricKind.COUNT),
        ("render", MetricKind.TIMER),
    ),
) -> WorkflowPlan:
    return WorkflowPlan(
        name="Shop",
        vus=10,
        duration_s=duration_s,
        timeout_s=30.0,
        iterations=iterations,
        steps=(
            StepPlan(name="login", kind=StepKind.TEST),
            StepPlan(name="pay", kind=StepKind.TEST, after=("login",), layer=1),
            StepPlan(name="note", kind=StepKind.ACTION),
            StepPlan(name="is_fast", kind=StepKind.CHECK),
        ),
        metrics=tuple(MetricPlan(name=name, kind=kind) for name, kind in metrics),
        thresholds=thresholds,
        allow_failures=allow_failures,
    )


@dataclass
class Part:
    """One executor's share of the workflow."""

    slot: int = 0
    counts: dict[str, StepCounts] = field(default_factory=dict)
    latency: dict[str, Histogram] = field(default_factory=dict)
    seconds: dict[tuple[str, int], tuple[int, int, int, Histogram]] = field(default_factory=dict)
    check: CheckReport = field(default_factory=lambda: CheckReport(name="is_fast"))
    metrics: dict[str, MetricReport] = field(default_factory=dict)
    distributions: dict[str, Histogram] = field(default_factory=dict)
    sequence: int = 0
    elapsed_s: float = 0.0
    cpu_s: float = 0.0
    cpu_wait_s: float = 0.0
    holds: dict[str, HoldReport] = field(default_factory=dict)
    raised: int = 0
    users: tuple[int, ...] = (0, 5)  # second, users from then on, second, …

    def request(
        self,
        step: str,
        latency_ns: int | None,
        *,
        ok: bool = True,
        at_s: float | None = None,
        sent: int = 1,
    ) -> None:
        self.elapsed_s = max(self.elapsed_s, at_s or 0.0)
        counts = self.counts.setdefault(step, StepCounts())
        counts.total += 1
        counts.sent += sent
        counts.bytes_sent += 100
        if ok:
            counts.ok += 1
            counts.status_codes[200] = counts.status_codes.get(200, 0) + 1
        else:
            counts.failed += 1
            counts.errors["timeout"] = counts.errors.get("timeout", 0) + 1
        second = (step, int(self.elapsed_s))
        total, failed, requests, histogram = self.seconds.get(second, (0, 0, 0, Histogram()))
        if latency_ns is not None:
            self.latency.setdefault(step, Histogram()).record(latency_ns)
            histogram.record(latency_ns)
        self.seconds[second] = (total + 1, failed + (not ok), requests + sent, histogram)

    def hold(self, name: str, held_s: float, *, cpu_s: float = 0.0) -> None:
        if held_s:
            hold = self.holds.setdefault(name, HoldReport(name=name))
            hold.count += 1
            hold.seconds += held_s
            hold.max_s = max(hold.max_s, held_s)
            hold.cpu_s += cpu_s
            hold.location = "shop.py:14"

    def judge(self, passed: bool) -> None:
        if passed:
            self.check.passed += 1
        else:
            self.check.failed += 1
            self.check.first_failure = self.check.first_failure or f"slot {self.slot}"

    def measure(self, name: str, kind: str, value: float) -> None:
        metric = self.metrics.setdefault(name, MetricReport(name=name, kind=kind))
        metric.min = min(metric.min, value) if metric.count else value
        metric.max = max(metric.max, value) if metric.count else value
        metric.count += 1
        metric.sum += value
        metric.last = value
        if kind in ("timer", "distribution"):
            self.distributions.setdefault(name, Histogram()).record(int(value * 1e6))

    def report(
        self, *, histograms: bool = True, series_from: int = 0, loop_lag_s: float = 0.0
    ) -> Report:
        """The next report."""
        return native(
            self.made(histograms=histograms, series_from=series_from, loop_lag_s=loop_lag_s)
        )

    def made(
        self, *, histograms: bool = True, series_from: int = 0, loop_lag_s: float = 0.0
    ) -> PartReport:
        """The next report, for tests that look into it or change it."""
        self.sequence += 1
        metrics = [
            MetricReport(
                name=metric.name,
                kind=metric.kind,
                count=metric.count,
                sum=metric.sum,
                min=metric.min,
                max=metric.max,
                last=metric.last,
                distribution=(
                    self.distributions[metric.name].encode()
                    if histograms and metric.name in self.distributions
                    else None
                ),
            )
            for metric in self.metrics.values()
        ]
        return PartReport(
            workflow="Shop",
            slot=self.slot,
            sequence=self.sequence,
            elapsed_s=self.elapsed_s,
            vus=5,
            users=list(self.users),
            iterations=sum(c.total for c in self.counts.values()),
            steps=[self._step(step, histograms, series_from) for step in self.counts],
            checks=[
                CheckReport(
                    name=self.check.name,
                    passed=self.check.passed,
                    failed=self.check.failed,
                    first_failure=self.check.first_failure,
                )
            ],
            metrics=metrics,
            holds=[replace(hold) for hold in self.holds.values()],
            loop_s=self.elapsed_s,
            raised=self.raised,
            cpu_s=self.cpu_s,
            cpu_wait_s=self.cpu_wait_s,
            loop_lag_s=loop_lag_s,
        )

    def _step(self, step: str, histograms: bool, series_from: int) -> StepReport:
        counts = self.counts[step]
        latency = self.latency.get(step, Histogram())
        return StepReport(
            name=step,
            counts=StepCounts(
                total=counts.total,
                ok=counts.ok,
                failed=counts.failed,
                none=counts.none,
                cut=counts.cut,
                skipped=counts.skipped,
                sent=counts.sent,
                bytes_sent=counts.bytes_sent,
                bytes_received=counts.bytes_received,
                held=counts.held,
                status_codes=dict(counts.status_codes),
                errors=dict(counts.errors),
            ),
            latency=latency.encode() if histograms else None,
            phases={"first_byte": latency.encode()} if histograms else None,
            series=[
                SeriesPoint(
                    second=second, total=total, failed=failed, sent=sent, latency=h.encode()
                )
                for (name, second), (total, failed, sent, h) in sorted(self.seconds.items())
                if name == step and second >= series_from
            ],
        )
