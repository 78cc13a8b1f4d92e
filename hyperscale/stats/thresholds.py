"""Verdicts on thresholds: the value a threshold refers to, and whether it is within its limit.

A threshold without samples fails: a test that measured nothing has proved nothing. The syntax of
thresholds is in `hyperscale.plan.thresholds`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from hyperscale._native import Histogram
from hyperscale.plan import MetricKind
from hyperscale.plan.thresholds import (
    ARRIVAL_KEYS,
    CHECKS_KEY,
    ITERATION,
    LATENCY_KEYS,
    QUANTILES,
    Threshold,
    thresholds_of,
)
from hyperscale.stats.workflow import MetricStats, WorkflowStats

_NS_PER_S = 1e9


# The first requests of a run open connections and find caches cold. They must not abort a run.
ABORT_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class Verdict:
    threshold: Threshold
    value: float | None  # in the quantity's base unit; None if there was nothing to measure
    passed: bool

    def describe(self) -> str:
        """Return the verdict as a sentence: `login.p99 <250ms, was 312ms`."""
        threshold = self.threshold
        if self.value is None:
            return f"{threshold.name} {threshold.limit}, but there were no samples"
        shown = f"{threshold.in_unit(self.value):.4g}{threshold.unit}"
        return f"{threshold.name} {threshold.limit}, was {shown}"


def judge(threshold: Threshold, stats: WorkflowStats) -> Verdict:
    """Judge a threshold by its value over the whole run so far."""
    value, has_samples = _value(threshold, stats)
    passed = has_samples and value is not None and threshold.passes(value)
    return Verdict(threshold, value, passed)


def judge_all(stats: WorkflowStats) -> list[Verdict]:
    """Judge every threshold of the workflow's plan, in the order written."""
    return [judge(threshold, stats) for threshold in thresholds_of(stats.plan)]


def abort_verdict(thresholds: Iterable[Threshold], stats: WorkflowStats) -> Verdict | None:
    """Return the verdict on the first `abort_on_fail` threshold that fails now; else None."""
    aborting = (
        threshold
        for threshold in thresholds
        if threshold.abort_on_fail and stats.counted_s >= (threshold.delay_s or 0.0)
    )
    return next(iter(failing_now(aborting, stats)), None)


def failing_now(thresholds: Iterable[Threshold], stats: WorkflowStats) -> list[Verdict]:
    """Return the verdicts on thresholds that fail while the workflow runs.

    None fails in the first seconds, without samples, or because of a lower limit on a count,
    which may still be reached.
    """
    if stats.counted_s < ABORT_AFTER_S:
        return []
    judged = [
        judge(threshold, stats)
        for threshold in thresholds
        if not _may_still_grow_to(threshold, stats) and _value(threshold, stats)[1]
    ]
    return [verdict for verdict in judged if not verdict.passed]


def judges_checks(thresholds: Iterable[Threshold]) -> bool:
    """Return True if a threshold, and not each check, decides how many checks may fail."""
    return any(threshold.key == CHECKS_KEY for threshold in thresholds)


def _may_still_grow_to(threshold: Threshold, stats: WorkflowStats) -> bool:
    if not threshold.is_floor():
        return False
    if threshold.metric is not None:
        return stats.metric(threshold.metric).kind is MetricKind.COUNT
    return threshold.key == "total"


def _value(threshold: Threshold, stats: WorkflowStats) -> tuple[float | None, bool]:
    """Return the value of a threshold, and whether there are samples."""
    if threshold.metric is not None:
        value = _metric_value(stats.metric(threshold.metric), threshold.key, stats.counted_s)
        return value, value is not None
    if threshold.key in (CHECKS_KEY, *ARRIVAL_KEYS):
        part, whole = _share_of(threshold.key, stats)
        return (part / whole, True) if whole else (None, False)
    step = threshold.step
    if threshold.key in LATENCY_KEYS:
        value = _latency_s(_latency(step, stats), threshold.key)
        return value, value is not None
    counts = stats.headline_counts() if step is None else stats.counts(step)
    if threshold.key == "errors":
        return (counts.failed / counts.total, True) if counts.total else (None, False)
    if threshold.key == "rate":
        rate = counts.total / stats.counted_s if stats.counted_s > 0 else 0.0
        return rate, counts.total > 0
    return float(counts.total), counts.total > 0


def _share_of(key: str, stats: WorkflowStats) -> tuple[int, int]:
    """Return the checks that passed of all, or the arrivals that were late or dropped of all."""
    if key == CHECKS_KEY:
        checks = stats.checks()
        passed = sum(check.passed for check in checks)
        return passed, passed + sum(check.failed for check in checks)
    arrivals = stats.arrivals()
    return (arrivals.late if key == "late" else arrivals.dropped), arrivals.due


def _latency(step: str | None, stats: WorkflowStats) -> Histogram:
    if step == ITERATION:
        return stats.iteration_latency()
    return stats.headline_latency() if step is None else stats.latency(step)


def _latency_s(histogram: Histogram, key: str) -> float | None:
    if not histogram.count:
        return None
    if key in QUANTILES:
        return histogram.quantile_ns(QUANTILES[key]) / _NS_PER_S
    return (histogram.mean_ns if key == "mean" else histogram.max_ns) / _NS_PER_S


def _metric_value(metric: MetricStats, key: str, elapsed_s: float) -> float | None:
    if not metric.total.count:
        return None
    if key == "max":
        return metric.total.max
    if key in QUANTILES:
        return metric.quantile(QUANTILES[key])
    return metric.value(elapsed_s)  # "value", and "mean" of the kinds that sample
