"""The time series of a workflow, as its reports make it."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperscale._native import Histogram
from hyperscale.stats.workflow import WorkflowStats
from tests.lab.reports import PartReport, SeriesPoint, StepCounts, StepReport, encoded, native, read
from tests.stats.parts import Part, make_plan

MS = 1_000_000
TIERS_S = (1, 10, 60, 600, 7200)


@cache
def spread(total: int, latency_ms: int = 5) -> bytes:
    histogram = Histogram()
    histogram.record(latency_ms * MS, total)
    return histogram.encode()


def point(second: int, total: int = 1, failed: int = 0, latency_ms: int = 5) -> SeriesPoint:
    latency = spread(total, latency_ms)
    return SeriesPoint(second=second, total=total, failed=failed, latency=latency)


class ReportingPart:
    """One part that reports the seconds of one step."""

    def __init__(self, stats: WorkflowStats, slot: int = 0) -> None:
        self._stats = stats
        self._slot = slot
        self._sequence = 0

    def report(
        self, *points: SeriesPoint, elapsed_s: float | None = None, series_s: int = 1
    ) -> None:
        self._sequence += 1
        report = PartReport(
            workflow="Shop",
            slot=self._slot,
            sequence=self._sequence,
            elapsed_s=points[-1].second + 1.0 if elapsed_s is None else elapsed_s,
            vus=1,
            iterations=1,
            steps=[StepReport(name="login", counts=StepCounts(), series=list(points))],
            series_s=series_s,
        )
        self._stats.apply(encoded(report))


def totals(stats: WorkflowStats) -> dict[int, int]:
    return {value.at_s: value.total for value in stats.series("login") if value.total}


def in_intervals(of_seconds: dict[int, int], width_s: int) -> dict[int, int]:
    found: dict[int, int] = {}
    for second, total in of_seconds.items():
        found[second // width_s * width_s] = found.get(second // width_s * width_s, 0) + total
    return found


def test_a_second_is_the_sum_of_its_parts() -> None:
    stats = WorkflowStats(make_plan())
    ReportingPart(stats, 0).report(point(0, 3, failed=1, latency_ms=10))
    ReportingPart(stats, 1).report(point(0, 1, latency_ms=1000))
    (value,) = stats.series("login")
    assert (value.total, value.failed) == (4, 1)
    assert value.p50_ms is not None
    assert 10 <= value.p50_ms < 10.02
    assert value.p99_ms is not None
    assert 1000 <= value.p99_ms < 1002


def test_a_closed_second_is_not_counted_twice() -> None:
    stats = WorkflowStats(make_plan())
    part = ReportingPart(stats)
    part.report(*(point(second, 2) for second in range(20)))
    part.report(point(0, 2), elapsed_s=20.5)
    part.report(point(0, 3), elapsed_s=21.5)
    assert totals(stats) == dict.fromkeys(range(20), 2)


def test_the_larger_count_of_a_second_wins_in_any_order() -> None:
    stats = WorkflowStats(make_plan())
    part = ReportingPart(stats)
    part.report(point(0, 2))
    part.report(point(0, 5))
    part.report(point(0, 3))
    assert totals(stats) == {0: 5}


@pytest.mark.parametrize("width_s", TIERS_S[:3])
def test_a_part_that_reports_late_is_still_counted(width_s: int) -> None:
    stats = WorkflowStats(make_plan())
    first, late = ReportingPart(stats, 0), ReportingPart(stats, 1)
    first.report(*(point(second, 2) for second in range(100)))
    expected = {second: 2 if second % 2 else 5 for second in range(100)}
    for _ in range(3):  # closed with the part now: not counted again
        late.report(*(point(second, 3) for second in range(0, 100, 2)), elapsed_s=100.0)
        first.report(point(99, 2), elapsed_s=100.0, series_s=width_s)
        assert totals(stats) == in_intervals(expected, width_s)


def test_intervals_without_requests_are_in_the_series() -> None:
    stats = WorkflowStats(make_plan())
    part = ReportingPart(stats)
    assert stats.series("login") == []
    part.report(point(2, 4), elapsed_s=4.2)
    series = stats.series("login")
    assert [value.total for value in series] == [0, 0, 4, 0, 0]
    assert (series[0].p50_ms, series[0].p99_ms, series[0].at_s) == (None, None, 0)


@settings(max_examples=30)
@given(
    seconds=st.lists(st.integers(0, 20_000), min_size=1, max_size=60, unique=True),
    behind=st.integers(0, 60),
    width_s=st.sampled_from(TIERS_S),
)
def test_every_request_is_counted_in_its_interval_when_a_part_reports_late(
    seconds: list[int], behind: int, width_s: int
) -> None:
    stats, seconds = WorkflowStats(make_plan()), sorted(seconds)
    first, second = ReportingPart(stats, 0), ReportingPart(stats, 1)
    for n in range(len(seconds) + behind):
        if n < len(seconds):
            first.report(point(seconds[n], 2))
        if n >= behind:
            second.report(point(seconds[n - behind], 3))
    first.report(point(seconds[-1], 2), series_s=width_s)
    shown_s = stats.series_interval_s
    assert shown_s >= width_s
    assert totals(stats) == in_intervals(dict.fromkeys(seconds, 5), shown_s)


@pytest.mark.parametrize("seconds", [299, 301, 450, 600, 601, 3_100, 6_000, 7_000])
def test_the_series_of_a_run_of_any_length_is_complete(seconds: int) -> None:
    stats = WorkflowStats(make_plan())
    part = ReportingPart(stats)
    for second in range(seconds):
        part.report(point(second))
    shown, width_s = stats.series("login"), stats.series_interval_s
    assert len(shown) == -(-seconds // width_s) <= 600
    assert sum(value.total for value in shown) == seconds
    assert {value.total for value in shown[:-1]} == {width_s}
    assert {value.p50_ms for value in shown} == {shown[0].p50_ms}


steps_seconds = st.lists(
    st.sets(st.integers(0, 10_000), min_size=1, max_size=60), min_size=1, max_size=4
)


@settings(max_examples=50)
@given(steps_seconds, st.sampled_from([1, 100, 1_000, 10_000, 100_000]))
def test_a_report_bounded_for_the_log_has_every_request_in_its_interval(
    of_steps: list[set[int]], parts: int
) -> None:
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
                series=[point(second, 2, failed=1) for second in sorted(seconds)],
            )
            for n, seconds in enumerate(of_steps)
        ],
    )
    small = read(native(report).bounded_for_log(parts))
    points_max = max(400_000 // parts, len(of_steps) * -(-10_001 // TIERS_S[-1]))
    assert sum(len(step.series) for step in small.steps) <= points_max
    for step, seconds in zip(small.steps, of_steps, strict=True):
        expected = in_intervals(dict.fromkeys(seconds, 2), small.series_s)
        assert {each.second: each.total for each in step.series} == expected
        timed = [bool(each.latency) for each in step.series]
        assert timed == sorted(timed)  # the newest
        assert sum(timed) <= max(4_000, 64_000 // parts)


def test_intervals_get_wider_with_the_length_of_the_run() -> None:
    shown_s = []
    for elapsed_s in (1, 600, 601, 6000, 6001, 36_000, 30 * 86_400):
        stats = WorkflowStats(make_plan())
        ReportingPart(stats).report(point(0), elapsed_s=elapsed_s)
        shown_s.append(stats.series_interval_s)
    assert shown_s == [1, 1, 10, 10, 60, 60, 7200]


def test_the_headline_series_grows_with_its_reports() -> None:
    part, stats = Part(), WorkflowStats(make_plan())
    part.request("login", 5 * MS, at_s=0.5)
    stats.apply(part.report())
    before = stats.headline_series()
    part.request("pay", 50 * MS, at_s=0.6)
    part.request("login", 5 * MS, at_s=1.5)
    stats.apply(part.report())
    after = stats.headline_series()
    assert [value.total for value in before] == [1]
    assert [value.total for value in after] == [2, 1]
    assert after[0].p99_ms == pytest.approx(50, rel=0.001)
    assert stats.headline_series(1) == after[:1]


@pytest.mark.parametrize(
    ("series_s", "interval_s"), [(1, 1), (7, 10), (10, 10), (601, 7200), (10**9, 7200), (0, 1)]
)
def test_intervals_are_at_least_as_wide_as_the_widest_reported_point(
    series_s: int, interval_s: int
) -> None:
    part, stats = Part(), WorkflowStats(make_plan())
    part.request("login", 5 * MS, at_s=0.5)
    report = part.made()
    report.series_s = series_s
    stats.apply(encoded(report))
    assert stats.series_interval_s == interval_s
    assert [value.total for value in stats.series("login")] == [1]


def test_the_seconds_of_a_part_that_was_stuck_for_minutes_are_counted() -> None:
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


@settings(max_examples=30)
@given(
    st.sampled_from([1, 10, 1_000, 100_000]),
    st.lists(st.integers(1, 12), min_size=1, max_size=120),
)
def test_the_last_report_of_an_attempt_holds_every_second_it_reported(
    parts: int, strides: list[int]
) -> None:
    stats, told, second = WorkflowStats(make_plan()), Part(), 0
    for stride in strides:
        second += stride
        told.request("login", 5 * MS, at_s=float(second))
        told.request("login", 7 * MS, at_s=second + 0.5)
        report = told.report(histograms=stride % 2 == 0, series_from=second - 14)
        stats.apply(report, attempt=1, parts=parts)
    last = read(stats.last_report(0, 1))
    (step,) = last.steps
    assert step.counts.total == 2 * len(strides)
    assert sum(each.total for each in step.series) == 2 * len(strides)
    assert [each.second for each in step.series] == sorted(each.second for each in step.series)
    again = WorkflowStats(make_plan())
    again.apply(stats.last_report(0, 1))
    assert sum(value.total for value in again.series("login")) == 2 * len(strides)
    checkpoint = read(stats.checkpoint(0, 1))
    assert (checkpoint.steps[0].series, checkpoint.steps[0].phases) == ([], None)
    assert checkpoint.steps[0].latency == step.latency
    stats.end_attempt(0, 1)
    assert read(stats.last_report(0, 1)).steps[0].series == []
    assert stats.last_report(0, 2) == stats.checkpoint(5, 1) == b""
