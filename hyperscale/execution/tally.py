"""Counts of checks and values of custom metrics on one executor."""

import math
from collections.abc import Callable
from typing import NamedTuple

from hyperscale._native import CheckReport, Histogram, MetricReport
from hyperscale.plan import MetricKind
from hyperscale.plan.model import SPREAD_KINDS
from hyperscale.stats.histograms import METRIC_SCALE
from hyperscale.testing.parameters import masked

_FAILURE_CHARS_MAX = 500
_SPREAD_MAX = 2**63  # the largest number that a histogram takes


class CheckTally:
    __slots__ = ("failed", "first_failure", "name", "passed")

    def __init__(self, name: str) -> None:
        self.name = name
        self.passed = 0
        self.failed = 0
        self.first_failure: str | None = None

    def judge(self, verdict: object) -> None:
        """Count the result of a check; it passes unless the result is false. None passes."""
        if verdict is None or verdict:
            self.passed += 1
        else:
            self.fail(lambda: f"returned {verdict!r}")

    def fail(self, describe: Callable[[], str]) -> None:
        self.failed += 1
        if self.first_failure is None:
            self.first_failure = masked(describe())[:_FAILURE_CHARS_MAX]

    def report(self) -> CheckReport:
        return CheckReport(
            name=self.name,
            passed=self.passed,
            failed=self.failed,
            first_failure=self.first_failure,
        )


class MetricTally:
    __slots__ = ("_spread", "count", "kind", "last", "max", "min", "name", "sum")

    def __init__(self, name: str, kind: MetricKind) -> None:
        self.name = name
        self.kind = kind
        self.count = 0
        self.sum = 0.0
        self.min = 0.0
        self.max = 0.0
        self.last = 0.0
        self._spread = Histogram() if kind in SPREAD_KINDS else None

    def add(self, value: object) -> None:
        """Add one returned value; None adds nothing."""
        if value is None:
            return
        if not isinstance(value, int | float) or not _is_finite(value):
            raise TypeError(f"metric {self.name!r} returned {_shown(value)}, which is not a number")
        number = float(value)
        self.min = min(self.min, number) if self.count else number
        self.max = max(self.max, number) if self.count else number
        self.count += 1
        self.sum += number
        self.last = number
        if self._spread is not None:
            # The histogram holds no negative numbers; minimum and mean are exact all the same.
            self._spread.record(round(max(0.0, min(number * METRIC_SCALE, _SPREAD_MAX))))

    def report(self, *, histograms: bool) -> MetricReport:
        return MetricReport(
            name=self.name,
            kind=self.kind.value,
            count=self.count,
            sum=self.sum,
            min=self.min,
            max=self.max,
            last=self.last,
            distribution=(
                self._spread.encode() if histograms and self._spread is not None else None
            ),
        )


class Tallies(NamedTuple):
    """The checks and metrics of a slot, in the order of their calls."""

    checks: list[CheckTally]
    metrics: list[MetricTally]

    def blank(self) -> "Tallies":
        """Return tallies of the same checks and metrics, with nothing counted."""
        checks = [CheckTally(each.name) for each in self.checks]
        return Tallies(checks, [MetricTally(each.name, each.kind) for each in self.metrics])


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int too large for a float
        return False


def _shown(value: object) -> str:
    try:
        return repr(value)[:_FAILURE_CHARS_MAX]
    except ValueError:  # an int too large to be written out
        return "an int of too many digits"
