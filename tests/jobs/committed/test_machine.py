"""The machine of committed jobs: one test per rule."""

import msgspec
import pytest

from hyperscale.jobs.committed.context import JOB_BYTES_MAX, UPDATE_BYTES_MAX, context_for
from hyperscale.jobs.committed.events import (
    AttemptFault,
    AttemptRevoked,
    CancelRequested,
    Checkpoint,
    Checkpointed,
    Code,
    Event,
    GlobalPart,
    JobFinished,
    JobOptions,
    JobStatus,
    LoadChanged,
    PartDispatch,
    PartEnded,
    PartRedispatched,
    Reply,
    WorkflowDispatched,
    WorkflowEnded,
    encode,
)
from hyperscale.jobs.committed.job_table import Limits
from hyperscale.jobs.committed.machine import Applied, JobMachine
from hyperscale.jobs.committed.state import (
    ENDED_JOBS,
    Job,
    WorkflowStatus,
    decode_ended,
    decode_job,
)
from hyperscale.ledger.replica import key_slot_of
from hyperscale.plan import StateKind, StatePlan
from hyperscale.plan.changes import ChangeKind, LoadChange
from hyperscale.plan.context import MissingContextError, Provided, decode_received, encode_provided
from hyperscale.plan.status import PartStatus
from tests.lab.job_builders import plan, report, submission, workflow


class MachineLog:
    """A machine, its log index and clock, and the rows it wrote to history."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.machine = JobMachine("dc1", 3, limits)
        self.index = 0
        self.stamp_ms = 1_000
        self.rows: list[tuple[str, str, bytes]] = []

    def put(self, event: Event) -> Reply:
        return self.put_bytes(encode(event))

    def put_bytes(self, body: bytes) -> Reply:
        self.index += 1
        self.stamp_ms += 10
        applied: Applied = self.machine.apply(self.index, self.stamp_ms, body)
        self.rows += applied.history
        return applied.reply

    def job(self, job: str) -> Job:
        found = self.machine.job(job)
        assert found is not None
        return found

    def submit(self, *workflows: object, key: str = "key-1") -> str:
        reply = self.put(submission(key, plan(*workflows)))  # type: ignore[arg-type]  # plans
        assert reply.ok, reply
        return reply.job

    def dispatch(self, job: str, name: str = "Load", *cores: int) -> None:
        sizes = cores or (2,)
        parts = [PartDispatch(sum(sizes[:i]), size, f"w{i}") for i, size in enumerate(sizes)]
        assert self.put(WorkflowDispatched(job=job, workflow=name, parts=parts)).ok

    def finish(
        self,
        job: str,
        name: str = "Load",
        *,
        part: int = 0,
        attempt: int = 1,
        status: PartStatus = PartStatus.COMPLETED,
        error: str | None = None,
        provided: list[bytes] | None = None,
        set_up: bytes = b"",
    ) -> Reply:
        return self.put(
            PartEnded(
                job=job,
                workflow=name,
                part=part,
                attempt=attempt,
                status=status,
                error=error,
                report=report(name),
                provided=provided or [],
                set_up=set_up,
            )
        )


def revoke(job: str, name: str = "Load", *, part: int = 0, attempt: int = 1) -> AttemptRevoked:
    return AttemptRevoked(job=job, workflow=name, part=part, attempt=attempt, reason="w0 died")


def test_a_submission_makes_a_job_with_an_id_that_follows_from_the_key() -> None:
    log = MachineLog()
    reply = log.put(submission())
    assert reply.ok
    assert not reply.was_duplicate
    assert reply.job.startswith("dc1.3-")
    assert log.job(reply.job).status is JobStatus.SUBMITTED


def test_plans_that_cannot_run_are_refused() -> None:
    log = MachineLog()
    for workflows, why in (
        ((workflow("A"), workflow("A")), "called 'A'"),
        ((workflow("A", "Nobody"),), "not a workflow of the job"),
        ((workflow("A", "B"), workflow("B", "A")), "wait for each other"),
    ):
        reply = log.put(submission(wanted=plan(*workflows)))
        assert (reply.ok, reply.code) == (False, Code.INVALID)
        assert why in reply.error
    empty = msgspec.structs.replace(plan(), workflows=())
    assert "no workflows" in log.put(submission(wanted=empty)).error


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x80", b"\x81\xa4type\xa6nobody", b"\x90" * 99])
def test_bytes_that_are_not_an_event_are_refused_and_change_nothing(body: bytes) -> None:
    log = MachineLog()
    log.submit()
    before = log.machine.snapshot()
    assert log.put_bytes(body).code is Code.INVALID
    log.machine.restore(log.machine.snapshot())
    assert log.machine.snapshot() == before


def test_the_next_attempt_has_the_next_number() -> None:
    log = MachineLog()
    job = log.submit()
    log.dispatch(job)
    again = PartRedispatched(job=job, workflow="Load", part=0, attempt=2, worker="w9")
    assert log.put(again).code is Code.STALE_ATTEMPT  # the first is still open
    assert log.put(revoke(job)).ok
    for attempt in (1, 3):
        other = PartRedispatched(job=job, workflow="Load", part=0, attempt=attempt, worker="w9")
        assert log.put(other).code is Code.STALE_ATTEMPT
    assert log.put(again).ok
    assert log.job(job).workflows["Load"].parts[0].worker == "w9"


def test_the_result_of_a_revoked_attempt_decides_nothing() -> None:
    log = MachineLog()
    job = log.submit()
    log.dispatch(job)
    log.put(revoke(job))
    assert log.finish(job).code is Code.STALE_ATTEMPT
    log.put(PartRedispatched(job=job, workflow="Load", part=0, attempt=2, worker="w1"))
    assert log.finish(job).code is Code.STALE_ATTEMPT
    assert log.finish(job, attempt=2, status=PartStatus.FAILED, error="boom").ok
    assert log.finish(job, attempt=1).code is Code.TERMINAL
    assert log.job(job).workflows["Load"].ended_as is JobStatus.FAILED


def test_a_result_counts_once() -> None:
    log = MachineLog()
    job = log.submit()
    log.dispatch(job, "Load", 2, 2)
    assert log.finish(job).code is Code.OK
    again = log.finish(job, status=PartStatus.FAILED, error="changed its mind")
    assert (again.ok, again.code) == (True, Code.DUPLICATE)
    assert log.job(job).workflows["Load"].parts[0].is_completed


def test_a_revoked_attempt_leaves_a_segment_and_the_next_runs_for_the_remaining_time() -> None:
    log = MachineLog()
    job = log.submit()
    log.dispatch(job)
    point = Checkpoint(
        workflow="Load", part=0, attempt=1, elapsed_s=5.0, iterations=50, report=b"five"
    )
    assert log.put(Checkpointed(job=job, parts=[point])).ok
    event = msgspec.structs.replace(
        revoke(job), report=b"seven", elapsed_s=7.0, iterations=70, gap_s=0.5, requests_max=40
    )
    assert log.put(event).ok
    part = log.job(job).workflows["Load"].parts[0]
    assert (part.began_s, part.iterations_done) == (7.5, 70)  # with the gap
    (segment,) = part.segments
    assert (segment.report, segment.elapsed_s, segment.costs_retry) == (b"seven", 7.0, True)
    (gap,) = log.job(job).workflows["Load"].gaps
    assert (gap.worker, gap.seconds, gap.requests_max) == ("w0", 0.5, 40)
    assert log.put(event).code is Code.DUPLICATE


def test_a_revocation_without_statistics_takes_those_of_the_last_checkpoint() -> None:
    log = MachineLog()
    job = log.submit()
    log.dispatch(job)
    point = Checkpoint(workflow="Load", part=0, attempt=1, elapsed_s=5.0, report=b"five")
    log.put(Checkpointed(job=job, parts=[point]))
    log.put(revoke(job))
    part = log.job(job).workflows["Load"].parts[0]
    assert part.segments[0].report == b"five"
    assert part.began_s == 5.0


def test_a_revocation_for_lack_of_cores_costs_no_retry() -> None:
    log = MachineLog()
    job = log.submit()
    log.dispatch(job)
    log.put(msgspec.structs.replace(revoke(job), fault=AttemptFault.NONE))
    part = log.job(job).workflows["Load"].parts[0]
    assert not part.segments[0].costs_retry
    assert log.job(job).workflows["Load"].status is WorkflowStatus.PENDING


def test_checkpoints_of_other_attempts_are_refused() -> None:
    log = MachineLog()
    job = log.submit()
    log.dispatch(job)
    stale = Checkpoint(workflow="Load", part=0, attempt=2, elapsed_s=5.0, report=b"x")
    assert log.put(Checkpointed(job=job, parts=[stale])).code is Code.STALE_ATTEMPT
    nowhere = Checkpoint(workflow="Nope", part=4, attempt=1, elapsed_s=5.0)
    assert log.put(Checkpointed(job=job, parts=[nowhere])).code is Code.STALE_ATTEMPT
    assert log.job(job).workflows["Load"].parts[0].report == b""


def test_a_checkpoint_shows_that_the_job_runs() -> None:
    log = MachineLog()
    job = log.submit()
    log.dispatch(job)
    assert log.job(job).status is JobStatus.DISPATCHING
    point = Checkpoint(workflow="Load", part=0, attempt=1, elapsed_s=0.0)
    log.put(Checkpointed(job=job, parts=[point]))
    assert log.job(job).status is JobStatus.RUNNING
    assert log.job(job).workflows["Load"].status is WorkflowStatus.RUNNING


def test_a_dependent_is_not_dispatched_before_its_dependency_has_completed() -> None:
    log = MachineLog()
    job = log.submit(workflow("A"), workflow("B", "A"))
    early = WorkflowDispatched(job=job, workflow="B", parts=[PartDispatch(0, 1, "w0")])
    assert "waits for A" in log.put(early).error
    log.dispatch(job, "A")
    assert not log.put(early).ok
    log.finish(job, "A")
    assert log.put(early).ok


def test_dependents_of_a_failed_workflow_are_cancelled_and_name_it() -> None:
    log = MachineLog()
    job = log.submit(
        workflow("A"), workflow("B", "A"), workflow("C", "B"), workflow("D"), workflow("E", "D")
    )
    log.dispatch(job, "A")
    log.finish(job, "A", status=PartStatus.FAILED, error="boom")
    states = log.job(job).workflows
    assert states["A"].error == "boom"
    for name in "BC":
        assert states[name].status is WorkflowStatus.CANCELLED
        assert states[name].error == "dependency failed: A"
    assert states["D"].status is WorkflowStatus.PENDING
    assert states["E"].status is WorkflowStatus.PENDING


def test_a_workflow_ends_with_its_last_part() -> None:
    log = MachineLog()
    job = log.submit()
    log.dispatch(job, "Load", 2, 3)
    log.finish(job, part=1)
    assert not log.job(job).workflows["Load"].has_ended
    log.finish(job, part=0)
    assert log.job(job).workflows["Load"].status is WorkflowStatus.COMPLETED
    assert log.job(job).status is JobStatus.COMPLETING
    assert log.job(job).final_status() is JobStatus.COMPLETED


def test_a_failed_part_fails_its_workflow_once_its_other_parts_have_ended() -> None:
    log = MachineLog()
    job = log.submit()
    log.dispatch(job, "Load", 2, 3)
    log.finish(job, part=1, status=PartStatus.FAILED, error="setup: KeyError")
    state = log.job(job).workflows["Load"]
    assert not state.has_ended
    assert state.stop is not None
    log.finish(job, part=0, status=PartStatus.STOPPED, error="another part failed")
    assert state.status is WorkflowStatus.FAILED
    assert state.error == "setup: KeyError"


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ((PartStatus.COMPLETED, PartStatus.COMPLETED), JobStatus.COMPLETED),
        ((PartStatus.COMPLETED, PartStatus.FAILED), JobStatus.PARTIAL),
        ((PartStatus.FAILED, PartStatus.FAILED), JobStatus.FAILED),
    ],
)
def test_the_final_status_of_a_job_follows_from_its_workflows(
    ends: tuple[PartStatus, ...], expected: JobStatus
) -> None:
    log = MachineLog()
    job = log.submit(workflow("A"), workflow("B"))
    for name, status in zip("AB", ends, strict=True):
        log.dispatch(job, name)
        log.finish(job, name, status=status, error="boom")
    assert log.job(job).final_status() is expected


def test_after_a_cancel_nothing_is_dispatched() -> None:
    log = MachineLog()
    job = log.submit(workflow("A"), workflow("B"))
    log.dispatch(job, "A")
    assert log.put(CancelRequested(job=job, reason="enough", by="me")).ok
    unstarted = WorkflowDispatched(job=job, workflow="B", parts=[PartDispatch(0, 1, "w0")])
    assert not log.put(unstarted).ok
    late = PartRedispatched(job=job, workflow="A", part=0, attempt=2, worker="w1")
    assert log.put(late).code is Code.CANCELLING
    states = log.job(job).workflows
    assert states["A"].status is WorkflowStatus.CANCELLING
    assert states["B"].status is WorkflowStatus.CANCELLED
    assert states["B"].error == "never started: enough"
    log.finish(job, "A", status=PartStatus.STOPPED, error="enough")
    assert states["A"].ended_as is JobStatus.CANCELLED
    assert log.job(job).final_status() is JobStatus.CANCELLED
    assert log.put(CancelRequested(job=job, reason="again")).code is Code.DUPLICATE


def test_a_cancelled_job_ends_although_a_worker_was_lost() -> None:
    log = MachineLog()
    job = log.submit()
    log.dispatch(job)
    log.put(CancelRequested(job=job, reason="enough"))
    log.put(revoke(job))
    assert log.job(job).workflows["Load"].has_ended


def test_a_threshold_fails_the_workflow_that_has_it_and_cancels_the_others() -> None:
    log = MachineLog()
    job = log.submit(workflow("A"), workflow("B"))
    log.dispatch(job, "A")
    log.dispatch(job, "B")
    log.put(
        CancelRequested(
            job=job,
            reason="stopped by the threshold of A",
            status=JobStatus.FAILED,
            aborted_by="A",
            workflow_reason="stopped by its threshold p99",
        )
    )
    for name in "AB":
        log.finish(job, name, status=PartStatus.STOPPED, error="told to")
    states = log.job(job).workflows
    assert (states["A"].ended_as, states["A"].error) == (
        JobStatus.FAILED,
        "stopped by its threshold p99",
    )
    assert states["B"].ended_as is JobStatus.CANCELLED
    assert log.job(job).final_status() is JobStatus.FAILED


def test_a_job_timeout_ends_the_job_and_its_running_workflows_as_timeout() -> None:
    log = MachineLog()
    job = log.submit(workflow("A"), workflow("B"))
    log.dispatch(job, "A")
    log.put(CancelRequested(job=job, reason="the job's timeout", status=JobStatus.TIMEOUT))
    log.finish(job, "A", status=PartStatus.STOPPED, error="told to")
    states = log.job(job).workflows
    assert states["A"].ended_as is JobStatus.TIMEOUT
    assert states["B"].ended_as is JobStatus.CANCELLED
    assert log.job(job).final_status() is JobStatus.TIMEOUT


def test_a_workflow_may_end_without_a_result() -> None:
    log = MachineLog()
    job = log.submit(workflow("A"), workflow("B", "A"))
    log.dispatch(job, "A", 1, 1)
    log.put(revoke(job, "A"))
    log.put(WorkflowEnded(job=job, workflow="A", reason="3 retries were used up"))
    states = log.job(job).workflows
    assert not states["A"].has_ended  # part 1 still runs
    log.finish(job, "A", part=1, status=PartStatus.STOPPED, error="told to")
    assert states["A"].error == "3 retries were used up"
    assert states["A"].ended_as is JobStatus.FAILED
    assert states["B"].error == "dependency failed: A"


@pytest.mark.parametrize("first", [JobStatus.COMPLETED, JobStatus.CANCELLED])
def test_the_first_end_of_a_job_wins(first: JobStatus) -> None:
    log = MachineLog()
    job = log.submit()
    assert log.put(JobFinished(job=job, status=first)).ok
    for status in (JobStatus.COMPLETED, JobStatus.CANCELLED, JobStatus.TIMEOUT):
        again = log.put(JobFinished(job=job, status=status))
        assert again.code is (Code.DUPLICATE if status is first else Code.TERMINAL)
    assert log.job(job).status is first


def test_a_cancel_after_the_end_changes_nothing() -> None:
    log = MachineLog()
    job = log.submit()
    log.dispatch(job)
    log.finish(job)
    assert log.put(CancelRequested(job=job, reason="late")).code is Code.DUPLICATE
    log.put(JobFinished(job=job, status=JobStatus.COMPLETED))
    assert log.put(CancelRequested(job=job, reason="late")).code is Code.TERMINAL
    assert log.job(job).status is JobStatus.COMPLETED


def test_an_ended_job_leaves_a_row_and_its_record_goes_to_the_history() -> None:
    log = MachineLog()
    job = log.submit()
    log.dispatch(job)
    log.finish(job)
    log.put(JobFinished(job=job, status=JobStatus.COMPLETED))
    kinds = [kind for _, kind, _ in log.rows]
    assert kinds == ["submitted", "dispatched", "finished_part", "finished", "ended"]
    index, _, listed = log.rows.pop()
    assert index == ENDED_JOBS
    found = decode_ended(listed, unix_ms=1)
    assert (found.job, found.status, found.workflows) == (job, JobStatus.COMPLETED, [])
    record = decode_job(log.rows[-1][2])
    assert record.workflows["Load"].parts[0].report == report()
    assert log.job(job).workflows["Load"].parts[0].report == b""
    view = log.machine.view(job)
    assert view is not None
    assert (view.status, view.workflows[0].workers) == (JobStatus.COMPLETED, ["w0"])


def test_a_job_that_ends_with_open_parts_keeps_their_reports() -> None:
    log = MachineLog()
    job = log.submit()
    log.dispatch(job)
    point = Checkpoint(workflow="Load", part=0, attempt=1, elapsed_s=5.0, report=b"five")
    log.put(Checkpointed(job=job, parts=[point]))
    log.put(JobFinished(job=job, status=JobStatus.FAILED, reason="given up"))
    record = decode_job(log.rows[-2][2])
    assert record.workflows["Load"].parts[0].segments[0].report == b"five"
    assert record.workflows["Load"].ended_as is JobStatus.CANCELLED


def test_ended_jobs_and_keys_in_live_state_are_limited() -> None:
    log = MachineLog(Limits(ended_jobs=10, keys=50))
    for number in range(300):
        job = log.submit(key=f"k{number}")
        log.put(JobFinished(job=job, status=JobStatus.COMPLETED))
    machine = log.machine
    assert not list(machine.jobs())
    assert len(machine.views()) == 10
    assert sum(machine.key(f"k{number}") is not None for number in range(300)) == 50


def test_a_part_that_provides_too_much_context_has_failed() -> None:
    log = MachineLog()
    job = log.submit()
    log.dispatch(job)
    assert log.finish(job, provided=[b"x" * (UPDATE_BYTES_MAX + 1)]).ok
    state = log.job(job).workflows["Load"]
    assert state.ended_as is JobStatus.FAILED
    assert "bytes of context, more than 65,536" in (state.error or "")
    assert state.parts[0].end is not None
    assert state.parts[0].end.provided == []


def test_a_part_that_exceeds_the_context_limit_of_its_job_fails() -> None:
    log = MachineLog()
    parts = JOB_BYTES_MAX // UPDATE_BYTES_MAX + 1
    job = log.submit()
    log.dispatch(job, "Load", *([1] * parts))
    for part in range(parts):
        log.finish(job, part=part, provided=[b"x" * UPDATE_BYTES_MAX])
    state = log.job(job).workflows["Load"]
    assert [part.end and part.end.status for part in state.parts].count(PartStatus.FAILED) == 1
    assert "the job's context would be" in (state.error or "")


def provider_and_user(*, has_default: bool = True) -> tuple[object, object]:
    provider = msgspec.structs.replace(
        workflow("Login"),
        states=(StatePlan(name="token", kind=StateKind.PROVIDE, workflows=("Load",)),),
    )
    use = StatePlan(
        name="take",
        kind=StateKind.USE,
        workflows=("Login",),
        keys=("token",),
        required=() if has_default else ("token",),
    )
    return provider, msgspec.structs.replace(workflow("Load", "Login"), states=(use,))


def test_context_does_not_depend_on_the_order_in_which_parts_finished() -> None:
    made = []
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        log = MachineLog()
        job = log.submit(*provider_and_user())
        log.dispatch(job, "Login", 1, 1, 1)
        for part in order:
            given = Provided(slot=part, states={"token": b"t%d" % part})
            log.finish(job, "Login", part=part, provided=[encode_provided(given)])
        made.append(context_for(log.job(job), "Load"))
    assert made[0] == made[1] == made[2]
    assert decode_received(made[0]).uses["take"]["token"].chunks == (b"t0",)


def test_a_missing_context_value_without_a_default_is_an_error() -> None:
    log = MachineLog()
    job = log.submit(*provider_and_user(has_default=False))
    log.dispatch(job, "Login", 1)
    log.finish(job, "Login")
    with pytest.raises(MissingContextError, match="needs 'token'"):
        context_for(log.job(job), "Load")


def test_keys_are_handed_over_by_key_slot() -> None:
    old, new = MachineLog(), MachineLog()
    keys = [f"k{number}" for number in range(20)]
    jobs = {key: old.submit(key=key) for key in keys}
    slots = frozenset(key_slot_of(key) for key in keys[:7])
    moved = [key for key in keys if key_slot_of(key) in slots]
    new.machine.import_keys(old.machine.export_keys(lambda key: key_slot_of(key) in slots))
    for key in keys:
        if key in moved:
            assert old.machine.key(key) is None
            reply = new.put(submission(key))
            assert reply.was_duplicate
            assert reply.job == jobs[key]
        else:
            assert old.put(submission(key)).was_duplicate


def test_a_changed_value_changes_the_digest() -> None:
    log, other = MachineLog(), MachineLog()
    for each in (log, other):
        each.dispatch(each.submit())
    assert log.machine.snapshot() == other.machine.snapshot()
    job = next(log.machine.jobs())
    job.workflows["Load"].parts[0].worker = "w7"
    assert log.machine.snapshot() != other.machine.snapshot()


def test_events_of_unknown_jobs_workflows_and_parts_are_refused() -> None:
    log = MachineLog()
    job = log.submit()
    assert log.finish("dc1.3-nobody").code is Code.UNKNOWN_JOB
    assert log.finish(job, "Nope").code is Code.UNKNOWN_WORKFLOW
    assert log.finish(job, part=3).code is Code.UNKNOWN_PART
    assert log.finish(job, part=-1).code is Code.UNKNOWN_PART


def test_a_repeated_part_of_a_global_job_is_the_same_job_although_less_time_is_left() -> None:
    log = MachineLog()
    part = JobOptions(timeout_s=100.0, part_of=GlobalPart(job="global.1-x", index=0))
    first = log.put(submission("global.1-x", options=part))
    later = msgspec.structs.replace(part, timeout_s=90.0)
    assert log.put(submission("global.1-x", options=later)).job == first.job
    assert log.put(submission("alone", options=JobOptions(timeout_s=100.0))).ok
    other = log.put(submission("alone", options=JobOptions(timeout_s=90.0)))
    assert "another submission" in other.error


def test_a_change_of_the_gates_that_does_not_fit_is_taken_once_and_changes_nothing() -> None:
    log = MachineLog()
    job = log.submit()
    resume = LoadChange(id="a", kind=ChangeKind.RESUME)
    pause = LoadChange(id="b", kind=ChangeKind.PAUSE)
    assert log.put(LoadChanged(job=job, change=resume)).code is Code.INVALID
    assert log.put(LoadChanged(job=job, change=resume, is_of_gates=True)).ok
    assert log.put(LoadChanged(job=job, change=pause)).ok
    again = log.put(LoadChanged(job=job, change=resume, is_of_gates=True))
    assert again.code is Code.DUPLICATE
    assert log.job(job).control.paused_ms


def test_pauses_add_up() -> None:
    log = MachineLog()
    job = log.submit()
    for number, kind in enumerate((ChangeKind.PAUSE, ChangeKind.RESUME, ChangeKind.PAUSE)):
        log.put(LoadChanged(job=job, change=LoadChange(id=str(number), kind=kind)))
    control = log.job(job).control
    assert control.paused_s(log.stamp_ms + 500) == 0.01 + 0.5
