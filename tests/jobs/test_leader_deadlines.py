"""Limits of jobs outlive their leaders: claims 1 to 7 about timeouts, with changes of leader."""

import msgspec
import pytest

from hyperscale.jobs.committed.events import (
    CancelRequested,
    JobFinished,
    JobOptions,
    JobStatus,
)
from hyperscale.jobs.leader import events as ev
from hyperscale.jobs.leader.extensions import ExtensionDenial
from hyperscale.jobs.leader.timeouts import LeaderTimeouts
from hyperscale.plan import WorkflowPlan
from tests.lab.job_builders import workflow
from tests.lab.leader_rig import Rig

NEVER_S = 7200.0


def endless(name: str = "Load") -> WorkflowPlan:
    return msgspec.structs.replace(workflow(name, vus=1, duration_s=NEVER_S), timeout_s=1.0)


def ended_after_s(rig: Rig, job: str, *, most_s: float, reports: bool = True) -> float:
    """Let time pass until the job has ended; return how long that took."""
    began_s = rig.now_s
    while rig.now_s < began_s + most_s:
        rig.run(0.5, reports=reports)
        if job in rig.records:
            return rig.now_s - began_s
    raise AssertionError(f"the job has not ended within {most_s:g} s")


@pytest.mark.parametrize("leaders", [1, 2, 5])
def test_a_job_ends_at_its_timeout_however_often_leaders_change(leaders: int) -> None:
    rig = Rig(workers=1, cores=1)
    job = rig.submit(endless(), options=JobOptions(timeout_s=60.0))
    submitted_s = rig.now_s - 0.5
    for _ in range(leaders - 1):
        rig.run(30.0 / leaders, reports=True)
        rig.take_over()
    ended_after_s(rig, job, most_s=120.0)
    assert 60.0 <= rig.now_s - submitted_s <= 62.0
    assert rig.records[job].status is JobStatus.TIMEOUT
    assert sum(isinstance(each, JobFinished) for each in rig.events) == 1
    rig.run(3.0)
    assert sum(rig.allocator.pool.free().values()) == 1


@pytest.mark.parametrize("is_stuck", [False, True])
def test_only_a_lack_of_finished_actions_is_stuck_and_a_new_leader_counts_on(
    is_stuck: bool,
) -> None:
    rig = Rig(workers=1, cores=1)
    job = rig.submit(endless())
    rig.run(10.0, reports=True)
    for second in range(1, 160):
        rig.run(1.0)
        still_s = float(second) if is_stuck else 0.0
        rig.report("w0", rate=0 if is_stuck else 100, still_s=still_s)
        if second in (40, 80):
            rig.take_over()
        if job in rig.records:
            break
    if not is_stuck:
        assert rig.job(job).status is JobStatus.RUNNING
        return
    assert 119 <= second <= 124
    assert "stuck: no action finished" in rig.records[job].reason


def test_a_job_that_waits_for_cores_is_not_stuck_and_its_wait_outlives_leaders() -> None:
    rig = Rig(workers=1, cores=1)
    rig.submit(endless())
    second = rig.submit(endless(), key="second", options=JobOptions(dispatch_timeout_s=200.0))
    submitted_s = rig.now_s - 0.5
    for _ in range(3):
        rig.run(50.0, reports=True)
        assert rig.job(second).status is JobStatus.SUBMITTED
        rig.take_over()
    ended_after_s(rig, second, most_s=100.0)
    assert 200.0 <= rig.now_s - submitted_s <= 202.0
    assert "no cores within 200 s" in rig.records[second].reason


def test_the_age_in_the_queue_outlives_a_leader() -> None:
    rig = Rig(workers=1, cores=1)
    rig.submit(endless())
    second = rig.submit(endless(), key="second")
    rig.run(40.0, reports=True)
    rig.take_over()
    rig.run(2.0, reports=True)
    assert rig.allocator.longest_wait_s(now_s=rig.now_s) >= 41.0
    assert rig.job(second).status is JobStatus.SUBMITTED


def test_the_limit_of_a_preparation_outlives_leaders() -> None:
    rig = Rig(workers=1, cores=1, timeouts=LeaderTimeouts(prepare_s=60.0))
    rig.workers["w0"].readies = False
    job = rig.submit(endless())
    dispatched_s = rig.now_s
    for _ in range(2):
        rig.run(20.0)
        rig.take_over()
    ended_after_s(rig, job, most_s=60.0, reports=False)
    assert 59.0 <= rig.now_s - dispatched_s <= 63.0
    assert "not prepared within 60 s" in rig.records[job].reason


@pytest.mark.parametrize("end", ["completed", "cancelled"])
def test_a_job_that_has_ended_never_times_out(end: str) -> None:
    rig = Rig(workers=1, cores=1)
    job = rig.submit(endless(), options=JobOptions(timeout_s=20.0))
    rig.run(5.0, reports=True)
    if end == "completed":
        rig.finish("w0", total=10)
    else:
        rig.commit(CancelRequested(job=job, reason="enough"))
    rig.run(1.0)
    rig.take_over()
    rig.run(400.0)
    assert rig.records[job].status.value == end
    assert sum(isinstance(each, JobFinished) for each in rig.events) == 1


@pytest.mark.parametrize("has_new_leader", [False, True])
def test_extensions_are_added_to_the_clock_of_the_job(has_new_leader: bool) -> None:
    rig = Rig(workers=1, cores=1)
    job = rig.submit(endless(), options=JobOptions(timeout_s=300.0))
    submitted_s = rig.now_s - 0.5
    for at_s in (50.0, 100.0):
        rig.run(submitted_s + at_s - rig.now_s, reports=True)
        rig.report("w0", wants_extension=True)
    rig.run(10.0, reports=True)
    if has_new_leader:
        rig.take_over()
    rig.run(submitted_s + 322.0 - rig.now_s, reports=True)
    assert rig.job(job).status is JobStatus.RUNNING
    rig.run(8.0, reports=True)
    assert rig.records[job].status is JobStatus.TIMEOUT
    assert rig.records[job].reason == (
        "the job's timeout of 300 s was over, with extensions of 22.5 s"
    )


def test_extensions_are_denied_by_name_and_the_last_but_one_is_known() -> None:
    rig = Rig(workers=1, cores=1)
    rig.submit(endless())
    rig.run(1.0, reports=True)
    for _ in range(2):
        rig.report("w0", rate=0, wants_extension=True)
    for _ in range(6):
        rig.run(1.0, reports=True)
        rig.report("w0", wants_extension=True)
    logged = [each.extension for each in rig.extensions]
    assert [each.granted_s for each in logged if each.denial is None] == [15, 7.5, 3.75, 1.875, 1]
    assert [each.left for each in logged if each.denial is None] == [4, 3, 2, 1, 0]
    assert [each.denial for each in logged if each.denial is not None] == [
        ExtensionDenial.NO_PROGRESS,
        ExtensionDenial.MAX_EXTENSIONS_EXCEEDED,
    ]
    assert isinstance(rig.extensions[0], ev.LogExtension)
