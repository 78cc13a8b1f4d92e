"""One suspicion: its witnesses, its deadline, and what may move it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.membership.suspicion import Suspicion


def suspicion(*, wanted: int = 3, multiplier: float = 1.0) -> Suspicion:
    return Suspicion("a", now_s=100.0, min_s=6.0, max_s=12.0, wanted=wanted, multiplier=multiplier)


def test_a_suspicion_starts_at_the_maximum_and_shrinks_with_each_witness() -> None:
    doubt = suspicion()
    assert doubt.deadline_s == 112.0
    assert doubt.confirm("b", 1.0)
    assert doubt.deadline_s == pytest.approx(109.0)
    assert doubt.confirm("c", 1.0)
    assert doubt.confirm("d", 1.0)
    assert doubt.deadline_s == pytest.approx(106.0)


def test_a_witness_counts_once() -> None:
    doubt = suspicion()
    for _ in range(100):
        assert not doubt.confirm("a", 1.0)
    doubt.confirm("b", 1.0)
    for _ in range(100):
        assert not doubt.confirm("b", 1.0)
    assert doubt.deadline_s == pytest.approx(109.0)


def test_more_witnesses_than_wanted_change_nothing() -> None:
    doubt = suspicion(wanted=1)
    assert doubt.confirm("b", 1.0)
    assert not doubt.confirm("c", 1.0)
    assert list(doubt.witnesses) == ["a", "b"]


def test_poor_local_health_lengthens_a_suspicion_up_to_the_maximum() -> None:
    doubt = suspicion(wanted=0, multiplier=1.5)
    assert doubt.deadline_s == 109.0
    assert suspicion(wanted=0, multiplier=3.0).deadline_s == 112.0


def test_the_verdict_of_another_member_shortens_a_suspicion_to_the_minimum() -> None:
    doubt = suspicion(multiplier=3.0)
    doubt.shorten()
    assert doubt.deadline_s == 106.0


def test_stalls_of_this_node_extend_a_suspicion_up_to_a_bound() -> None:
    doubt = suspicion()
    doubt.extend(5.0, most_s=8.0)
    assert doubt.deadline_s == 117.0
    doubt.extend(5.0, most_s=8.0)
    assert doubt.deadline_s == 120.0
    doubt.extend(5.0, most_s=8.0)
    assert doubt.deadline_s == 120.0
    doubt.shorten()
    assert doubt.deadline_s == 114.0


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.floats(1.0, 3.0)), max_size=40))
def test_witnesses_never_move_the_deadline_later(heard: list[tuple[str, float]]) -> None:
    doubt = suspicion()
    last_s = doubt.deadline_s
    for by, multiplier in heard:
        doubt.confirm(by, multiplier)
        assert 106.0 <= doubt.deadline_s <= last_s
        last_s = doubt.deadline_s
