import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperscale._native import Histogram, Report
from hyperscale.plan import MetricKind
from hyperscale.stats.histograms import merge_encoded, percentile_curve, quantile_ms
from hyperscale.stats.workflow import WorkflowStats
from tests.lab.reports import PartReport, StepCounts, StepReport, encoded, native
from tests.stats.parts import STEPS, Part, make_plan

MS = 1_000_000
# Above 64 us, where three significant digits are finer than the histogram's unit of 64 ns.
latencies_ns = st.integers(min_value=100_000, max_value=60_000_000_000)
requests = st.tuples(st.sampled_from(STEPS), latencies_ns, st.booleans())


@st.composite
def histories(draw: st.DrawFn) -> list[list[Report]]:
    """All reports of one to three parts, in order; the last of each carries everything."""
    parts = []
    for slot in range(draw(st.integers(1, 3))):
        part, reports = Part(slot=slot), []
        for tick in range(draw(st.integers(1, 4))):
            for step, latency_ns, ok in draw(st.lists(requests, max_size=6)):
                part.request(step, latency_ns, ok=ok, at_s=tick * 1.3)
                part.judge(ok)
                part.measure("carts", "count", 1.0)
                part.measure("render", "timer", latency_ns / 1e9)
            reports.append(part.report(histograms=draw(st.booleans()), series_from=tick))
        reports.append(part.report())
        parts.append(reports)
    return parts


def merged(reports: list[Report]) -> WorkflowStats:
    stats = WorkflowStats(make_plan())
    for report in reports:
        stats.apply(report)
    return stats


def picture(stats: WorkflowStats) -> dict[str, Any]:
    """Everything the statistics can return, in a form that can be compared."""
    return {
        "counts": {name: stats.counts(name) for name, _ in stats.steps},
        "headline": stats.headline_counts(),
        "latency": {name: stats.latency(name).encode() for name, _ in stats.steps},
        "phases": {
            name: {phase: h.encode() for phase, h in stats.phases(name).items()}
            for name, _ in stats.steps
        },
        "cut": {name: stats.cut(name).encode() for name, _ in stats.steps},
        "load": stats.load_counts(),
        "series": {name: stats.series(name) for name, _ in stats.steps},
        "headline_series": stats.headline_series(),
        "checks": stats.checks(),
        "metrics": [
            (
                m.name,
                m.total.count,
                round(m.total.sum, 6),
                m.total.min,
                m.total.max,
                m.quantile(0.9),
                m.total.last,
            )
            for m in stats.metrics()
        ],
        "elapsed_s": stats.elapsed_s,
        "vus": stats.vus,
        "iterations": stats.iterations,
    }


@given(st.data(), histories())
def test_lost_repeated_and_reordered_reports_change_nothing(
    data: st.DataObject, history: list[list[Report]]
) -> None:
    in_order = [report for part in history for report in part]
    finals = [part[-1] for part in history]
    some = data.draw(st.lists(st.sampled_from(in_order), max_size=2 * len(in_order)))
    arrived = data.draw(st.permutations([*some, *finals]))
    assert picture(merged(arrived)) == picture(merged(in_order))


@given(histories())
def test_parts_merge_in_any_order(history: list[list[Report]]) -> None:
    forwards = merged([report for part in history for report in part])
    backwards = merged([report for part in reversed(history) for report in part])
    assert picture(forwards) == picture(backwards)


counts = st.builds(
    StepCounts,
    total=st.integers(0, 9),
    ok=st.integers(0, 9),
    failed=st.integers(0, 9),
    cut=st.integers(0, 9),
    status_codes=st.dictionaries(st.sampled_from([200, 404, 500]), st.integers(1, 9)),
    errors=st.dictionaries(st.sampled_from(["dns", "reset"]), st.integers(1, 9)),
)


def reported(slot: int, sequence: int, made: StepCounts) -> bytes:
    return encoded(
        PartReport(
            workflow="Shop",
            slot=slot,
            sequence=sequence,
            elapsed_s=1.0,
            vus=1,
            iterations=made.total,
            steps=[StepReport(name="login", counts=made)],
        )
    )


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), counts), max_size=20))
def test_counts_are_the_sum_of_the_latest_reports(
    told: list[tuple[int, int, StepCounts]],
) -> None:
    stats = WorkflowStats(make_plan())
    latest: dict[int, tuple[int, StepCounts]] = {}
    for slot, sequence, made in told:
        is_newer = slot not in latest or sequence > latest[slot][0]
        assert (stats.apply(reported(slot, sequence, made)) is not None) == is_newer
        if is_newer:
            latest[slot] = (sequence, made)
    found = stats.counts("login")
    sums: Counter[str | int] = Counter()
    for _, made in latest.values():
        plain = {name: getattr(made, name) for name in ("total", "ok", "failed", "cut")}
        sums.update({**plain, **made.status_codes, **made.errors})
    assert [found.total, found.ok, found.failed, found.cut] == [
        sums[name] for name in ("total", "ok", "failed", "cut")
    ]
    assert {**found.status_codes, **found.errors} == {
        key: sums[key] for _, made in latest.values() for key in (*made.status_codes, *made.errors)
    }
    assert stats.iterations == sums["total"]


@settings(max_examples=50)
@given(
    st.lists(latencies_ns, min_size=1, max_size=300),
    st.lists(latencies_ns, min_size=1, max_size=300),
    st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999]),
)
def test_a_merged_percentile_equals_that_of_the_pooled_samples(
    core_0: list[int], core_1: list[int], q: float
) -> None:
    parts = []
    for slot, samples in enumerate((core_0, core_1)):
        part = Part(slot=slot)
        for latency_ns in samples:
            part.request("login", latency_ns)
        parts.append(part.report())
    pooled = sorted(core_0 + core_1)
    exact = pooled[max(0, math.ceil(q * len(pooled)) - 1)]
    assert merged(parts).latency("login").quantile_ns(q) == pytest.approx(exact, rel=0.001)


def test_percentiles_come_from_merged_histograms_not_from_averages() -> None:
    fast, slow = Part(slot=0), Part(slot=1)
    for _ in range(9_900):
        fast.request("login", 10 * MS)
    for _ in range(100):
        slow.request("login", 1_000 * MS)
    latency = merged([fast.report(), slow.report()]).latency("login")
    assert quantile_ms(latency, 0.99) == pytest.approx(10, rel=0.001)
    assert quantile_ms(latency, 0.999) == pytest.approx(1000, rel=0.001)


def test_a_report_without_histograms_keeps_the_ones_reported_before() -> None:
    part = Part()
    part.request("login", 5 * MS)
    stats = merged([part.report(histograms=True)])
    part.request("login", 500 * MS)
    stats.apply(part.report(histograms=False))
    assert stats.counts("login").total == 2
    assert stats.latency("login").count == 1


def test_a_broken_histogram_is_left_out_of_the_merge() -> None:
    whole, broken = Part(slot=0), Part(slot=1)
    whole.request("login", 5 * MS)
    broken.request("login", 5 * MS)
    report = broken.made(histograms=True)
    report.steps[0].latency = b"broken"
    stats = merged([whole.report(histograms=True), native(report)])
    assert stats.counts("login").total == 2
    assert stats.latency("login").count == 1


def test_a_histogram_in_a_late_report_is_used_if_there_is_no_newer_one() -> None:
    part = Part()
    part.request("login", 5 * MS)
    with_histogram = part.report(histograms=True)
    without = part.report(histograms=False)
    stats = merged([without, with_histogram])
    assert stats.latency("login").count == 1
    assert stats.counts("login").total == 1


def test_an_earlier_attempt_counts_for_requests_but_not_for_virtual_users() -> None:
    stats = WorkflowStats(make_plan())
    for attempt in (0, 1):
        part = Part()
        part.request("login", 5 * MS)
        stats.apply(part.report(), attempt=attempt)
    assert stats.counts("login").total == 2
    assert stats.latency("login").count == 2
    assert stats.vus == 5


def test_the_headline_counts_test_steps_only() -> None:
    part = Part()
    for step in ("login", "pay", "note"):
        part.request(step, 5 * MS)
    stats = merged([part.report()])
    assert stats.headline_steps == ("login", "pay")
    assert stats.headline_counts().total == 2
    assert stats.headline_latency().count == 2
    assert stats.total_counts().total == 3


def test_before_any_report_everything_is_empty() -> None:
    stats = WorkflowStats(make_plan())
    assert (stats.headline_counts().total, stats.headline_counts().errors) == (0, {})
    assert stats.latency("login").count == 0
    assert stats.headline_series() == []
    assert (stats.elapsed_s, stats.vus, stats.iterations) == (0.0, 0, 0)
    assert [(check.name, check.passed) for check in stats.checks()] == [("is_fast", 0)]
    assert [metric.value(0.0) for metric in stats.metrics()] == [None, None]


def test_metrics_merge_by_kind() -> None:
    kinds = {
        "carts": MetricKind.COUNT,
        "orders": MetricKind.RATE,
        "depth": MetricKind.GAUGE,
        "spend": MetricKind.DISTRIBUTION,
        "render": MetricKind.TIMER,
    }
    stats = WorkflowStats(make_plan(metrics=tuple(kinds.items())))
    for slot, values in enumerate(([1.0, 2.0], [3.0, 10.0])):
        part = Part(slot=slot, elapsed_s=4.0 + slot)
        for name, kind in kinds.items():
            for value in values:
                part.measure(name, kind.value, value)
        stats.apply(part.report())
    values_by_name = {m.name: m.value(stats.elapsed_s) for m in stats.metrics()}
    assert values_by_name == {
        "carts": 16.0,
        "orders": 16.0 / 5.0,
        "depth": 10.0,
        "spend": 4.0,
        "render": 4.0,
    }
    spend = stats.metric("spend")
    assert (spend.total.min, spend.total.max) == (1.0, 10.0)
    assert spend.quantile(1.0) == 10.0
    assert spend.quantile(0.5) == pytest.approx(2.0, rel=0.001)


def test_a_foreign_report_is_refused_and_changes_nothing() -> None:
    stats = WorkflowStats(make_plan())
    part = Part()
    part.request("login", 5 * MS)
    report = part.made()
    report.workflow = "Other"
    with pytest.raises(ValueError, match="Other"):
        stats.apply(encoded(report))
    part.request("unknown", 5 * MS)
    with pytest.raises(ValueError, match="unknown"):
        stats.apply(part.report())
    assert (stats.headline_counts().total, stats.parts, stats.version) == (0, 0, 0)


@given(st.lists(latencies_ns, min_size=1, max_size=200))
def test_the_percentile_curve_rises_from_the_least_to_the_most(samples: list[int]) -> None:
    histogram = Histogram()
    for latency_ns in samples:
        histogram.record(latency_ns)
    curve = percentile_curve(merge_encoded([histogram.encode()]))
    assert curve == sorted(curve)
    assert curve[0][1] == pytest.approx(min(samples) / MS, rel=0.001)
    assert curve[-1] == (100.0, histogram.max_ns / MS)
