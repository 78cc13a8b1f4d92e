"""The allocator: workers that are unwell get no parts, or get them last, and why."""

import pytest

from hyperscale.health.signals import RoutingDecision, WorkProgress
from hyperscale.jobs.allocator.events import WorkerSuspected
from hyperscale.jobs.allocator.worker_health import SILENT_S
from hyperscale.jobs.messages import RequestState
from hyperscale.jobs.worker_events import WorkerDown
from tests.lab.allocator_world import AllocatorWorld

STUCK = {"progress": WorkProgress.STUCK, "still": "an executor does not report"}
STALLED = {"progress": WorkProgress.STALLED, "still": "no action finished for 30 s"}
OVERLOADED = {"overloaded": "overloaded: its event loop lags"}


def workers(world: AllocatorWorld, request: str) -> set[str]:
    return {share.worker for share in world.granted[request].shares}


def become(world: AllocatorWorld, name: str, health: dict[str, object]) -> None:
    world.health[name] = health
    world.announce(name)


@pytest.mark.parametrize(
    ("health", "decision"),
    [(STUCK, RoutingDecision.DRAIN), (OVERLOADED, RoutingDecision.HOLD)],
)
def test_an_unwell_worker_gets_no_part_until_it_is_well(
    health: dict[str, object], decision: RoutingDecision
) -> None:
    world = AllocatorWorld(4, 4)
    become(world, "w0", health)
    world.request("a")
    world.settle()
    assert workers(world, "a") == {"w1"}
    world.request("b")
    world.settle()
    assert "b" not in world.granted
    become(world, "w0", {})
    world.run(1.0)
    assert workers(world, "b") == {"w0"}
    assert world.verdicts == [("w0", decision), ("w0", RoutingDecision.ROUTE)]


def test_a_suspect_gets_no_part_until_it_answers() -> None:
    world = AllocatorWorld(4, 4)
    world.handle(WorkerSuspected("w1"))
    world.request("a")
    world.settle()
    assert workers(world, "a") == {"w0"}
    assert world.allocator.pool.health["w1"].reason == "other nodes cannot reach it"
    world.handle(WorkerSuspected("w1", is_suspect=False))
    world.request("b")
    world.settle()
    assert workers(world, "b") == {"w1"}


def test_a_worker_that_announces_nothing_is_held() -> None:
    world = AllocatorWorld(4, 4)
    for _ in range(4):
        world.now_s += SILENT_S / 3
        world.announce("w1")
        world.tick()
    assert world.verdicts == [("w0", RoutingDecision.HOLD)]
    world.announce("w0")
    world.tick()
    assert world.verdicts[-1] == ("w0", RoutingDecision.ROUTE)


def test_an_allocator_that_was_suspended_holds_no_worker_for_it() -> None:
    world = AllocatorWorld(4, 4)
    world.tick()
    world.now_s += 60.0
    world.tick()
    assert world.verdicts == []


def test_a_stalled_worker_comes_last() -> None:
    world = AllocatorWorld(4, 4, 2)
    become(world, "w0", STALLED)
    world.request("a", vus=4)
    world.settle()
    assert workers(world, "a") == {"w1"}
    world.request("b", vus=4)
    world.settle()
    assert workers(world, "b") == {"w2", "w0"}


def test_a_workflow_waits_if_every_worker_is_unwell_and_says_which() -> None:
    world = AllocatorWorld(4)
    become(world, "w0", STUCK)
    reply = world.request("a")
    assert reply.state is RequestState.QUEUED
    assert reply.reason == "Load waits for a worker that is well (w0: an executor does not report)"
    world.run(30.0)
    assert world.repeat("a").state is RequestState.QUEUED
    become(world, "w0", {})
    world.run(1.0)
    assert workers(world, "a") == {"w0"}


def test_a_lost_part_goes_to_a_well_worker_and_waits_for_it() -> None:
    world = AllocatorWorld(2, 2, 2)
    world.request("first", vus=2)
    world.settle()
    become(world, "w1", OVERLOADED)
    world.handle(WorkerDown("w0", is_certain=True))
    world.request("again", part=0, cores=2, is_recovery=True, job="first")
    world.settle(holds=False)
    assert workers(world, "again") == {"w2"}


def test_a_lost_part_goes_to_an_unwell_worker_if_no_other_is_left() -> None:
    world = AllocatorWorld(2, 2)
    world.request("first", vus=2)
    world.settle()
    become(world, "w1", OVERLOADED)
    world.handle(WorkerDown("w0", is_certain=True))
    world.request("again", part=0, cores=2, is_recovery=True, job="first")
    world.settle(holds=False)
    assert workers(world, "again") == {"w1"}


def test_a_lost_part_never_goes_to_a_worker_that_would_refuse_it() -> None:
    world = AllocatorWorld(2, 2)
    world.request("first", vus=2)
    world.settle()
    become(world, "w1", {"unfit": ("its disk is full",)})
    world.handle(WorkerDown("w0", is_certain=True))
    reply = world.request("again", part=0, cores=2, is_recovery=True, job="first")
    assert reply.state is RequestState.IMPOSSIBLE
