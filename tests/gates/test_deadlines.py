"""Deadlines of datacenters, memory of an owner whose jobs are over, and jobs for the living."""

import pytest

from hyperscale.gates.committed.events import GlobalCancelRequested, GlobalOptions
from hyperscale.gates.datacenters.monitor import Reachability
from hyperscale.gates.datacenters.routing import (
    DatacenterChoice,
    RoutingProblem,
    RoutingRefusal,
    RoutingRequest,
    choose_datacenters,
)
from hyperscale.gates.messages import AssignJob, CancelAssignment
from hyperscale.jobs.committed.events import JobStatus
from tests.gates.global_jobs import OwnedJobs
from tests.gates.test_datacenter_monitor import ProbedDatacenters
from tests.gates.test_owner import result, running
from tests.gates.test_routing import H, view


def test_a_datacenter_without_gates_ends_its_part_300_seconds_after_the_timeout() -> None:
    jobs = OwnedJobs("east")
    jobs.submit(GlobalOptions(timeout_s=60.0))
    (command,) = jobs.commands(AssignJob)
    assert isinstance(command, AssignJob)
    assert command.options.timeout_s == pytest.approx(360.0, abs=0.5)


def test_an_assignment_that_is_repeated_later_leaves_the_same_deadline() -> None:
    jobs = OwnedJobs("east")
    jobs.submit(GlobalOptions(timeout_s=60.0))
    jobs.answer(None)
    jobs.run(20.0)
    at_s, _, command = jobs.sent[0]
    assert isinstance(command, AssignJob)
    assert command.options.timeout_s == pytest.approx(360.0 - at_s, abs=0.5)


def test_a_declared_timeout_is_repeated_until_a_datacenter_that_was_cut_off_answers() -> None:
    jobs, job = running("east", "west", options=GlobalOptions(datacenter_count=2, timeout_s=60.0))
    jobs.run(61.0)
    jobs.report(result(job, "west", JobStatus.TIMEOUT))
    for _ in range(30):  # the link to east is cut for five minutes
        jobs.answer(None)
        jobs.run(10.0)
    assert jobs.job(job).status is JobStatus.CANCELLING
    jobs.run(40.0)  # the breaker is open for 30 s at a time
    assert jobs.commands(CancelAssignment, to="east")
    jobs.report(result(job, "east", JobStatus.TIMEOUT))
    assert jobs.job(job).status is JobStatus.TIMEOUT


def test_an_owner_keeps_nothing_of_jobs_that_are_over() -> None:
    jobs, job = running("east", "west")
    jobs.report(result(job, "east"))
    jobs.report(result(job, "east"), "again")
    jobs.report(result(job, "west"))
    assert jobs.job(job).status is JobStatus.COMPLETED
    state = jobs.owner.state
    assert not state.jobs
    assert not state.unanswered
    jobs.run(300.0)
    assert not jobs.sent
    # Late words about it are answered, and leave nothing behind.
    jobs.report(result(job, "west"), "late")
    assert jobs.replies[-1][0] == "late"
    assert not state.jobs
    assert not state.unanswered


def test_an_owner_keeps_nothing_of_a_cancelled_job_either() -> None:
    jobs, job = running("east", "west")
    jobs.commit(GlobalCancelRequested(job=job, reason="enough"))
    jobs.answer()
    for name in ("east", "west"):
        jobs.report(result(job, name, JobStatus.CANCELLED))
    assert jobs.job(job).status is JobStatus.CANCELLED
    jobs.run(60.0)
    assert not jobs.sent
    assert not jobs.owner.state.jobs


def test_a_dead_datacenter_gets_no_job_after_ten_seconds() -> None:
    world = ProbedDatacenters("dead", "west", "south")
    world.run(20.5)
    world.answers = lambda probe: None if probe.datacenter == "dead" else 0.05
    world.run(10.0)
    for number in range(200):
        views = world.monitor.views(now_s=world.now_s)
        choice = choose_datacenters(views, RoutingRequest(key=f"key-{number}"))
        assert isinstance(choice, DatacenterChoice)
        assert choice.primary != ("dead",)
        world.run(0.5)
    assert world.reachability("dead") is Reachability.UNREACHABLE


def test_when_all_are_busy_a_job_is_queued_and_when_all_are_unhealthy_it_is_refused() -> None:
    busy = [view(name, health=H.BUSY, cores=0) for name in ("east", "west")]
    choice = choose_datacenters(
        {each.datacenter: each for each in busy}, RoutingRequest(key="k", count=2)
    )
    assert isinstance(choice, DatacenterChoice)
    assert (set(choice.primary), choice.worst_health) == ({"east", "west"}, H.BUSY)
    sick = [view(name, health=H.UNHEALTHY) for name in ("east", "west")]
    refusal = choose_datacenters({each.datacenter: each for each in sick}, RoutingRequest(key="k"))
    assert isinstance(refusal, RoutingRefusal)
    assert (refusal.kind, refusal.is_retryable) == (RoutingProblem.UNUSABLE, False)
    assert "east is unhealthy, west is unhealthy" in refusal.message
