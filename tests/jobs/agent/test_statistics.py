"""Reports of a part's executors, merged into one report for the job leader."""

from hypothesis import given
from hypothesis import strategies as st

from hyperscale._native import Histogram, Report
from hyperscale.jobs.agent.statistics import (
    MERGED_PER_S,
    PHASES_S,
    RECENT_S,
    SERIES_S,
    AttemptStatistics,
)
from hyperscale.plan import StepKind, StepPlan, WorkflowPlan
from hyperscale.stats.workflow import WorkflowStats
from tests.lab.reports import (
    CheckReport,
    MetricReport,
    PartReport,
    SeriesPoint,
    StepCounts,
    StepReport,
    encoded,
    native,
    read,
)

PLAN = WorkflowPlan(
    name="Load",
    vus=1,
    duration_s=60.0,
    timeout_s=30.0,
    steps=(StepPlan(name="hit", kind=StepKind.TEST),),
)


def spread(*values_ms: int) -> bytes:
    histogram = Histogram()
    for value in values_ms:
        histogram.record(value * 1_000_000)
    return histogram.encode()


def report(slot: int, sequence: int, values_ms: list[int], *, histograms: bool = True) -> Report:
    total = len(values_ms)
    made = PartReport(
        workflow="Load",
        slot=slot,
        sequence=sequence,
        elapsed_s=float(sequence),
        vus=2,
        iterations=total,
        steps=[
            StepReport(
                name="hit",
                counts=StepCounts(total=total, ok=total, sent=total, status_codes={200: total}),
                latency=spread(*values_ms) if histograms else None,
                phases={"connect": spread(1)} if histograms else None,
                series=[
                    SeriesPoint(second=sequence, total=total, failed=0, latency=spread(*values_ms))
                ]
                if histograms
                else [],
            )
        ],
        checks=[CheckReport(name="good", passed=total, failed=1, first_failure=f"slot {slot}")],
        metrics=[
            MetricReport(name="size", kind="count", count=1, sum=slot + 1.0, min=slot, max=slot)
        ],
        cpu_s=0.5,
        rss_bytes=100,
    )
    return native(made)


def decoded(data: bytes | None) -> PartReport:
    assert data is not None
    return read(data)


def test_executors_are_summed_and_their_histograms_merged() -> None:
    statistics = AttemptStatistics("Load", 4)
    statistics.add(0, report(4, 1, [10, 20]), now_s=0.0)
    statistics.add(0, report(5, 1, [30]), now_s=0.0)
    merged = decoded(statistics.latest(now_s=1.0))
    assert (merged.slot, merged.sequence, merged.vus, merged.iterations) == (4, 1, 4, 3)
    assert merged.steps[0].counts.status_codes == {200: 3}
    assert merged.steps[0].latency is not None
    assert Histogram.decode(merged.steps[0].latency).count == 3
    assert [(point.second, point.total) for point in merged.steps[0].series] == [(1, 3)]
    assert merged.checks == [CheckReport(name="good", passed=3, failed=2, first_failure="slot 4")]
    assert (merged.metrics[0].count, merged.metrics[0].sum) == (2, 11.0)
    assert (merged.cpu_s, merged.rss_bytes) == (1.0, 200)


def test_a_report_has_histograms_only_if_executors_sent_new_ones() -> None:
    statistics = AttemptStatistics("Load", 0)
    statistics.add(0, report(0, 1, [10]), now_s=0.0)
    first = decoded(statistics.latest(now_s=1.0))
    statistics.add(0, report(0, 2, [10, 10], histograms=False), now_s=0.0)
    second = decoded(statistics.latest(now_s=2.0))
    whole = decoded(statistics.whole())
    assert first is not None
    assert second is not None
    assert whole is not None
    assert first.steps[0].latency is not None
    assert second.steps[0].latency is None
    assert second.steps[0].series == []
    assert whole.steps[0].latency == first.steps[0].latency
    assert [first.sequence, second.sequence, whole.sequence] == [1, 2, 3]


def test_phases_are_sent_every_few_seconds_and_at_once_to_a_new_leader() -> None:
    statistics = AttemptStatistics("Load", 0)

    def has_phases(second: int) -> bool:
        statistics.add(0, report(0, second, [10]), now_s=0.0)
        merged = decoded(statistics.latest(now_s=float(second)))
        assert merged.steps[0].latency is not None
        return merged.steps[0].phases is not None

    told_s = [second for second in range(1, 14) if has_phases(second)]
    assert told_s == [1, 1 + PHASES_S, 1 + 2 * PHASES_S]
    statistics.leader_changed()
    assert has_phases(14)
    whole = decoded(statistics.whole())
    assert whole.steps[0].phases is not None


def test_very_many_histograms_are_merged_less_often() -> None:
    statistics = AttemptStatistics("Load", 0)
    merged_s = []
    for second in range(1, 7):
        for place in range(2 * MERGED_PER_S):
            statistics.add(0, report(place, second, [10]), now_s=0.0)
        merged = decoded(statistics.latest(now_s=float(second)))
        assert merged.iterations == 2 * MERGED_PER_S
        if merged.steps[0].latency is not None:
            merged_s.append(second)
    assert merged_s == [1, 3, 5]


def test_acknowledged_seconds_are_not_sent_again() -> None:
    statistics = AttemptStatistics("Load", 0)

    def told(second: int) -> list[int]:
        statistics.add(0, report(0, second, [10]), now_s=0.0)
        merged = decoded(statistics.latest(now_s=float(second)))
        return [point.second for point in merged.steps[0].series]

    for second in range(1, 30):
        assert told(second)[0] == max(1, second - SERIES_S + 1)
    statistics.acknowledge()
    assert told(30) == [30]
    assert told(31) == [30, 31]  # the last one was lost
    assert statistics.latest(now_s=31.0) is not None  # one without seconds, which is taken
    statistics.acknowledge()
    assert told(32) == [30, 31, 32]
    statistics.add(0, report(1, 31, [10]), now_s=0.0)  # it grows while the report is under way
    statistics.acknowledge()
    statistics.add(0, report(1, 30, [10]), now_s=0.0)  # it grows when all is told
    assert told(33) == [30, 31, 33]
    statistics.acknowledge()
    statistics.leader_changed()
    assert len(told(34)) == SERIES_S


def test_the_whole_report_of_a_long_run_is_bounded() -> None:
    statistics = AttemptStatistics("Load", 0)
    for sequence in range(1, 1_000):
        statistics.add(0, report(0, sequence, [10]), now_s=0.0)
    whole = decoded(statistics.whole())
    seconds = [point.second for point in whole.steps[0].series]
    assert len(seconds) <= 100 + RECENT_S
    assert seconds[-RECENT_S:] == list(range(1_000 - RECENT_S, 1_000))
    small = decoded(statistics.whole(points_max=10))
    assert len(small.steps[0].series) == 100
    assert not small.steps[0].series[0].latency
    assert small.steps[0].series[-1].latency


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.integers(1, 50), max_size=4), st.booleans()),
        min_size=1,
        max_size=20,
    ),
    st.randoms(use_true_random=False),
)
def test_merging_on_the_worker_first_does_not_change_the_totals(
    said: list[tuple[int, list[int], bool]], rng: object
) -> None:
    statistics, direct, through = (
        AttemptStatistics("Load", 0),
        WorkflowStats(PLAN),
        WorkflowStats(PLAN),
    )
    values: dict[int, list[int]] = {}
    reports = []
    for sequence, (slot, more, histograms) in enumerate(said, start=1):
        values[slot] = values.get(slot, []) + more
        reports.append(report(slot, sequence, values[slot], histograms=histograms))
    for one in [*reports, *reports]:  # again: changes nothing
        statistics.add(0, one, now_s=0.0)
        direct.apply(one)
        through.apply(statistics.latest(now_s=float(one.sequence)) or b"")
    through.apply(statistics.whole() or b"")
    assert through.counts("hit") == direct.counts("hit")
    assert through.latency("hit").count == direct.latency("hit").count
    assert through.iterations == direct.iterations
    assert through.elapsed_s == direct.elapsed_s


@given(
    st.lists(
        # The leader closes no second before the last report.
        st.tuples(st.integers(0, 2), st.integers(1, 5), st.lists(st.integers(1, 50), max_size=3)),
        max_size=20,
    ),
    st.data(),
)
def test_seconds_of_lost_reports_are_sent_again(
    said: list[tuple[int, int, list[int]]], data: st.DataObject
) -> None:
    statistics, heard = AttemptStatistics("Load", 0), WorkflowStats(PLAN)
    seconds: dict[tuple[int, int], list[int]] = {}
    for now_s, (slot, second, more) in enumerate(said):
        seconds[slot, second] = seconds.get((slot, second), []) + more
        statistics.add(0, report(slot, second, seconds[slot, second]), now_s=0.0)
        merged = decoded(statistics.latest(now_s=float(now_s)))
        if data.draw(st.booleans()):
            heard.apply(encoded(merged))
            statistics.acknowledge()
    statistics.add(0, report(0, 11, [10]), now_s=0.0)
    last = decoded(statistics.latest(now_s=float(len(said))))
    heard.apply(encoded(last))
    totals: dict[int, int] = {11: 1}
    for (_, second), values in seconds.items():
        totals[second] = totals.get(second, 0) + len(values)
    found = {value.at_s: value.total for value in heard.series("hit")}
    assert {second: total for second, total in found.items() if total} == {
        second: total for second, total in totals.items() if total
    }
