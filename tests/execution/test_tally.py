"""Tallies of checks and custom metrics."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.execution.tally import MetricTally
from hyperscale.plan import MetricKind
from hyperscale.stats.histograms import merge_encoded

KINDS = st.sampled_from([MetricKind.DISTRIBUTION, MetricKind.TIMER])
NUMBERS = st.one_of(
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([1_700_000_000_000_000_000, 2e13, 1.9e13, 1e305, True]),
)


@given(KINDS, st.lists(NUMBERS, min_size=1, max_size=10))
def test_the_histogram_holds_values_of_any_size(kind: MetricKind, values: list[float]) -> None:
    tally = MetricTally("size", kind)
    for value in values:
        tally.add(value)
    report = tally.report(histograms=True)
    assert report.distribution is not None
    assert merge_encoded([report.distribution]).count == report.count == len(values)
    numbers = [float(value) for value in values]
    assert (report.min, report.max, report.last) == (min(numbers), max(numbers), numbers[-1])


@pytest.mark.parametrize("kind", list(MetricKind))
@pytest.mark.parametrize(
    "value",
    [10**400, -(10**400), 10**5000, math.nan, math.inf, "5", 1j],
    ids=["large", "small", "long", "nan", "inf", "text", "complex"],
)
def test_a_metric_value_that_is_no_number_is_refused_and_not_counted(
    kind: MetricKind, value: object
) -> None:
    tally = MetricTally("size", kind)
    tally.add(3)
    with pytest.raises(TypeError, match=r"metric 'size' returned .*, which is not a number"):
        tally.add(value)
    report = tally.report(histograms=True)
    assert (report.count, report.sum, report.min, report.max, report.last) == (1, 3, 3, 3, 3)


def test_a_metric_that_returns_none_adds_nothing() -> None:
    tally = MetricTally("size", MetricKind.COUNT)
    tally.add(None)
    assert tally.count == 0
