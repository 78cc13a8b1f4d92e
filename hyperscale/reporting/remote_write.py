"""Prometheus remote write 1.0: samples and native histograms, as the body of one request."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hyperscale.reporting.http import HttpRequest
from hyperscale.reporting.protobuf import (
    double_field,
    message_field,
    packed_sints,
    sint_field,
    snappy,
    text_field,
    uint_field,
)

HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}


@dataclass(frozen=True, slots=True)
class NativeHistogram:
    """Counts in exponential buckets: bucket i holds values up to 2^(i / 2^scale)."""

    scale: int
    offset: int  # index of the first bucket
    counts: tuple[int, ...]
    zero_count: int
    count: int
    sum: float
    zero_threshold: float = 1e-7


@dataclass(frozen=True, slots=True)
class RemoteSeries:
    """One time series with one sample, a number or a histogram."""

    labels: Mapping[str, str]
    value: float | NativeHistogram
    at_unix_ms: int


def write_request(
    url: str, series: Iterable[RemoteSeries], headers: Mapping[str, str]
) -> HttpRequest:
    body = b"".join(message_field(1, _series(each)) for each in series)
    return HttpRequest("POST", url, {**HEADERS, **headers}, snappy(body))


def _series(series: RemoteSeries) -> bytes:
    labels = b"".join(
        message_field(1, text_field(1, name) + text_field(2, value))
        for name, value in sorted(series.labels.items())
        if value
    )
    if isinstance(series.value, NativeHistogram):
        return labels + message_field(4, _histogram(series.value, series.at_unix_ms))
    return labels + message_field(
        2, double_field(1, series.value) + uint_field(2, series.at_unix_ms)
    )


def _histogram(histogram: NativeHistogram, at_unix_ms: int) -> bytes:
    spans, deltas = _spans(histogram)
    return b"".join(
        [
            uint_field(1, histogram.count),
            double_field(3, histogram.sum),
            sint_field(4, histogram.scale),
            double_field(5, histogram.zero_threshold),
            uint_field(6, histogram.zero_count),
            *(
                message_field(11, sint_field(1, offset) + uint_field(2, length))
                for offset, length in spans
            ),
            packed_sints(12, deltas),
            uint_field(15, at_unix_ms),
        ]
    )


def _spans(histogram: NativeHistogram) -> tuple[list[tuple[int, int]], list[int]]:
    """Return runs of buckets that are not empty, as (gap before, length), and the differences
    between the counts of consecutive buckets."""
    spans: list[tuple[int, int]] = []
    deltas: list[int] = []
    previous, next_index = 0, 0
    for place, count in enumerate(histogram.counts):
        if not count:
            continue
        # Prometheus names a bucket by its upper bound, OpenTelemetry by its lower one.
        index = histogram.offset + place + 1
        if spans and index == next_index:
            spans[-1] = (spans[-1][0], spans[-1][1] + 1)
        else:
            spans.append((index - next_index if spans else index, 1))
        next_index = index + 1
        deltas.append(count - previous)
        previous = count
    return spans, deltas
