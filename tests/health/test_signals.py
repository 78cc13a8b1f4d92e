"""Liveness, readiness, progress, routing and what holds an eviction."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.errors import InputError
from hyperscale.health.correlation import CorrelationConfig
from hyperscale.health.liveness import Probed
from hyperscale.health.overload import Overload
from hyperscale.health.progress import Progress, ProgressConfig, ProgressMeter
from hyperscale.health.readiness import GateReadiness, ManagerReadiness, WorkerReadiness
from hyperscale.health.routing import HealthSignals, NodeHealth, Routing

# Routing.

ROWS = [
    (True, True, Progress.PROGRESSING, Routing.ROUTE),
    (True, True, Progress.IDLE, Routing.ROUTE),
    (True, True, Progress.STALLED, Routing.INVESTIGATE),
    (True, True, Progress.STUCK, Routing.DRAIN),
    (True, False, Progress.PROGRESSING, Routing.HOLD),
    (True, False, Progress.IDLE, Routing.HOLD),
    (True, False, Progress.STALLED, Routing.HOLD),
    (True, False, Progress.STUCK, Routing.DRAIN),
    *((False, ready, progress, Routing.EVICT) for ready in (True, False) for progress in Progress),
]


@pytest.mark.parametrize(("live", "ready", "progress", "decision"), ROWS)
def test_every_row_of_the_table(
    live: bool, ready: bool, progress: Progress, decision: Routing
) -> None:
    signals = HealthSignals(is_live=live, is_ready=ready, progress=progress)
    assert signals.decision() is decision


GRAVITY = list(Routing)


@given(st.booleans(), st.booleans(), st.sampled_from(Progress))
def test_a_worse_signal_never_leads_to_a_milder_decision(
    live: bool, ready: bool, progress: Progress
) -> None:
    better = HealthSignals(is_live=live, is_ready=ready, progress=progress).decision()
    order = list(Progress)
    worse = [
        HealthSignals(is_live=False, is_ready=ready, progress=progress),
        HealthSignals(is_live=live, is_ready=False, progress=progress),
        *(
            HealthSignals(is_live=live, is_ready=ready, progress=each)
            for each in order[order.index(progress) :]
        ),
    ]
    for signals in worse:
        assert GRAVITY.index(signals.decision()) >= GRAVITY.index(better)


def healthy(*nodes: str) -> NodeHealth:
    tracker = NodeHealth()
    for node in nodes:
        tracker.update(node, HealthSignals(is_live=True, is_ready=True), now_s=0.0)
    return tracker


DEAD = HealthSignals(is_live=False, is_ready=False)


def test_a_node_nobody_told_about_is_neither_routed_to_nor_evicted() -> None:
    tracker = NodeHealth()
    assert tracker.decision("a") is None
    assert tracker.routable() == []
    assert not tracker.verdict("a", now_s=0.0).is_evicted


def test_work_goes_to_healthy_nodes_and_to_slow_ones_only_if_there_is_no_other() -> None:
    tracker = healthy("a", "b")
    slow = HealthSignals(is_live=True, is_ready=True, progress=Progress.STALLED)
    tracker.update("b", slow, now_s=1.0)
    assert tracker.routable() == ["a"]
    tracker.update("a", HealthSignals(is_live=True, is_ready=False), now_s=1.0)
    assert tracker.routable() == ["b"]
    tracker.forget("b")
    assert tracker.routable() == []


def test_full_is_not_dead() -> None:
    tracker = healthy("a")
    assert tracker.update("a", HealthSignals(is_live=True, is_ready=False), now_s=1.0) is (
        Routing.HOLD
    )
    assert not tracker.verdict("a", now_s=1e6).is_evicted


@pytest.mark.parametrize(
    ("known", "failing", "is_held"),
    [(1, 1, False), (2, 1, False), (3, 2, True), (4, 1, False), (4, 2, False), (4, 3, True)],
)
def test_many_failing_at_once_hold_each_others_eviction(
    known: int, failing: int, is_held: bool
) -> None:
    nodes = [f"n{i}" for i in range(known)]
    tracker = healthy(*nodes)
    for node in nodes[:failing]:
        tracker.update(node, DEAD, now_s=10.0)
    verdict = tracker.verdict("n0", now_s=11.0)
    assert verdict.is_evicted is not is_held
    expected = "systemic failure detected, holding eviction" if is_held else "eviction criteria met"
    assert verdict.reason == expected


def test_three_of_many_within_half_a_minute_are_held() -> None:
    nodes = [f"n{i}" for i in range(100)]
    tracker = healthy(*nodes)
    for n, node in enumerate(nodes[:3]):
        tracker.update(node, DEAD, now_s=10.0 * n)
    assert not tracker.verdict("n2", now_s=21.0).is_evicted


def test_failures_far_apart_have_nothing_to_do_with_each_other() -> None:
    nodes = [f"n{i}" for i in range(10)]
    tracker = healthy(*nodes)
    for n, node in enumerate(nodes[:3]):
        tracker.update(node, DEAD, now_s=31.0 * n)
        assert tracker.verdict(node, now_s=31.0 * n + 1).is_evicted


def test_a_hold_ends() -> None:
    tracker = healthy("a", "b", "c")
    for node in "ab":
        tracker.update(node, DEAD, now_s=10.0)
    assert not tracker.verdict("a", now_s=39.9).is_evicted
    assert tracker.verdict("a", now_s=40.0).is_evicted


def test_telling_again_that_a_node_is_dead_does_not_hold_it_longer() -> None:
    tracker = healthy("a", "b", "c")
    for now_s in range(10, 41):
        for node in "ab":
            tracker.update(node, DEAD, now_s=float(now_s))
    assert tracker.verdict("a", now_s=40.0).is_evicted


def test_a_proven_death_is_never_held() -> None:
    nodes = [f"n{i}" for i in range(4)]
    tracker = healthy(*nodes)
    proven = HealthSignals(is_live=False, is_ready=False, is_certain=True)
    for node in nodes:
        tracker.update(node, proven, now_s=10.0)
        assert tracker.verdict(node, now_s=10.0).is_evicted


def test_a_silence_that_is_proven_a_death_later_is_held_no_longer() -> None:
    tracker = healthy("a", "b", "c")
    for node in "ab":
        tracker.update(node, DEAD, now_s=10.0)
    tracker.update("a", HealthSignals(is_live=False, is_ready=False, is_certain=True), now_s=11.0)
    assert tracker.verdict("a", now_s=11.0).is_evicted
    assert tracker.verdict("b", now_s=11.0).is_evicted  # alone with its silence now


def test_who_comes_back_counts_no_more() -> None:
    tracker = healthy("a", "b", "c")
    for node in "ab":
        tracker.update(node, DEAD, now_s=10.0)
    tracker.update("b", HealthSignals(is_live=True, is_ready=True), now_s=11.0)
    assert tracker.verdict("a", now_s=12.0).is_evicted


@given(
    st.lists(st.tuples(st.integers(0, 7), st.floats(0.0, 300.0)), max_size=30),
    st.floats(0.0, 300.0),
)
def test_every_death_is_acted_on_within_the_hold(
    deaths: list[tuple[int, float]], extra_s: float
) -> None:
    config = CorrelationConfig()
    tracker = NodeHealth(config)
    for node in range(8):
        tracker.update(f"n{node}", HealthSignals(is_live=True, is_ready=True), now_s=0.0)
    first_s: dict[str, float] = {}
    for node, now_s in sorted(deaths, key=lambda death: death[1]):
        tracker.update(f"n{node}", DEAD, now_s=now_s)
        first_s.setdefault(f"n{node}", now_s)
    for name, failed_s in first_s.items():
        assert tracker.verdict(name, now_s=failed_s + config.hold_s + extra_s).is_evicted


# Progress.


def test_no_work_is_idle_for_ever() -> None:
    meter = ProgressMeter()
    meter.report(assigned=0, actions=0, now_s=0.0)
    assert meter.state(now_s=1e6) is Progress.IDLE


@pytest.mark.parametrize(
    ("after_s", "state"),
    [
        (0.0, Progress.PROGRESSING),
        (29.9, Progress.PROGRESSING),
        (30.0, Progress.STALLED),
        (119.9, Progress.STALLED),
        (120.0, Progress.STUCK),
    ],
)
def test_work_without_a_finished_action_stalls_then_is_stuck(
    after_s: float, state: Progress
) -> None:
    meter = ProgressMeter()
    meter.report(assigned=1, actions=0, now_s=100.0)
    meter.report(assigned=1, actions=0, now_s=100.0 + after_s)
    assert meter.state(now_s=100.0 + after_s) is state


def test_one_long_workflow_whose_actions_count_up_is_never_stalled() -> None:
    meter = ProgressMeter()
    for second in range(3600):
        meter.report(assigned=1, actions=second, now_s=float(second))
        assert meter.state(now_s=float(second)) is Progress.PROGRESSING


def test_an_action_ends_a_stall_and_new_work_begins_with_its_own_time() -> None:
    meter = ProgressMeter()
    meter.report(assigned=1, actions=5, now_s=0.0)
    meter.report(assigned=1, actions=6, now_s=200.0)
    assert meter.state(now_s=201.0) is Progress.PROGRESSING
    meter.report(assigned=0, actions=6, now_s=202.0)
    meter.report(assigned=1, actions=6, now_s=1000.0)
    assert meter.state(now_s=1001.0) is Progress.PROGRESSING


def test_stalled_must_come_before_stuck() -> None:
    with pytest.raises(InputError, match="stalled_s"):
        ProgressConfig(stalled_s=200.0)


# Liveness.


def test_three_misses_in_a_row_or_half_a_minute_of_silence_are_not_live() -> None:
    probed = Probed(now_s=0.0)
    probed.answered(now_s=1.0)
    probed.missed()
    probed.missed()
    assert probed.is_on(now_s=21.0)
    probed.missed()
    assert not probed.is_on(now_s=21.0)
    probed.answered(now_s=22.0)
    assert probed.is_on(now_s=51.9)
    assert not probed.is_on(now_s=52.0)


def test_a_miss_between_answers_is_forgotten() -> None:
    probed = Probed(now_s=0.0)
    for second in range(10):
        probed.answered(now_s=float(second))
        probed.missed()
        probed.missed()
    assert probed.is_on(now_s=10.0)


def test_a_start_may_take_a_hundred_and_fifty_seconds() -> None:
    probed = Probed(now_s=0.0)
    for _ in range(28):
        probed.missed()
    assert probed.is_on(now_s=140.0)
    assert not probed.is_on(now_s=151.0)


# Readiness.


@pytest.mark.parametrize(
    ("readiness", "why_not"),
    [
        (WorkerReadiness(capacity=4), ()),
        (WorkerReadiness(capacity=0), ("no free capacity",)),
        (WorkerReadiness(capacity=1, accepts_work=False), ("draining",)),
        (WorkerReadiness(capacity=1, has_joined=False), ("no manager is known",)),
        (WorkerReadiness(capacity=1, overload=Overload.STRESSED), ()),
        (WorkerReadiness(capacity=1, overload=Overload.OVERLOADED), ("overloaded",)),
        (ManagerReadiness(), ()),
        (ManagerReadiness(workers=1), ()),
        (ManagerReadiness(workers=0), ("no workers",)),
        (ManagerReadiness(workers=1, has_quorum=False), ("no quorum",)),
        (ManagerReadiness(workers=1, accepts_jobs=False), ("draining",)),
        (GateReadiness(datacenters=1), ()),
        (GateReadiness(datacenters=1, overload=Overload.BUSY), ()),
        (GateReadiness(datacenters=1, overload=Overload.STRESSED), ("stressed",)),
        (GateReadiness(datacenters=0), ("no datacenter is connected",)),
    ],
)
def test_readiness_says_why_not(
    readiness: WorkerReadiness | ManagerReadiness | GateReadiness, why_not: tuple[str, ...]
) -> None:
    assert readiness.why_not() == why_not
    assert readiness.is_ready is not bool(why_not)
