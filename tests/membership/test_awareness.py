"""How well this node thinks it is."""

from hypothesis import given
from hypothesis import strategies as st

from hyperscale.membership.context import Awareness


def test_only_evidence_about_this_node_changes_its_health_score() -> None:
    health = Awareness()
    health.nacks_missed(0)
    assert health.score == 0
    health.nacks_missed(2)
    health.refuted()
    health.stalled(0.6)
    health.stalled(3.0)
    assert health.score == 6
    health.probe_answered()
    assert health.score == 5


def test_a_maximum_score_of_zero_turns_local_health_off() -> None:
    health = Awareness(0)
    health.nacks_missed(3)
    assert (health.score, health.multiplier) == (0, 1.0)


@given(st.lists(st.sampled_from(["ack", "nack", "refute", "stall"]), max_size=60))
def test_the_score_stays_within_its_bounds(events: list[str]) -> None:
    health = Awareness()
    for event in events:
        match event:
            case "ack":
                health.probe_answered()
            case "nack":
                health.nacks_missed(3)
            case "refute":
                health.refuted()
            case _:
                health.stalled(5.0)
        assert 0 <= health.score <= 8
        assert 1.0 <= health.multiplier <= 3.0
