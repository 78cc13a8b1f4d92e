"""Building a `RunResult` from what was planned, merged and decided.

The only place where statistics become results: rounding, units and the cleaning of text
that came from user code happen here, once, for every report alike.
"""

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from hyperscale._native import FailureRow, Histogram, SeriesValue, StepCounts
from hyperscale.plan import ParameterPlan
from hyperscale.plan.changes import AppliedChange, ChangeKind
from hyperscale.plan.thresholds import QUANTILES
from hyperscale.reporting.results import (
    ChangeResult,
    CheckResult,
    DatacenterResult,
    FailureResult,
    FailureSample,
    LatencyMs,
    MetricResult,
    RunResult,
    RunStatus,
    SeriesResult,
    StepResult,
    ThresholdResult,
    WorkflowResult,
    has_passed,
)
from hyperscale.stats.attempt_results import GapResult, SegmentResult, UsageResult
from hyperscale.stats.histograms import NS_PER_MS, quantile_ms
from hyperscale.stats.holds import LoopHold, is_loop_held, loop_holds
from hyperscale.stats.reasons import Reason, reasons_against
from hyperscale.stats.shared_cores import sharing_note
from hyperscale.stats.thresholds import Verdict, judge_all
from hyperscale.stats.workflow import PHASES, MetricStats, WorkflowStats

_DIGITS = 6  # of a millisecond that is a nanosecond
_METRIC_QUANTILES = ("p50", "p90", "p95", "p99")


@dataclass(frozen=True, slots=True)
class WorkflowOutcome:
    """How one workflow ended. One that never ran has stats without reports."""

    stats: WorkflowStats
    status: RunStatus
    cores: int
    error: str | None = None
    warnings: tuple[str, ...] = ()
    was_saturated: bool = False
    attempts: int = 0
    workers: tuple[str, ...] = ()
    began_s: float | None = None  # from the start of the run; None: it generated no load
    shared_cores: int = 0
    changes: Sequence[AppliedChange] = ()  # of its load while it ran

    @property
    def all_warnings(self) -> tuple[str, ...]:
        dropped = self.stats.arrivals().warning(self.stats.plan.name)
        return (*self.warnings, dropped) if dropped else self.warnings


def build_result(
    *,
    file: str,
    status: RunStatus,
    started_at: datetime,
    elapsed_s: float,
    outcomes: Sequence[WorkflowOutcome],
    warnings: Sequence[str] = (),
    generator: str = "",
    aborted_by: str = "",
    parameters: Sequence[ParameterPlan] = (),
    run_id: str = "",
    job_id: str = "",
    datacenters: Sequence[str] = (),
    segments: Sequence[SegmentResult] = (),
    gaps: Sequence[GapResult] = (),
    usage: Sequence[UsageResult] = (),
    datacenter_results: Sequence[DatacenterResult] = (),
) -> RunResult:
    """Build the result of a run from its workflows. `warnings` are those of the run itself.

    Only a job on a cluster has `job_id` and what follows it.
    """
    workflows = workflow_results(outcomes)
    thresholds = [
        _threshold(judged, outcome.stats.plan.name)
        for outcome in outcomes
        for judged in judge_all(outcome.stats)
    ]
    started = started_at.astimezone(UTC).isoformat(timespec="milliseconds")
    all_warnings = [*warnings, *(text for outcome in outcomes for text in outcome.all_warnings)]
    if note := sharing_note({o.stats.plan.name: o.shared_cores for o in outcomes}):
        all_warnings.append(note)
    return RunResult(
        status=status,
        file=clean(file),
        started_at=started.replace("+00:00", "Z"),
        elapsed_seconds=_round(elapsed_s),
        saturated=any(outcome.was_saturated for outcome in outcomes),
        thresholds=thresholds,
        workflows=workflows,
        passed=has_passed(status, workflows),
        warnings=[clean(text) for text in all_warnings],
        generator=generator,
        run_id=run_id or job_id,
        job_id=job_id,
        datacenters=[*datacenters],
        attempts=sum(outcome.attempts for outcome in outcomes),
        segments=[*segments],
        gaps=[*gaps],
        usage=[*usage],
        aborted_by=clean(aborted_by),
        params={each.name: each.value for each in parameters},
        datacenter_results=[*datacenter_results],
        start_skew_ms=_start_skew_ms(datacenter_results),
    )


def workflow_results(outcomes: Sequence[WorkflowOutcome]) -> list[WorkflowResult]:
    """Build the results of workflows alone, as of one datacenter of a job."""
    return [_workflow(outcome) for outcome in outcomes]


def _start_skew_ms(datacenters: Sequence[DatacenterResult]) -> float | None:
    """Return how far apart the datacenters began that started together."""
    began = [
        each.began_seconds
        for each in datacenters
        if each.began_seconds is not None and not each.joined_late
    ]
    return _round((max(began) - min(began)) * 1000) if len(began) > 1 else None


def clean(text: str) -> str:
    """Replace what cannot be encoded: undecodable file names and the like hold surrogates."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _workflow(outcome: WorkflowOutcome) -> WorkflowResult:
    stats, plan = outcome.stats, outcome.stats.plan
    counts, arrivals = stats.headline_counts(), stats.arrivals()
    holds = {hold.name: hold for hold in loop_holds(stats)}
    return WorkflowResult(
        name=clean(plan.name),
        status=outcome.status,
        vus=plan.vus,
        cores=outcome.cores,
        elapsed_seconds=_round(stats.elapsed_s),
        error=None if outcome.error is None else clean(outcome.error),
        steps=[_step(stats, name, kind.value, holds.get(name)) for name, kind in stats.steps],
        checks=[
            CheckResult(
                name=clean(check.name),
                passed=check.passed,
                failed=check.failed,
                first_failure=None if check.first_failure is None else clean(check.first_failure),
            )
            for check in stats.checks()
        ],
        metrics=[_metric(metric, stats.counted_s) for metric in stats.metrics()],
        **_common(counts, stats.headline_cut(), stats.counted_s),
        sent=stats.total_counts().sent,
        requests_per_second=_rate(stats.load_counts().sent, stats.counted_s),
        iterations=stats.iterations,
        latency_ms=_latency(stats.headline_latency()),
        service_ms=_latency(stats.headline_service()),
        iteration_ms=_latency(stats.iteration_latency()),
        arrivals=arrivals.due,
        late=arrivals.late,
        dropped=arrivals.dropped,
        warmup_seconds=_round(min(plan.warmup_s, stats.elapsed_s)),
        paused_seconds=_round(stats.schedule.paused_s(stats.elapsed_s)),
        changes=[_change(change) for change in outcome.changes],
        series=_workflow_series(stats),
        began_seconds=_round_maybe(outcome.began_s),
        series_interval_seconds=stats.series_interval_s,
        duration_seconds=_round(plan.duration_s),
        tags=[clean(tag) for tag in plan.tags],
        saturated=outcome.was_saturated,
        warnings=[clean(text) for text in outcome.all_warnings],
        attempts=outcome.attempts,
        workers=list(outcome.workers),
        shared_cores=outcome.shared_cores,
        loop_held=is_loop_held(stats),
        held_seconds=_round(sum(hold.seconds for hold in holds.values())),
        raised=stats.raised,
        allow_failures=plan.allow_failures,
        in_python=clean(plan.in_python),
        reasons=[
            Reason(kind=reason.kind, text=clean(reason.text))
            for reason in reasons_against(stats, failed_as=_failed_as(outcome))
        ],
    )


def _change(change: AppliedChange) -> ChangeResult:
    return ChangeResult(
        at_seconds=_round(change.at_s),
        kind=change.kind.value,
        target=_round(change.target) if change.kind is ChangeKind.SCALE else None,
        over_seconds=_round(change.over_s),
        by=clean(change.by),
    )


def _failed_as(outcome: WorkflowOutcome) -> str | None:
    """Return how a workflow ended that did not complete; None if it did."""
    if outcome.status is RunStatus.COMPLETED:
        return None
    return f"{outcome.status.value}: {outcome.error}" if outcome.error else outcome.status.value


def _step(stats: WorkflowStats, name: str, kind: str, hold: LoopHold | None) -> StepResult:
    counts = stats.counts(name)
    histogram = stats.latency(name)
    phases = stats.phases(name)
    return StepResult(
        name=clean(name),
        **_common(counts, stats.cut(name), stats.counted_s),
        sent=counts.sent,
        requests_per_second=_rate(counts.sent, stats.counted_s),
        skipped=counts.skipped,
        latency_ms=_latency(histogram),
        service_ms=_latency(stats.service(name)),
        phases_ms={
            phase: {
                key: _round(value)
                for key, q in (("p50", 0.50), ("p99", 0.99))
                if phase in phases and (value := quantile_ms(phases[phase], q)) is not None
            }
            for phase in PHASES
        },
        bytes_sent=counts.bytes_sent,
        bytes_received=counts.bytes_received,
        status_codes={str(code): counts.status_codes[code] for code in sorted(counts.status_codes)},
        errors={clean(error): counts.errors[error] for error in sorted(counts.errors)},
        histogram=base64.b64encode(histogram.encode_deflated()).decode("ascii"),
        series=_series(stats.series(name)),
        kind=kind,
        failures=_failures(*stats.failures(name)),
        series_interval_seconds=stats.series_interval_s,
        held_seconds=0.0 if hold is None else _round(hold.seconds),
        held_max_ms=0.0 if hold is None else _round(hold.max_s * 1000),
    )


def _failures(rows: Sequence[FailureRow], other: int) -> list[FailureResult]:
    found = [
        FailureResult(
            error=clean(row.error),
            message=clean(row.message),
            count=row.count,
            sample=_sample(row) if row.has_sample else None,
        )
        for row in sorted(rows, key=lambda row: (-row.count, row.error, row.message))
    ]
    if other:
        found.append(FailureResult(error="other", message="other messages", count=other))
    return found


def _sample(row: FailureRow) -> FailureSample:
    return FailureSample(
        request=row.request,
        status=row.status,
        latency_ms=_round(row.latency_ns / NS_PER_MS) if row.latency_ns else None,
        phases_ms={name: _round(ns / NS_PER_MS) for name, ns in row.phases_ns.items()},
        headers=row.headers.splitlines(),
        body=row.body,
        trace=row.trace,
    )


def _latency(histogram: Histogram) -> LatencyMs:
    if not histogram.count:
        return LatencyMs()
    values_ns = {
        "min": histogram.min_ns,
        "mean": histogram.mean_ns,
        "stdev": histogram.stdev_ns,
        "max": histogram.max_ns,
        **{key: histogram.quantile_ns(q) for key, q in QUANTILES.items()},
    }
    return LatencyMs(**{key: _round_maybe(ns / NS_PER_MS) for key, ns in values_ns.items()})


def _series(values: Sequence[SeriesValue]) -> list[SeriesResult]:
    return [
        SeriesResult(
            at_seconds=value.at_s,
            total=value.total,
            failed=value.failed,
            sent=value.sent,
            p50_ms=_round_maybe(value.p50_ms),
            p99_ms=_round_maybe(value.p99_ms),
            p90_ms=_round_maybe(value.p90_ms),
            p95_ms=_round_maybe(value.p95_ms),
        )
        for value in values
    ]


def _workflow_series(stats: WorkflowStats) -> list[SeriesResult]:
    """Return the series of the headline steps, with the most users of each interval."""
    changes = stats.users()
    series, users, at = [], 0, 0
    for point in _series(stats.headline_series()):
        begins_s, ends_s = point.at_seconds, point.at_seconds + stats.series_interval_s
        most = users if at >= len(changes) or changes[at][0] > begins_s else 0
        while at < len(changes) and changes[at][0] < ends_s:
            users = changes[at][1]
            most = max(most, users)
            at += 1
        series.append(replace(point, vus=most))
    return series


def _metric(metric: MetricStats, elapsed_s: float) -> MetricResult:
    total = metric.total
    quantiles = {key: _round_maybe(metric.quantile(QUANTILES[key])) for key in _METRIC_QUANTILES}
    return MetricResult(
        name=clean(metric.name),
        kind=metric.kind.value,
        value=_round_maybe(metric.value(elapsed_s)),
        count=total.count,
        min=_round_maybe(total.min) if total.count else None,
        max=_round_maybe(total.max) if total.count else None,
        **quantiles,
    )


def _threshold(judged: Verdict, workflow: str) -> ThresholdResult:
    threshold = judged.threshold
    return ThresholdResult(
        name=clean(threshold.name),
        limit=clean(threshold.limit),
        value=None if judged.value is None else _round(threshold.in_unit(judged.value)),
        passed=judged.passed,
        workflow=clean(workflow),
        unit=threshold.unit,
        abort_on_fail=threshold.abort_on_fail,
        worst_from_second=judged.worst_from_s,
    )


def _common(counts: StepCounts, cut: Histogram, elapsed_s: float) -> dict[str, Any]:
    """Return the figures that steps and workflows have in common."""
    cut_ms = _latency(cut)
    return {
        **{name: getattr(counts, name) for name in ("total", "ok", "failed", "none", "cut")},
        "rate_per_second": _rate(counts.total, elapsed_s),
        "cut_ms": cut_ms,
        "censored_from_ms": cut_ms.min,
    }


def _rate(count: int, elapsed_s: float) -> float:
    return _round(count / elapsed_s) if elapsed_s > 0 else 0.0


def _round(value: float) -> float:
    return round(value, _DIGITS)


def _round_maybe(value: float | None) -> float | None:
    """Round a number; return None for one that JSON cannot hold (infinite or not a number)."""
    return None if value is None or not math.isfinite(value) else _round(value)
