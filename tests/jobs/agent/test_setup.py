"""Setup that runs once per workflow, on the worker: announce, wait, go on."""

from hyperscale.jobs.agent.events import AttemptSetUp, ShareWithAttempt
from hyperscale.jobs.messages import (
    AnnounceReady,
    AnnounceSetUp,
    DeliverResult,
    PartPhase,
    Refusal,
)
from tests.lab.agent_world import (
    AgentWorld,
    attempt_id,
    list_attempts,
    prepare,
    share,
    start,
    stop,
)


def shared(world: AgentWorld) -> list[bytes]:
    return [each.context for each in world.effects if isinstance(each, ShareWithAttempt)]


def test_an_attempt_announces_what_setup_left_until_it_may_go_on_and_goes_on_once() -> None:
    world = AgentWorld()
    world.part(prepare())
    world.feed(AttemptSetUp(attempt_id(), b"left"))
    world.wait(2.5)
    announced = world.sent(AnnounceSetUp)
    assert [message.context for message in announced] == [b"left"] * 3
    assert world.part(start()).refusal is Refusal.INVALID
    assert world.part(share()).accepted
    assert world.part(share()).accepted  # repeated
    assert shared(world) == [b"left"]
    world.wait(2.5)
    assert world.sent(AnnounceSetUp) == announced
    world.get_ready()
    assert len(world.sent(AnnounceReady)) == 1


def test_a_new_leader_is_told_what_setup_left() -> None:
    world = AgentWorld()
    world.part(prepare())
    world.feed(AttemptSetUp(attempt_id(), b"left"))
    (view,) = world.command(list_attempts(term=2), sender="m2").parts
    assert view.phase is PartPhase.SETTING_UP
    world.wait(0.1)
    assert world.sent(AnnounceSetUp)[-1].context == b"left"


def test_an_attempt_that_is_stopped_before_the_commit_says_what_setup_left_in_its_result() -> None:
    world = AgentWorld()
    world.part(prepare())
    world.feed(AttemptSetUp(attempt_id(), b"left"))
    world.part(stop())
    world.fail_to_prepare(error="stopped while preparing")
    assert [result.set_up for result in world.sent(DeliverResult)] == [b"left"]


def test_a_failed_preparation_says_what_setup_left_although_nothing_was_counted() -> None:
    world = AgentWorld()
    world.part(prepare())
    world.feed(AttemptSetUp(attempt_id(), b"left"))
    world.fail_to_prepare(error="an executor died", is_retryable=True)
    (result,) = world.sent(DeliverResult)
    assert (result.set_up, result.report, result.is_retryable) == (b"left", None, True)


def test_teardown_has_a_slot_of_its_own() -> None:
    world = AgentWorld()
    command = prepare(first_slot=1, slots=1, set_up=b"left", tears_down=True)
    assert world.part(command).accepted
    assert world.part(prepare(attempt_id(2), first_slot=1, slots=1)).refusal is Refusal.INVALID
