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

from hyperscale._native import Histogram, SeriesValue, StepCounts
from hyperscale.plan.thresholds import QUANTILES
from hyperscale.reporting.results import (
    CheckResult,
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
    job_id: str = "",
    datacenters: Sequence[str] = (),
    segments: Sequence[SegmentResult] = (),
    gaps: Sequence[GapResult] = (),
    usage: Sequence[UsageResult] = (),
) -> RunResult:
    """Build the result of a run from its workflows. `warnings` are those of the run itself.

    Only a job on a cluster has `job_id` and what follows it.
    """
    workflows = [_workflow(outcome) for outcome in outcomes]
    thresholds = [
        _threshold(judged, outcome.stats.plan.name)
        for outcome in outcomes
        for judged in judge_all(outcome.stats)
    ]
    started = started_at.astimezone(UTC).isoformat(timespec="milliseconds")
    all_warnings = [*warnings, *(text for outcome in outcomes for text in outcome.warnings)]
    return RunResult(
        status=status,
        file=clean(file),
        started_at=started.replace("+00:00", "Z"),
        elapsed_seconds=_round(elapsed_s),
        saturated=any(outcome.was_saturated for outcome in outcomes),
        thresholds=thresholds,
        workflows=workflows,
        passed=has_passed(status, thresholds, workflows),
        warnings=[clean(text) for text in all_warnings],
        generator=generator,
        job_id=job_id,
        datacenters=[*datacenters],
        attempts=sum(outcome.attempts for outcome in outcomes),
        segments=[*segments],
        gaps=[*gaps],
        usage=[*usage],
        aborted_by=clean(aborted_by),
    )


def clean(text: str) -> str:
    """Replace what cannot be encoded: undecodable file names and the like hold surrogates."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _workflow(outcome: WorkflowOutcome) -> WorkflowResult:
    stats, plan = outcome.stats, outcome.stats.plan
    counts = stats.headline_counts()
    return WorkflowResult(
        name=clean(plan.name),
        status=outcome.status,
        vus=plan.vus,
        cores=outcome.cores,
        elapsed_seconds=_round(stats.elapsed_s),
        error=None if outcome.error is None else clean(outcome.error),
        steps=[_step(stats, name, kind.value) for name, kind in stats.steps],
        checks=[
            CheckResult(
                name=clean(check.name),
                passed=check.passed,
                failed=check.failed,
                first_failure=None if check.first_failure is None else clean(check.first_failure),
            )
            for check in stats.checks()
        ],
        metrics=[_metric(metric, stats.elapsed_s) for metric in stats.metrics()],
        **_common(counts, stats.elapsed_s),
        iterations=stats.iterations,
        latency_ms=_latency(stats.headline_latency()),
        series=_series(stats.headline_series()),
        series_interval_seconds=stats.series_interval_s,
        duration_seconds=_round(plan.duration_s),
        tags=[clean(tag) for tag in plan.tags],
        saturated=outcome.was_saturated,
        warnings=[clean(text) for text in outcome.warnings],
        attempts=outcome.attempts,
        workers=list(outcome.workers),
    )


def _step(stats: WorkflowStats, name: str, kind: str) -> StepResult:
    counts = stats.counts(name)
    histogram = stats.latency(name)
    phases = stats.phases(name)
    return StepResult(
        name=clean(name),
        **_common(counts, stats.elapsed_s),
        skipped=counts.skipped,
        latency_ms=_latency(histogram),
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
        series_interval_seconds=stats.series_interval_s,
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
            p50_ms=_round_maybe(value.p50_ms),
            p99_ms=_round_maybe(value.p99_ms),
        )
        for value in values
    ]


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
    )


def _common(counts: StepCounts, elapsed_s: float) -> dict[str, Any]:
    """Return the counts that steps and workflows have in common."""
    fields: dict[str, Any] = {
        name: getattr(counts, name) for name in ("total", "ok", "failed", "cut", "sent")
    }
    rate = _round(counts.total / elapsed_s) if elapsed_s > 0 else 0.0
    return {**fields, "rate_per_second": rate}


def _round(value: float) -> float:
    return round(value, _DIGITS)


def _round_maybe(value: float | None) -> float | None:
    """Round a number; return None for one that JSON cannot hold (infinite or not a number)."""
    return None if value is None or not math.isfinite(value) else _round(value)
