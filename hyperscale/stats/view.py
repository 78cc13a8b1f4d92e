"""The live view: immutable snapshots of a running test, for terminals and clients.

`LiveMeter` makes them from the merged statistics of a workflow. It reads no clock: the caller
passes `now_s`, monotonic seconds.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from hyperscale._native import SeriesValue
from hyperscale.plan.thresholds import thresholds_of
from hyperscale.stats.histograms import quantile_ms
from hyperscale.stats.holds import is_loop_held
from hyperscale.stats.reasons import ReasonKind, reasons_against
from hyperscale.stats.standing import Standing, standing_of
from hyperscale.stats.thresholds import judges_checks
from hyperscale.stats.workflow import WorkflowStats

# Current rates are those of the last two seconds: long enough to be steady although reports come
# only ten times a second, short enough to show a stall at once.
RATE_WINDOW_S = 2.0
# Percentiles change slowly, and computing them decodes one histogram per part and step.
LATENCY_REFRESH_S = 0.5
LATENCY_PARTS_PER_S = 500
FAILURES_SHOWN = 5
# Fields of `StepView` that are percentiles.
_QUANTILES = {"p50_ms": 0.50, "p90_ms": 0.90, "p95_ms": 0.95, "p99_ms": 0.99, "max_ms": 1.0}


class ViewStatus(StrEnum):
    """What a workflow does, as people see it."""

    WAITING = "waiting"
    PREPARING = "preparing"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    PARTIAL = "partial"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class CheckView:
    name: str
    passed: int
    failed: int
    first_failure: str | None = None
    is_allowed: bool = False  # a threshold on `checks` decides how many may fail


@dataclass(frozen=True, slots=True)
class FailureView:
    """Calls of a step that failed with one message."""

    step: str
    error: str
    message: str
    count: int


@dataclass(frozen=True, slots=True)
class StepView:
    """One step so far. Percentiles are None until a request was timed."""

    name: str
    kind: str
    total: int
    ok: int
    failed: int
    cut: int
    skipped: int
    sent: int
    rate_now: float  # calls per second
    p50_ms: float | None
    p90_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    none: int = 0


@dataclass(frozen=True, slots=True)
class LoadView:
    unit: str  # requests or steps
    count: int
    rate_now: float
    rate_total: float
    rate_series: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class WorkflowView:
    """One workflow so far. Calls and plots are of its headline steps, requests and errors of all
    steps."""

    name: str
    status: ViewStatus
    vus: int = 0
    cores: int = 0
    shared_cores: int = 0  # cores it shares with other workflows of the run; 0: none
    elapsed_s: float = 0.0
    duration_s: float = 0.0
    progress: float = 0.0  # 0 to 1
    rate_now: float = 0.0  # calls of headline steps per second
    rate_total: float = 0.0
    requests_now: float = 0.0  # requests per second, of all steps but setup and teardown
    requests_total: float = 0.0
    sent: int = 0  # requests
    total: int = 0
    ok: int = 0
    failed: int = 0
    none: int = 0
    cut: int = 0
    iterations: int = 0
    steps: tuple[StepView, ...] = ()
    errors: Mapping[str, int] = field(default_factory=dict)
    status_codes: Mapping[int, int] = field(default_factory=dict)
    # Finished intervals from the start of the workflow, `series_interval_s` apart.
    series_interval_s: int = 1
    rate_series: tuple[float, ...] = ()  # calls per second
    requests_series: tuple[float, ...] = ()  # requests per second
    failed_series: tuple[float, ...] = ()  # per second
    latency_series: tuple[tuple[float, float], ...] = ()  # (p50_ms, p99_ms); 0 = nothing timed
    checks: tuple[CheckView, ...] = ()
    error: str | None = None
    # Users, or iterations per second if it is open, that it should have now; None: it runs once.
    target: float | None = None
    is_open: bool = False
    failures: tuple[FailureView, ...] = ()  # the most frequent of all steps
    faults: tuple[str, ...] = ()  # why it fails the run, or would if it ended now
    # Code of the test holds the event loop, so latencies are suspect.
    is_loop_held: bool = False
    late: int = 0  # arrivals, with a rate
    dropped: int = 0
    in_python: str = ""  # why its steps run in Python; empty: natively

    @property
    def standing(self) -> Standing:
        return standing_of(self.status, has_faults=bool(self.faults))

    @property
    def load(self) -> LoadView:
        """What people look at first: its requests, or its steps if it sends none that count."""
        if self.sent or not self.total:
            return LoadView(
                "requests", self.sent, self.requests_now, self.requests_total, self.requests_series
            )
        return LoadView("steps", self.total, self.rate_now, self.rate_total, self.rate_series)


@dataclass(frozen=True, slots=True)
class WorkerUsage:
    """Shares of a worker's CPU and memory that load generation uses now."""

    worker: str
    cpu: float
    memory: float
    is_saturated: bool = False


@dataclass(frozen=True, slots=True)
class DatacenterLoad:
    """One datacenter's part of a job over several, as far as it has reported."""

    datacenter: str
    state: str  # assigned, ready, running, silent, or how it ended
    vus: int = 0
    sent: int = 0  # requests
    requests_now: float = 0.0  # per second
    failed: int = 0
    p50_ms: float | None = None
    p99_ms: float | None = None
    note: str = ""  # why it ended so, or since when it is silent


@dataclass(frozen=True, slots=True)
class RunView:
    file: str
    elapsed_s: float
    workflows: tuple[WorkflowView, ...]
    saturated: bool = False
    warnings: tuple[str, ...] = ()
    usage: tuple[WorkerUsage, ...] = ()  # of a job on a cluster: the busiest workers first
    waiting: str = ""  # of a job on a cluster: its place in the queue for cores, if it has one
    # What is saturated or holds the loop (a workflow, the workers, a step) -> a warning, whose
    # figures change.
    saturation: Mapping[str, str] = field(default_factory=dict)
    datacenters: tuple[DatacenterLoad, ...] = ()  # of a job over several of them

    @property
    def all_warnings(self) -> tuple[str, ...]:
        return tuple(filter(None, (*self.warnings, *self.saturation.values(), self.waiting)))


@dataclass(frozen=True, slots=True)
class _Sample:
    now_s: float
    headline: int
    requests: int
    steps: dict[str, int]


class LiveMeter:
    """Rates and percentiles of one workflow, cheap enough for ten views a second."""

    def __init__(self, stats: WorkflowStats) -> None:
        self._stats = stats
        self._allows_checks_to_fail = judges_checks(thresholds_of(stats.plan))
        self._samples: deque[_Sample] = deque()
        self._has_begun = False
        self._percentiles: dict[str, dict[str, float | None]] = {}  # by step
        self._percentiles_at_s: float | None = None
        self._faults: tuple[str, ...] = ()
        self._failures: tuple[FailureView, ...] = ()
        self._series: list[SeriesValue] = []
        self._series_finished_s = -1

    def view(
        self,
        *,
        now_s: float,
        status: ViewStatus,
        cores: int,
        shared_cores: int = 0,
        error: str | None = None,
        is_final: bool = False,
    ) -> WorkflowView:
        """Return a snapshot. With `is_final` percentiles are computed again, however recent."""
        stats, plan = self._stats, self._stats.plan
        headline, everything = stats.headline_counts(), stats.total_counts()
        requests = stats.load_counts().sent
        first, last = self._sample(now_s, headline.total, requests)
        span_s = last.now_s - first.now_s
        self._refresh_percentiles(now_s, status, is_final)
        self._refresh_series(is_final)
        elapsed_s, counted_s, arrivals = stats.elapsed_s, stats.counted_s, stats.arrivals()
        interval_s = stats.series_interval_s
        place_s = stats.schedule.place_s(elapsed_s)
        done = place_s / plan.duration_s
        if status is ViewStatus.RUNNING and stats.schedule.is_paused:
            status = ViewStatus.PAUSED
        if iterations := plan.iterations_of(1, 0):
            done = max(done, stats.iterations / iterations)
        return WorkflowView(
            name=plan.name,
            status=status,
            vus=stats.vus,
            cores=cores,
            shared_cores=shared_cores,
            elapsed_s=elapsed_s,
            duration_s=plan.duration_s,
            progress=min(1.0, max(0.0, done)),
            rate_now=_rate(last.headline - first.headline, span_s),
            rate_total=_rate(headline.total, counted_s),
            requests_now=_rate(last.requests - first.requests, span_s),
            requests_total=_rate(requests, counted_s),
            sent=everything.sent,
            total=headline.total,
            ok=headline.ok,
            failed=headline.failed,
            none=headline.none,
            cut=headline.cut,
            iterations=stats.iterations,
            steps=tuple(
                self._step_view(name, kind.value, first, last, span_s) for name, kind in stats.steps
            ),
            errors=everything.errors,
            status_codes=everything.status_codes,
            series_interval_s=interval_s,
            rate_series=tuple(value.total / interval_s for value in self._series),
            requests_series=tuple(value.sent / interval_s for value in self._series),
            failed_series=tuple(value.failed / interval_s for value in self._series),
            latency_series=tuple(
                (value.p50_ms or 0.0, value.p99_ms or 0.0) for value in self._series
            ),
            checks=tuple(
                CheckView(
                    check.name,
                    check.passed,
                    check.failed,
                    check.first_failure,
                    is_allowed=self._allows_checks_to_fail,
                )
                for check in stats.checks()
            ),
            error=error,
            failures=self._failures,
            faults=self._faults,
            is_loop_held=is_loop_held(stats),
            target=stats.schedule.target_at(place_s) if plan.is_timed else None,
            is_open=plan.is_open,
            late=arrivals.late,
            dropped=arrivals.dropped,
            in_python=plan.in_python,
        )

    def _sample(self, now_s: float, headline: int, requests: int) -> tuple[_Sample, _Sample]:
        """Record the totals; return the oldest sample of the window and the new one."""
        steps = {name: self._stats.counts(name).total for name, _ in self._stats.steps}
        last = _Sample(now_s, headline, requests, steps)
        if not self._has_begun and self._stats.elapsed_s > 0:
            self._has_begun = True
            # Rates count from the start of the load, not from the first view before it.
            nothing = _Sample(0.0, 0, 0, dict.fromkeys(steps, 0))
            before = self._samples[-1] if self._samples else nothing
            self._samples.clear()
            self._samples.append(replace(before, now_s=now_s - self._stats.elapsed_s))
        self._samples.append(last)
        # One sample at or beyond the edge of the window stays, so that it spans the whole window.
        while len(self._samples) > 2 and self._samples[1].now_s <= now_s - RATE_WINDOW_S:
            self._samples.popleft()
        return self._samples[0], last

    def _refresh_percentiles(self, now_s: float, status: ViewStatus, is_final: bool) -> None:
        at_s = self._percentiles_at_s
        # The more parts have histograms to merge, the less often percentiles are computed.
        again_s = max(LATENCY_REFRESH_S, self._stats.parts / LATENCY_PARTS_PER_S)
        if at_s is not None and now_s - at_s < again_s and not is_final:
            return
        for name, _ in self._stats.steps:
            histogram = self._stats.latency(name)
            self._percentiles[name] = {
                field: quantile_ms(histogram, q) for field, q in _QUANTILES.items()
            }
        self._percentiles_at_s = now_s
        self._failures = self._most_frequent_failures()
        failed_as = str(status) if is_final and status != ViewStatus.COMPLETED else None
        reasons = reasons_against(self._stats, is_final=is_final, failed_as=failed_as)
        self._faults = tuple(each.text for each in reasons if each.kind is not ReasonKind.STATUS)

    def _most_frequent_failures(self) -> tuple[FailureView, ...]:
        found = [
            FailureView(name, row.error, row.message, row.count)
            for name, _ in self._stats.steps
            if self._stats.counts(name).failed
            for row in self._stats.failures(name)[0]
        ]
        found.sort(key=lambda each: (-each.count, each.step, each.message))
        return tuple(found[:FAILURES_SHOWN])

    def _refresh_series(self, is_final: bool) -> None:
        finished_s = self._stats.finished_s
        if finished_s == self._series_finished_s and not is_final:
            return
        self._series = self._stats.headline_series(finished_s)
        self._series_finished_s = finished_s

    def _step_view(
        self, name: str, kind: str, first: _Sample, last: _Sample, span_s: float
    ) -> StepView:
        counts = self._stats.counts(name)
        return StepView(
            name=name,
            kind=kind,
            total=counts.total,
            ok=counts.ok,
            failed=counts.failed,
            cut=counts.cut,
            skipped=counts.skipped,
            sent=counts.sent,
            none=counts.none,
            rate_now=_rate(last.steps[name] - first.steps[name], span_s),
            **self._percentiles[name],
        )


def _rate(count: int, span_s: float) -> float:
    return count / span_s if span_s > 0 else 0.0
