"""How many progress updates a program gets."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from hyperscale.client.push_limit import BURST, PUSHES_PER_S, PushLimit


@given(st.integers(1, 200), st.lists(st.floats(0.1, 2.0), min_size=1, max_size=60))
def test_no_more_than_twenty_updates_a_second_and_a_burst_are_passed_on(
    workflows: int, pauses_s: list[float]
) -> None:
    limit, now_s, passed = PushLimit(), 0.0, 0
    for pause_s in pauses_s:
        passed += len(limit.admit(range(workflows), now_s=now_s))
        now_s += pause_s
    assert passed <= now_s * PUSHES_PER_S + BURST


def test_eight_workflows_get_every_update_and_a_hundred_take_turns() -> None:
    limit = PushLimit()
    assert len(limit.admit(range(8), now_s=0.0)) == BURST
    for turn in range(1, 20):
        assert len(limit.admit(range(8), now_s=turn * 0.5)) == 8
    many, counts = PushLimit(), Counter[int]()
    for turn in range(100):
        counts.update(many.admit(range(100), now_s=turn * 0.5))
    assert max(counts.values()) - min(counts.values()) <= 1
