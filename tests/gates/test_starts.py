"""When datacenters begin: together, or late for the remaining time, and what results say of it."""

import pytest

from hyperscale.gates.committed.events import GlobalOptions
from hyperscale.gates.messages import ReportAssignment, StartAssignment
from hyperscale.jobs.committed.events import JobStatus
from tests.gates.global_jobs import OwnedJobs
from tests.gates.test_owner import result, running
from tests.lab.job_builders import plan, workflow


def test_a_datacenter_that_starts_late_joins_for_the_remaining_time_also_under_a_successor() -> (
    None
):
    options = GlobalOptions(datacenter_count=2, start_timeout_s=5.0)
    jobs = OwnedJobs("east", "west")
    job = jobs.submit(options, plan(workflow("Load", vus=10)))
    jobs.answer()
    jobs.ready(job, "east")
    jobs.run(6.0)
    (first,) = jobs.commands(StartAssignment, to="east")
    assert isinstance(first, StartAssignment)
    assert first.elapsed_s == 0.0
    jobs.run(20.0)
    heir = jobs.successor()
    heir.ready(job, "west")
    (late,) = heir.commands(StartAssignment, to="west")
    assert isinstance(late, StartAssignment)
    assert late.elapsed_s == pytest.approx(20.5, abs=1.0)


def test_when_datacenters_began_survives_the_owner() -> None:
    jobs, job = running("east", "west")

    def report_of(owned: OwnedJobs, datacenter: str, ago_s: float) -> None:
        owned.report(
            ReportAssignment(
                job=job, datacenter=datacenter, status=JobStatus.RUNNING, running_s=ago_s
            )
        )

    jobs.run(3.0)
    report_of(jobs, "east", 2.51)
    report_of(jobs, "west", 2.50)
    jobs.run(1.0)
    began = {each.datacenter: each.began_ms for each in jobs.job(job).assignments}
    assert began["west"] - began["east"] == 10
    new = jobs.successor()
    report_of(new, "west", 4.5)  # by the clock of the new owner it began earlier
    for name in ("east", "west"):
        new.report(result(job, name))
    assert {each.datacenter: each.began_ms for each in new.job(job).assignments} == began
    assert new.job(job).status is JobStatus.COMPLETED


def test_an_owner_that_had_the_job_since_its_start_knows_best_when_it_began() -> None:
    jobs, job = running("east")
    began = []
    for delay_s in (0.1, 0.05):  # the second report is faster on its way
        jobs.run(3.0)
        jobs.report(
            ReportAssignment(
                job=job,
                datacenter="east",
                status=JobStatus.RUNNING,
                running_s=jobs.now_s - 0.2 - delay_s,
            )
        )
        jobs.run(0.5)
        began.append(jobs.job(job).assignments[0].began_ms)
    jobs.report(result(job, "east"))
    assert began[0] == began[1]  # committed once
    assert jobs.job(job).assignments[0].began_ms == began[0] - 50
