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
from hyperscale.stats.histograms import latency_s
from hyperscale.stats.windows import worst_window
from hyperscale.stats.workflow import MetricStats, WorkflowStats

# The first requests of a run open connections and find caches cold. They must not abort a run.
ABORT_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class Verdict:
    threshold: Threshold
    value: float | None  # in the quantity's base unit; None if there was nothing to measure
    passed: bool
    has_samples: bool = True
    worst_from_s: int | None = None  # of a threshold over windows: when its worst window began

    def describe(self) -> str:
        """Return the verdict as a sentence: `login.p99 <250ms, was 312ms`."""
        threshold = self.threshold
        if self.value is None:
            return f"{threshold.name} {threshold.limit}, but there were no samples"
        shown = f"{threshold.in_unit(self.value):.4g}{threshold.unit}"
        text = f"{threshold.name} {threshold.limit}, was {shown}"
        return text if self.worst_from_s is None else f"{text} from second {self.worst_from_s} on"


def judge(threshold: Threshold, stats: WorkflowStats, *, is_final: bool = True) -> Verdict:
    """Judge a threshold by its value over the whole run so far, or by its worst window.

    `is_final`: nothing more will be reported.
    """
    # A run that ended before its first window was over is judged as a whole.
    if threshold.window_s is None or (is_final and stats.counted_s < threshold.window_s):
        value, has_samples = _value(threshold, stats)
        passed = has_samples and value is not None and threshold.passes(value)
        return Verdict(threshold, value, passed, has_samples)
    worst = worst_window(threshold, stats, is_final=is_final)
    if worst is None:
        return Verdict(threshold, None, passed=False, has_samples=False)
    passed = threshold.passes(worst.value)
    return Verdict(threshold, worst.value, passed, worst_from_s=worst.begins_s)


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
        judge(threshold, stats, is_final=False)
        for threshold in thresholds
        if not _may_still_grow_to(threshold, stats)
    ]
    return [verdict for verdict in judged if not verdict.passed and verdict.has_samples]


def judges_checks(thresholds: Iterable[Threshold]) -> bool:
    """Return True if a threshold, and not each check, decides how many checks may fail."""
    return any(threshold.key == CHECKS_KEY for threshold in thresholds)


def _may_still_grow_to(threshold: Threshold, stats: WorkflowStats) -> bool:
    if not threshold.is_floor() or threshold.window_s is not None:
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
        value = latency_s(_latency(step, stats), threshold.key)
        return value, value is not None
    counts = stats.headline_counts() if step is None else stats.counts(step)
    if threshold.key == "errors":
        return (counts.failed / counts.total, True) if counts.total else (None, False)
    if threshold.key == "rate":
        rate = counts.total / stats.counted_s if stats.counted_s > 0 else 0.0
        return rate, counts.total > 0
    return float(counts.total), counts.total > 0


def _share_of(key: str, stats: WorkflowStats) -> tuple[int, int]:
    """Return the checks that passed of all, or a part of the arrivals of all."""
    if key == CHECKS_KEY:
        checks = stats.checks()
        passed = sum(check.passed for check in checks)
        return passed, passed + sum(check.failed for check in checks)
    arrivals = stats.arrivals()
    parts = {"late": arrivals.late, "dropped": arrivals.dropped, "delivered": arrivals.begun}
    return parts[key], arrivals.due


def _latency(step: str | None, stats: WorkflowStats) -> Histogram:
    if step == ITERATION:
        return stats.iteration_latency()
    return stats.headline_latency() if step is None else stats.latency(step)


def _metric_value(metric: MetricStats, key: str, elapsed_s: float) -> float | None:
    if not metric.total.count:
        return None
    if key == "max":
        return metric.total.max
    if key in QUANTILES:
        return metric.quantile(QUANTILES[key])
    return metric.value(elapsed_s)  # "value", and "mean" of the kinds that sample
