"""The leader of a group's jobs, situation by situation."""

import msgspec
import pytest

from hyperscale.jobs.commands import (
    Isolation,
    PartPhase,
    PartProgress,
    PartRefused,
    PartStatus,
    PreparePart,
    Progress,
    Refusal,
    RunId,
)
from hyperscale.jobs.events import (
    AttemptRevoked,
    CancelRequested,
    Checkpointed,
    Dispatched,
    JobOptions,
    JobStatus,
    Reply,
    SubFinished,
    WorkflowsPlanned,
)
from hyperscale.jobs.live import RATE_PER_CORE_MAX
from hyperscale.jobs.outcome import outcome_of
from hyperscale.jobs.state import WorkflowStatus
from hyperscale.jobs.timing import Timing, extension_s
from hyperscale.plan import Priority, StateKind, StatePlan, ThresholdPlan
from hyperscale.plan.context import Provided, decode_received, encode_provided
from hyperscale.stats.merge import PartKey
from tests.jobs.builders import plan, report, submission, workflow
from tests.jobs.rig import Rig


def prepared(rig: Rig) -> list[PreparePart]:
    return [command for worker in rig.workers.values() for command in worker.runs.values()]


def kinds(rig: Rig) -> list[str]:
    return [type(event).__name__ for event in rig.events]


def test_a_job_is_planned_dispatched_prepared_and_started() -> None:
    rig = Rig(workers=3, cores=2)
    job = rig.submit(workflow("Load", vus=100))
    assert rig.job(job).status is JobStatus.RUNNING
    commands = sorted(prepared(rig), key=lambda command: command.run.part)
    assert [(c.first_slot, c.cores, c.slots, c.parts) for c in commands] == [
        (0, 2, 6, 3),
        (2, 2, 6, 3),
        (4, 2, 6, 3),
    ]
    assert kinds(rig)[:4] == ["JobSubmitted", "WorkflowsPlanned", "Dispatched", "Checkpointed"]


def test_nothing_reaches_a_worker_before_its_dispatch_is_committed() -> None:
    rig = Rig()
    rig.submit(workflow("Load"))
    rig.finish("w0")
    rig.finish("w1")
    job = rig.commit(submission("second", plan(workflow("Load"))))
    rig.commits = False
    rig.run(3.0)
    assert all(command.run.job != job for command in prepared(rig))
    rig.commits = True
    rig.run(3.0)
    assert any(command.run.job == job for command in prepared(rig))


def test_all_parts_start_together_once_all_are_ready() -> None:
    rig = Rig(workers=2)
    rig.workers["w1"].readies = False
    job = rig.submit(workflow("Load"))
    rig.run(3.0)
    assert rig.workers["w0"].phases[RunId(job, "Load", 0, 1)] is PartPhase.READY
    rig.ready("w1")
    rig.do([])
    starts = [next(iter(worker.starts.values())) for worker in rig.workers.values()]
    assert starts[0] == pytest.approx(starts[1])


def test_leases_are_renewed_each_second() -> None:
    rig = Rig()
    rig.submit(workflow("Load"))
    before = rig.workers["w0"].renewals
    rig.run(10.0)
    assert 9 <= rig.workers["w0"].renewals - before <= 11


def test_a_worker_heard_again_is_renewed_at_once() -> None:
    """What it was sent before has echoed a stamp from before the silence."""
    rig = Rig()
    rig.submit(workflow("Load"))
    worker = rig.workers["w0"]
    worker.is_silent = True
    rig.run(4.0)
    worker.is_silent = False
    before = worker.renewals
    while worker.renewals == before:
        rig.run(0.05)
    rig.run(0.05)
    assert worker.renewals == before + 2
    rig.run(0.5)
    assert worker.renewals == before + 2


def test_progress_is_checkpointed_every_five_seconds() -> None:
    rig = Rig()
    job = rig.submit(workflow("Load"))
    before = kinds(rig).count("Checkpointed")
    rig.run(20.0, reports=True)
    assert 3 <= kinds(rig).count("Checkpointed") - before <= 6
    parts = rig.job(job).workflows["Load"].parts
    assert all(part.elapsed_s > 10 and part.report for part in parts)


def test_a_job_ends_when_its_parts_have_and_each_result_is_acknowledged() -> None:
    rig = Rig()
    job = rig.submit(workflow("Load"))
    rig.run(5.0, reports=True)
    rig.finish("w0", total=1000)
    assert rig.job(job).status is JobStatus.RUNNING
    rig.finish("w1", total=500)
    assert rig.job(job).status is JobStatus.COMPLETED
    assert [len(worker.acks) for worker in rig.workers.values()] == [1, 1]
    end = outcome_of(rig.records[job])
    assert end.workflows[0].stats.total_counts().total == 1500
    assert end.gaps == ()
    assert end.attempts == 2


def test_a_repeated_result_is_acknowledged_and_counts_once() -> None:
    rig = Rig()
    job = rig.submit(workflow("Load"))
    (message,) = rig.finish("w0", total=7)
    for _ in range(3):
        rig.do(rig.leader.received(message, now_s=rig.now_s))
    assert len(rig.workers["w0"].acks) == 4
    rig.finish("w1", total=7)
    end = outcome_of(rig.records[job])
    assert end.workflows[0].stats.total_counts().total == 14


def test_a_dead_worker_is_replaced_at_once_for_the_rest_of_the_duration() -> None:
    rig = Rig(workers=3, cores=2)
    job = rig.submit(workflow("Load", vus=4, duration_s=30.0))
    rig.run(10.0, reports=True)
    victim = prepared(rig)[0].run
    name = rig.job(job).workflows["Load"].parts[victim.part].worker
    rig.kill(name)
    rig.run(0.2)
    part = rig.job(job).workflows["Load"].parts[victim.part]
    assert (part.attempt, part.is_open) == (2, True)
    assert part.worker != name
    (command,) = [c for c in prepared(rig) if c.run.attempt == 2]
    assert command.elapsed_s == pytest.approx(10.0, abs=1.0)
    assert not command.shared  # the third worker was idle
    assert (command.first_slot, command.slots) == (victim.part * 2, 4)
    (gap,) = rig.job(job).workflows["Load"].gaps
    assert gap.worker == name
    assert gap.seconds <= 1.0
    assert gap.requests_max >= 100 * gap.seconds
    assert rig.running()[part.worker]


def test_with_all_cores_taken_the_load_comes_back_beside_others() -> None:
    rig = Rig(workers=2, cores=2)
    job = rig.submit(workflow("Load"))
    rig.run(3.0, reports=True)
    rig.kill("w0")
    rig.run(0.2)
    (command,) = [c for c in prepared(rig) if c.run.attempt == 2]
    assert command.shared
    assert rig.job(job).workflows["Load"].parts[0].worker == "w1"


def test_requests_of_a_dead_worker_stay_in_the_totals() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(10.0, reports=True)
    rig.kill("w0")
    rig.run(5.0, reports=True)
    rig.finish("w1", total=77)
    end = outcome_of(rig.records[job])
    reported = end.workflows[0].stats.total_counts().total
    assert 77 + 900 <= reported <= 77 + 1100
    assert end.status is JobStatus.COMPLETED
    assert [segment.worker for segment in end.segments] == ["w0"]
    parts = set(end.workflows[0].stats._parts)
    assert parts == {PartKey(0, 1), PartKey(0, 2)}


def test_a_silent_worker_is_given_up_only_after_its_lease_and_a_margin() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(5.0, reports=True)
    rig.workers["w0"].is_silent = True
    rig.do(rig.leader.worker_down("w0", is_certain=False, now_s=rig.now_s))
    rig.run(8.0)
    assert rig.job(job).workflows["Load"].parts[0].attempt == 1
    rig.run(4.0)
    part = rig.job(job).workflows["Load"].parts[0]
    assert (part.attempt, part.worker) == (2, "w1")
    (gap,) = rig.job(job).workflows["Load"].gaps
    assert gap.seconds <= 9.0


def test_a_worker_that_is_silent_for_less_keeps_its_run() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    for _ in range(5):
        rig.workers["w0"].is_silent = True
        rig.run(5.0)
        rig.workers["w0"].is_silent = False
        rig.run(2.0)
    assert rig.job(job).workflows["Load"].parts[0].attempt == 1


def test_many_silent_at_once_are_held_for_a_while() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(2.0)
    rig.workers["w0"].is_silent = True
    rig.leader.hold(frozenset({"w0"}))
    rig.run(20.0)
    assert rig.job(job).workflows["Load"].parts[0].attempt == 1
    rig.leader.hold(frozenset())
    rig.run(1.0)
    assert rig.job(job).workflows["Load"].parts[0].attempt == 2


def test_a_job_that_goes_on_in_isolation_is_not_started_elsewhere_on_silence() -> None:
    rig = Rig(workers=2, cores=1)
    options = JobOptions(on_isolation=Isolation.CONTINUE)
    job = rig.submit(workflow("Load", vus=1), options=options)
    rig.workers["w0"].is_silent = True
    rig.run(25.0)
    assert rig.job(job).workflows["Load"].parts[0].attempt == 1
    rig.workers["w0"].is_silent = False
    rig.kill("w0")
    assert rig.job(job).workflows["Load"].parts[0].retries == 1


def test_a_job_that_goes_on_in_isolation_does_not_wait_for_ever() -> None:
    rig = Rig(workers=2, cores=1)
    options = JobOptions(on_isolation=Isolation.CONTINUE)
    job = rig.submit(workflow("Load", vus=1, duration_s=10.0), options=options)
    rig.workers["w0"].is_silent = True
    rig.run(60.0)
    assert rig.job(job).workflows["Load"].parts[0].attempt == 1
    rig.run(30.0)
    assert rig.job(job).has_ended or rig.job(job).workflows["Load"].parts[0].attempt == 2


def test_what_has_not_begun_does_not_go_on_in_isolation() -> None:
    rig = Rig(workers=2, cores=1)
    rig.workers["w0"].is_silent = True
    options = JobOptions(on_isolation=Isolation.CONTINUE)
    job = rig.submit(workflow("Load", vus=1), options=options)
    rig.run(12.0)
    assert rig.job(job).workflows["Load"].parts[0].worker == "w1"


def test_the_last_word_of_a_worker_that_was_given_up_decides_nothing() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.workers["w0"].is_silent = True
    rig.run(15.0)
    assert rig.running()["w1"]
    rig.workers["w0"].is_silent = False
    rig.finish("w0", PartStatus.FAILED, error="late")
    assert rig.job(job).status is JobStatus.RUNNING
    assert rig.workers["w0"].acks
    rig.finish("w1")
    assert rig.job(job).status is JobStatus.COMPLETED


def test_after_three_retries_it_is_failed_and_dependents_are_cancelled() -> None:
    rig = Rig(workers=6, cores=1)
    job = rig.submit(workflow("Load", vus=1), workflow("After", "Load"))
    for attempt in range(1, 5):
        part = rig.job(job).workflows["Load"].parts[0]
        assert part.attempt == attempt
        rig.run(1.0, reports=True)
        rig.kill(part.worker)
        rig.run(0.3)
    ended = rig.job(job)
    assert ended.status is JobStatus.FAILED
    assert "given up after 4 attempts: worker" in (ended.workflows["Load"].error or "")
    assert ended.workflows["After"].error == "dependency failed: Load"


def test_a_workflow_that_fails_by_itself_is_not_tried_again() -> None:
    rig = Rig()
    job = rig.submit(workflow("A", vus=1), workflow("B", vus=1))
    rig.finish("w0", PartStatus.FAILED, error="KeyError: 'x'", workflow="A")
    rig.finish("w1", PartStatus.FAILED, error="KeyError: 'x'", workflow="A")
    rig.run(1.0)
    states = rig.job(job).workflows
    assert states["A"].error == "KeyError: 'x'"
    assert sum(part.attempt for part in states["A"].parts) == 1
    rig.finish("w0", workflow="B")
    rig.finish("w1", workflow="B")
    assert rig.job(job).status is JobStatus.PARTIAL


def test_one_failed_part_stops_the_others_of_its_workflow() -> None:
    rig = Rig(workers=2)
    job = rig.submit(workflow("Load"))
    rig.finish("w0", PartStatus.FAILED, error="setup: boom")
    assert rig.workers["w1"].stops
    assert rig.job(job).status is JobStatus.FAILED
    assert rig.job(job).workflows["Load"].error == "setup: boom"


def test_an_executor_that_died_is_worth_another_attempt_elsewhere() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(3.0, reports=True)
    rig.finish("w0", PartStatus.FAILED, error="an executor died", is_retryable=True)
    rig.run(0.2)
    part = rig.job(job).workflows["Load"].parts[0]
    assert (part.attempt, part.worker, part.retries) == (2, "w1", 1)


def test_a_lease_that_ran_out_is_not_held_against_the_worker() -> None:
    rig = Rig(workers=1, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(3.0, reports=True)
    rig.finish("w0", PartStatus.STOPPED, error="its lease ran out", is_retryable=True)
    rig.run(2.0)
    part = rig.job(job).workflows["Load"].parts[0]
    assert (part.attempt, part.worker, part.retries) == (2, "w0", 0)


def test_a_run_that_was_stopped_has_told_all_and_leaves_no_gap() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(3.2, reports=True)
    rig.finish("w0", PartStatus.STOPPED, error="the worker is leaving", is_retryable=True)
    rig.run(2.0)
    assert rig.job(job).workflows["Load"].parts[0].attempt == 2
    assert rig.job(job).workflows["Load"].gaps == []


@pytest.mark.parametrize("survivor_s", [0.0, 0.4])
@pytest.mark.parametrize("is_retryable", [False, True])
def test_what_an_executor_that_was_killed_had_not_reported_is_a_gap(
    is_retryable: bool, survivor_s: float
) -> None:
    """Also if another core of the part went on meanwhile, and has told all."""
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(3.0, reports=True)
    rig.run(0.4)
    rig.finish(
        "w0",
        PartStatus.FAILED,
        total=300,
        is_retryable=is_retryable,
        unheard_s=0.4,
        told_s=survivor_s,
    )
    rig.run(0.2)
    found = rig.records.get(job) or rig.job(job)
    (gap,) = found.workflows["Load"].gaps
    assert (gap.worker, gap.seconds) == ("w0", pytest.approx(0.4))
    assert 40 <= gap.requests_max <= 100


def test_one_that_never_reported_is_bounded_by_what_others_of_it_sent() -> None:
    rig = Rig(workers=2, cores=2)
    job = rig.submit(workflow("Load", vus=4))
    for _ in range(8):
        rig.run(0.5)
        rig.report("w0")  # 100 requests a second with two cores
    rig.kill("w1")
    rig.run(0.2)
    (gap,) = rig.job(job).workflows["Load"].gaps
    assert gap.worker == "w1"
    assert 100 * gap.seconds <= gap.requests_max <= 250 * gap.seconds


def test_where_nothing_was_ever_reported_the_bound_is_what_a_core_can_do() -> None:
    rig = Rig(workers=2, cores=2)
    job = rig.submit(workflow("Load", vus=4))
    rig.run(6.0)
    rig.kill("w1")
    rig.run(0.2)
    (gap,) = rig.job(job).workflows["Load"].gaps
    assert gap.requests_max >= 2 * RATE_PER_CORE_MAX * gap.seconds


def test_the_load_of_a_dead_worker_ended_when_nobody_listened_there_any_more() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(6.0, reports=True)
    refused_s = rig.now_s + 0.1
    rig.run(1.0)
    rig.workers["w0"].is_up = False
    rig.do(rig.leader.worker_down("w0", is_certain=True, now_s=rig.now_s, ended_s=refused_s))
    (gap,) = rig.job(job).workflows["Load"].gaps
    assert gap.seconds <= 0.65  # half a second since the last report, and what followed it


def test_a_full_worker_costs_no_retry() -> None:
    rig = Rig(workers=1, cores=1)
    rig.workers["w0"].refusal = Refusal.NO_CORES
    job = rig.submit(workflow("Load", vus=1))
    rig.run(20.0)
    part = rig.job(job).workflows["Load"].parts[0]
    assert part.retries == 0
    assert 2 <= part.attempt <= 12  # it does not hammer
    rig.workers["w0"].refusal = Refusal.NONE
    rig.run(10.0)
    assert rig.job(job).status is JobStatus.RUNNING


def test_bad_input_found_while_preparing_ends_the_workflow() -> None:
    rig = Rig(workers=1)
    rig.workers["w0"].readies = False
    job = rig.submit(workflow("Load"))
    (command,) = prepared(rig)
    refused = PartRefused(
        worker="w0", group=1, run=command.run, error="no module x", hint="add it", is_input=True
    )
    rig.do(rig.leader.received(refused, now_s=rig.now_s))
    assert rig.job(job).status is JobStatus.FAILED
    assert rig.job(job).workflows["Load"].error == "no module x (hint: add it)"
    assert rig.workers["w0"].acks == [command.run]


def test_dependents_start_when_what_they_wait_for_has_completed_and_get_its_values() -> None:
    provider = msgspec.structs.replace(
        workflow("Login", is_test=False),
        states=(StatePlan(name="token", kind=StateKind.PROVIDE, workflows=("Load",)),),
    )
    user = msgspec.structs.replace(
        workflow("Load", "Login"),
        states=(StatePlan(name="take", kind=StateKind.USE, workflows=("Login",), keys=("token",)),),
    )
    rig = Rig(workers=1)
    job = rig.submit(provider, user, workflow("Other", vus=1))
    assert {command.run.workflow for command in prepared(rig)} == {"Login", "Other"}
    given = encode_provided(Provided(states={"token": b"secret"}))
    rig.finish("w0", provided=[given], workflow="Login")
    rig.run(0.3)
    (command,) = [c for c in prepared(rig) if c.run.workflow == "Load"]
    assert decode_received(command.context).uses["take"]["token"].chunks == (b"secret",)
    assert rig.job(job).workflows["Other"].status is WorkflowStatus.RUNNING


def test_a_missing_value_fails_the_workflow_with_a_reason() -> None:
    use = StatePlan(
        name="take",
        kind=StateKind.USE,
        workflows=("Login",),
        keys=("token",),
        required=("token",),
    )
    user = msgspec.structs.replace(workflow("Load", "Login"), states=(use,))
    rig = Rig(workers=1)
    job = rig.submit(workflow("Login", is_test=False), user)
    rig.finish("w0")
    rig.run(0.3)
    assert "needs 'token'" in (rig.job(job).workflows["Load"].error or "")
    assert rig.job(job).status is JobStatus.PARTIAL


def test_a_cancel_stops_what_runs_and_says_why() -> None:
    rig = Rig()
    job = rig.submit(workflow("Load"))
    rig.run(2.0, reports=True)
    rig.commit(CancelRequested(job=job, reason="enough", by="me"))
    assert all(worker.stops for worker in rig.workers.values())
    assert rig.job(job).status is JobStatus.CANCELLED
    assert rig.job(job).workflows["Load"].error == "enough"


def test_a_queued_job_is_cancelled_at_once_and_wants_no_cores_any_more() -> None:
    rig = Rig(workers=1)
    rig.submit(workflow("Load"))
    second = rig.submit(workflow("Load"), key="second")
    row = rig.leader.row(rig.job(second))
    assert (row.status, row.position) == (JobStatus.QUEUED, 1)
    assert row.reason == "Load needs 1 core, and 2 of 2 are busy"
    rig.commit(CancelRequested(job=second, reason="enough"))
    assert rig.job(second).status is JobStatus.CANCELLED
    rig.finish("w0")
    rig.run(3.0)
    assert rig.allocator.waiting == 0
    assert sum(rig.allocator.free().values()) == 2


def test_a_cancel_that_reaches_nobody_ends_when_the_leases_have() -> None:
    rig = Rig(workers=1, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(2.0, reports=True)
    rig.workers["w0"].is_silent = True
    rig.commit(CancelRequested(job=job, reason="enough"))
    rig.run(8.0)
    assert rig.job(job).status is JobStatus.CANCELLING
    rig.run(4.0)
    assert rig.job(job).status is JobStatus.CANCELLED


def test_a_cancel_between_dispatch_and_preparation_leaves_nothing_behind() -> None:
    rig = Rig(workers=1, cores=1)
    rig.workers["w0"].is_silent = True
    job = rig.submit(workflow("Load", vus=1))
    assert rig.job(job).status is JobStatus.DISPATCHING
    rig.commit(CancelRequested(job=job, reason="enough"))
    rig.workers["w0"].is_silent = False
    rig.run(2.0)
    assert rig.job(job).status is JobStatus.CANCELLED
    assert not rig.workers["w0"].runs


def test_freed_cores_go_to_the_next_job() -> None:
    rig = Rig(workers=1)
    rig.submit(workflow("Load"))
    second = rig.submit(workflow("Load"), key="second")
    assert rig.job(second).status is JobStatus.SUBMITTED
    rig.finish("w0")
    rig.run(2.0)
    assert rig.job(second).status is JobStatus.RUNNING


def test_exclusive_waits_for_all_to_end_and_is_alone() -> None:
    rig = Rig(workers=2)
    rig.submit(workflow("Load", vus=1))
    alone = rig.submit(workflow("Load", priority=Priority.EXCLUSIVE), key="alone")
    third = rig.submit(workflow("Load", vus=1), key="third")
    rig.finish("w0")
    rig.finish("w1")
    rig.run(2.0)
    assert (rig.job(alone).status is JobStatus.RUNNING) != (
        rig.job(third).status is JobStatus.RUNNING
    )


@pytest.mark.parametrize("phase", ["running", "ready", "preparing"])
def test_a_new_leader_goes_on_with_what_runs(phase: str) -> None:
    rig = Rig()
    if phase != "running":
        rig.workers["w1"].readies = False
    job = rig.submit(workflow("Load"))
    rig.run(3.0, reports=True)
    before = len(prepared(rig))
    rig.take_over()
    rig.run(3.0, reports=True)
    if phase != "running":
        rig.ready("w1")
        rig.run(1.0)
    assert rig.job(job).status is JobStatus.RUNNING
    assert len(prepared(rig)) == before
    assert all(part.attempt == 1 for part in rig.job(job).workflows["Load"].parts)
    rig.run(3.0, reports=True)
    rig.finish("w0", total=10)
    rig.finish("w1", total=10)
    assert rig.job(job).status is JobStatus.COMPLETED
    assert "AttemptRevoked" not in kinds(rig)


def test_a_new_leader_gives_up_runs_their_worker_does_not_know() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(6.0, reports=True)
    rig.workers["w0"].restart()
    rig.take_over()
    rig.run(2.0)
    part = rig.job(job).workflows["Load"].parts[0]
    assert part.attempt == 2
    assert part.began_s > 0


def test_a_new_leader_stops_what_does_not_belong() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    stranger = RunId(job, "Load", 0, 7)
    command = prepared(rig)[0]
    rig.workers["w1"].runs[stranger] = msgspec.structs.replace(command, run=stranger)
    rig.workers["w1"].phases[stranger] = PartPhase.RUNNING
    rig.take_over()
    assert stranger in rig.workers["w1"].stops


def test_a_worker_that_restarted_unnoticed_is_found_out() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(3.0, reports=True)
    rig.workers["w0"].restart()
    rig.run(4.0)
    assert rig.job(job).workflows["Load"].parts[0].attempt == 2


def test_a_new_leader_waits_longer_for_a_silent_worker() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(3.0, reports=True)
    rig.workers["w0"].is_silent = True
    rig.take_over()
    rig.run(11.0)
    assert rig.job(job).workflows["Load"].parts[0].attempt == 1
    rig.run(2.0)
    assert rig.job(job).workflows["Load"].parts[0].attempt == 2


def test_what_had_not_begun_when_its_worker_died_leaves_no_gap_and_is_done_whole() -> None:
    rig = Rig(workers=2, cores=1)
    rig.workers["w0"].readies = False
    job = rig.submit(workflow("Load", vus=1))
    rig.run(5.0)
    rig.take_over()
    rig.run(20.0)
    rig.kill("w0")
    rig.run(0.5)
    part = rig.job(job).workflows["Load"].parts[0]
    assert (part.attempt, part.began_s) == (2, 0.0)
    assert rig.job(job).workflows["Load"].gaps == []


def test_what_was_silent_before_the_leader_changed_is_a_gap_as_long_as_that() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1), options=JobOptions(on_isolation=Isolation.CONTINUE))
    rig.run(6.0, reports=True)
    rig.run(12.0)  # with checkpoints, but without news
    rig.take_over()
    rig.kill("w0")
    rig.run(0.5)
    (gap,) = rig.job(job).workflows["Load"].gaps
    assert 12.0 <= gap.seconds <= 14.0


def test_a_worker_that_died_before_the_new_leader_led_is_not_waited_for() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(7.0, reports=True)
    rig.workers["w0"].is_up = False
    rig.tell(rig.allocator.worker_down("w0", now_s=rig.now_s))
    rig.take_over()
    rig.run(3.5)
    part = rig.job(job).workflows["Load"].parts[0]
    assert (part.attempt, part.worker) == (2, "w1")


def test_a_worker_that_dies_just_after_the_new_leader_led_is_replaced_at_once() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(12.0, reports=True)
    rig.take_over()
    rig.kill("w0")
    rig.run(0.2)
    part = rig.job(job).workflows["Load"].parts[0]
    assert (part.attempt, part.worker) == (2, "w1")


def test_a_new_leader_picks_up_a_job_at_any_point() -> None:
    """Leadership changes after every single commit; the job ends all the same."""
    rig = Rig(workers=2, cores=2)
    job = rig.submit(workflow("A", vus=2), workflow("B", "A", vus=2))
    for _ in range(60):
        rig.take_over()
        rig.run(0.7, reports=True)
        for name in rig.workers:
            rig.finish(name)
        if rig.job(job).has_ended:
            break
    assert rig.job(job).status is JobStatus.COMPLETED


def test_the_jobs_timeout_ends_it_with_a_reason() -> None:
    rig = Rig()
    job = rig.submit(workflow("Load"), options=JobOptions(timeout_s=5.0))
    rig.run(3.0, reports=True)
    rig.take_over()  # the clock goes on, not anew
    rig.run(2.5, reports=True)
    assert rig.job(job).status is JobStatus.TIMEOUT
    assert "timeout of 5 s" in rig.job(job).reason


def test_a_part_that_overruns_is_ended() -> None:
    rig = Rig(workers=1, cores=1, timing=Timing(overrun_s=5.0))
    load = msgspec.structs.replace(workflow("Load", vus=1, duration_s=5.0), timeout_s=1.0)
    job = rig.submit(load)
    rig.run(10.0, reports=True)
    assert rig.job(job).status is JobStatus.RUNNING
    rig.run(3.0, reports=True)
    assert rig.job(job).workflows["Load"].ended_as is JobStatus.TIMEOUT
    assert "still running" in rig.job(job).reason


def test_a_part_that_gets_nowhere_is_stuck() -> None:
    rig = Rig(workers=1, cores=1, timing=Timing(stuck_s=20.0))
    load = msgspec.structs.replace(workflow("Load", vus=1, duration_s=600.0), timeout_s=1.0)
    job = rig.submit(load)
    rig.run(30.0, reports=True)
    assert rig.job(job).status is JobStatus.RUNNING
    for _ in range(30):
        rig.run(1.0)
        rig.report("w0", rate=0)
    assert "no action finished" in (rig.job(job).workflows["Load"].error or "")


def test_extensions_shrink_and_end() -> None:
    assert [extension_s(count) for count in range(7)] == [15.0, 7.5, 3.75, 1.875, 1.0, 0.0, 0.0]


def test_without_workers_a_job_fails_and_says_so() -> None:
    rig = Rig(workers=0)
    job = rig.submit(workflow("Load"))
    rig.run(15.0)
    assert rig.job(job).status is JobStatus.FAILED
    assert "no workers" in rig.job(job).reason


def test_a_job_waits_for_cores_only_so_long() -> None:
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


def test_statistics_of_all_parts_are_merged_live() -> None:
    rig = Rig(workers=2)
    job = rig.submit(workflow("Load"))
    rig.run(4.0, reports=True)
    view = rig.leader.view(job, now_s=rig.now_s)
    assert view is not None
    assert 600 <= view.workflows[0].total <= 900
    rig.take_over()
    rig.run(1.0, reports=True)
    again = rig.leader.view(job, now_s=rig.now_s)
    assert again is not None
    assert again.workflows[0].total >= view.workflows[0].total


def test_who_follows_does_nothing() -> None:
    rig = Rig()
    job = rig.submit(workflow("Load"))
    rig.leader.follow()
    assert rig.leader.tick(now_s=rig.now_s) == []
    assert rig.leader.wake_at_s() == float("inf")
    assert rig.leader.view(job, now_s=rig.now_s) is None
    for worker in rig.workers.values():
        for run in worker.runs:
            finished = PartRefused(worker=worker.name, group=1, run=run, error="x")
            assert rig.leader.received(finished, now_s=rig.now_s) == []


def test_every_dispatch_and_result_is_a_committed_entry() -> None:
    rig = Rig(workers=3, cores=1)
    job = rig.submit(workflow("Load", vus=3))
    rig.run(2.0, reports=True)
    rig.kill("w0")
    rig.run(1.0, reports=True)
    rig.finish("w1")
    rig.finish("w2")
    events = rig.events
    dispatched = {
        (each.part, each.attempt, each.worker)
        for event in events
        if isinstance(event, Dispatched)
        for each in event.dispatches
    }
    for worker in rig.workers.values():
        for run in (*worker.starts,):
            assert (run.part, run.attempt, worker.name) in dispatched
    assert sum(isinstance(event, AttemptRevoked) for event in events) == 1
    assert sum(isinstance(event, SubFinished) for event in events) == 3
    assert sum(isinstance(event, WorkflowsPlanned) for event in events) == 1
    assert any(isinstance(event, Checkpointed) for event in events)
    assert rig.job(job).status is JobStatus.COMPLETED


def test_the_view_says_what_was_lost_and_who_is_at_its_limit() -> None:
    rig = Rig(workers=3, cores=1)
    job = rig.submit(workflow("Load", vus=2))
    rig.run(3.0, reports=True)
    rig.kill(rig.job(job).workflows["Load"].parts[0].worker)
    rig.run(3.0, reports=True)
    view = rig.leader.view(job, now_s=rig.now_s)
    assert view is not None
    assert any("died; its load went on elsewhere" in text for text in view.warnings)
    assert not view.saturated
    run = rig.running()[rig.job(job).workflows["Load"].parts[1].worker][0]
    worker = rig.job(job).workflows["Load"].parts[1].worker
    part = PartProgress(
        run=run, report=report("Load", slot=1, sequence=10**6, elapsed_s=7.0), elapsed_s=7.0
    )
    rig.leader.progress(
        Progress(worker=worker, group=1, parts=[part], cpu=0.9, saturated=[run]), now_s=rig.now_s
    )
    view = rig.leader.view(job, now_s=rig.now_s)
    assert view is not None
    assert view.saturated
    (found,) = [g for g in rig.leader.generators(job, now_s=rig.now_s) if g.part == 1]
    assert (found.worker, found.cpu, found.is_saturated) == (worker, 0.9, True)


def test_a_part_that_moves_gets_more_time_and_one_that_does_not_gets_none() -> None:
    rig = Rig(workers=1, cores=1)
    rig.submit(workflow("Load", vus=1))
    rig.run(1.0, reports=True)
    (run,) = rig.running()["w0"]
    granted = []
    for sequence, total in enumerate((100, 100, 200, 300, 400, 500, 600), start=10**6):
        part = PartProgress(
            run=run,
            report=report("Load", sequence=sequence, elapsed_s=2.0, total=total),
            elapsed_s=2.0,
            extension="a long step",
        )
        taken, _ = rig.leader.progress(
            Progress(worker="w0", group=1, parts=[part]), now_s=rig.now_s
        )
        granted.append(taken.extended_s.get("Load/0", 0.0))
    assert granted == [15.0, 0.0, 7.5, 3.75, 1.875, 1.0, 0.0]


def test_many_parts_are_looked_at_together_soon_after() -> None:
    rig = Rig(workers=40, cores=2)
    job = rig.submit(workflow("Load", vus=10_000))
    assert len(rig.job(job).workflows["Load"].parts) == 40
    second = rig.submit(workflow("More", vus=10_000), key="more")
    for name in rig.workers:
        rig.finish(name)
    rig.run(1.0)
    assert rig.job(job).status is JobStatus.COMPLETED
    assert rig.job(second).status is JobStatus.RUNNING
    for name in rig.workers:
        rig.finish(name)
    rig.run(1.0)
    assert rig.job(second).status is JobStatus.COMPLETED


def test_an_entry_that_was_there_before_it_led_changes_nothing() -> None:
    rig = Rig(workers=1, cores=1)
    rig.submit(workflow("Load", vus=1))
    rig.workers["w0"].is_silent = True
    rig.take_over()
    (event,) = [each for each in rig.events if isinstance(each, Dispatched)]
    effects = rig.leader.applied(event, Reply(ok=True), now_s=rig.now_s)
    assert not any(isinstance(getattr(e, "command", None), PreparePart) for e in effects)
