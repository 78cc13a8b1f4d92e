"""The transition table of an attempt on its worker."""

from itertools import product

import pytest

from hyperscale.errors import InvariantError
from hyperscale.jobs.agent.attempts import (
    ATTEMPT_MOVES,
    AttemptOnWorker,
    AttemptState,
    OutputBuffer,
)
from hyperscale.jobs.agent.events import AttemptSetUp
from hyperscale.jobs.agent.statistics import AttemptStatistics
from hyperscale.jobs.messages import PartPhase
from hyperscale.plan.status import PartStatus
from tests.lab.agent_world import AgentWorld, attempt_id, prepare, share, stop

MOVES = list(product(AttemptState, AttemptState))
LEGAL = [(state, other) for state, other in MOVES if other in ATTEMPT_MOVES[state]]


def attempt_in(state: AttemptState) -> AttemptOnWorker:
    return AttemptOnWorker(
        command=prepare(),
        places=(0,),
        state=state,
        lease_until_s=8.0,
        statistics=AttemptStatistics("Load", 0),
        output=OutputBuffer(first=1, now_s=0.0),
    )


@pytest.mark.parametrize(("state", "other"), LEGAL)
def test_a_legal_move_changes_the_state(state: AttemptState, other: AttemptState) -> None:
    attempt = attempt_in(state)
    attempt.become(other)
    assert attempt.state is other


@pytest.mark.parametrize(("state", "other"), [move for move in MOVES if move not in LEGAL])
def test_an_illegal_move_is_refused(state: AttemptState, other: AttemptState) -> None:
    attempt = attempt_in(state)
    with pytest.raises(InvariantError, match=f"{state.name} -> {other.name}"):
        attempt.become(other)
    assert attempt.state is state


@pytest.mark.parametrize("state", AttemptState)
def test_job_leaders_see_a_phase_for_every_state(state: AttemptState) -> None:
    assert attempt_in(state).phase is not PartPhase.UNKNOWN


def test_every_legal_move_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    moves: set[tuple[AttemptState, AttemptState]] = set()
    become = AttemptOnWorker.become

    def note(attempt: AttemptOnWorker, state: AttemptState) -> None:
        moves.add((attempt.state, state))
        become(attempt, state)

    monkeypatch.setattr(AttemptOnWorker, "become", note)
    completes, fails, superseded, dies = (AgentWorld() for _ in range(4))
    ready, refused, stopped = (AgentWorld() for _ in range(3))
    for world in (ready, refused, stopped):
        world.part(prepare())
        world.feed(AttemptSetUp(attempt_id(), b"left"))
    ready.part(share())
    ready.get_ready()
    refused.fail_to_prepare()
    stopped.part(stop())
    completes.runs()
    completes.end()
    fails.part(prepare())
    fails.fail_to_prepare()
    superseded.runs()
    superseded.part(prepare(attempt_id(2)))
    superseded.part(prepare(attempt_id(3)))  # attempt 2 ends while it waits
    superseded.obey_stops()
    superseded.part(stop(attempt_id(3)))  # while it prepares
    dies.part(prepare())
    dies.get_ready()
    dies.end(status=PartStatus.FAILED, is_dead=True)
    dies.part(prepare(attempt_id(2)))
    dies.get_ready(attempt_id(2))
    dies.part(stop(attempt_id(2)))
    assert moves == set(LEGAL)
