"""Shapes of load: users and arrivals as functions of time, split over slots."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale._native import arrival_times
from hyperscale.plan import share
from hyperscale.plan.shapes import Arrivals, Shape, StagePlan, constant, slot_users

durations = st.one_of(st.just(0.0), st.floats(0.1, 60))
user_stages = st.lists(
    st.builds(StagePlan, duration_s=durations, target=st.integers(0, 60)), min_size=1, max_size=5
)
rate_stages = st.lists(
    st.builds(StagePlan, duration_s=durations, target=st.floats(0, 50)), min_size=1, max_size=5
)
slots = st.integers(1, 7)


def stages(*pairs: tuple[float, float]) -> list[StagePlan]:
    return [StagePlan(duration_s=duration_s, target=target) for duration_s, target in pairs]


def due_times(
    shape: list[StagePlan], slots: int, slot: int, seed: int | None = None
) -> list[float]:
    arrivals, found = Arrivals(shape, slots, slot, seed=seed), []
    while (due_s := arrivals.next_s()) is not None:
        found.append(due_s)
        arrivals.advance()
    return found


def test_a_ramp_adds_its_users_one_by_one_and_a_jump_all_at_once() -> None:
    ramp = list(slot_users(stages((10, 5), (5, 5), (10, 0)), 1, 0))
    assert ramp == [
        (0, 1),
        (2, 2),
        (4, 3),
        (6, 4),
        (8, 5),
        (17, 4),
        (19, 3),
        (21, 2),
        (23, 1),
        (25, 0),
    ]
    assert list(slot_users(stages((0, 3), (9, 3)), 1, 0)) == [(0, 1), (0, 2), (0, 3), (9, 0)]


@given(user_stages, slots, st.floats(0, 1))
def test_every_slot_has_its_share_of_the_users_at_any_time(
    shape: list[StagePlan], slots: int, moment: float
) -> None:
    whole = Shape(shape)
    at_s = moment * whole.duration_s
    changes = [list(slot_users(shape, slots, slot)) for slot in range(slots)]
    times_s = [time_s for each in changes for time_s, _ in each]
    if any(abs(at_s - time_s) < 1e-6 for time_s in times_s) or at_s >= whole.duration_s:
        return  # users change at this very moment
    counts = [
        next((count for time_s, count in reversed(each) if time_s <= at_s), 0) for each in changes
    ]
    users = whole.users_at(at_s)
    assert counts == [share(users, slots, slot) for slot in range(slots)]


@given(user_stages, slots)
def test_changes_of_users_are_in_order_and_by_one(shape: list[StagePlan], slots: int) -> None:
    for slot in range(slots):
        changes = list(slot_users(shape, slots, slot))
        assert all(one[0] <= other[0] + 1e-9 for one, other in pairwise(changes))
        counts = [0, *(count for _, count in changes)]
        # The end of the shape takes all users away at once.
        assert all(abs(a - b) == 1 for a, b in pairwise(counts[:-1]))
        assert counts[-1] == 0


def test_even_arrivals_of_a_constant_rate_are_equally_far_apart() -> None:
    due_s = due_times([*constant(500, 2)], 1, 0)
    assert len(due_s) == 1000
    assert due_s == pytest.approx([n / 500 for n in range(1000)])


@given(rate_stages)
def test_the_time_of_an_area_is_the_inverse_of_the_area(shape: list[StagePlan]) -> None:
    whole = Shape(shape)
    for n in range(0, math.ceil(whole.area), max(1, math.ceil(whole.area / 20))):
        due_s = whole.time_of(n)
        if due_s is not None:
            assert whole.area_until(due_s) == pytest.approx(n, abs=1e-5)


@given(rate_stages, slots)
def test_slots_deal_the_arrivals_in_turn(shape: list[StagePlan], slots: int) -> None:
    alone = due_times(shape, 1, 0)
    assert len(alone) == max(0, math.ceil(Shape(shape).area - 1e-6))
    assert alone == sorted(alone)
    for slot in range(slots):
        assert due_times(shape, slots, slot) == alone[slot::slots]


@given(rate_stages, slots, st.floats(0, 100), st.one_of(st.none(), st.integers(0, 9)))
def test_a_slot_that_begins_later_finds_its_place(
    shape: list[StagePlan], slots: int, at_s: float, seed: int | None
) -> None:
    whole = due_times(shape, slots, 0, seed)
    late = Arrivals(shape, slots, 0, seed=seed)
    skipped = late.skip_until(at_s)
    assert late.next_s() == next((due_s for due_s in whole if due_s >= at_s), None) or any(
        abs(due_s - at_s) < 1e-5 for due_s in whole
    )
    assert abs(skipped - sum(due_s < at_s for due_s in whole)) <= any(
        abs(due_s - at_s) < 1e-5 for due_s in whole
    )


def test_poisson_arrivals_have_the_rate_and_the_spread_of_a_poisson_process() -> None:
    shape = [*constant(200, 100)]
    per_slot = [due_times(shape, 4, slot, 7) for slot in range(4)]
    together = sorted(due_s for each in per_slot for due_s in each)
    assert len(together) == pytest.approx(20_000, rel=0.03)
    gaps = [other - one for one, other in pairwise(together)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert math.sqrt(variance) == pytest.approx(mean, rel=0.05)  # exponential gaps
    assert due_times(shape, 4, 1, 7) == per_slot[1] != due_times(shape, 4, 1, 8)


@given(
    rate_stages,
    slots,
    st.integers(0, 6),
    st.one_of(st.none(), st.integers(0, 2**32 - 1)),
    st.floats(0, 100),
    st.floats(0, 0.99),
)
def test_the_native_arrivals_are_the_same(
    shape: list[StagePlan], slots: int, slot: int, seed: int | None, from_s: float, phase: float
) -> None:
    slot %= slots
    arrivals, expected = Arrivals(shape, slots, slot, seed=seed, phase=phase), []
    arrivals.skip_until(from_s)
    while (due_s := arrivals.next_s()) is not None and len(expected) < 200:
        expected.append(due_s)
        arrivals.advance()
    pairs = [(stage.duration_s, stage.target) for stage in shape]
    native = arrival_times(pairs, slots, slot, seed=seed, from_s=from_s, count=200, phase=phase)
    assert native == pytest.approx(expected, abs=1e-9)
