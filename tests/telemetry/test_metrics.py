"""Metrics in the Prometheus text format."""

import re

from hypothesis import given
from hypothesis import strategies as st

from hyperscale.telemetry.metrics import DurationHistogram, Family, counter, gauge, render


def text_of(*families: Family) -> str:
    return render([lambda: families]).decode()


def test_counters_and_gauges_are_rendered_with_help_and_type() -> None:
    text = text_of(
        counter("hits_total", "Hits", ({"way": "in"}, 3), ({"way": "out"}, 4)),
        gauge("share", "A share", ({}, 0.25)),
    )
    assert text == (
        "# HELP hits_total Hits\n# TYPE hits_total counter\n"
        'hits_total{way="in"} 3\nhits_total{way="out"} 4\n'
        "# HELP share A share\n# TYPE share gauge\nshare 0.25\n"
    )


def test_histogram_buckets_are_cumulative() -> None:
    histogram = DurationHistogram("lag_seconds", "Lag", (0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)
    lines = text_of(histogram.family()).splitlines()
    assert 'lag_seconds_bucket{le="0.1"} 2' in lines
    assert 'lag_seconds_bucket{le="1"} 3' in lines
    assert 'lag_seconds_bucket{le="+Inf"} 4' in lines
    assert "lag_seconds_count 4" in lines


@given(st.text())
def test_labels_are_escaped(value: str) -> None:
    text = text_of(gauge("g", "G", ({"l": value}, 1)))
    assert text.count("\n") == 3
    sample = text.split("\n")[2]
    assert re.fullmatch(r'g\{l="(?:[^"\\\n]|\\["\\n])*"\} 1', sample, re.DOTALL)
