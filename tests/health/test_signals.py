"""Readiness, progress, routing and what holds an eviction."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.health.correlation import HOLD_S, CorrelationGuard
from hyperscale.health.signals import (
    ProgressMeter,
    RoutingDecision,
    WorkProgress,
    routing_decision,
    why_not_ready,
)
from hyperscale.wire.admission import OverloadLevel

# Routing.

ROWS = [
    (True, True, WorkProgress.PROGRESSING, RoutingDecision.ROUTE),
    (True, True, WorkProgress.IDLE, RoutingDecision.ROUTE),
    (True, True, WorkProgress.STALLED, RoutingDecision.INVESTIGATE),
    (True, True, WorkProgress.STUCK, RoutingDecision.DRAIN),
    (True, False, WorkProgress.PROGRESSING, RoutingDecision.HOLD),
    (True, False, WorkProgress.IDLE, RoutingDecision.HOLD),
    (True, False, WorkProgress.STALLED, RoutingDecision.HOLD),
    (True, False, WorkProgress.STUCK, RoutingDecision.DRAIN),
    *(
        (False, ready, progress, RoutingDecision.EVICT)
        for ready in (True, False)
        for progress in WorkProgress
    ),
]


@pytest.mark.parametrize(("live", "ready", "progress", "decision"), ROWS)
def test_each_combination_of_signals_leads_to_the_decision_of_the_table(
    live: bool, ready: bool, progress: WorkProgress, decision: RoutingDecision
) -> None:
    assert routing_decision(is_live=live, is_ready=ready, progress=progress) is decision


GRAVITY = list(RoutingDecision)


@given(st.booleans(), st.booleans(), st.sampled_from(WorkProgress))
def test_a_worse_signal_never_leads_to_a_milder_decision(
    live: bool, ready: bool, progress: WorkProgress
) -> None:
    better = routing_decision(is_live=live, is_ready=ready, progress=progress)
    order = list(WorkProgress)
    worse = [
        routing_decision(is_live=False, is_ready=ready, progress=progress),
        routing_decision(is_live=live, is_ready=False, progress=progress),
        *(
            routing_decision(is_live=live, is_ready=ready, progress=each)
            for each in order[order.index(progress) :]
        ),
    ]
    for decision in worse:
        assert GRAVITY.index(decision) >= GRAVITY.index(better)


# Correlation: what holds an eviction.


def silent(*failures: tuple[str, float]) -> CorrelationGuard:
    """Nodes that fell silent, each at its time."""
    guard = CorrelationGuard()
    for node, now_s in failures:
        guard.failed(node, is_certain=False, now_s=now_s)
    return guard


def test_a_node_that_never_failed_is_not_held() -> None:
    assert not CorrelationGuard().is_held("a", nodes=1, now_s=0.0)


@pytest.mark.parametrize(
    ("known", "failing", "is_held"),
    [(1, 1, False), (2, 1, False), (3, 2, True), (4, 1, False), (4, 2, False), (4, 3, True)],
)
def test_many_failing_at_once_hold_each_others_eviction(
    known: int, failing: int, is_held: bool
) -> None:
    guard = silent(*((f"n{i}", 10.0) for i in range(failing)))
    assert guard.is_held("n0", nodes=known, now_s=11.0) is is_held


def test_three_of_many_within_half_a_minute_are_held() -> None:
    guard = silent(("a", 0.0), ("b", 10.0), ("c", 20.0))
    assert guard.is_held("c", nodes=100, now_s=21.0)


def test_failures_far_apart_are_not_held() -> None:
    guard = silent(("a", 0.0), ("b", 31.0), ("c", 62.0))
    for node, failed_s in (("a", 0.0), ("b", 31.0), ("c", 62.0)):
        assert not guard.is_held(node, nodes=10, now_s=failed_s + 1)


def test_a_hold_ends_after_half_a_minute() -> None:
    guard = silent(("a", 10.0), ("b", 10.0))
    assert guard.is_held("a", nodes=3, now_s=39.9)
    assert not guard.is_held("a", nodes=3, now_s=40.0)


def test_a_repeated_failure_does_not_extend_the_hold() -> None:
    guard = silent(*((node, float(now_s)) for now_s in range(10, 41) for node in "ab"))
    assert not guard.is_held("a", nodes=3, now_s=40.0)


def test_a_certain_death_is_never_held() -> None:
    guard = CorrelationGuard()
    for node in "abcd":
        guard.failed(node, is_certain=True, now_s=10.0)
        assert not guard.is_held(node, nodes=4, now_s=10.0)


def test_a_certain_death_ends_the_hold_of_a_silent_node() -> None:
    guard = silent(("a", 10.0), ("b", 10.0))
    guard.failed("a", is_certain=True, now_s=11.0)
    assert not guard.is_held("a", nodes=3, now_s=11.0)
    assert not guard.is_held("b", nodes=3, now_s=11.0)  # alone with its silence now


def test_a_recovered_node_counts_no_more() -> None:
    guard = silent(("a", 10.0), ("b", 10.0))
    guard.recovered("b")
    assert guard.suspects(now_s=1.0) == ["a"]
    assert not guard.is_held("a", nodes=3, now_s=12.0)


@given(
    st.lists(st.tuples(st.integers(0, 7), st.floats(0.0, 300.0)), max_size=30),
    st.floats(0.0, 300.0),
)
def test_no_node_is_held_longer_than_the_hold(
    deaths: list[tuple[int, float]], extra_s: float
) -> None:
    told = [(f"n{node}", now_s) for node, now_s in sorted(deaths, key=lambda death: death[1])]
    guard = silent(*told)
    first_s: dict[str, float] = {}
    for name, now_s in told:
        first_s.setdefault(name, now_s)
    for name, failed_s in first_s.items():
        ended_s = failed_s + HOLD_S + extra_s
        assert not guard.is_held(name, nodes=8, now_s=ended_s)


# Progress.


def test_a_node_without_work_is_idle() -> None:
    meter = ProgressMeter()
    meter.report(assigned=0, actions=0, now_s=0.0)
    assert meter.state(now_s=1e6) is WorkProgress.IDLE


@pytest.mark.parametrize(
    ("after_s", "state"),
    [
        (0.0, WorkProgress.PROGRESSING),
        (29.9, WorkProgress.PROGRESSING),
        (30.0, WorkProgress.STALLED),
        (119.9, WorkProgress.STALLED),
        (120.0, WorkProgress.STUCK),
    ],
)
def test_work_without_a_finished_action_is_stalled_and_then_stuck(
    after_s: float, state: WorkProgress
) -> None:
    meter = ProgressMeter()
    meter.report(assigned=1, actions=0, now_s=100.0)
    meter.report(assigned=1, actions=0, now_s=100.0 + after_s)
    assert meter.state(now_s=100.0 + after_s) is state


def test_a_long_workflow_whose_actions_finish_is_never_stalled() -> None:
    meter = ProgressMeter()
    for second in range(3600):
        meter.report(assigned=1, actions=second, now_s=float(second))
        assert meter.state(now_s=float(second)) is WorkProgress.PROGRESSING


def test_a_finished_action_or_new_work_ends_a_stall() -> None:
    meter = ProgressMeter()
    meter.report(assigned=1, actions=5, now_s=0.0)
    meter.report(assigned=1, actions=6, now_s=200.0)
    assert meter.state(now_s=201.0) is WorkProgress.PROGRESSING
    meter.report(assigned=0, actions=6, now_s=202.0)
    meter.report(assigned=1, actions=6, now_s=1000.0)
    assert meter.state(now_s=1001.0) is WorkProgress.PROGRESSING


# Readiness.


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({}, ()),
        ({"has_joined": False}, ("no manager is known",)),
        ({"is_leaving": True}, ("draining",)),
        ({"overload": OverloadLevel.STRESSED}, ()),
        ({"overload": OverloadLevel.OVERLOADED}, ("overloaded",)),
        ({"is_leaving": True, "overload": OverloadLevel.OVERLOADED}, ("draining", "overloaded")),
    ],
)
def test_a_node_that_is_not_ready_names_every_reason(
    changes: dict[str, Any], reasons: tuple[str, ...]
) -> None:
    ready = {"has_joined": True, "is_leaving": False, "overload": OverloadLevel.HEALTHY}
    assert why_not_ready(**{**ready, **changes}) == reasons


def test_a_node_that_fell_silent_long_ago_is_forgotten() -> None:
    guard = CorrelationGuard()
    guard.failed("old", is_certain=False, now_s=0.0)
    guard.failed("new", is_certain=False, now_s=50.0)
    assert guard.suspects(now_s=59.0) == ["old", "new"]
    assert guard.suspects(now_s=61.0) == ["new"]
