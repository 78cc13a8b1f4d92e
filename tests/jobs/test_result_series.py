"""The time series in the results of a job hold every request, in the interval in which it ended,
whatever detail was dropped to keep records small."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperscale._native import Histogram, Report, SeriesValue
from hyperscale.jobs.agent.statistics import MERGED_PER_S, RECENT_S, AttemptStatistics
from hyperscale.jobs.committed.state import Part
from hyperscale.jobs.leader.statistics import WorkflowStatistics, final_report
from hyperscale.jobs.messages import AttemptId
from hyperscale.plan import StepKind, StepPlan, WorkflowPlan
from hyperscale.stats.workflow import WorkflowStats
from tests.lab.reports import PartReport, SeriesPoint, StepCounts, StepReport, native, read

RUN = AttemptId("dc.1-a", "Load", 0, 1)
PER_S = 10


def _spread() -> bytes:
    histogram = Histogram()
    histogram.record(5_000_000, PER_S)
    return histogram.encode()


SPREAD = _spread()


def load(steps: int) -> WorkflowPlan:
    return WorkflowPlan(
        name="Load",
        vus=1,
        duration_s=60.0,
        timeout_s=30.0,
        steps=tuple(StepPlan(name=f"s{n}", kind=StepKind.TEST) for n in range(steps)),
    )


def points(seconds: list[int], latency: bytes = SPREAD) -> list[SeriesPoint]:
    return [SeriesPoint(second=at, total=PER_S, failed=1, latency=latency) for at in seconds]


def told(
    steps: int, *, total: int, sequence: int, elapsed_s: float, seconds: list[int], slot: int = 0
) -> Report:
    series = points(seconds)
    made = PartReport(
        workflow="Load",
        slot=slot,
        sequence=sequence,
        elapsed_s=elapsed_s,
        vus=1,
        iterations=total,
        steps=[
            StepReport(name=f"s{n}", counts=StepCounts(total=total), latency=SPREAD, series=series)
            for n in range(steps)
        ],
    )
    return native(made)


def steady(seconds: int, steps: int, *, every_s: int = 5) -> list[Report]:
    """A report every few seconds, with the seconds just before it."""
    return [
        told(
            steps,
            total=PER_S * at,
            sequence=at,
            elapsed_s=float(at),
            seconds=list(range(max(0, at - every_s - 2), at)),
        )
        for at in range(every_s, seconds + 1, every_s)
    ]


def committed(report: bytes | None, *, parts: int) -> bytes:
    """The final report of one of `parts` parts, as it is committed."""
    return final_report(report, parts=parts)


def result_of(report: bytes | None, *, steps: int, parts: int = 1) -> WorkflowStats:
    live = WorkflowStatistics(load(steps))
    record = committed(report, parts=parts)
    live.remember([Part(first_slot=0, cores=1, attempt=1, elapsed_s=1.0, report=record)])
    return live.stats


def totals(values: list[SeriesValue]) -> list[tuple[int, int, int]]:
    return [(value.at_s, value.total, value.failed) for value in values]


@pytest.mark.parametrize(
    ("seconds", "steps", "parts", "interval_s"),
    [
        (60, 1, 1, 1),
        (600, 1, 1, 1),
        (1500, 1, 1, 10),
        (300, 20, 1, 1),
        (300, 150, 1, 10),  # more points than a message could carry
        (60, 1, 33, 1),
        (600, 1, 1_000, 10),
        (600, 1, 10_000, 60),
        (6_100, 1, 1, 60),
    ],
)
def test_the_series_of_a_result_hold_every_request(
    seconds: int, steps: int, parts: int, interval_s: int
) -> None:
    merge, alone = AttemptStatistics("Load", 0), WorkflowStats(load(1))
    for report in steady(seconds, steps):
        merge.add(0, report, now_s=0.0)
    whole = merge.whole()
    assert whole is not None
    stats = result_of(whole, steps=steps, parts=parts)
    assert stats.series_interval_s == interval_s
    series = stats.series("s0")
    assert len(series) == -(-seconds // interval_s)
    assert {value.total for value in series[:-1]} == {PER_S * interval_s}
    for name, _ in stats.steps:
        assert sum(value.total for value in stats.series(name)) == stats.counts(name).total
    everything = stats.headline_counts().total
    assert sum(value.total for value in stats.headline_series()) == everything
    if steps == parts == 1:
        for report in steady(seconds, 1):
            alone.apply(report)
        assert series == alone.series("s0")


@pytest.mark.parametrize(("steps", "parts"), [(1, 33), (1, 1_000), (20, 1_000), (20, 10_000)])
def test_the_committed_report_of_one_part_of_many_is_small(steps: int, parts: int) -> None:
    report = told(steps, total=6_000, sequence=1, elapsed_s=600.0, seconds=list(range(600)), slot=0)
    record = committed(report.encode(), parts=parts)
    assert len(record) < 64 * 1024
    assert len(record) * parts < 32 * 1024 * 1024 or parts > 1_000


executors = st.lists(
    st.lists(st.integers(0, 1_500), min_size=1, max_size=250, unique=True).map(sorted),
    min_size=1,
    max_size=3,
)


@settings(max_examples=40)
@given(executors, st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60)), max_size=30))
def test_executors_at_different_seconds_count_each_request_once_in_its_interval(
    of_executors: list[list[int]], pace: list[tuple[int, int]]
) -> None:
    merge, place_told = AttemptStatistics("Load", 0), [0] * len(of_executors)
    sequence = 0

    def offer(place: int, seconds: list[int], until: int) -> None:
        nonlocal sequence
        sequence += 1
        merge.add(
            place,
            told(
                1,
                total=PER_S * until,
                sequence=sequence,
                elapsed_s=of_executors[place][until - 1] + 1.0,
                seconds=seconds,
                slot=place,
            ),
            now_s=0.0,
        )

    for which, count in pace:
        place = which % len(of_executors)
        seconds, since = of_executors[place], place_told[place]
        until = min(len(seconds), since + count)
        offer(place, seconds[max(0, since - 2) : until], until)
        place_told[place] = until
    for place, seconds in enumerate(of_executors):  # at its end each tells all of them again
        offer(place, seconds, len(seconds))
    whole = merge.whole()
    assert whole is not None
    stats = result_of(whole, steps=1)
    width_s = stats.series_interval_s
    expected: dict[int, int] = {}
    for second in (second for seconds in of_executors for second in seconds):
        start_s = second // width_s * width_s
        expected[start_s] = expected.get(start_s, 0) + PER_S
    found = {value.at_s: value.total for value in stats.series("s0") if value.total}
    assert found == expected


@settings(max_examples=10)
@given(st.data())
def test_a_leader_that_gets_whole_reports_again_counts_nothing_twice(data: st.DataObject) -> None:
    at_s = st.integers(1, 180).map(lambda n: 5 * n)
    asked_s = data.draw(st.sets(at_s, max_size=5))
    lost_s = data.draw(st.sets(st.integers(1, 90).map(lambda n: 10 * n), max_size=5))
    merge, heard, exact = (
        AttemptStatistics("Load", 0),
        WorkflowStats(load(1)),
        WorkflowStats(load(1)),
    )
    for report in steady(900, 1):
        now_s = report.sequence
        merge.add(0, report, now_s=0.0)
        exact.apply(report)
        merged = merge.latest(now_s=float(now_s))
        if merged is not None and now_s not in lost_s:
            heard.apply(merged)
            merge.acknowledge()
        if now_s in asked_s and (whole := merge.whole()) is not None:
            heard.apply(whole)
    last = merge.whole()
    assert last is not None
    heard.apply(last)
    assert totals(heard.series("s0")) == totals(exact.series("s0"))


def test_old_seconds_keep_only_counts_if_there_are_too_many_histograms_to_merge() -> None:
    merge, places, seconds = AttemptStatistics("Load", 0), MERGED_PER_S + 1, RECENT_S + 40
    for at in range(1, seconds + 1):
        for place in range(places):
            merge.add(
                place,
                told(
                    1,
                    total=PER_S * at,
                    sequence=at,
                    elapsed_s=float(at),
                    seconds=[at - 1],
                    slot=place,
                ),
                now_s=0.0,
            )
    whole = merge.whole(points_max=16)
    assert whole is not None
    (step,) = read(whole).steps
    assert [point.total for point in step.series] == [PER_S * places] * seconds
    assert [bool(point.latency) for point in step.series] == [False] * (seconds - 16) + [True] * 16
