"""The leader of a group's jobs, as all goes well: from a submission to its result."""

from itertools import pairwise

import msgspec
import pytest

from hyperscale.jobs.committed.events import (
    AttemptRevoked,
    CancelRequested,
    Checkpointed,
    JobOptions,
    JobStatus,
    PartEnded,
    PartRedispatched,
    WorkflowDispatched,
)
from hyperscale.jobs.committed.outcome import outcome_of
from hyperscale.jobs.committed.state import WorkflowStatus
from hyperscale.jobs.leader import events as ev
from hyperscale.jobs.messages import (
    AnnounceReady,
    AttemptId,
    PartPhase,
    PartProgress,
    ReportProgress,
)
from hyperscale.plan import Priority, StateKind, StatePlan, ThresholdPlan
from hyperscale.plan.context import Provided, decode_received, encode_provided
from tests.lab.job_builders import plan, report, submission, workflow
from tests.lab.leader_rig import Rig


def test_a_job_is_planned_dispatched_prepared_and_started() -> None:
    rig = Rig(workers=3, cores=2)
    job = rig.submit(workflow("Load", vus=100))
    assert rig.job(job).status is JobStatus.RUNNING
    commands = sorted(rig.prepared(), key=lambda command: command.attempt_id.part)
    assert [(c.first_slot, c.cores, c.slots) for c in commands] == [
        (0, 2, 6),
        (2, 2, 6),
        (4, 2, 6),
    ]
    assert rig.kinds()[:3] == ["JobSubmitted", "WorkflowDispatched", "Checkpointed"]


@pytest.mark.parametrize(("names", "cores"), [("A", [4]), ("AB", [2, 2]), ("ABCDE", [1] * 5)])
def test_the_workflows_of_a_job_share_what_is_left_of_the_quota_of_its_owner(
    names: str, cores: list[int]
) -> None:
    rig = Rig(workers=3, cores=8)
    rig.submit(*(workflow(name, vus=100) for name in names), options=JobOptions(cores_max=4))
    assert sorted(command.slots for command in rig.prepared()) == cores


def test_nothing_reaches_a_worker_before_its_dispatch_is_committed() -> None:
    rig = Rig()
    rig.submit(workflow("Load"))
    rig.finish("w0")
    rig.finish("w1")
    job = rig.commit(submission("second", plan(workflow("Load"))))
    rig.commits = False
    rig.run(3.0)
    assert all(command.attempt_id.job != job for command in rig.prepared())
    rig.commits = True
    rig.run(3.0)
    assert any(command.attempt_id.job == job for command in rig.prepared())


def test_all_parts_start_together_once_all_are_ready() -> None:
    rig = Rig(workers=2)
    rig.workers["w1"].readies = False
    job = rig.submit(workflow("Load"))
    rig.run(3.0)
    assert rig.workers["w0"].phases[AttemptId(job, "Load", 0, 1)] is PartPhase.READY
    rig.ready("w1")
    rig.run(0.3)
    starts = [next(iter(worker.starts.values())) for worker in rig.workers.values()]
    assert starts[0] == pytest.approx(starts[1])


def test_leases_are_renewed_each_second() -> None:
    rig = Rig()
    rig.submit(workflow("Load"))
    before = rig.workers["w0"].renewals
    rig.run(10.0)
    assert 9 <= rig.workers["w0"].renewals - before <= 11


def test_a_leader_that_is_not_confirmed_renews_no_lease() -> None:
    rig = Rig()
    rig.submit(workflow("Load"))
    rig.confirms = False
    before = rig.workers["w0"].renewals
    rig.run(5.0)
    assert rig.workers["w0"].renewals == before
    rig.confirms = True
    rig.run(3.0)
    assert rig.workers["w0"].renewals > before


def test_a_lease_counts_from_a_stamp_that_arrived_before_the_leader_was_confirmed() -> None:
    """A successor may have been elected since: its own leases count from later stamps only."""
    rig = Rig()
    rig.submit(workflow("Load"))
    rig.run(2.0)
    rig.confirms = False
    question = rig.question
    while rig.question == question:
        rig.run(0.05)
    asked_ms = rig.now_ms
    worker = rig.workers["w0"]
    rig.run(0.5)
    attempt_id = next(iter(worker.commands))
    message = AnnounceReady(worker="w0", group=1, attempt_id=attempt_id, stamp_ms=rig.now_ms)
    rig.feed(ev.WorkerAnnounced(message))
    worker.echoed.clear()
    rig.feed(ev.LeadershipConfirmed(rig.question))
    (echoed,) = worker.echoed
    assert echoed <= asked_ms
    rig.feed(ev.LeadershipConfirmed(rig.question - 1))
    assert len(worker.echoed) == 1


def test_leases_are_renewed_although_every_confirmation_takes_long() -> None:
    rig = Rig(workers=1, cores=1)
    rig.submit(workflow("Load", vus=1, duration_s=60.0))
    rig.run(2.0)
    rig.confirms = False
    worker = rig.workers["w0"]
    before = worker.renewals
    asked_s: dict[int, float] = {}
    confirmed: set[int] = set()
    for _ in range(400):
        rig.run(0.05)
        asked_s.setdefault(rig.question, rig.now_s)
        due = {question for question, at_s in asked_s.items() if rig.now_s >= at_s + 2.5}
        for question in sorted(due - confirmed):
            confirmed.add(question)
            rig.feed(ev.LeadershipConfirmed(question))
    assert worker.renewals - before >= 5


def test_load_begins_once_the_leader_is_confirmed() -> None:
    rig = Rig()
    rig.confirms = False
    job = rig.submit(workflow("Load"))
    rig.run(3.0)
    assert rig.workers["w0"].phases[AttemptId(job, "Load", 0, 1)] is PartPhase.READY
    assert rig.workers["w0"].starts == {}
    rig.confirms = True
    rig.run(3.0)
    assert rig.running()["w0"] == [AttemptId(job, "Load", 0, 1)]


def test_the_leases_of_a_worker_that_answers_again_are_renewed_at_once() -> None:
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
    rig.run(0.3)
    assert worker.renewals == before + 2
    rig.run(0.5)
    assert worker.renewals == before + 2


def test_progress_is_checkpointed_every_five_seconds() -> None:
    rig = Rig()
    job = rig.submit(workflow("Load"))
    before = rig.kinds().count("Checkpointed")
    rig.run(20.0, reports=True)
    assert 3 <= rig.kinds().count("Checkpointed") - before <= 6
    parts = rig.job(job).workflows["Load"].parts
    assert all(part.elapsed_s > 10 and part.report for part in parts)


def test_a_job_ends_with_its_last_part_and_every_result_is_acknowledged() -> None:
    rig = Rig()
    job = rig.submit(workflow("Load"))
    rig.run(5.0, reports=True)
    rig.finish("w0", total=1000)
    assert rig.job(job).status is JobStatus.RUNNING
    rig.finish("w1", total=500)
    assert rig.job(job).status is JobStatus.COMPLETED
    assert [len(worker.acks) for worker in rig.workers.values()] == [1, 1]
    end = outcome_of(rig.records[job])
    assert end.stats["Load"].total_counts().total == 1500
    assert end.gaps == []
    assert end.job.workflows["Load"].attempts == 2


def test_a_repeated_result_is_acknowledged_and_counts_once() -> None:
    rig = Rig()
    job = rig.submit(workflow("Load"))
    (message,) = rig.finish("w0", total=7)
    for _ in range(3):
        rig.feed(ev.WorkerAnnounced(message))
    assert len(rig.workers["w0"].acks) == 4
    rig.finish("w1", total=7)
    end = outcome_of(rig.records[job])
    assert end.stats["Load"].total_counts().total == 14


def test_a_workflow_starts_when_its_dependencies_have_completed_and_gets_their_values() -> None:
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
    assert {command.attempt_id.workflow for command in rig.prepared()} == {"Login", "Other"}
    given = encode_provided(Provided(states={"token": b"secret"}))
    rig.finish("w0", provided=[given], workflow="Login")
    rig.run(0.3)
    (command,) = [c for c in rig.prepared() if c.attempt_id.workflow == "Load"]
    assert decode_received(command.context).uses["take"]["token"].chunks == (b"secret",)
    assert rig.job(job).workflows["Other"].status is WorkflowStatus.RUNNING


def test_a_workflow_whose_context_is_missing_fails_with_a_reason() -> None:
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


def test_freed_cores_go_to_the_next_job() -> None:
    rig = Rig(workers=1)
    rig.submit(workflow("Load"))
    second = rig.submit(workflow("Load"), key="second")
    assert rig.job(second).status is JobStatus.SUBMITTED
    rig.finish("w0")
    rig.run(2.0)
    assert rig.job(second).status is JobStatus.RUNNING


def test_workflows_that_become_ready_together_share_the_pool_although_one_request_is_late() -> None:
    rig = Rig(workers=1, cores=4)
    rig.ask_takes_s = 0.5
    roots = workflow("High", priority=Priority.HIGH), workflow("Low", priority=Priority.LOW)
    job = rig.submit(*roots)
    rig.run(2.0)
    cores = {name: each.slots for name, each in rig.job(job).workflows.items()}
    assert cores == {"High": 3, "Low": 1}


def test_an_exclusive_workflow_waits_for_all_others_and_runs_alone() -> None:
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
        (part, 1, each.worker)
        for event in events
        if isinstance(event, WorkflowDispatched)
        for part, each in enumerate(event.parts)
    } | {
        (event.part, event.attempt, event.worker)
        for event in events
        if isinstance(event, PartRedispatched)
    }
    for worker in rig.workers.values():
        for attempt_id in (*worker.starts,):
            assert (attempt_id.part, attempt_id.attempt, worker.name) in dispatched
    assert sum(isinstance(event, AttemptRevoked) for event in events) == 1
    assert sum(isinstance(event, PartEnded) for event in events) == 3
    assert sum(isinstance(event, WorkflowDispatched) for event in events) == 1
    assert any(isinstance(event, Checkpointed) for event in events)
    assert rig.job(job).status is JobStatus.COMPLETED


def test_the_clock_of_the_live_view_moves_on_when_a_dependent_workflow_starts() -> None:
    rig = Rig(workers=1, cores=1)
    job = rig.submit(workflow("First", duration_s=20.0), workflow("Second", "First"))
    clock_s = []
    rig.run(20.0)
    rig.finish("w0")
    for _ in range(10):
        rig.run(1.0)
        view = rig.leader.view(job, now_s=rig.now_s)
        assert view is not None
        clock_s.append(view.elapsed_s)
    assert rig.job(job).workflows["Second"].status is WorkflowStatus.RUNNING
    assert clock_s[0] >= 20.0
    assert [after - before for before, after in pairwise(clock_s)] == pytest.approx(
        [1.0] * 9, abs=0.3
    )


def test_the_live_view_names_lost_attempts_and_saturated_workers() -> None:
    rig = Rig(workers=3, cores=1)
    job = rig.submit(workflow("Load", vus=2))
    rig.run(3.0, reports=True)
    rig.kill(rig.job(job).workflows["Load"].parts[0].worker)
    rig.run(3.0, reports=True)
    view = rig.leader.view(job, now_s=rig.now_s)
    assert view is not None
    assert any("died; its load went on elsewhere" in text for text in view.warnings)
    assert not view.saturated
    attempt_id = rig.running()[rig.job(job).workflows["Load"].parts[1].worker][0]
    worker = rig.job(job).workflows["Load"].parts[1].worker
    part = PartProgress(
        attempt_id=attempt_id,
        report=report("Load", slot=1, sequence=10**6, elapsed_s=7.0),
        elapsed_s=7.0,
    )
    progress = ReportProgress(worker=worker, group=1, parts=[part], cpu=0.9, saturated=[attempt_id])
    rig.feed(ev.ProgressReported(progress))
    view = rig.leader.view(job, now_s=rig.now_s)
    assert view is not None
    assert view.saturated
    assert f"{worker} is saturated (CPU 90%" in view.saturation["workers"]
    found = view.usage[0]
    assert (found.worker, found.cpu, found.is_saturated) == (worker, 0.9, True)


def test_a_job_of_many_parts_is_reconciled_once_for_many_messages() -> None:
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


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_committed_dispatch_is_prepared_although_its_event_has_not_arrived(
    is_cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(workers=2, cores=2)
    handle = rig.leader.handle

    def miss_dispatches(event: ev.LeaderEvent, *, now_s: float) -> list[ev.LeaderEffect]:
        is_missed = isinstance(event, ev.EventApplied) and isinstance(
            event.event, WorkflowDispatched
        )
        return [] if is_missed else handle(event, now_s=now_s)

    monkeypatch.setattr(rig.leader, "handle", miss_dispatches)
    job = rig.submit(workflow("Load", vus=1))
    if is_cancelled:
        rig.commit(CancelRequested(job=job, reason="enough"))
    rig.run(5.0)
    wanted = JobStatus.CANCELLED if is_cancelled else JobStatus.RUNNING
    assert rig.job(job).status is wanted


@pytest.mark.parametrize("takes_over", [False, True])
def test_a_bug_of_the_leader_fails_one_job_and_no_other(
    takes_over: bool,
) -> None:
    """Managers refuse what they cannot read; a newer one may have let it in."""
    rig = Rig(workers=2, cores=2)
    rig.expects_job_errors = True
    unreadable = (ThresholdPlan(name="p97", limit="<1s"),)
    bad = rig.submit(msgspec.structs.replace(workflow("Bad", vus=1), thresholds=unreadable))
    good = rig.submit(workflow("Good", vus=1, duration_s=60.0), key="good")
    if takes_over:
        rig.take_over()
    rig.run(30.0, reports=True)
    assert rig.failed_jobs == [bad]
    assert rig.records[bad].status is JobStatus.FAILED
    assert "internal error" in rig.records[bad].reason
    worker = next(each for each in rig.workers.values() if rig.running()[each.name])
    assert worker.renewals > 25
    rig.finish(worker.name, workflow="Good")
    assert rig.job(good).status is JobStatus.COMPLETED


def test_the_leader_forgets_a_job_that_has_ended() -> None:
    rig = Rig(workers=2, cores=2)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(1.0, reports=True)
    assert rig.leader.view(job, now_s=rig.now_s) is not None
    for name in rig.workers:
        rig.finish(name)
    rig.run(1.0)
    assert rig.job(job).has_ended
    assert rig.leader.view(job, now_s=rig.now_s) is None
    assert not rig.leader.state.jobs


def test_all_ready_workflows_of_a_job_run_although_there_is_one_core() -> None:
    rig = Rig(workers=1, cores=1)
    job = rig.submit(
        workflow("Low", vus=1, priority=Priority.LOW),
        workflow("High", vus=1, priority=Priority.HIGH),
        workflow("Late", "High", vus=1),
    )
    rig.run(1.0, reports=True)
    commands = {c.attempt_id.workflow: c for c in rig.prepared()}
    assert {name: c.within_job for name, c in commands.items()} == {"High": False, "Low": True}
    assert len(rig.running()["w0"]) == 2
    view = rig.leader.view(job, now_s=rig.now_s)
    assert view is not None
    assert [each.shared_cores for each in view.workflows] == [1, 1, 0]
    assert view.warnings[0].startswith("2 workflows on 1 core: Low and High run together")
    rig.take_over()  # a change of leaders changes nothing
    rig.run(3.0, reports=True)
    assert len(rig.running()["w0"]) == 2
    rig.finish("w0", workflow="High")
    rig.run(2.0, reports=True)
    assert rig.job(job).workflows["Late"].within_job  # beside Low, which has the core now
    for name in ("Low", "Late"):
        rig.finish("w0", workflow=name)
    record = rig.records[job]
    assert record.status is JobStatus.COMPLETED
    assert {name: each.shared_cores for name, each in record.workflows.items()} == {
        "Low": 1,
        "High": 1,
        "Late": 1,
    }
    assert rig.kinds().count("AttemptRevoked") == 0
