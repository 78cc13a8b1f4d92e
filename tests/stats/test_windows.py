"""Thresholds that hold for every sliding window of a run."""

import pytest
from msgspec.structs import replace

from hyperscale.plan import ThresholdPlan
from hyperscale.plan.thresholds import thresholds_of
from hyperscale.stats.thresholds import abort_verdict, failing_now, judge_all
from hyperscale.stats.workflow import WorkflowStats
from tests.stats.parts import Part, make_plan

MS = 1_000_000


def stats_with(name: str, limit: str, *, abort: bool = False, **plan: float) -> WorkflowStats:
    threshold = ThresholdPlan(name=name, limit=limit, abort_on_fail=abort)
    return WorkflowStats(replace(make_plan(thresholds=(threshold,)), **plan))


def run(stats: WorkflowStats, *parts: Part, seconds: int, slow: range, calls: int = 10) -> None:
    """Report second by second; calls are slow, and fail, in the seconds `slow`."""
    for second in range(seconds):
        for part in parts:
            for _ in range(calls):
                is_slow = second in slow
                part.request("pay", (900 if is_slow else 10) * MS, ok=not is_slow, at_s=second)
            part.elapsed_s = second + 1.0
            stats.apply(part.report(series_from=max(0, second - 2)))
        failing_now(thresholds_of(stats.plan), stats)


def test_a_burst_fails_its_window_though_the_whole_run_is_within_the_limit() -> None:
    whole, windowed = stats_with("pay.p95", "<250ms"), stats_with("pay.p95", "<250ms over 5s")
    for stats in (whole, windowed):
        run(stats, Part(), seconds=60, slow=range(30, 32))
    assert judge_all(whole)[0].passed
    (verdict,) = judge_all(windowed)
    assert not verdict.passed
    assert verdict.value == pytest.approx(0.9, rel=0.01)
    assert verdict.worst_from_s == 26
    assert verdict.describe().startswith("pay.p95 <250ms over 5s, was 900")
    assert verdict.describe().endswith("ms from second 26 on")


def test_the_worst_window_decides_for_shares_rates_and_totals_too() -> None:
    for name, limit, value in (
        ("errors", "<10% over 10s", 0.2),
        ("pay.errors", "<10% over 4s", 0.5),
        ("rate", ">9/s over 10s", 10.0),
        ("pay.total", ">=50 over 5s", 50.0),
    ):
        stats = stats_with(name, limit)
        run(stats, Part(), seconds=40, slow=range(20, 22))
        (verdict,) = judge_all(stats)
        assert verdict.value == pytest.approx(value), name
        assert verdict.passed is (name in ("rate", "pay.total"))


def test_a_second_without_calls_is_a_rate_of_nothing() -> None:
    stats = stats_with("rate", ">5/s over 2s")
    part = Part()
    for second in (0, 1, 2, 6, 7):
        for _ in range(10):
            part.request("pay", 10 * MS, at_s=second)
    part.elapsed_s = 8.0
    stats.apply(part.report())
    (verdict,) = judge_all(stats)
    assert (verdict.value, verdict.passed, verdict.worst_from_s) == (0.0, False, 3)


def test_windows_are_of_all_parts_together() -> None:
    stats = stats_with("rate", ">=20/s over 3s")
    run(stats, Part(slot=0), Part(slot=1), seconds=10, slow=range(0))
    (verdict,) = judge_all(stats)
    assert verdict.value == pytest.approx(20.0)


def test_a_failed_window_aborts_while_the_run_goes_on_and_stays_failed() -> None:
    stats = stats_with("p99", "<250ms over 3s", abort=True)
    thresholds = thresholds_of(stats.plan)
    part = Part()
    run(stats, part, seconds=8, slow=range(0))
    assert abort_verdict(thresholds, stats) is None
    for second in range(8, 40):
        part.request("pay", (900 if second == 8 else 10) * MS, at_s=second)
        part.elapsed_s = second + 1.0
        stats.apply(part.report(series_from=second - 2))
    verdict = abort_verdict(thresholds, stats)
    assert verdict is not None
    assert verdict.worst_from_s == 6


def test_a_run_shorter_than_its_window_is_judged_as_a_whole() -> None:
    stats = stats_with("p99", "<250ms over 30s")
    run(stats, Part(), seconds=5, slow=range(0))
    assert not failing_now(thresholds_of(stats.plan), stats)
    (verdict,) = judge_all(stats)
    assert (verdict.passed, verdict.worst_from_s) == (True, None)


def test_the_warmup_is_in_no_window_and_neither_is_the_time_after_the_duration() -> None:
    stats = stats_with("rate", ">=10/s over 5s", warmup_s=10.0, duration_s=30.0)
    part = Part()
    for second in range(10, 30):
        for _ in range(10):
            part.request("pay", 10 * MS, at_s=second)
    part.request("pay", 10 * MS, at_s=33.0)  # one call was waited for after the duration
    stats.apply(part.report())
    (verdict,) = judge_all(stats)
    assert (verdict.value, verdict.passed) == (10.0, True)


def test_a_slow_call_that_ended_after_the_duration_is_in_the_last_window() -> None:
    stats = stats_with("max", "<250ms over 5s", duration_s=10.0)
    part = Part()
    run(stats, part, seconds=10, slow=range(0))
    part.request("pay", 900 * MS, at_s=10.9)
    stats.apply(part.report())
    assert not judge_all(stats)[0].passed


def test_windows_of_a_long_run_are_the_same_second_by_second_and_coarser_from_the_end() -> None:
    live = stats_with("errors", "<50% over 20s", duration_s=900.0)
    part = Part()
    run(live, part, seconds=900, slow=range(100, 140), calls=1)
    assert judge_all(live)[0].value == pytest.approx(1.0)
    late = stats_with("errors", "<50% over 20s", duration_s=900.0)
    late.apply(part.report())
    (verdict,) = judge_all(late)
    assert (verdict.value, verdict.worst_from_s) == (pytest.approx(1.0), 100)
