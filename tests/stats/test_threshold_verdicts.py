import time

import pytest
from msgspec.structs import replace

from hyperscale._native import Recorder
from hyperscale.plan import StagePlan, ThresholdPlan
from hyperscale.plan.thresholds import thresholds_of
from hyperscale.stats.thresholds import ABORT_AFTER_S, abort_verdict, judge_all
from hyperscale.stats.workflow import WorkflowStats
from tests.stats.parts import Part, make_plan

MS = 1_000_000


def stats_with(*limits: tuple[str, str], abort_on_fail: bool = False) -> WorkflowStats:
    return WorkflowStats(
        make_plan(
            thresholds=tuple(
                ThresholdPlan(name=name, limit=limit, abort_on_fail=abort_on_fail)
                for name, limit in limits
            )
        )
    )


def fill(stats: WorkflowStats, *, elapsed_s: float = 10.0) -> None:
    """90 logins of 10 ms and 10 payments of 1 s, one of them failed, over two cores."""
    for slot in (0, 1):
        part = Part(slot=slot)
        for _ in range(45):
            part.request("login", 10 * MS, at_s=elapsed_s)
        for n in range(5):
            part.request("pay", 1000 * MS, ok=bool(n or slot), at_s=elapsed_s)
        for n in range(4):
            part.judge(n > 0)
        part.counts["login"].none = 500  # neither in errors nor in rates nor in totals
        part.counts["pay"].none = 500
        part.measure("carts", "count", 21)
        part.measure("render", "timer", 0.2)
        stats.apply(part.report())


@pytest.mark.parametrize(
    ("name", "limit", "value", "passed"),
    [
        ("p50", "<11ms", 0.010, True),
        ("p99", "<250ms", 1.0, False),  # over both steps, from the merged histogram
        ("login.p99", "<250ms", 0.010, True),
        ("pay.p99", "<=1.002s", 1.0, True),
        ("login.mean", "<20ms", 0.010, True),
        ("max", "<2s", 1.0, True),
        ("pay.p999", "<2s", 1.0, True),
        ("errors", "<1%", 0.01, False),
        ("errors", "<=1%", 0.01, True),
        ("login.errors", "==0%", 0.0, True),
        ("pay.errors", "<10%", 0.1, False),
        ("total", ">=100", 100, True),
        ("login.total", ">90", 90, False),
        ("rate", ">9/s", 10.0, True),
        ("pay.rate", ">1/s", 1.0, False),
        ("checks", ">=75%", 0.75, True),
        ("checks", ">75%", 0.75, False),
        ("carts", ">=42", 42.0, True),
        ("render", "<300ms", 0.2, True),
        ("render.p99", "<100ms", 0.2, False),
        ("render.max", "<201ms", 0.2, True),
    ],
)
def test_a_threshold_is_judged_on_its_value(
    name: str, limit: str, value: float, passed: bool
) -> None:
    stats = stats_with((name, limit))
    fill(stats)
    (verdict,) = judge_all(stats)
    assert verdict.value == pytest.approx(value, rel=0.001)
    assert verdict.passed is passed


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("p99", "<10s"),
        ("login.errors", "<=100%"),
        ("errors", "==0"),
        ("checks", ">=0%"),
        ("total", "<5"),
        ("rate", "<5/s"),
        ("carts", "<5"),
        ("render", "<5s"),
        ("render.p99", "<5s"),
    ],
)
def test_without_samples_a_threshold_fails(name: str, limit: str) -> None:
    stats = stats_with((name, limit))
    (verdict,) = judge_all(stats)
    assert not verdict.passed


def test_a_verdict_reads_in_the_unit_of_its_limit() -> None:
    stats = stats_with(("pay.p99", "<250ms"), ("errors", "<0.5%"), ("checks", ">=90%"))
    assert judge_all(stats)[0].describe() == "pay.p99 <250ms, but there were no samples"
    fill(stats)
    assert [verdict.describe() for verdict in judge_all(stats)] == [
        "pay.p99 <250ms, was 1000ms",
        "errors <0.5%, was 1%",
        "checks >=90%, was 75%",
    ]


def abort(stats: WorkflowStats) -> str | None:
    verdict = abort_verdict(thresholds_of(stats.plan), stats)
    return None if verdict is None else verdict.threshold.name


def test_a_failed_threshold_aborts_only_with_abort_on_fail() -> None:
    for abort_on_fail in (False, True):
        stats = stats_with(("login.p99", "<1s"), ("p99", "<250ms"), abort_on_fail=abort_on_fail)
        fill(stats)
        assert abort(stats) == ("p99" if abort_on_fail else None)


def test_thresholds_do_not_abort_in_the_first_seconds() -> None:
    stats = stats_with(("p99", "<250ms"), abort_on_fail=True)
    fill(stats, elapsed_s=ABORT_AFTER_S / 2)
    assert abort(stats) is None


def test_a_threshold_aborts_only_after_its_delay_and_the_warm_up() -> None:
    late = ThresholdPlan(name="p99", limit="<250ms", abort_on_fail=True, delay_s=8.0)
    for warmup_s, elapsed_s, aborts in ((0.0, 7.0, False), (0.0, 9.0, True), (3.0, 9.0, False)):
        stats = WorkflowStats(replace(make_plan(thresholds=(late,)), warmup_s=warmup_s))
        fill(stats, elapsed_s=elapsed_s)
        assert (abort(stats) is not None) is aborts


def test_rates_are_per_second_without_the_warm_up() -> None:
    stats = WorkflowStats(
        replace(make_plan(thresholds=(ThresholdPlan(name="rate", limit=">15/s"),)), warmup_s=5.0)
    )
    fill(stats)
    (verdict,) = judge_all(stats)
    assert (verdict.value, verdict.passed) == (20.0, True)


def test_late_and_dropped_are_shares_of_all_arrivals() -> None:
    limits = [ThresholdPlan(name=name, limit="<=10%") for name in ("late", "dropped")]
    stats = WorkflowStats(
        replace(
            make_plan(thresholds=tuple(limits)),
            is_open=True,
            stages=(StagePlan(duration_s=10.0, target=1.0),),
        )
    )
    assert [verdict.passed for verdict in judge_all(stats)] == [False, False]  # nothing arrived
    recorder = Recorder(0)
    now_ns = time.monotonic_ns()
    for n in range(80):
        recorder.add_arrival(now_ns if n >= 15 else now_ns - 10**9)
    recorder.add_dropped(now_ns, 10)
    report = recorder.report([], workflow=stats.plan.name, slot=0, sequence=1, elapsed_s=5.0)
    stats.apply(report)
    late, dropped = judge_all(stats)
    assert (late.value, late.passed) == (pytest.approx(15 / 90), False)
    assert (dropped.value, dropped.passed) == (pytest.approx(10 / 90), False)
    assert stats.arrivals().warning("Shop") is not None


@pytest.mark.parametrize(
    ("name", "limit"),
    [("total", ">=1000"), ("login.total", ">1000"), ("carts", ">=1000")],
)
def test_a_lower_limit_that_may_still_be_reached_does_not_abort(name: str, limit: str) -> None:
    stats = stats_with((name, limit), abort_on_fail=True)
    fill(stats)
    assert abort(stats) is None


def test_a_threshold_without_samples_does_not_abort() -> None:
    stats = stats_with(("pay.p99", "<1ms"), ("checks", ">99%"), abort_on_fail=True)
    part = Part()
    part.request("login", 10 * MS, at_s=10.0)
    stats.apply(part.report())
    assert abort(stats) is None
