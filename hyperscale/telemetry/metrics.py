"""Metrics in the Prometheus text format.

Modules keep their own counts; a *collector* reads them when /metrics is requested. Durations must
be recorded when they happen: `DurationHistogram` keeps them.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Any, Literal

from msgspec import Struct

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})

Labels = Mapping[str, str]
Sample = tuple[Labels, float] | float
"""A value with its labels; a number alone has none."""


class Family(Struct, frozen=True):
    """One metric: its name, kind and help text, and its values by suffix of the name and labels."""

    name: str
    kind: Literal["counter", "gauge", "histogram", "summary"]
    about: str
    samples: list[tuple[str, Labels, float]]


Collector = Callable[[], Iterable[Family]]


def counter(name: str, about: str, *samples: Sample) -> Family:
    return Family(name, "counter", about, _unsuffixed(samples))


def gauge(name: str, about: str, *samples: Sample) -> Family:
    return Family(name, "gauge", about, _unsuffixed(samples))


def summary(
    name: str, about: str, quantiles: Mapping[float, float], *, total: float, count: int
) -> Family:
    """Return quantiles of some values, with the sum and the number of these values."""
    samples: list[tuple[str, Labels, float]] = [
        ("", {"quantile": f"{quantile:g}"}, value) for quantile, value in quantiles.items()
    ]
    return Family(name, "summary", about, [*samples, ("_sum", {}, total), ("_count", {}, count)])


def by(label: str, values: Mapping[Any, float], keys: Iterable[Any]) -> list[Sample]:
    """Return one sample for each key, with the key as the value of a label."""
    return [({label: str(key)}, values[key]) for key in keys]


def _unsuffixed(samples: Iterable[Sample]) -> list[tuple[str, Labels, float]]:
    return [("", *each) if isinstance(each, tuple) else ("", {}, each) for each in samples]


class DurationHistogram:
    """Durations, counted in buckets with fixed upper bounds."""

    def __init__(self, name: str, about: str, bounds: tuple[float, ...]) -> None:
        self._name = name
        self._about = about
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def family(self) -> Family:
        running = list(accumulate(self._counts))
        bounds = [*map(_number, self._bounds), "+Inf"]
        samples: list[tuple[str, Labels, float]] = [
            ("_bucket", {"le": bound}, count) for bound, count in zip(bounds, running, strict=True)
        ]
        samples += [("_sum", {}, self._total), ("_count", {}, running[-1])]
        return Family(self._name, "histogram", self._about, samples)


def render(collectors: Iterable[Collector]) -> bytes:
    """Return all metrics as text."""
    lines: list[str] = []
    for collect in collectors:
        for family in collect():
            lines.append(f"# HELP {family.name} {family.about}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            lines += [
                f"{family.name}{suffix}{_labels(labels)} {_number(value)}"
                for suffix, labels, value in family.samples
            ]
    return ("\n".join(lines) + "\n").encode()


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = (f'{key}="{str(value).translate(_ESCAPES)}"' for key, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
