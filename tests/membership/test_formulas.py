"""The numbers of membership, as tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.membership import formulas
from hyperscale.membership.formulas import UNCONFIRMED_S
from hyperscale.wire.roles import Role


@pytest.mark.parametrize(
    ("members", "wanted"), [(1, 0), (2, 0), (3, 1), (4, 2), (5, 3), (6, 3), (1000, 3)]
)
def test_no_more_witnesses_are_wanted_than_there_can_be(members: int, wanted: int) -> None:
    assert formulas.confirmations_wanted(members, 3) == wanted


@pytest.mark.parametrize(
    ("confirmations", "wanted", "lasts_s"),
    [
        (0, 3, 12.0),
        (1, 3, 9.0),
        (2, 3, 7.245),
        (3, 3, 6.0),
        (9, 3, 6.0),
        (0, 1, 12.0),
        (1, 1, 6.0),
        (0, 0, 6.0),
    ],
)
def test_a_suspicion_shrinks_with_each_witness(
    confirmations: int, wanted: int, lasts_s: float
) -> None:
    found_s = formulas.suspicion_s(6.0, 12.0, confirmations, wanted)
    assert found_s == pytest.approx(lasts_s, abs=0.001)


@given(st.integers(0, 20), st.integers(0, 20))
def test_more_witnesses_never_lengthen_a_suspicion(confirmations: int, wanted: int) -> None:
    first_s = formulas.suspicion_s(6.0, 12.0, confirmations, wanted)
    second_s = formulas.suspicion_s(6.0, 12.0, confirmations + 1, wanted)
    assert 6.0 <= second_s <= first_s <= 12.0


@pytest.mark.parametrize(("score", "factor"), [(0, 1.0), (2, 1.5), (4, 2.0), (8, 3.0)])
def test_timeouts_grow_with_the_health_score(score: int, factor: float) -> None:
    assert formulas.health_multiplier(score) == factor


def test_the_round_trip_is_added_to_the_probe_timeout() -> None:
    assert formulas.probe_timeout_s(0.5, 0.0) == 0.5
    assert formulas.probe_timeout_s(0.5, 0.1) == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("members", "times"), [(1, 10), (3, 10), (9, 10), (50, 18), (128, 22), (1000, 30)]
)
def test_updates_are_sent_more_often_in_a_larger_cluster(members: int, times: int) -> None:
    assert formulas.transmissions(members, 3.0) == times


@pytest.mark.parametrize(
    ("members", "chance"), [(2, 1.0), (5, 1.0), (10, 1.0), (18, 0.5), (802, 0.01)]
)
def test_about_eight_members_verify_a_suspicion_at_once(members: int, chance: float) -> None:
    assert formulas.verify_chance(members, 3) == chance


@pytest.mark.parametrize(
    ("members", "every_s"), [(1, 30), (32, 30), (33, 60), (64, 60), (65, 90), (1000, 180)]
)
def test_push_pulls_are_rarer_in_a_larger_cluster(members: int, every_s: int) -> None:
    assert formulas.push_pull_s(30.0, members) == every_s


@pytest.mark.parametrize(
    ("attempt", "least_s", "most_s"),
    [(1, 0.5, 0.625), (2, 1, 1.25), (3, 2, 2.5), (4, 4, 5), (5, 8, 10), (6, 15, 18.75)],
)
def test_waits_double_up_to_a_cap_with_a_quarter_of_jitter(
    attempt: int, least_s: float, most_s: float
) -> None:
    assert formulas.backoff_s(0.5, 15.0, attempt, 0.0) == least_s
    assert formulas.backoff_s(0.5, 15.0, attempt, 1.0) == most_s
    assert formulas.backoff_s(0.5, 15.0, 10_000, 1.0) == 18.75


def test_first_pings_to_a_new_member_are_spread_over_time() -> None:
    assert formulas.contact_within_s(3) == pytest.approx(0.06)
    assert formulas.contact_within_s(1000) == 20.0
    assert formulas.contact_within_s(100_000) == 30.0


def test_members_that_were_unreachable_push_pull_soon_but_spread() -> None:
    assert formulas.catch_up_within_s(10) == pytest.approx(0.55)
    assert formulas.catch_up_within_s(100) == 1.0
    assert formulas.catch_up_within_s(10_000) == 5.0


def test_every_role_that_can_be_a_member_may_stay_unconfirmed_for_a_while() -> None:
    assert UNCONFIRMED_S == {Role.MANAGER: 105.0, Role.GATE: 145.0, Role.WORKER: 180.0}
