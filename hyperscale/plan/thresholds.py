"""Threshold syntax: the names (`login.p99`, `errors`, `checks`, a metric), limits and units.

Knows no samples: `hyperscale.stats.thresholds` looks up values and judges them.
"""

import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from hyperscale.config import parse_duration_s
from hyperscale.errors import InputError
from hyperscale.plan.model import (
    RECORDED,
    SPREAD_KINDS,
    MetricKind,
    ThresholdPlan,
    WorkflowPlan,
)

LATENCY_KEYS = ("p50", "p90", "p95", "p99", "p999", "mean", "max")
STEP_KEYS = (*LATENCY_KEYS, "rate", "errors", "total")
CHECKS_KEY = "checks"
ITERATION = "iteration"
"""Stands for a step in names: `iteration.p99`. No step can have this name."""
ARRIVAL_KEYS = ("late", "dropped", "delivered")
"""Shares of the arrivals of an open workflow."""

WINDOW_S_MAX = 600
"""Single seconds are kept for this long, so no window is longer."""

QUANTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99, "p999": 0.999}

_LIMIT = re.compile(r"(<=|>=|==|<|>)\s*(-?\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s|m|h|%|/s)?")
_WINDOW = re.compile(r"(?P<limit>.*?)\s+over\s+(?P<window>.*)", re.DOTALL)
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
}


class Quantity(Enum):
    """What a key measures; decides which units its limit may carry."""

    DURATION = "duration"  # base unit: seconds
    FRACTION = "fraction"  # base unit: 0 to 1
    RATE = "rate"  # base unit: per second
    NUMBER = "number"


# Units a limit may be written in: how many base units one of them is.
_DURATIONS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_UNITS: dict[Quantity, dict[str, float]] = {
    Quantity.DURATION: _DURATIONS,
    Quantity.FRACTION: {"%": 0.01, "": 1.0},
    Quantity.RATE: {"/s": 1.0, "": 1.0},
    Quantity.NUMBER: {"": 1.0},
}
_HINTS = {
    Quantity.DURATION: 'write a duration with its unit: "<250ms", "<=1.5s"',
    Quantity.FRACTION: 'write a share: "<1%", ">=99.9%" or a fraction such as "<0.01"',
    Quantity.RATE: 'write a rate: ">500/s"',
    Quantity.NUMBER: 'write a plain number: ">=1000"',
}

_QUANTITIES = {
    **dict.fromkeys(LATENCY_KEYS, Quantity.DURATION),
    "rate": Quantity.RATE,
    "errors": Quantity.FRACTION,
    "total": Quantity.NUMBER,
    CHECKS_KEY: Quantity.FRACTION,
    **dict.fromkeys(ARRIVAL_KEYS, Quantity.FRACTION),
}
_METRIC_QUANTITIES = {MetricKind.RATE: Quantity.RATE, MetricKind.TIMER: Quantity.DURATION}


@dataclass(frozen=True, slots=True)
class Threshold:
    """A parsed line. Exactly one of step, metric or neither (the workflow as a whole) is named.
    The step `iteration` stands for whole iterations."""

    name: str  # as written: "login.p99"
    limit: str  # as written: "<250ms", "<250ms over 30s"
    abort_on_fail: bool
    delay_s: float | None  # how long it cannot abort the run; None: the usual time
    step: str | None
    metric: str | None
    key: str  # one of STEP_KEYS, "checks", or "value" for a metric's own value
    quantity: Quantity
    compare: str  # "<", "<=", ">", ">=", "=="
    bound: float  # in the quantity's base unit
    unit: str  # as written: "ms", "%", "/s", ""
    window_s: int | None = None  # it holds for every window of this length; None: for the run

    def passes(self, value: float) -> bool:
        """Return True if `value`, in the quantity's base unit, is within the limit."""
        return _COMPARE[self.compare](value, self.bound)

    def in_unit(self, value: float) -> float:
        """Return `value` in the unit the limit was written in."""
        return value / _UNITS[self.quantity][self.unit]

    def excess(self, value: float) -> float:
        """Return how far `value` is beyond the limit: the larger, the worse."""
        if self.compare == "==":
            return abs(value - self.bound)
        return value - self.bound if self.compare in ("<", "<=") else self.bound - value

    def is_floor(self) -> bool:
        """Return True for a lower limit, which a growing value may still reach."""
        return self.compare in (">", ">=", "==")


def parse_threshold(
    name: object,
    limit: object,
    *,
    where: str,
    steps: Collection[str],
    metrics: Mapping[str, MetricKind],
    is_open: bool = False,
    abort_on_fail: bool = False,
    delay_s: float | None = None,
) -> Threshold:
    """Parse one threshold of a workflow with these steps and metrics.

    `where` ("shop.py: Checkout.thresholds") begins every message.
    """
    step, metric, key, quantity = _parse_name(name, where=where, steps=steps, metrics=metrics)
    if key in ARRIVAL_KEYS and metric is None and not is_open:
        raise InputError(
            f"{where}: {name!r} is a share of arrivals, and there are none without a rate",
            hint='add rate = "500/s", or remove it',
        )
    limit_where = f"{where}[{name!r}]"
    of_run, window_s = _parse_window(limit, limit_where)
    if window_s is not None and (metric is not None or key not in STEP_KEYS or step == ITERATION):
        raise InputError(
            f"{limit_where}: {limit!r} has a window, but this is judged over the whole run only",
            hint=f"windows are for {', '.join(STEP_KEYS)}, of a step or of all of them",
        )
    compare, bound, unit = _parse_limit(of_run, limit_where, quantity)
    return Threshold(
        name=str(name).strip(),
        limit=str(limit).strip(),
        abort_on_fail=abort_on_fail,
        delay_s=delay_s,
        step=step,
        metric=metric,
        key=key,
        quantity=quantity,
        compare=compare,
        bound=bound,
        unit=unit,
        window_s=window_s,
    )


def threshold_plans(
    thresholds: object,
    *,
    where: str,
    steps: Collection[str],
    metrics: Mapping[str, MetricKind],
    is_open: bool = False,
) -> tuple[ThresholdPlan, ...]:
    """Return a class's `thresholds`, validated, as plans in the order written.

    Values are limits (`"<250ms"`, `"<250ms over 30s"`) or `{"limit": "<250ms", "abort_on_fail":
    True}`, with a `"delay"` in which it cannot abort the run.
    """
    if thresholds is None:
        return ()
    if not isinstance(thresholds, Mapping):
        raise InputError(
            f"{where}: {thresholds!r} is not a mapping of names to limits",
            hint='write thresholds = {"p99": "<250ms", "errors": "<1%"}',
        )
    plans = []
    for name, value in thresholds.items():
        limit, abort_on_fail, delay_s = _parse_value(value, f"{where}[{name!r}]")
        parsed = parse_threshold(
            name, limit, where=where, steps=steps, metrics=metrics, is_open=is_open
        )
        plans.append(
            ThresholdPlan(
                name=parsed.name,
                limit=parsed.limit,
                abort_on_fail=abort_on_fail,
                delay_s=delay_s,
            )
        )
    return tuple(plans)


def thresholds_of(workflow: WorkflowPlan) -> tuple[Threshold, ...]:
    """Return the parsed thresholds of a plan, which were validated when it was made."""
    steps = [step.name for step in workflow.steps if step.kind in RECORDED]
    metrics = {metric.name: metric.kind for metric in workflow.metrics}
    return tuple(
        parse_threshold(
            plan.name,
            plan.limit,
            where=f"{workflow.name}.thresholds",
            steps=steps,
            metrics=metrics,
            is_open=workflow.is_open,
            abort_on_fail=plan.abort_on_fail,
            delay_s=plan.delay_s,
        )
        for plan in workflow.thresholds
    )


def _parse_name(
    name: object, *, where: str, steps: Collection[str], metrics: Mapping[str, MetricKind]
) -> tuple[str | None, str | None, str, Quantity]:
    text = name.strip() if isinstance(name, str) else ""
    if text in metrics and text in ARRIVAL_KEYS:  # a method of the user that has this name
        return None, text, "value", _metric_quantity(metrics[text])
    if text in _QUANTITIES:
        return None, None, text, _QUANTITIES[text]
    if text in metrics:
        return None, text, "value", _metric_quantity(metrics[text])
    owner, dot, key = text.rpartition(".")
    if owner == ITERATION and key in LATENCY_KEYS:
        return owner, None, key, _QUANTITIES[key]
    if dot and owner in steps and key in STEP_KEYS:
        return owner, None, key, _QUANTITIES[key]
    if dot and key in LATENCY_KEYS and metrics.get(owner) in SPREAD_KINDS:
        return None, owner, key, _metric_quantity(metrics[owner])
    if dot and key in STEP_KEYS and owner not in metrics:
        problem = f"{name!r} names no step {owner!r}"
    else:
        problem = f"unknown threshold {name!r}"
    raise InputError(f"{where}: {problem}", hint=_valid_names(steps, metrics))


def _metric_quantity(kind: MetricKind) -> Quantity:
    return _METRIC_QUANTITIES.get(kind, Quantity.NUMBER)


def _valid_names(steps: Iterable[str], metrics: Iterable[str]) -> str:
    valid = f"valid are {', '.join(STEP_KEYS)}, alone or after a step and a dot"
    valid += f" (steps: {', '.join(steps) or 'none'}); {ITERATION}.p99 and the like; {CHECKS_KEY}"
    valid += f"; with a rate {' and '.join(ARRIVAL_KEYS)}"
    return f"{valid}; custom metrics: {', '.join(metrics) or 'none'}"


def _parse_value(value: object, where: str) -> tuple[object, bool, float | None]:
    """Return the limit, whether it aborts the run, and the delay of that."""
    if not isinstance(value, Mapping):
        return value, False, None
    unknown = [key for key in value if key not in ("limit", "abort_on_fail", "delay")]
    abort_on_fail = value.get("abort_on_fail", False)
    if unknown or "limit" not in value or not isinstance(abort_on_fail, bool):
        raise InputError(
            f"{where}: {dict(value)!r} is not a threshold",
            hint='write {"limit": "<250ms", "abort_on_fail": True}',
        )
    if "delay" not in value:
        return value["limit"], abort_on_fail, None
    if not abort_on_fail:
        raise InputError(
            f"{where}: a delay has no meaning without abort_on_fail",
            hint='write {"limit": "<250ms", "abort_on_fail": True, "delay": "30s"}',
        )
    return value["limit"], True, parse_duration_s(value["delay"], where=where, least_s=0.0)


def _parse_window(limit: object, where: str) -> tuple[object, int | None]:
    """Return a limit without its window, and the seconds of the window."""
    match = _WINDOW.fullmatch(limit.strip()) if isinstance(limit, str) else None
    if match is None:
        return limit, None
    window_s = parse_duration_s(match["window"], where=f"{where}: {limit!r}", least_s=0.0)
    if window_s != int(window_s) or not 1 <= window_s <= WINDOW_S_MAX:
        raise InputError(
            f"{where}: {limit!r} has a window of {match['window']}",
            hint="a window is a whole number of seconds, from 1s to 10m",
        )
    return match["limit"], int(window_s)


def _parse_limit(limit: object, where: str, quantity: Quantity) -> tuple[str, float, str]:
    text = limit.strip() if isinstance(limit, str) else ""
    match = _LIMIT.fullmatch(text)
    if match is None:
        raise InputError(
            f"{where}: {limit!r} is not a limit",
            hint=f"a limit begins with <, <=, >, >= or ==; {_HINTS[quantity]}",
        )
    compare, number, unit = match[1], float(match[2]), match[3] or ""
    scale = _UNITS[quantity].get(unit)
    if scale is None:
        given = f"the unit {unit!r}" if unit else "a number without a unit"
        raise InputError(
            f"{where}: {limit!r} has {given}, but this is a {quantity.value}", hint=_HINTS[quantity]
        )
    bound = number * scale
    if not math.isfinite(bound):
        raise InputError(f"{where}: {limit!r} is too large a number", hint=_HINTS[quantity])
    if bound < 0 and quantity is not Quantity.NUMBER:
        raise InputError(f"{where}: {limit!r} is below zero", hint=_HINTS[quantity])
    if quantity is Quantity.FRACTION and bound > 1:
        raise InputError(f"{where}: {limit!r} is more than 100 %", hint=_HINTS[quantity])
    return compare, bound, unit
