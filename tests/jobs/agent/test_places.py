"""Attempts that share the cores of their own job on a worker."""

from typing import Any

from msgspec.structs import replace

from hyperscale.jobs.agent.events import WeighAttempt
from hyperscale.jobs.messages import AnnounceCores, AttemptId, Refusal
from hyperscale.jobs.provisioner import SHARED_PER_WORKER_MAX
from hyperscale.plan import Priority
from tests.lab.agent_world import PLAN, AgentWorld, attempt_id, prepare

WITHIN_JOB: dict[str, Any] = {"shared": True, "within_job": True}


def part(number: int, *, job: str = "dc.1-a") -> AttemptId:
    return attempt_id(job=job, part=number)


def held(world: AgentWorld) -> dict[int, bool]:
    """Return by part whether it has a core, as the worker announced it last."""
    return {each.attempt_id.part: not each.shared for each in world.sent(AnnounceCores)[-1].held}


def test_a_core_that_a_job_leaves_passes_to_an_attempt_that_shared_it() -> None:
    world = AgentWorld(cores=2)
    world.runs(part(0), cores=2)
    world.runs(part(1), **WITHIN_JOB)
    assert held(world) == {0: True, 1: False}
    assert world.agent.free_cores == 0
    world.end(part(0))
    assert held(world) == {1: True}
    assert world.agent.free_cores == 1
    world.runs(part(2), **WITHIN_JOB)
    assert held(world) == {1: True, 2: False}
    world.end(part(1))
    assert held(world) == {2: True}
    world.end(part(2))
    assert world.agent.free_cores == 2


def test_cores_are_shared_only_where_the_job_has_one_or_one_is_free() -> None:
    world = AgentWorld(cores=1)
    world.runs(part(0, job="dc.1-b"))
    reply = world.part(prepare(part(0), **WITHIN_JOB))
    assert reply.refusal is Refusal.NO_CORES
    assert reply.reason == "its job has no core here that it could share, and none is free"
    world.end(part(0, job="dc.1-b"))
    world.runs(part(0), **WITHIN_JOB)  # the job has left its core just before
    assert held(world) == {0: True}
    assert world.part(prepare(part(0, job="dc.1-c"))).refusal is Refusal.NO_CORES


def test_recoveries_and_workflows_that_share_cores_do_not_limit_each_other() -> None:
    world = AgentWorld(cores=1)
    world.runs(part(0))
    for number in range(1, SHARED_PER_WORKER_MAX + 1):
        world.runs(part(number), **WITHIN_JOB)
    reply = world.part(prepare(part(99), **WITHIN_JOB))
    assert reply.refusal is Refusal.NO_CORES
    assert reply.reason == "64 executors share cores of their job here, and no more may"
    for number in range(3):
        world.runs(part(0, job=f"dc.1-r{number}"), shared=True)
    assert len(world.places) == 1 + SHARED_PER_WORKER_MAX + 3


def test_the_attempts_of_a_job_are_weighed_by_priority_once_they_share_cores() -> None:
    world = AgentWorld(cores=2)
    world.runs(part(0))
    world.runs(part(0, job="dc.1-b"))
    assert not any(isinstance(effect, WeighAttempt) for effect in world.effects)
    low = replace(PLAN, priority=Priority.LOW)
    world.runs(part(1), plan=low, **WITHIN_JOB)
    world.runs(part(2), **WITHIN_JOB)
    weighed = [effect for effect in world.effects if isinstance(effect, WeighAttempt)]
    assert [(each.attempt_id, each.nice) for each in weighed] == [
        (part(0), 10),
        (part(1), 15),
        (part(2), 10),
    ]


def test_a_command_that_contradicts_itself_is_refused() -> None:
    world = AgentWorld(cores=2)
    for command in (prepare(within_job=True), prepare(cores=2, **WITHIN_JOB)):
        reply = world.part(command)
        assert reply.refusal is Refusal.INVALID
        assert "has one executor" in reply.reason
