"""The agent: a worker with an executor that does not report says that it is stuck."""

from hyperscale.health.signals import WorkProgress
from hyperscale.jobs.agent.events import UsageMeasured
from hyperscale.jobs.agent.executor_watch import STUCK_S
from hyperscale.jobs.messages import AnnounceCores
from tests.lab.agent_world import AgentWorld, attempt_id, renew


def announced(world: AgentWorld) -> AnnounceCores:
    return world.sent(AnnounceCores)[-1]


def wait_reporting(world: AgentWorld, seconds: int, *places: int) -> None:
    """Let time pass, in which these executors report once a second that nothing has finished."""
    for _ in range(seconds):
        world.wait(1.0)
        world.command(renew(attempt_id()))
        for place in places:
            world.report(attempt_id(), place, 0)


def test_an_executor_that_does_not_report_makes_its_worker_stuck_until_it_does() -> None:
    world = AgentWorld()
    world.runs(cores=2)
    wait_reporting(world, 2, 0, 1)
    assert announced(world).progress is not WorkProgress.STUCK
    wait_reporting(world, round(STUCK_S) + 1, 0)
    assert announced(world).progress is WorkProgress.STUCK
    assert announced(world).still == "an executor of Load of dc.1-a has not reported for 3 s"
    wait_reporting(world, 2, 0, 1)
    assert announced(world).progress is not WorkProgress.STUCK


def test_a_target_that_hangs_for_long_makes_no_worker_stuck() -> None:
    world = AgentWorld()
    world.runs(cores=2)
    wait_reporting(world, 180, 0, 1)
    assert all(each.progress is not WorkProgress.STUCK for each in world.sent(AnnounceCores))


def test_an_agent_that_was_suspended_blames_no_executor() -> None:
    world = AgentWorld()
    world.runs(cores=1)
    wait_reporting(world, 1, 0)
    world.now_s += 5.0
    world.command(renew(attempt_id()))
    assert announced(world).progress is not WorkProgress.STUCK
    wait_reporting(world, 2, 0)
    assert announced(world).progress is not WorkProgress.STUCK


def test_an_executor_that_has_ended_is_not_missed() -> None:
    world = AgentWorld()
    world.runs(cores=2)
    wait_reporting(world, 1, 0, 1)
    world.end(places=(1,))
    wait_reporting(world, 6, 0)
    assert announced(world).progress is not WorkProgress.STUCK


def test_overload_and_stalls_are_announced_with_their_reason() -> None:
    world = AgentWorld()
    measured = UsageMeasured(
        1.0, 0.5, overloaded="overloaded: its event loop lags", progress=WorkProgress.STALLED
    )
    world.feed(measured)
    world.wait(1.0)
    assert announced(world).overloaded == "overloaded: its event loop lags"
    assert announced(world).progress is WorkProgress.STALLED
