"""The shape of a workflow with changes of its load: scaled, paused, resumed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.errors import InputError
from hyperscale.plan import StagePlan, WorkflowPlan
from hyperscale.plan.changes import (
    AppliedChange,
    ChangeKind,
    LoadChange,
    LoadSchedule,
    applied,
    scaled,
    shifted,
)
from hyperscale.plan.shapes import Shape, constant

SCALE, PAUSE, RESUME = ChangeKind.SCALE, ChangeKind.PAUSE, ChangeKind.RESUME


def plan(name: str = "Shop", **settings: object) -> WorkflowPlan:
    given: dict[str, object] = {"vus": 10, "duration_s": 60.0, "timeout_s": 30.0, **settings}
    return WorkflowPlan(name=name, **given)  # type: ignore[arg-type]


def change(kind: ChangeKind, at_s: float, **rest: float) -> AppliedChange:
    return AppliedChange(kind=kind, at_s=at_s, **rest)  # type: ignore[arg-type]


def test_a_pause_stops_the_place_and_moves_the_end() -> None:
    schedule = LoadSchedule(plan(), [change(PAUSE, 10.0), change(RESUME, 25.0)])
    assert [schedule.place_s(at_s) for at_s in (5.0, 10.0, 20.0, 25.0, 30.0)] == [5, 10, 10, 10, 15]
    assert schedule.remaining_s(30.0) == 45.0
    assert schedule.paused_s(40.0) == 15.0


def test_a_paused_workflow_has_no_end() -> None:
    schedule = LoadSchedule(plan(), [change(PAUSE, 10.0)])
    assert schedule.is_paused
    assert schedule.remaining_s(12.0) is None
    assert schedule.at_s(5.0) == 5.0


def test_scaling_replaces_the_rest_of_the_shape() -> None:
    schedule = LoadSchedule(plan(), [change(SCALE, 20.0, target=30.0, over_s=10.0)])
    shape = Shape(schedule.stages)
    values = [shape.value_at(place_s) for place_s in (0.0, 19.9, 25.0, 30.0, 59.9)]
    assert values == pytest.approx([10.0, 10.0, 20.0, 30.0, 30.0])
    assert (shape.duration_s, schedule.vus) == (60.0, 30)


def test_a_scale_down_keeps_room_for_the_users_that_were_there() -> None:
    assert LoadSchedule(plan(), [change(SCALE, 20.0, target=2.0)]).vus == 10


def test_scaling_in_a_pause_takes_effect_when_the_load_goes_on() -> None:
    changes = [change(PAUSE, 10.0), change(SCALE, 15.0, target=20.0), change(RESUME, 30.0)]
    schedule = LoadSchedule(plan(), changes)
    assert schedule.target_at(schedule.place_s(20.0)) == 20.0
    assert schedule.target_at(9.0) == 10.0


@given(
    st.lists(st.tuples(st.floats(0.1, 20.0), st.floats(0.0, 100.0)), min_size=1, max_size=5),
    st.floats(0.0, 1.0),
    st.floats(0.0, 200.0),
    st.floats(0.0, 50.0),
)
def test_scaled_stages_agree_with_the_old_ones_before_the_change_and_end_with_them(
    stages: list[tuple[float, float]], share: float, target: float, over_s: float
) -> None:
    before = [StagePlan(duration_s=duration_s, target=value) for duration_s, value in stages]
    old = Shape(before)
    place_s = old.duration_s * share
    new = Shape(scaled(before, place_s, target=target, over_s=over_s))
    assert new.duration_s == pytest.approx(old.duration_s)
    for fraction in (0.0, 0.3, 0.7) if place_s > 1e-3 else ():
        at_s = place_s * fraction
        assert new.value_at(at_s) == pytest.approx(old.value_at(at_s), abs=1e-6)
    assert new.area_until(place_s) == pytest.approx(old.area_until(place_s), abs=1e-5)
    if place_s + over_s < old.duration_s - 1e-3:
        assert new.value_at(old.duration_s - 1e-4) == pytest.approx(target, abs=1e-6)


@given(st.lists(st.floats(0.01, 30.0), min_size=1, max_size=8), st.floats(0.0, 60.0))
def test_the_own_time_of_a_place_is_where_the_place_is_left(
    gaps_s: list[float], place_s: float
) -> None:
    at_s, changes = 0.0, []
    for number, gap_s in enumerate(gaps_s):
        at_s += gap_s
        changes.append(change(RESUME if number % 2 else PAUSE, at_s))
    schedule = LoadSchedule(plan(), changes)
    own_s = schedule.at_s(place_s)
    if own_s is not None:
        assert schedule.place_s(own_s) == pytest.approx(place_s, abs=1e-6)


def test_changes_move_with_a_part_that_runs_behind() -> None:
    (moved,) = shifted([change(PAUSE, 30.0)], 5.0)
    assert LoadSchedule(plan(), [moved]).place_s(40.0) == 25.0


def asked(**given: object) -> LoadChange:
    return LoadChange(id="1", kind=SCALE, **given)  # type: ignore[arg-type]


def test_a_total_is_split_by_weights() -> None:
    plans = [plan("Browse", weight=3.0), plan("Buy", weight=1.0)]
    found = applied(asked(vus=10), plans, ["Browse", "Buy"], is_paused=False)
    assert sum(found.values()) == 10
    assert found["Browse"] in (7.0, 8.0)


@pytest.mark.parametrize(
    ("wanted", "plans", "message"),
    [
        (asked(rate=5.0), [plan()], "Shop has users and no rate"),
        (asked(vus=5), [plan(is_open=True, stages=constant(5, 60))], "Shop has a rate"),
        (asked(vus=5), [plan(iterations=100)], "ends after its iterations"),
        (asked(vus=5, workflow="Shp"), [plan()], "there is no workflow Shp"),
        (asked(vus=5), [plan("A"), plan("B")], "there are several workflows"),
        (asked(vus=5, rate=1.0), [plan()], "and not both"),
        (asked(), [plan()], "and not both"),
        (asked(vus=-1), [plan()], "-1 is no target"),
        (asked(vus=5, over_s=-1.0), [plan()], "cannot change over -1 s"),
        (LoadChange(id="1", kind=PAUSE, vus=5), [plan()], "has no target"),
        (LoadChange(id="1", kind=RESUME), [plan()], "the load is not paused"),
        (asked(vus=5), [plan(is_test=False)], "no workflow is left"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(
    wanted: LoadChange, plans: list[WorkflowPlan], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        applied(wanted, plans, [each.name for each in plans], is_paused=False)


def test_an_ended_workflow_and_a_second_pause_are_refused() -> None:
    with pytest.raises(InputError, match="Shop has ended"):
        applied(asked(vus=5, workflow="Shop"), [plan()], [], is_paused=False)
    with pytest.raises(InputError, match="paused already"):
        applied(LoadChange(id="1", kind=PAUSE), [plan()], ["Shop"], is_paused=True)
