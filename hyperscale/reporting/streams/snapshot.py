"""A running test as metrics: cumulative counters, gauges and histograms with bounded labels.

Everything is cumulative, so a snapshot that never arrives costs resolution and no count. Labels are
names from the test's code, classes of statuses and classes of errors: their number does not grow
with the load.
"""

import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from hyperscale._native import Histogram
from hyperscale.plan.thresholds import thresholds_of
from hyperscale.reporting.remote_write import NativeHistogram
from hyperscale.stats.thresholds import failing_now
from hyperscale.stats.workflow import WorkflowStats

SERIES_MAX = 5000  # of one snapshot; the rest is left out, and the last metric counts it
ERRORS_MAX = 30  # classes of errors of one step
QUANTILES = (0.5, 0.9, 0.95, 0.99)  # for receivers without histograms
SCALE = 3  # eight buckets for each doubling: a bucket is 9 % wide
_HALF = 1024  # half of the sub-buckets of a histogram with three digits
_HALF_BITS = 10
_HEADER = struct.Struct(">iiiiqqd")

Kind = Literal["counter", "gauge", "histogram"]
AnnotationKind = Literal["start", "end", "threshold", "worker_lost", "datacenter_lost"]


@dataclass(frozen=True, slots=True)
class StreamMetric:
    """One time series now. `name` has its unit, as Prometheus wants it."""

    name: str
    kind: Kind
    labels: Mapping[str, str]
    value: float | NativeHistogram


@dataclass(frozen=True, slots=True)
class Annotation:
    """Something that happened, for people who look at a graph."""

    kind: AnnotationKind
    at_unix_ms: int
    text: str
    workflow: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at one moment, with the annotations since the last one."""

    run_id: str
    file: str
    started_unix_ms: int
    at_unix_ms: int
    metrics: tuple[StreamMetric, ...]
    annotations: tuple[Annotation, ...] = ()
    is_final: bool = False
    datacenter: str = field(default="")

    def labels_of(self, annotation: Annotation) -> dict[str, str]:
        """Return the labels of an annotation, without empty ones."""
        found = {"run": self.run_id, "kind": annotation.kind, "workflow": annotation.workflow}
        return {key: value for key, value in found.items() if value}


def metrics_of(
    run_id: str, workflows: Iterable[WorkflowStats], *, datacenter: str = ""
) -> tuple[StreamMetric, ...]:
    """Return the metrics of all workflows of a run, bounded in number."""
    found: list[StreamMetric] = []
    left_out = 0
    common = {"run": run_id, "datacenter": datacenter} if datacenter else {"run": run_id}
    for stats in workflows:
        for metric in _of_workflow(stats, {**common, "workflow": stats.plan.name}):
            if len(found) < SERIES_MAX:
                found.append(metric)
            else:
                left_out += 1
    found.append(StreamMetric("hyperscale_series_left_out", "gauge", common, left_out))
    return tuple(found)


def _of_workflow(stats: WorkflowStats, labels: dict[str, str]) -> Iterator[StreamMetric]:
    yield StreamMetric("hyperscale_virtual_users", "gauge", labels, stats.vus)
    yield StreamMetric("hyperscale_iterations_total", "counter", labels, stats.iterations)
    for name, _ in stats.steps:
        yield from _of_step(stats, name, {**labels, "step": name})


def _of_step(stats: WorkflowStats, step: str, labels: dict[str, str]) -> Iterator[StreamMetric]:
    counts = stats.counts(step)
    for outcome in ("ok", "failed", "cut", "skipped", "none"):
        own = {**labels, "outcome": outcome}
        yield StreamMetric("hyperscale_calls_total", "counter", own, getattr(counts, outcome))
    yield StreamMetric("hyperscale_requests_total", "counter", labels, counts.sent)
    yield StreamMetric("hyperscale_sent_bytes_total", "counter", labels, counts.bytes_sent)
    yield StreamMetric("hyperscale_received_bytes_total", "counter", labels, counts.bytes_received)
    by_class: dict[str, int] = {}
    for code, count in counts.status_codes.items():
        status_class = f"{code // 100}xx" if 100 <= code < 600 else "other"
        by_class[status_class] = by_class.get(status_class, 0) + count
    for status_class, count in sorted(by_class.items()):
        own = {**labels, "status_class": status_class}
        yield StreamMetric("hyperscale_responses_total", "counter", own, count)
    errors = sorted(counts.errors.items(), key=lambda each: (-each[1], each[0]))
    shown = dict(errors[:ERRORS_MAX])
    if others := sum(count for _, count in errors[ERRORS_MAX:]):
        shown["other"] = shown.get("other", 0) + others
    for error, count in sorted(shown.items()):
        own = {**labels, "error": error}
        yield StreamMetric("hyperscale_errors_total", "counter", own, count)
    latency = stats.latency(step)
    if latency.count:
        value = exponential(latency)
        yield StreamMetric("hyperscale_latency_seconds", "histogram", labels, value)
        for quantile in QUANTILES:
            own = {**labels, "quantile": str(quantile)}
            seconds = latency.quantile_ns(quantile) / 1e9
            yield StreamMetric("hyperscale_latency_quantile_seconds", "gauge", own, seconds)


def exponential(histogram: Histogram, *, scale: int = SCALE) -> NativeHistogram:
    """Return a histogram of nanoseconds in exponential buckets of seconds."""
    by_index: dict[int, int] = {}
    factor = 2.0**scale
    for value_ns, count in recorded(histogram):
        # Bucket i holds values in (2^(i / 2^scale), 2^((i + 1) / 2^scale)].
        index = math.ceil(math.log2(value_ns / 1e9) * factor) - 1
        by_index[index] = by_index.get(index, 0) + count
    first, last = min(by_index), max(by_index)
    return NativeHistogram(
        scale=scale,
        offset=first,
        counts=tuple(by_index.get(index, 0) for index in range(first, last + 1)),
        zero_count=0,
        count=histogram.count,
        sum=histogram.mean_ns * histogram.count / 1e9,
    )


def recorded(histogram: Histogram) -> Iterator[tuple[float, int]]:
    """Yield the middle of each bucket that is not empty, in nanoseconds, and its count.

    Reads the standard encoding (HdrHistogram V2): counts as zigzag varints, where a negative one
    is a number of empty buckets.
    """
    payload = histogram.encode()
    *_, lowest, _, _ = _HEADER.unpack_from(payload)
    unit_bits = max(0, lowest.bit_length() - 1)
    place, index = _HEADER.size, 0
    while place < len(payload):
        number, shift = 0, 0
        while True:
            byte = payload[place]
            place += 1
            number |= (byte & 0x7F) << shift if shift < 56 else byte << shift
            if byte < 0x80 or shift == 56:
                break
            shift += 7
        count = (number >> 1) ^ -(number & 1)
        if count < 0:
            index -= count
            continue
        if count:
            bucket = max(0, (index >> _HALF_BITS) - 1)
            sub = index if index < _HALF else (index & (_HALF - 1)) + _HALF
            width = 1 << (bucket + unit_bits)
            yield sub * width + width / 2, count
        index += 1


def breached(stats: WorkflowStats) -> dict[str, str]:
    """Return the thresholds of a workflow that fail now, by name, and what was measured."""
    return {
        verdict.threshold.name: verdict.describe()
        for verdict in failing_now(thresholds_of(stats.plan), stats)
    }


def upper_bounds(histogram: NativeHistogram) -> Iterator[tuple[float, int]]:
    """Yield the upper bound of each bucket in seconds, and its count."""
    for place, count in enumerate(histogram.counts):
        if count:
            yield 2.0 ** ((histogram.offset + place + 1) / 2.0**histogram.scale), count
