"""Metrics in the Prometheus text format.

Modules keep their own counts; a *collector* reads them when /metrics is requested. Durations must
be recorded when they happen: `DurationHistogram` keeps them.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Literal

from msgspec import Struct

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})

Labels = Mapping[str, str]


class Family(Struct, frozen=True):
    """One metric: its name, kind and help text, and its values by labels."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    about: str
    samples: tuple[tuple[Labels, float], ...] = ()
    buckets: tuple["BucketCounts", ...] = ()


class BucketCounts(Struct, frozen=True):
    labels: Labels
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


def counter(name: str, about: str, *samples: tuple[Labels, float]) -> Family:
    return Family(name, "counter", about, samples)


def gauge(name: str, about: str, *samples: tuple[Labels, float]) -> Family:
    return Family(name, "gauge", about, samples)


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
        counts = BucketCounts({}, self._bounds, tuple(self._counts), self._total)
        return Family(self._name, "histogram", self._about, buckets=(counts,))


Collector = Callable[[], Iterable[Family]]


def render(collectors: Iterable[Collector]) -> bytes:
    """Return all metrics as text."""
    lines: list[str] = []
    for collect in collectors:
        for family in collect():
            lines.append(f"# HELP {family.name} {family.about}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            lines += [
                f"{family.name}{_labels(labels)} {_number(value)}"
                for labels, value in family.samples
            ]
            for buckets in family.buckets:
                lines += _histogram_lines(family.name, buckets)
    return ("\n".join(lines) + "\n").encode()


def _histogram_lines(name: str, buckets: BucketCounts) -> list[str]:
    bounds = [_number(bound) for bound in buckets.bounds] + ["+Inf"]
    running = list(accumulate(buckets.counts))
    labels = dict(buckets.labels)
    return [
        *(
            f"{name}_bucket{_labels({**labels, 'le': bound})} {count}"
            for bound, count in zip(bounds, running, strict=True)
        ),
        f"{name}_sum{_labels(labels)} {_number(buckets.total)}",
        f"{name}_count{_labels(labels)} {running[-1]}",
    ]


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = (f'{key}="{str(value).translate(_ESCAPES)}"' for key, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
