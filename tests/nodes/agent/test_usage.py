"""Counts of the actions that a worker has finished."""

from hyperscale.jobs.messages import AttemptId
from hyperscale.nodes.agent.usage import ActionCount

ONE, OTHER = (AttemptId(f"dc.1-{name}", "Load", 0, 1) for name in "ab")


def test_actions_of_ended_attempts_stay_counted() -> None:
    actions = ActionCount()
    actions.note(ONE, 0, 5)
    actions.note(ONE, 1, 7)
    actions.note(OTHER, 2, 1)
    actions.note(OTHER, 2, 3)
    assert (actions.executors, actions.total) == (3, 15)
    actions.keep([OTHER])
    assert (actions.executors, actions.total) == (1, 15)
    actions.keep([])
    assert (actions.executors, actions.total) == (0, 15)
