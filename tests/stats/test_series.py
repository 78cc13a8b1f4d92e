import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperscale._native import Histogram
from hyperscale.stats.merge import WorkflowStats
from hyperscale.stats.report import PartReport, SeriesPoint, StepCounts, StepReport
from hyperscale.stats.series import (
    CELLS_MAX,
    TIERS_S,
    SeriesValue,
    StepSeries,
    counted,
    thinned,
    tier_for,
    values,
)
from tests.stats.parts import Part, make_plan

MS = 1_000_000


def point(second: int, total: int = 1, failed: int = 0, latency_ms: int = 5) -> SeriesPoint:
    histogram = Histogram()
    histogram.record(latency_ms * MS, total)
    return SeriesPoint(second=second, total=total, failed=failed, latency=histogram.encode())


def totals(series: StepSeries, tier: int) -> dict[int, int]:
    found: dict[int, int] = {}
    for cell in series.cells(tier):
        found[cell.at_s] = found.get(cell.at_s, 0) + cell.total
    return found


def test_a_second_is_the_sum_of_its_parts() -> None:
    series = StepSeries()
    series.offer("a", [point(0, 3, failed=1, latency_ms=10)])
    series.offer("b", [point(0, 1, latency_ms=1000)])
    (value,) = values(series.cells(0), 1, until_s=1.0)
    assert (value.total, value.failed) == (4, 1)
    assert value.p50_ms is not None
    assert 10 <= value.p50_ms < 10.02
    assert value.p99_ms is not None
    assert 1000 <= value.p99_ms < 1002


def test_a_closed_second_is_not_counted_twice() -> None:
    series = StepSeries()
    series.offer("a", [point(0, 2), point(1, 2)])
    series.close(1)
    series.offer("a", [point(0, 2), point(0, 3)])
    assert totals(series, 0) == {0: 2, 1: 2}


def test_a_part_that_reports_late_is_still_counted() -> None:
    series = StepSeries()
    series.offer("a", [point(second, 2) for second in range(100)])
    series.close(95)
    series.offer("b", [point(second, 3) for second in range(0, 100, 2)])
    series.offer("b", [point(second, 3) for second in range(0, 100, 2)])
    for _ in range(2):
        assert totals(series, 0) == {s: 2 if s % 2 else 5 for s in range(100)}
        assert totals(series, 1) == dict.fromkeys(range(0, 100, 10), 35)
        assert totals(series, 2) == {0: 210, 60: 140}
        series.close(99)
    series.offer("b", [point(0, 3)])
    assert totals(series, 2) == {0: 210, 60: 140}


def test_empty_intervals_are_shown_as_such() -> None:
    series = StepSeries()
    series.offer("a", [point(2, 4)])
    assert [value.total for value in values(series.cells(0), 1, until_s=4.2)] == [0, 0, 4, 0, 0]
    assert values([], 1, until_s=0.0) == []
    assert values([], 1, until_s=2.0)[0] == SeriesValue(0, 0, 0, None, None)


@settings(max_examples=30)
@given(
    seconds=st.lists(st.integers(0, 20_000), min_size=1, max_size=60, unique=True),
    close_every=st.integers(1, 9),
    behind=st.integers(0, 60),
)
def test_every_tier_holds_every_request_however_far_a_part_is_behind(
    seconds: list[int], close_every: int, behind: int
) -> None:
    series, seconds = StepSeries(), sorted(seconds)
    for n in range(len(seconds) + behind):
        if n < len(seconds):
            series.offer("a", [point(seconds[n], 2)])
        if n >= behind:
            series.offer("b", [point(seconds[n - behind], 3)])
        if n % close_every == 0:
            series.close(seconds[min(n, len(seconds) - 1)])
    for tier, width_s in enumerate(TIERS_S):
        expected: dict[int, int] = {}
        for second in seconds:
            start_s = second // width_s * width_s
            expected[start_s] = expected.get(start_s, 0) + 5
        assert totals(series, tier) == expected


def test_a_long_run_keeps_a_bounded_number_of_cells() -> None:
    series = StepSeries()
    shared = point(0)
    for second in range(7_000):
        series.offer(
            "a",
            [SeriesPoint(second=second, total=1, failed=0, latency=shared.latency)],
        )
        series.close(second - 5)
    assert len(series.cells(0)) <= CELLS_MAX + 6
    assert len(series.cells(1)) <= CELLS_MAX + 1
    whole = series.cells(tier_for(7_000))
    assert len(whole) == 117
    assert sum(cell.total for cell in whole) == 7_000


@pytest.mark.parametrize("seconds", [299, 301, 450, 600, 601, 3_100, 6_000])
def test_a_run_of_any_length_is_whole_in_the_tier_that_is_shown(seconds: int) -> None:
    series, latency = StepSeries(), point(0).latency
    for second in range(seconds):
        series.offer("a", [SeriesPoint(second=second, total=1, failed=0, latency=latency)])
        series.close(second - 5)
    tier = tier_for(seconds)
    shown = values(series.cells(tier), TIERS_S[tier], seconds)
    assert sum(value.total for value in shown) == seconds
    assert {value.total for value in shown[:-1]} == {TIERS_S[tier]}
    assert [(each.second, each.total) for each in series.points(tier)] == [
        (value.at_s, value.total) for value in shown
    ]


parts_seconds = st.lists(
    st.tuples(st.sets(st.integers(0, 10_000), min_size=1, max_size=20), st.integers(0, 20)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=50)
@given(parts_seconds, st.integers(1, 40))
def test_a_report_of_fewer_points_has_every_request_in_its_interval(
    of_steps: list[tuple[set[int], int]], points_max: int
) -> None:
    latency = point(0).latency
    report = PartReport(
        workflow="Load",
        slot=0,
        sequence=1,
        elapsed_s=10_001.0,
        vus=1,
        iterations=1,
        steps=[
            StepReport(
                name=f"s{n}",
                counts=StepCounts(total=2 * len(seconds)),
                series=[
                    SeriesPoint(second=second, total=2, failed=1, latency=latency)
                    for second in sorted(seconds)
                ],
            )
            for n, (seconds, _) in enumerate(of_steps)
        ],
    )
    timed_max = of_steps[0][1]
    small = counted(report, timed_max=timed_max)
    assert all(
        len([each for each in step.series if each.latency]) == min(timed_max, len(step.series))
        for step in small.steps
    )
    small = thinned(small, points_max=points_max)
    assert sum(len(step.series) for step in small.steps) <= max(
        points_max, len(of_steps) * -(-10_001 // TIERS_S[-1])
    )
    for step, (seconds, _) in zip(small.steps, of_steps, strict=True):
        expected: dict[int, int] = {}
        for second in seconds:
            start_s = second // small.series_s * small.series_s
            expected[start_s] = expected.get(start_s, 0) + 2
        assert {each.second: each.total for each in step.series} == expected


def test_the_finest_tier_that_holds_the_run_is_shown() -> None:
    assert [TIERS_S[tier_for(s)] for s in (1, 600, 601, 6000, 6001, 36_000, 30 * 86_400)] == [
        1,
        1,
        10,
        10,
        60,
        60,
        7200,
    ]


def test_values_that_still_hold_are_not_computed_again() -> None:
    part, stats = Part(), WorkflowStats(make_plan())
    part.request("login", 5 * MS, at_s=0.5)
    stats.apply(part.report())
    before = stats.headline_series()
    part.request("login", 5 * MS, at_s=1.5)
    stats.apply(part.report())
    after = stats.headline_series(before)
    assert after[0] is before[0]
    assert [value.total for value in after] == [1, 1]


@pytest.mark.parametrize(
    ("series_s", "interval_s"), [(1, 1), (7, 10), (10, 10), (601, 7200), (10**9, 7200), (-1, 1)]
)
def test_intervals_are_at_least_as_wide_as_what_was_reported_as_one(
    series_s: int, interval_s: int
) -> None:
    part, stats = Part(), WorkflowStats(make_plan())
    part.request("login", 5 * MS, at_s=0.5)
    report = part.report()
    report.series_s = series_s
    stats.apply(report)
    assert stats.series_interval_s == interval_s
    assert [value.total for value in stats.series("login")] == [1]


def test_a_part_stuck_for_minutes_loses_nothing() -> None:
    stats = WorkflowStats(make_plan(duration_s=300))
    stuck, running = Part(slot=0), Part(slot=1)
    stuck.request("login", 5 * MS, at_s=1.0)
    stats.apply(stuck.report())
    for second in range(200):
        running.request("login", 5 * MS, at_s=second + 0.5)
        stats.apply(running.report(histograms=False, series_from=second - 1))
    stuck.request("login", 5 * MS, at_s=2.0)
    stats.apply(stuck.report())
    series = stats.series("login")
    assert [value.total for value in series[:3]] == [1, 2, 2]
    assert stats.counts("login").total == 202
