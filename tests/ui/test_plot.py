import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.ui import plot

values = st.lists(st.floats(0, 1e7), min_size=1, max_size=80).map(tuple)
maybe_values = st.lists(
    st.one_of(st.floats(0, 1e7), st.just(math.nan), st.just(math.inf)), max_size=80
).map(tuple)


def text_of(row: tuple[plot.Run, ...]) -> str:
    return "".join(text for text, _ in row)


@given(
    maybe_values,
    maybe_values,
    st.integers(1, 60),
    st.integers(1, 12),
    st.floats(0.1, 200),
    st.booleans(),
)
def test_an_area_has_the_size_asked_for_whatever_the_data(
    data: tuple[float, ...],
    marked: tuple[float, ...],
    width: int,
    height: int,
    span_points: float,
    unicode: bool,
) -> None:
    rows = plot.area(data, marked, width, height, span_points=span_points, top=5.0, unicode=unicode)
    assert len(rows) == height
    assert all(len(text_of(row)) == width for row in rows)
    assert unicode or all(text_of(row).isascii() for row in rows)


@given(
    maybe_values,
    maybe_values,
    st.integers(1, 60),
    st.integers(1, 12),
    st.floats(0.1, 200),
    st.booleans(),
)
def test_curves_have_the_size_asked_for_whatever_the_data(
    first: tuple[float, ...],
    second: tuple[float, ...],
    width: int,
    height: int,
    span_points: float,
    unicode: bool,
) -> None:
    rows = plot.curves(
        (first, second),
        width,
        height,
        span_points=span_points,
        low=1.0,
        high=100.0,
        unicode=unicode,
    )
    assert len(rows) == height
    assert all(len(text_of(row)) == width for row in rows)
    assert unicode or all(text_of(row).isascii() for row in rows)


def test_an_area_rises_with_its_values_and_ends_with_them() -> None:
    rows = plot.area((1.0, 2.0, 4.0, 8.0), (), 8, 1, span_points=8.0, top=8.0)
    assert [text_of(row) for row in rows] == ["▁▂▄█    "]


def test_a_small_value_is_still_seen() -> None:
    rows = plot.area((1.0,), (), 1, 2, span_points=1.0, top=1e6)
    assert [text_of(row) for row in rows] == [" ", "▁"]


def test_the_failed_part_of_an_area_is_owned_by_the_second_series() -> None:
    rows = plot.area((8.0, 8.0), (0.0, 4.0), 2, 2, span_points=2.0, top=8.0)
    assert rows == ((("██", 0),), (("█", 0), ("█", 1)))
    ascii_rows = plot.area((8.0, 8.0), (0.0, 4.0), 2, 2, span_points=2.0, top=8.0, unicode=False)
    assert [text_of(row) for row in ascii_rows] == ["##", "#x"]


def test_a_curve_is_joined_from_column_to_column() -> None:
    rows = plot.curves(((1.0, 100.0),), 1, 3, span_points=2.0, low=1.0, high=100.0)
    assert all(text_of(row) != " " for row in rows)


def test_intervals_without_samples_leave_a_gap_in_a_curve() -> None:
    rows = plot.curves(((5.0, 0.0, 5.0),), 3, 1, span_points=3.0, low=1.0, high=10.0, unicode=False)
    assert text_of(rows[0]) == "* *"


def test_the_later_curve_wins_a_shared_cell() -> None:
    rows = plot.curves(((5.0,), (5.0,)), 1, 1, span_points=1.0, low=1.0, high=10.0, unicode=False)
    assert rows == ((("o", 1),),)


@given(values, st.integers(1, 200))
def test_resampling_stays_within_the_data(data: tuple[float, ...], columns: int) -> None:
    columns_of = plot.resample(data, float(len(data)), columns)
    assert len(columns_of) == columns
    shown = [value for value in columns_of if value is not None]
    assert shown
    slack = max(data) * 1e-9
    assert all(min(data) - slack <= value <= max(data) + slack for value in shown)


def test_resampling_averages_what_shares_a_column() -> None:
    assert plot.resample((1.0, 3.0, 5.0, 7.0), 4.0, 2) == [2.0, 6.0]
    assert plot.resample((1.0, 3.0), 4.0, 4) == [1.0, 3.0, None, None]


@given(st.floats(1e-6, 1e12))
def test_nice_bounds_enclose_a_value_closely(value: float) -> None:
    assert value <= plot.nice_ceiling(value) * (1 + 1e-6) <= value * 2.01
    assert value / 2.6 <= plot.nice_floor(value) <= value * (1 + 1e-6)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_nice_bounds_of_nonsense_are_usable(value: float) -> None:
    assert plot.nice_ceiling(value) == 1.0
    assert plot.nice_floor(value) == 1.0


def test_the_time_axis_covers_a_short_run_whole_and_grows_with_a_long_one() -> None:
    assert plot.time_span_s(3.0, 30.0) == 30.0
    assert plot.time_span_s(3.0, 300.0) == 300.0
    assert plot.time_span_s(3.0, 3600.0) == 60.0
    assert plot.time_span_s(61.0, 3600.0) == 120.0
    assert plot.time_span_s(1801.0, 2000.0) == 2000.0
    assert plot.time_span_s(30.5, 30.0) == 30.5  # the grace after the deadline
    assert plot.time_span_s(200_000.0, 0) == 200_000.0


@given(st.floats(allow_nan=True), st.integers(1, 80), st.booleans())
def test_a_progress_bar_always_fills_its_width(share: float, width: int, unicode: bool) -> None:
    done, rest = plot.bar(share, width, unicode=unicode)
    assert len(done) + len(rest) == width


def test_a_progress_bar_is_empty_at_the_start_and_full_at_the_end() -> None:
    assert plot.bar(0.0, 4) == ("", "────")
    assert plot.bar(0.5, 3) == ("━╸", "─")
    assert plot.bar(1.0, 4) == ("━━━━", "")
    assert plot.bar(0.5, 4, unicode=False) == ("##", "--")
