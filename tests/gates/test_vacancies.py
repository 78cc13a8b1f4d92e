"""Parts that nobody runs go to other datacenters; a hostile datacenter spoils no results."""

import msgspec
import pytest
from msgspec.structs import replace

from hyperscale.gates.committed.events import GlobalLoadChanged, GlobalOptions
from hyperscale.gates.committed.state import AssignmentStatus
from hyperscale.gates.datacenters.monitor import DatacenterView, Reachability
from hyperscale.gates.datacenters.registry import DatacenterState
from hyperscale.gates.messages import (
    AssignJob,
    AssignmentAnswer,
    CancelAssignment,
    ChangeAssignment,
    ReportAssignment,
    StartAssignment,
)
from hyperscale.gates.owner.events import DatacentersRemoved
from hyperscale.gates.results import checked_result, heard_record
from hyperscale.jobs.committed.events import JobStatus
from hyperscale.plan import StagePlan
from hyperscale.plan.changes import ChangeKind, LoadChange
from tests.gates.global_jobs import OwnedJobs
from tests.gates.test_owner import BOTH, result, running
from tests.gates.test_routing import view
from tests.lab.job_builders import plan, workflow


def with_cores(name: str, cores: int) -> DatacenterView:
    seen = view(name)
    assert seen.figures is not None
    return replace(seen, figures=replace(seen.figures, total_cores=cores))


def scales(jobs: OwnedJobs) -> dict[str, int | None]:
    """Return the users that datacenters are to have, as far as that is on its way."""
    return {
        name: command.changes[-1].vus
        for _, name, command in jobs.sent
        if isinstance(command, ChangeAssignment)
    }


def test_the_part_of_a_removed_datacenter_goes_on_in_another_one_for_the_remaining_time() -> None:
    jobs = OwnedJobs("east", "west", "north")
    job = jobs.submit(BOTH, plan(workflow("Load", vus=10)))
    jobs.answer()
    first, second = (each.datacenter for each in jobs.job(job).assignments)
    jobs.ready(job, first, second)
    jobs.run(20.0)
    jobs.see(replace(view(first), state=DatacenterState.REMOVED))
    jobs._take(DatacentersRemoved(frozenset({first})))
    heir = jobs.job(job).assignments[-1]
    assert heir.replaces == first
    removed = jobs.job(job).assignment(first)
    assert removed is not None
    assert heir.workflows == removed.workflows
    jobs.answer()
    jobs.ready(job, heir.datacenter)
    (start,) = jobs.commands(StartAssignment, to=heir.datacenter)
    assert isinstance(start, StartAssignment)
    assert start.elapsed_s > 15.0
    for name in (second, heir.datacenter):
        jobs.report(result(job, name))
    assert jobs.job(job).status is JobStatus.COMPLETED


def test_a_vacant_part_is_split_over_the_datacenters_that_have_one_by_capacity() -> None:
    jobs = OwnedJobs()
    jobs.see(with_cores("east", 4), with_cores("west", 2), with_cores("south", 2))
    job = jobs.submit(GlobalOptions(datacenter_count=3), plan(workflow("Load", vus=80)))
    jobs.answer(AssignmentAnswer.REFUSED, of="south")
    south = jobs.job(job).assignment("south")
    assert south is not None
    assert set(south.replaced_by.split(", ")) == {"east", "west"}
    jobs.answer()
    assert scales(jobs) == {"east": 53, "west": 27}
    jobs.answer()
    jobs.ready(job, "east", "west")
    jobs.answer()
    for name in ("east", "west"):
        jobs.report(result(job, name))
    assert jobs.job(job).status is JobStatus.COMPLETED


def test_a_spare_datacenter_gets_what_its_capacity_allows_and_the_others_the_rest() -> None:
    jobs = OwnedJobs()
    jobs.see(with_cores("east", 4), with_cores("west", 4))
    job = jobs.submit(BOTH, plan(workflow("Load", vus=90)))
    jobs.answer()
    jobs.see(with_cores("north", 1))
    jobs._take(DatacentersRemoved(frozenset({"west"})))
    assert scales(jobs) == {"east": 72}
    (assigned,) = jobs.commands(AssignJob, to="north")
    assert isinstance(assigned, AssignJob)
    assert assigned.plan.workflows[0].vus == 18
    assert jobs.job(job).assignments[-1].replaces == "west"


def test_a_part_with_stages_or_iterations_goes_whole_to_a_spare_datacenter_or_nowhere() -> None:
    ramp = tuple(StagePlan(duration_s=10.0, target=each) for each in (20.0, 80.0))
    for load in (
        replace(workflow("Load", vus=80), stages=ramp),
        workflow("Load", vus=80, iterations=800),
    ):
        jobs = OwnedJobs("east", "west")
        job = jobs.submit(BOTH, plan(load))
        jobs.answer()
        jobs._take(DatacentersRemoved(frozenset({"west"})))
        west = jobs.job(job).assignment("west")
        assert west is not None
        assert west.is_vacant
        assert not scales(jobs)
        jobs.see(view("north"))
        jobs.run(1.0)
        assert jobs.job(job).assignments[-1].workflows == west.workflows
        assert west.replaced_by == "north"


def test_a_part_that_was_scaled_is_split_with_its_scale() -> None:
    jobs = OwnedJobs()
    jobs.see(with_cores("east", 4), with_cores("west", 4), with_cores("south", 4))
    job = jobs.submit(GlobalOptions(datacenter_count=3), plan(workflow("Load", vus=30)))
    jobs.answer()
    scale = LoadChange(id="s", kind=ChangeKind.SCALE, vus=300)
    jobs.commit(GlobalLoadChanged(job=job, change=scale))
    jobs.answer()
    jobs._take(DatacentersRemoved(frozenset({"south"})))
    assert scales(jobs) == {"east": 150, "west": 150}


def test_a_datacenter_that_is_silent_or_drained_gets_no_more() -> None:
    for state in (
        replace(with_cores("west", 4), reachability=Reachability.SUSPECTED),
        replace(with_cores("west", 4), state=DatacenterState.DRAINED),
    ):
        jobs = OwnedJobs()
        jobs.see(*(with_cores(name, 4) for name in ("east", "west", "south")))
        jobs.submit(GlobalOptions(datacenter_count=3), plan(workflow("Load", vus=30)))
        jobs.answer()
        jobs.see(state)
        jobs._take(DatacentersRemoved(frozenset({"south"})))
        assert scales(jobs) == {"east": 20}


def test_a_removal_that_could_not_be_committed_is_tried_again() -> None:
    jobs = OwnedJobs("east", "west")
    job = jobs.submit(BOTH, plan(workflow("Load", vus=10)))
    jobs.answer()
    jobs.commits = False
    jobs._take(DatacentersRemoved(frozenset({"west"})))
    assert not jobs.job(job).assignments[1].has_ended
    jobs.commits = True
    jobs.run(2.0)
    west = jobs.job(job).assignment("west")
    assert west is not None
    assert west.status is AssignmentStatus.LOST


def test_a_named_datacenter_that_is_removed_is_not_replaced_without_fallback() -> None:
    jobs = OwnedJobs("east", "west")
    job = jobs.submit(GlobalOptions(datacenters=("east",)), plan(workflow("Load", vus=10)))
    jobs.answer()
    jobs._take(DatacentersRemoved(frozenset({"east"})))
    assert [each.datacenter for each in jobs.job(job).assignments] == ["east"]
    assert jobs.job(job).has_ended


def test_a_part_that_waits_too_long_in_a_queue_is_cancelled_there_and_then_runs_elsewhere() -> None:
    jobs = OwnedJobs("east", "west")
    job = jobs.submit(GlobalOptions(spill_over_s=10.0), plan(workflow("Load", vus=10)))
    (first,) = jobs.job(job).assignments
    jobs.answer()
    waiting = ReportAssignment(
        job=job, datacenter=first.datacenter, status=JobStatus.SUBMITTED, is_queued=True
    )
    jobs.report(waiting)
    jobs.run(5.0)
    jobs.report(waiting)
    assert not jobs.commands(CancelAssignment)
    jobs.run(6.0)
    assert jobs.commands(CancelAssignment, to=first.datacenter)
    assert len(jobs.job(job).assignments) == 1, "its end is not certain yet"
    jobs.report(result(job, first.datacenter, JobStatus.CANCELLED))
    assert jobs.job(job).assignments[-1].replaces == first.datacenter
    assert jobs.job(job).assignments[-1].datacenter != first.datacenter


def test_a_part_that_waits_in_a_queue_stays_there_unless_it_may_spill_over() -> None:
    jobs = OwnedJobs("east", "west")
    job = jobs.submit(GlobalOptions(), plan(workflow("Load", vus=10)))
    (first,) = jobs.job(job).assignments
    jobs.answer()
    for _ in range(10):
        jobs.report(
            ReportAssignment(
                job=job, datacenter=first.datacenter, status=JobStatus.SUBMITTED, is_queued=True
            )
        )
        jobs.run(10.0)
    assert not jobs.commands(CancelAssignment)


@pytest.mark.parametrize("data", [b"\xc1 no record", b"\x00", msgspec.msgpack.encode({"id": "x"})])
def test_a_result_that_cannot_be_read_fails_the_part_and_spoils_no_other(data: bytes) -> None:
    jobs, job = running("east", "west")
    delivered = replace(result(job, "east"), result=data)
    checked = checked_result(delivered, jobs.job(job))
    assert (checked.status, checked.result) == (JobStatus.FAILED, b"")
    assert checked.reason == "it sent a result that cannot be read"


def test_a_result_that_speaks_for_another_datacenter_is_not_taken() -> None:
    jobs, job = running("east", "west")
    for name in ("east", "west"):
        part = jobs.job(job).assignment(name)
        assert part is not None
        record = heard_record(jobs.job(job), part, None, cores=1, now_ms=0)
        own = replace(result(job, name), result=record)
        assert checked_result(own, jobs.job(job)) == own
        foreign = replace(own, datacenter="west" if name == "east" else "east")
        assert checked_result(foreign, jobs.job(job)).status is JobStatus.FAILED
