"""Thresholds over sliding windows: the worst window of a workflow so far.

A window slides second by second, from the end of the warm-up to the end of the duration, once every
part has reported its seconds. A window that was looked at is not looked at again: a threshold costs
one window per second of the run. Where single seconds are no longer kept (more than ten minutes
before the newest, in a merge that begins late), windows slide by the cells that are left.
"""

import math

from hyperscale._native import Window
from hyperscale.plan.thresholds import LATENCY_KEYS, Threshold
from hyperscale.stats.histograms import latency_s
from hyperscale.stats.workflow import WorkflowStats, WorstWindow

_TO_THE_END_S = 2**31
_COUNTED_PER_SECOND = ("rate", "total")


def worst_window(
    threshold: Threshold, stats: WorkflowStats, *, is_final: bool
) -> WorstWindow | None:
    """Return the worst window of a threshold; None: there was none with samples.

    `is_final`: the last seconds are judged too, though no part reports them again.
    """
    assert threshold.window_s is not None
    span_s, seen = threshold.window_s, stats.windows_seen.get(threshold)
    first_s = math.ceil(stats.plan.warmup_s)
    next_s, worst = seen or (first_s, None)
    steps = stats.headline_steps if threshold.step is None else (threshold.step,)
    finished_s = int(stats.elapsed_s) if is_final else stats.finished_s
    end_s = min(finished_s, math.floor(stats.plan.duration_s))
    while next_s + span_s <= end_s:
        window = stats.window(steps, from_s=next_s, span_s=span_s)
        if window.begins_s + window.seconds > end_s:
            break
        worst = _worse(threshold, worst, window)
        next_s = window.begins_s + window.step_s
    stats.windows_seen[threshold] = (next_s, worst)
    if is_final and threshold.key not in _COUNTED_PER_SECOND:
        # Calls that ended after the duration are in the last window.
        last = stats.window(steps, from_s=max(first_s, end_s - span_s), span_s=_TO_THE_END_S)
        worst = _worse(threshold, worst, last)
    return worst


def _worse(threshold: Threshold, worst: WorstWindow | None, window: Window) -> WorstWindow | None:
    value = _value(threshold.key, window)
    if value is None or (worst and threshold.excess(value) <= threshold.excess(worst.value)):
        return worst
    return WorstWindow(value, window.begins_s)


def _value(key: str, window: Window) -> float | None:
    """Return what a window has for a key; None: no samples. No calls at all are a rate of 0."""
    if key in LATENCY_KEYS:
        return latency_s(window.latency, key)
    if key == "errors":
        return window.failed / window.total if window.total else None
    return window.total / window.seconds if key == "rate" else float(window.total)
