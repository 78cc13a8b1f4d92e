"""The machine of global jobs: one test per rule."""

import pytest

from hyperscale.gates.committed.events import (
    AssignmentAccepted,
    AssignmentRefused,
    DatacenterFinished,
    DatacenterLost,
    GlobalCancelRequested,
    GlobalJobFinished,
    GlobalJobReported,
    GlobalOptions,
    GlobalStartOrdered,
    LossPolicy,
)
from hyperscale.gates.committed.machine import GlobalJobMachine
from hyperscale.gates.committed.state import AssignmentStatus, decode_global_job
from hyperscale.jobs.committed.events import Code, JobStatus
from hyperscale.jobs.committed.state import Reported
from tests.gates.global_jobs import GlobalLog, assignment_to, global_submission
from tests.lab.job_builders import plan, workflow


def finished(
    job: str, datacenter: str, status: JobStatus = JobStatus.COMPLETED, result: bytes = b"r"
) -> DatacenterFinished:
    return DatacenterFinished(job=job, datacenter=datacenter, status=status, result=result)


def started(*datacenters: str, options: GlobalOptions | None = None) -> tuple[GlobalLog, str]:
    log = GlobalLog()
    job = log.put(global_submission(options=options)).job
    log.put(assignment_to(job, *datacenters))
    for name in datacenters:
        log.put(AssignmentAccepted(job=job, datacenter=name, local_job=f"{name}.1-x"))
    log.put(GlobalStartOrdered(job=job, ready=list(datacenters)))
    return log, job


def test_the_same_key_is_one_job_and_another_payload_is_a_conflict() -> None:
    log = GlobalLog()
    replies = [log.put(global_submission()) for _ in range(100)]
    assert len({reply.job for reply in replies}) == 1
    assert sum(not reply.was_duplicate for reply in replies) == 1
    other = log.put(global_submission(wanted=plan(workflow("Other"))))
    assert (other.ok, other.code) == (False, Code.CONFLICT)
    empty = log.put(global_submission(key=""))
    assert empty.code is Code.INVALID_KEY


def test_a_job_goes_from_submitted_to_completed() -> None:
    log, job = started("east", "west")
    assert log.job(job).status is JobStatus.RUNNING
    log.put(finished(job, "east"))
    assert log.job(job).status is JobStatus.RUNNING
    log.put(finished(job, "west"))
    assert log.job(job).status is JobStatus.COMPLETING
    log.put(GlobalJobFinished(job=job, status=log.job(job).final_status()))
    assert log.job(job).status is JobStatus.COMPLETED
    record = decode_global_job(log.rows[-2][2])
    assert [each.result for each in record.assignments] == [b"r", b"r"]
    assert log.job(job).assignments[0].result == b""


def test_every_event_may_come_twice() -> None:
    log, job = started("east")
    for event in (
        assignment_to(job, "east"),
        AssignmentAccepted(job=job, datacenter="east", local_job="other"),
        GlobalStartOrdered(job=job, ready=[]),
    ):
        assert log.put(event).code is Code.DUPLICATE
    log.put(finished(job, "east", result=b"first"))
    assert log.put(finished(job, "east", result=b"second")).code is Code.DUPLICATE
    assert log.job(job).assignments[0].result == b"first"


def test_a_job_gets_its_datacenters_once() -> None:
    log, job = started("east")
    assert log.put(assignment_to(job, "west")).code is Code.TERMINAL


def test_only_a_datacenter_that_refused_is_replaced_and_only_once() -> None:
    log = GlobalLog()
    job = log.put(global_submission()).job
    log.put(assignment_to(job, "east"))
    assert log.put(assignment_to(job, "west", replaces="east")).code is Code.TERMINAL
    log.put(AssignmentRefused(job=job, datacenter="east", reason="no room"))
    assert log.put(assignment_to(job, "west", replaces="east")).ok
    assert log.put(assignment_to(job, "south", replaces="east")).code is Code.TERMINAL
    assert [each.datacenter for each in log.job(job).counted()] == ["west"]


def test_an_accepted_assignment_cannot_be_refused_any_more() -> None:
    log, job = started("east")
    refusal = log.put(AssignmentRefused(job=job, datacenter="east", reason="late"))
    assert refusal.code is Code.TERMINAL


def test_after_a_cancel_nothing_is_assigned_or_started() -> None:
    log = GlobalLog()
    job = log.put(global_submission()).job
    log.put(GlobalCancelRequested(job=job, reason="enough"))
    assert log.put(assignment_to(job, "east")).code is Code.CANCELLING
    assert log.put(GlobalStartOrdered(job=job, ready=[])).code is Code.CANCELLING


def test_a_datacenter_speaks_only_about_what_it_was_given() -> None:
    log, job = started("east")
    assert log.put(finished(job, "west")).code is Code.UNKNOWN_PART
    assert log.put(finished("global.1-other", "east")).code is Code.UNKNOWN_JOB
    assert len(log.job(job).assignments) == 1


def test_a_job_does_not_end_before_its_datacenters() -> None:
    log, job = started("east", "west")
    log.put(finished(job, "east"))
    assert log.put(GlobalJobFinished(job=job, status=JobStatus.COMPLETED)).code is Code.INVALID


def test_the_result_of_a_lost_datacenter_counts_while_the_job_is_open() -> None:
    log, job = started("east", "west")
    log.put(DatacenterLost(job=job, datacenter="east", reason="silent"))
    assert log.put(finished(job, "east")).ok
    assert log.job(job).assignments[0].status is AssignmentStatus.FINISHED
    assert not log.job(job).assignments[0].is_late


def test_a_result_after_the_end_of_the_job_is_kept_as_late_and_changes_nothing_else() -> None:
    log, job = started("east", "west")
    log.put(DatacenterLost(job=job, datacenter="east", reason="silent"))
    log.put(finished(job, "west"))
    log.put(GlobalJobFinished(job=job, status=log.job(job).final_status()))
    assert log.job(job).status is JobStatus.PARTIAL
    assert log.put(finished(job, "east")).ok
    assert log.rows[-1][1] == "late"
    assert log.job(job).assignments[0].is_late
    assert log.job(job).status is JobStatus.PARTIAL
    assert log.put(finished(job, "east")).code is Code.DUPLICATE


C, F, P, T, X = (
    JobStatus.COMPLETED,
    JobStatus.FAILED,
    JobStatus.PARTIAL,
    JobStatus.TIMEOUT,
    JobStatus.CANCELLED,
)


@pytest.mark.parametrize(
    ("ends", "policy", "cancel", "expected"),
    [
        ((C, C), LossPolicy.BEST_EFFORT, None, C),
        ((C, F), LossPolicy.BEST_EFFORT, None, P),
        ((C, F), LossPolicy.ALL_OR_NOTHING, None, F),
        ((F, F), LossPolicy.BEST_EFFORT, None, F),
        ((P, F), LossPolicy.BEST_EFFORT, None, P),
        ((T, T), LossPolicy.BEST_EFFORT, None, T),
        ((X, X), LossPolicy.BEST_EFFORT, None, X),
        ((X, F), LossPolicy.BEST_EFFORT, None, F),
        ((C, X), LossPolicy.BEST_EFFORT, X, X),
        ((X, T), LossPolicy.BEST_EFFORT, T, T),
        # Completion in the datacenters wins over a cancel or a timeout that came too late.
        ((C, C), LossPolicy.BEST_EFFORT, T, C),
    ],
)
def test_the_end_of_a_job_follows_from_its_datacenters(
    ends: tuple[JobStatus, ...],
    policy: LossPolicy,
    cancel: JobStatus | None,
    expected: JobStatus,
) -> None:
    names = [f"dc{n}" for n in range(len(ends))]
    log, job = started(*names, options=GlobalOptions(policy=policy))
    if cancel is not None:
        log.put(GlobalCancelRequested(job=job, reason="enough", status=cancel))
    for name, end in zip(names, ends, strict=True):
        log.put(finished(job, name, end))
    assert log.job(job).final_status() is expected


def test_the_first_report_of_a_result_counts_and_only_after_the_end() -> None:
    log, job = started("east")
    sent = GlobalJobReported(job=job, reported=Reported(by="gate-1", sent=["metrics"]))
    assert log.put(sent).code is Code.INVALID
    log.put(finished(job, "east"))
    log.put(GlobalJobFinished(job=job, status=JobStatus.COMPLETED))
    assert log.put(sent).ok
    again = GlobalJobReported(job=job, reported=Reported(by="gate-2"))
    assert log.put(again).code is Code.DUPLICATE
    assert log.job(job).reported == sent.reported


def test_a_snapshot_restores_the_same_state() -> None:
    log, job = started("east", "west")
    log.put(finished(job, "east"))
    copy = GlobalJobMachine("global", 1)
    copy.restore(log.machine.snapshot())
    assert copy.snapshot() == log.machine.snapshot()
    assert copy.job(job) == log.job(job)


def test_bytes_that_are_not_an_event_are_refused() -> None:
    applied = GlobalJobMachine("global", 1).apply(1, 1, b"\xc1", unix_ms=1)
    assert (applied.event, applied.reply.code) == (None, Code.INVALID)
