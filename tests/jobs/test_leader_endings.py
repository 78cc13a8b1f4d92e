"""How a leader ends jobs before their time: cancels, timeouts, thresholds, nothing to run on."""

import itertools

import msgspec
import pytest

from hyperscale.jobs.committed.events import CancelRequested, JobOptions, JobStatus
from hyperscale.jobs.leader import events as ev
from hyperscale.jobs.leader.timeouts import LeaderTimeouts
from hyperscale.jobs.messages import (
    AnnouncePrepareFailed,
    Isolation,
    PartProgress,
    Refusal,
    ReportProgress,
)
from hyperscale.plan import ThresholdPlan
from tests.lab.job_builders import report, workflow
from tests.lab.leader_rig import Rig


def test_a_preparation_that_fails_for_bad_input_fails_the_workflow_with_its_hint() -> None:
    rig = Rig(workers=1)
    rig.workers["w0"].readies = False
    job = rig.submit(workflow("Load"))
    (command,) = rig.prepared()
    refused = AnnouncePrepareFailed(
        worker="w0",
        group=1,
        attempt_id=command.attempt_id,
        error="no module x",
        hint="add it",
    )
    rig.feed(ev.WorkerAnnounced(refused))
    assert rig.job(job).status is JobStatus.FAILED
    assert rig.job(job).workflows["Load"].error == "no module x (hint: add it)"
    assert rig.workers["w0"].acks == [command.attempt_id]


def test_a_cancel_stops_running_parts_and_keeps_its_reason() -> None:
    rig = Rig()
    job = rig.submit(workflow("Load"))
    rig.run(2.0, reports=True)
    rig.commit(CancelRequested(job=job, reason="enough", by="me"))
    assert all(worker.stops for worker in rig.workers.values())
    assert rig.job(job).status is JobStatus.CANCELLED
    assert rig.job(job).workflows["Load"].error == "enough"


def test_a_queued_job_is_cancelled_at_once_and_its_request_is_withdrawn() -> None:
    rig = Rig(workers=1)
    rig.submit(workflow("Load"))
    second = rig.submit(workflow("Load"), key="second")
    row = rig.leader.row(rig.job(second), now_s=rig.now_s)
    assert (row.status, row.position) == (JobStatus.QUEUED, 1)
    assert row.reason == "Load needs 1 core, and 2 of 2 are busy"
    rig.commit(CancelRequested(job=second, reason="enough"))
    assert rig.job(second).status is JobStatus.CANCELLED
    rig.finish("w0")
    rig.run(3.0)
    assert rig.allocator.waiting == 0
    assert sum(rig.allocator.pool.free().values()) == 2


def test_a_cancel_that_reaches_no_worker_ends_the_job_when_its_leases_are_over() -> None:
    rig = Rig(workers=1, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(2.0, reports=True)
    rig.workers["w0"].is_silent = True
    rig.commit(CancelRequested(job=job, reason="enough"))
    rig.run(8.0)
    assert rig.job(job).status is JobStatus.CANCELLING
    rig.run(4.0)
    assert rig.job(job).status is JobStatus.CANCELLED


def test_a_cancel_between_dispatch_and_preparation_leaves_no_attempt_and_no_cores() -> None:
    rig = Rig(workers=1, cores=1)
    rig.workers["w0"].is_silent = True
    job = rig.submit(workflow("Load", vus=1))
    assert rig.job(job).status is JobStatus.DISPATCHING
    rig.commit(CancelRequested(job=job, reason="enough"))
    rig.workers["w0"].is_silent = False
    rig.run(2.0)
    assert rig.job(job).status is JobStatus.CANCELLED
    assert not rig.workers["w0"].commands


def test_the_timeout_of_a_job_ends_it_with_a_reason() -> None:
    rig = Rig()
    job = rig.submit(workflow("Load"), options=JobOptions(timeout_s=5.0))
    rig.run(3.0, reports=True)
    rig.take_over()  # the clock goes on, not anew
    rig.run(2.5, reports=True)
    assert rig.job(job).status is JobStatus.TIMEOUT
    assert "timeout of 5 s" in rig.job(job).reason


def test_a_part_that_runs_past_its_duration_times_out() -> None:
    rig = Rig(workers=1, cores=1, timeouts=LeaderTimeouts(overrun_s=5.0))
    load = msgspec.structs.replace(workflow("Load", vus=1, duration_s=5.0), timeout_s=1.0)
    job = rig.submit(load)
    rig.run(10.0, reports=True)
    assert rig.job(job).status is JobStatus.RUNNING
    rig.run(3.0, reports=True)
    assert rig.job(job).workflows["Load"].ended_as is JobStatus.TIMEOUT
    assert "still running" in rig.job(job).reason


def test_a_part_without_a_finished_action_times_out_as_stuck() -> None:
    rig = Rig(workers=1, cores=1, timeouts=LeaderTimeouts(stuck_s=20.0))
    load = msgspec.structs.replace(workflow("Load", vus=1, duration_s=600.0), timeout_s=1.0)
    job = rig.submit(load)
    rig.run(30.0, reports=True)
    assert rig.job(job).status is JobStatus.RUNNING
    for _ in range(30):
        rig.run(1.0)
        rig.report("w0", rate=0)
    assert "no action finished" in (rig.job(job).workflows["Load"].error or "")


def test_a_job_without_workers_fails_with_that_reason() -> None:
    rig = Rig(workers=0)
    job = rig.submit(workflow("Load"))
    rig.run(15.0)
    assert rig.job(job).status is JobStatus.FAILED
    assert "no workers" in rig.job(job).reason


def test_a_job_waits_for_cores_no_longer_than_its_dispatch_timeout() -> None:
    rig = Rig(workers=1)
    rig.submit(workflow("Load", duration_s=600.0))
    second = rig.submit(workflow("Load"), key="second", options=JobOptions(dispatch_timeout_s=20.0))
    rig.run(22.0, reports=True)
    assert rig.job(second).status is JobStatus.TIMEOUT
    assert "no cores within 20 s" in rig.job(second).reason


def test_a_threshold_over_all_parts_aborts_the_job() -> None:
    load = msgspec.structs.replace(
        workflow("Load"),
        thresholds=(ThresholdPlan(name="rate", limit="<150/s", abort_on_fail=True),),
    )
    rig = Rig(workers=2)
    job = rig.submit(load, workflow("Other", "Load"))
    rig.run(5.0, reports=True)  # 100/s on each of two workers
    assert rig.job(job).status is JobStatus.FAILED
    assert "stopped by its threshold rate" in (rig.job(job).workflows["Load"].error or "")


def test_an_extension_is_granted_only_after_progress_and_at_most_five_times() -> None:
    rig = Rig(workers=1, cores=1)
    rig.submit(workflow("Load", vus=1))
    rig.run(1.0, reports=True)
    (attempt_id,) = rig.running()["w0"]
    attempt = rig.leader.state.attempts.get(attempt_id)
    assert attempt is not None
    deadlines_s = [attempt.activity.deadline_s or 0.0]
    for sequence, total in enumerate((100, 100, 200, 300, 400, 500, 600), start=10**6):
        part = PartProgress(
            attempt_id=attempt_id,
            report=report("Load", sequence=sequence, elapsed_s=2.0, total=total),
            elapsed_s=2.0,
            wants_extension=True,
        )
        rig.feed(ev.ProgressReported(ReportProgress(worker="w0", group=1, parts=[part])))
        deadlines_s.append(attempt.activity.deadline_s or 0.0)
    granted_s = [after_s - before_s for before_s, after_s in itertools.pairwise(deadlines_s)]
    assert granted_s == [15.0, 0.0, 7.5, 3.75, 1.875, 1.0, 0.0]


@pytest.mark.parametrize("is_known", ["by this leader", "by the one before it"])
def test_a_cancel_does_not_wait_for_isolated_load_on_a_worker_that_died(
    is_known: str,
) -> None:
    rig = Rig(workers=2, cores=1)
    options = JobOptions(on_isolation=Isolation.CONTINUE)
    job = rig.submit(workflow("Load", vus=2, duration_s=600.0), options=options)
    rig.run(1.0, reports=True)
    if is_known == "by this leader":
        rig.kill("w0")
    else:
        rig.run(10.0, reports=True)
        rig.workers["w0"].is_up = False
        rig.take_over()
        rig.feed(ev.WorkerDown("w0", is_certain=False))
    rig.commit(CancelRequested(job=job, reason="enough"))
    rig.run(5.0)
    assert rig.records[job].status is JobStatus.CANCELLED


def test_the_reason_of_a_part_that_never_began_does_not_count_attempts() -> None:
    rig = Rig(workers=1, cores=1)
    rig.workers["w0"].refusal = Refusal.DRAINING
    job = rig.submit(workflow("Load", vus=1), options=JobOptions(dispatch_timeout_s=5))
    rig.run(12.0)
    assert "it could not begin: worker w0 refused it" in rig.records[job].reason
