"""Parts that nobody runs go to other datacenters; a hostile datacenter spoils no results."""

import msgspec
import pytest
from msgspec.structs import replace

from hyperscale.gates.committed.events import GlobalOptions
from hyperscale.gates.datacenters.registry import DatacenterState
from hyperscale.gates.messages import CancelAssignment, ReportAssignment, StartAssignment
from hyperscale.gates.owner.events import DatacenterRemoved
from hyperscale.gates.results import checked_result, heard_record
from hyperscale.jobs.committed.events import JobStatus
from tests.gates.global_jobs import OwnedJobs
from tests.gates.test_owner import BOTH, result, running
from tests.gates.test_routing import view
from tests.lab.job_builders import plan, workflow


def test_the_part_of_a_removed_datacenter_goes_on_in_another_one_for_the_remaining_time() -> None:
    jobs = OwnedJobs("east", "west", "north")
    job = jobs.submit(BOTH, plan(workflow("Load", vus=10)))
    jobs.answer()
    first, second = (each.datacenter for each in jobs.job(job).assignments)
    jobs.ready(job, first, second)
    jobs.run(20.0)
    jobs.see(replace(view(first), state=DatacenterState.REMOVED))
    jobs._take(DatacenterRemoved(first))
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


def test_a_named_datacenter_that_is_removed_is_not_replaced_without_fallback() -> None:
    jobs = OwnedJobs("east", "west")
    job = jobs.submit(GlobalOptions(datacenters=("east",)), plan(workflow("Load", vus=10)))
    jobs.answer()
    jobs._take(DatacenterRemoved("east"))
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
