"""How committed events change one job: one function per event.

Each function changes the job and returns True, returns False if the event was applied before, or
raises `Refuse` and has changed nothing. `machine` finds the job and replies.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from hyperscale.errors import InputError
from hyperscale.jobs.committed.context import size_problem
from hyperscale.jobs.committed.events import (
    AttemptFault,
    AttemptRevoked,
    CancelRequested,
    Checkpoint,
    Checkpointed,
    Code,
    JobEvent,
    JobFinished,
    JobReleased,
    JobReported,
    JobStatus,
    LoadChanged,
    PartDispatch,
    PartEnded,
    PartRedispatched,
    RowsGranted,
    TeardownDispatched,
    TeardownStarted,
    WorkflowDispatched,
    WorkflowEnded,
    WorkflowSetUp,
)
from hyperscale.jobs.committed.job_table import Refuse
from hyperscale.jobs.committed.rows import begin_rows, leave_rows, part_rows, rows_granted
from hyperscale.jobs.committed.state import (
    JOB_ENDS,
    Gap,
    Job,
    Part,
    PartEnd,
    Reported,
    Segment,
    Stop,
    Teardown,
    WorkflowState,
    WorkflowStatus,
)
from hyperscale.plan.changes import AppliedChange, ChangeKind, applied
from hyperscale.plan.status import PartStatus

CHANGES_MAX = 1_000  # of the load of one job
PARTS_MAX = 10_000  # of one workflow
_STOPS = (JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.TIMEOUT)


def workflow_dispatched(job: Job, event: WorkflowDispatched, now_ms: int) -> bool:
    workflow = _workflow(job, event.workflow)
    if workflow.parts and _has_same_parts(workflow, event.parts):
        return False
    _check_may_dispatch(job, event.workflow, workflow)
    if workflow.parts:
        raise Refuse(Code.TERMINAL, f"{event.workflow} has been dispatched already")
    _check_slots(event.workflow, event.parts)
    if event.within_job and (len(event.parts), event.parts[0].cores) != (1, 1):
        raise Refuse(Code.INVALID, f"{event.workflow} shares cores with more than one executor")
    workflow.parts = [
        Part(
            first_slot=part.first_slot,
            cores=part.cores,
            attempt=1,
            worker=part.worker,
            is_open=True,
            began_s=0.0 if job.plan_of(event.workflow).depends else job.joined_s,
            seen_ms=now_ms,
            rows=part_rows(job.plan_of(event.workflow), event.rows, part.cores),
        )
        for part in event.parts
    ]
    workflow.within_job = event.within_job
    workflow.become(WorkflowStatus.DISPATCHED)
    _note_sharing(job)
    if job.status is JobStatus.SUBMITTED:
        job.become(JobStatus.DISPATCHING)
        job.times.started_ms = now_ms
    return True


def _has_same_parts(workflow: WorkflowState, parts: Sequence[PartDispatch]) -> bool:
    """Return True if this very dispatch was applied before and every attempt is still the first."""
    known = [PartDispatch(part.first_slot, part.cores, part.worker) for part in workflow.parts]
    return known == list(parts) and all(part.attempt == 1 for part in workflow.parts)


def _check_slots(name: str, parts: Sequence[PartDispatch]) -> None:
    if not 0 < len(parts) <= PARTS_MAX:
        raise Refuse(Code.INVALID, f"{name}: {len(parts):,} parts; 1 to {PARTS_MAX:,} are possible")
    is_row = all(b.first_slot == a.first_slot + a.cores for a, b in pairwise(parts))
    if parts[0].first_slot != 0 or not is_row or any(part.cores < 1 for part in parts):
        raise Refuse(Code.INVALID, f"{name}: its slots must follow each other from 0")


def part_redispatched(job: Job, event: PartRedispatched, now_ms: int) -> bool:
    workflow = _workflow(job, event.workflow)
    part = _part(workflow, event.part)
    if event.part != workflow.teardown_part:
        _check_may_dispatch(job, event.workflow, workflow)
    if part.has_ended:
        raise Refuse(Code.TERMINAL, f"part {event.part} has ended")
    if part.is_open or event.attempt != part.attempt + 1:
        state = "still open" if part.is_open else "revoked"
        raise Refuse(
            Code.STALE_ATTEMPT,
            f"part {event.part} is at attempt {part.attempt}, {state}; "
            f"{event.attempt} cannot follow",
        )
    part.attempt, part.worker, part.is_open = event.attempt, event.worker, True
    part.seen_ms = now_ms
    begin_rows(part, event.rows)
    if event.part != workflow.teardown_part:
        workflow.within_job = event.within_job
        _note_sharing(job)
    if workflow.status is WorkflowStatus.PENDING:
        workflow.become(WorkflowStatus.DISPATCHED)
    return True


def _note_sharing(job: Job) -> None:
    """Note which workflows of a job share cores: those that run on a worker on which one of them
    has no core of its own."""
    open_parts = [(job.workflows[id_.workflow], part) for id_, part in job.attempts()]
    workers = {part.worker for workflow, part in open_parts if workflow.within_job}
    here = [(workflow, part) for workflow, part in open_parts if part.worker in workers]
    cores = sum(part.cores for workflow, part in here if not workflow.within_job)
    for workflow, _ in here:
        workflow.shared_cores = max(workflow.shared_cores, cores, 1)


def workflow_set_up(job: Job, event: WorkflowSetUp, now_ms: int) -> bool:  # noqa: ARG001 - as others
    workflow = _workflow(job, event.workflow)
    part = _part(workflow, event.part)
    if workflow.set_up:
        return False
    if workflow.has_ended:
        raise Refuse(Code.TERMINAL, f"{event.workflow} has ended")
    if not part.is_open or part.attempt != event.attempt:
        raise Refuse(Code.STALE_ATTEMPT, f"attempt {event.attempt} is not the open one")
    _note_set_up(job, event.workflow, event.context)
    return True


def _note_set_up(job: Job, name: str, context: bytes) -> None:
    """Take what setup left, once. If it is too large, the workflow fails, and is torn down."""
    workflow = job.workflows[name]
    if workflow.set_up or not context:
        return
    problem = size_problem(name, [context], _context_bytes(job))
    workflow.set_up = context
    if job.plan_of(name).is_torn_down_once:
        workflow.teardown = Teardown.OWED
    if problem is not None and workflow.stop is None:
        _stop_workflow(workflow, Stop(status=JobStatus.FAILED, reason=problem))


def _context_bytes(job: Job) -> int:
    """Return how much context a job holds: what its parts provided, and what setup left in
    workflows that have not ended."""
    return job.context_bytes + sum(len(workflow.set_up) for workflow in job.workflows.values())


def teardown_dispatched(job: Job, event: TeardownDispatched, now_ms: int) -> bool:
    workflow = _workflow(job, event.workflow)
    if workflow.teardown_part is not None:
        return False
    if workflow.has_ended or not workflow.is_tearing_down:
        raise Refuse(Code.INVALID, f"{event.workflow} is not to be torn down now")
    part = Part(
        first_slot=workflow.slots,
        cores=1,
        attempt=1,
        worker=event.worker,
        is_open=True,
        seen_ms=now_ms,
    )
    workflow.teardown_part = len(workflow.parts)
    workflow.parts.append(part)
    return True


def teardown_started(job: Job, event: TeardownStarted, now_ms: int) -> bool:  # noqa: ARG001 - as others
    workflow = _workflow(job, event.workflow)
    part = _part(workflow, event.part)
    is_teardown = event.part == workflow.teardown_part
    if not is_teardown or not part.is_open or part.attempt != event.attempt:
        raise Refuse(Code.STALE_ATTEMPT, f"attempt {event.attempt} is no open teardown")
    if workflow.teardown is Teardown.STARTED:
        return False
    workflow.teardown = Teardown.STARTED
    return True


def _end_teardown(workflow: WorkflowState, problem: str = "") -> None:
    workflow.teardown = Teardown.OVER
    workflow.teardown_problem = problem


def _check_may_dispatch(job: Job, name: str, workflow: WorkflowState) -> None:
    if workflow.has_ended:
        raise Refuse(Code.TERMINAL, f"{name} has ended")
    if job.stop is not None or workflow.stop is not None:
        raise Refuse(Code.CANCELLING, f"{name} is being stopped")
    for dependency in job.plan_of(name).depends:
        if job.workflows[dependency].ended_as is not JobStatus.COMPLETED:
            raise Refuse(Code.INVALID, f"{name} waits for {dependency}")


def checkpointed(job: Job, event: Checkpointed, now_ms: int) -> bool:
    """Take every checkpoint of an open attempt; refuse if one is stale."""
    workflows = job.workflows
    stale: Checkpoint | None = None
    for point in event.parts:
        workflow = workflows.get(point.workflow)
        if workflow is None or not 0 <= point.part < len(workflow.parts):
            stale = point
            continue
        part = workflow.parts[point.part]
        if not part.is_open or part.attempt != point.attempt:
            stale = point
            continue
        if point.elapsed_s >= part.elapsed_s:
            part.elapsed_s = point.elapsed_s
            part.seen_ms = now_ms - round(point.age_s * 1000)
            part.iterations = point.iterations
            if point.report:
                part.report = point.report
            part.began_s = max(part.began_s, point.since_s)
        if workflow.status is WorkflowStatus.DISPATCHED:
            workflow.become(WorkflowStatus.RUNNING)
            workflow.began_ms = part.seen_ms - round(part.elapsed_s * 1000)
            if point.workflow_age_s is not None:
                workflow.began_ms = now_ms - round(point.workflow_age_s * 1000)
            if job.control.paused_ms:  # it was started before the pause was committed
                at_s = max(0, job.control.paused_ms - workflow.began_ms) / 1000
                workflow.changes.append(AppliedChange(kind=ChangeKind.PAUSE, at_s=at_s))
            if job.status is JobStatus.DISPATCHING:
                job.become(JobStatus.RUNNING)
    if stale is not None:
        raise Refuse(
            Code.STALE_ATTEMPT,
            f"{stale.workflow} part {stale.part}: attempt {stale.attempt} is not the open one",
        )
    return True


def revoked(job: Job, event: AttemptRevoked, now_ms: int) -> bool:
    workflow = _workflow(job, event.workflow)
    part = _part(workflow, event.part)
    if part.has_ended:
        raise Refuse(Code.TERMINAL, f"part {event.part} has ended")
    if event.attempt > part.attempt:
        raise Refuse(Code.STALE_ATTEMPT, f"part {event.part} has no attempt {event.attempt} yet")
    if not part.is_open or event.attempt < part.attempt:
        return False
    close_attempt(job, part, event, now_ms)
    if event.part == workflow.teardown_part and workflow.teardown is Teardown.STARTED:
        # It may have run, wholly or in part, and it runs once.
        part.end = PartEnd(status=PartStatus.FAILED, error=event.reason)
        _end_teardown(workflow, f"it may not have run to its end: {event.reason}")
    if workflow.status is WorkflowStatus.DISPATCHED and not any(
        each.is_open or each.has_ended for each in workflow.parts
    ):
        workflow.become(WorkflowStatus.PENDING)
    conclude(job, workflow, now_ms)
    return True


def close_attempt(job: Job, part: Part, event: AttemptRevoked, now_ms: int) -> None:
    """Turn the open attempt into a segment; the next attempt goes on where this one ended."""
    part.began_s = max(part.began_s, event.since_s)
    is_newer = event.elapsed_s >= part.elapsed_s and bool(event.report)
    elapsed_s = max(event.elapsed_s, part.elapsed_s)
    part.segments.append(
        Segment(
            attempt=part.attempt,
            worker=part.worker,
            reason=event.reason,
            began_s=part.began_s,
            elapsed_s=elapsed_s,
            report=event.report if is_newer else part.report,
            ended_ms=now_ms,
            fault=event.fault,
        )
    )
    _leave_gap(job, part, event, event.has_begun)
    # An attempt that never reported may never have begun.
    part.began_s += elapsed_s + (event.gap_s if elapsed_s > 0 else 0.0)
    part.iterations_done += max(event.iterations, part.iterations)
    part.is_open = False
    part.elapsed_s, part.iterations, part.report = 0.0, 0, b""


def _leave_gap(
    job: Job, part: Part, event: AttemptRevoked | PartEnded, may_have_used_rows: bool
) -> None:
    rows = leave_rows(job, event.workflow, part, event.rows_used) if may_have_used_rows else []
    if event.gap_s > 0 or event.requests_max > 0 or rows:
        job.workflows[event.workflow].gaps.append(
            Gap(
                part=event.part,
                attempt=part.attempt,
                worker=part.worker,
                seconds=event.gap_s,
                requests_max=event.requests_max,
                rows=rows,
            )
        )


def part_ended(job: Job, event: PartEnded, now_ms: int) -> bool:
    workflow = _workflow(job, event.workflow)
    part = _part(workflow, event.part)
    if part.has_ended and event.attempt == part.attempt:
        return False
    if part.has_ended:
        raise Refuse(Code.TERMINAL, f"part {event.part} has ended")
    if not part.is_open or part.attempt != event.attempt:
        raise Refuse(
            Code.STALE_ATTEMPT,
            f"part {event.part} is at attempt {part.attempt}"
            f"{'' if part.is_open else ', revoked'}; {event.attempt} does not count",
        )
    part.is_open = False
    part.elapsed_s = max(event.elapsed_s, part.elapsed_s)
    part.report = event.report or part.report
    _leave_gap(job, part, event, event.gap_s > 0)  # else it said which rows it has used
    part.end = _end_of(job, event)
    _note_set_up(job, event.workflow, event.set_up)
    if event.part == workflow.teardown_part:
        _end_teardown(workflow, "" if part.is_completed else part.end.error or "it failed")
    if not part.is_completed and workflow.stop is None:
        has_failed = part.end.status is PartStatus.FAILED
        status = JobStatus.FAILED if has_failed else JobStatus.CANCELLED
        reason = part.end.error or ("it failed and gave no reason" if has_failed else "stopped")
        workflow.stop = Stop(status=status, reason=reason)
    if job.status is JobStatus.DISPATCHING:
        job.become(JobStatus.RUNNING)
    conclude(job, workflow, now_ms)
    return True


def _end_of(job: Job, event: PartEnded) -> PartEnd:
    """Return how the part ends; context that is too large fails it."""
    end = PartEnd(status=event.status, error=event.error, was_saturated=event.was_saturated)
    if event.status is not PartStatus.COMPLETED or not event.provided:
        return end
    problem = size_problem(event.workflow, event.provided, _context_bytes(job))
    if problem is not None:
        return replace(end, status=PartStatus.FAILED, error=problem)
    job.context_bytes += sum(map(len, event.provided))
    return replace(end, provided=event.provided)


def workflow_ended(job: Job, event: WorkflowEnded, now_ms: int) -> bool:
    workflow = _workflow(job, event.workflow)
    if workflow.has_ended:
        raise Refuse(Code.TERMINAL, f"{event.workflow} has ended")
    if event.status not in _STOPS:
        raise Refuse(Code.INVALID, f"no workflow ends as {event.status.value}")
    if workflow.is_tearing_down and not workflow.has_open_parts():
        _end_teardown(workflow, event.reason)  # no worker could run it
        conclude(job, workflow, now_ms)
        return True
    if workflow.stop is not None or workflow.is_tearing_down:
        return False
    _stop_workflow(workflow, Stop(status=event.status, reason=event.reason))
    conclude(job, workflow, now_ms)
    return True


def released(job: Job, event: JobReleased, now_ms: int) -> bool:  # noqa: ARG001 -- one signature
    if job.control.released_s is not None:
        return False
    job.control.released_s = event.elapsed_s
    for name, workflow in job.workflows.items():
        for part in workflow.parts if not job.plan_of(name).depends else ():
            part.began_s = max(part.began_s, event.elapsed_s)
    return True


def load_changed(job: Job, event: LoadChanged, now_ms: int) -> bool:
    change = event.change
    if change.id in job.control.change_ids:
        return False
    if job.stop is not None:
        raise Refuse(Code.CANCELLING, f"job {job.id} is being stopped")
    if len(job.control.change_ids) >= CHANGES_MAX:
        raise Refuse(Code.CAPACITY, f"the load was changed {CHANGES_MAX:,} times: that is the most")
    live = [
        name for name, each in job.workflows.items() if not each.has_ended and each.stop is None
    ]
    try:
        targets = applied(change, job.plan.workflows, live, is_paused=bool(job.control.paused_ms))
    except InputError as error:
        if not event.is_of_gates:
            raise Refuse(Code.INVALID, error.message, hint=error.hint, job=job.id) from error
        targets = {}
    control = job.control
    control.change_ids.append(change.id)
    if targets and change.kind is not ChangeKind.SCALE:
        is_pause = change.kind is ChangeKind.PAUSE
        control.pauses_ms += 0 if is_pause else now_ms - control.paused_ms
        control.paused_ms = now_ms if is_pause else 0
    for name, target in targets.items():
        workflow = job.workflows[name]
        if not workflow.began_ms and change.kind is not ChangeKind.SCALE:
            continue  # a workflow that has not begun does not begin during a pause
        at_s = max(0, now_ms - workflow.began_ms) / 1000 if workflow.began_ms else 0.0
        workflow.changes.append(
            AppliedChange(
                kind=change.kind, at_s=at_s, target=target, over_s=change.over_s, by=change.by
            )
        )
    return True


def cancelled(job: Job, event: CancelRequested, now_ms: int) -> bool:
    if event.status not in _STOPS:
        raise Refuse(Code.INVALID, f"no job is stopped as {event.status.value}")
    if job.stop is not None or job.status is JobStatus.COMPLETING:
        return False
    job.stop = Stop(status=event.status, reason=event.reason, aborted_by=event.aborted_by)
    job.become(JobStatus.CANCELLING)
    # If a workflow fails the job, only that workflow has failed: the others are cancelled.
    status = JobStatus.CANCELLED if event.status is JobStatus.FAILED else event.status
    for name, workflow in job.workflows.items():
        if not workflow.has_ended and workflow.stop is None and not workflow.is_tearing_down:
            if name == event.aborted_by and event.workflow_reason:
                stop = Stop(status=event.status, reason=event.workflow_reason)
            elif not workflow.attempts:
                reason = f"never started: {event.reason}"
                stop = Stop(status=JobStatus.CANCELLED, reason=reason)
            else:
                stop = Stop(status=status, reason=event.reason)
            _stop_workflow(workflow, stop)
    for workflow in job.workflows.values():
        conclude(job, workflow, now_ms)
    return True


def job_finished(job: Job, event: JobFinished, now_ms: int) -> bool:
    """End the job and everything of it that is still open."""
    if event.status not in JOB_ENDS:
        raise Refuse(Code.INVALID, f"no job ends as {event.status.value}")
    for name, workflow in job.workflows.items():
        if workflow.has_ended:
            continue
        if workflow.stop is None:
            reason = event.reason or f"the job is {event.status.value}"
            workflow.stop = Stop(status=JobStatus.CANCELLED, reason=reason)
        for index, part in enumerate(workflow.parts):
            if part.is_open:
                revocation = AttemptRevoked(
                    job=job.id,
                    workflow=name,
                    part=index,
                    attempt=part.attempt,
                    reason="the job is over",
                    fault=AttemptFault.NONE,
                )
                close_attempt(job, part, revocation, now_ms)
        _end_workflow(workflow, now_ms)
    job.become(event.status)
    job.reason = event.reason or job.final_reason()
    job.times.ended_ms = now_ms
    return True


# --- what follows ------------------------------------------------------------------------


def conclude(job: Job, workflow: WorkflowState, now_ms: int) -> None:
    """End the workflow if no attempt is open and its end is known; then cancel its dependents."""
    if workflow.has_ended or workflow.has_open_parts() or not workflow.is_load_over:
        return
    if workflow.is_tearing_down:
        return  # it ends with its teardown
    _end_workflow(workflow, now_ms)
    if workflow.ended_as is not JobStatus.COMPLETED:
        _cancel_dependents(job, now_ms)
    if job.status is not JobStatus.CANCELLING and all(
        each.has_ended for each in job.workflows.values()
    ):
        job.become(JobStatus.COMPLETING)


def _stop_workflow(workflow: WorkflowState, stop: Stop) -> None:
    workflow.stop = stop
    is_dispatched = workflow.status in (WorkflowStatus.DISPATCHED, WorkflowStatus.RUNNING)
    if stop.status is not JobStatus.FAILED and is_dispatched:
        workflow.become(WorkflowStatus.CANCELLING)


def _end_workflow(workflow: WorkflowState, now_ms: int) -> None:
    stop = workflow.stop
    workflow.ended_ms = now_ms
    workflow.set_up = b""
    if stop is None:
        workflow.become(WorkflowStatus.COMPLETED)
        workflow.ended_as = JobStatus.COMPLETED
        return
    _stop_workflow(workflow, stop)
    has_failed = stop.status is JobStatus.FAILED
    workflow.become(WorkflowStatus.FAILED if has_failed else WorkflowStatus.CANCELLED)
    workflow.ended_as, workflow.error = stop.status, stop.reason


def _cancel_dependents(job: Job, now_ms: int) -> None:
    """Cancel every workflow that depends, directly or not, on one that did not complete."""
    is_changed = True
    while is_changed:
        is_changed = False
        for plan in job.plan.workflows:
            workflow = job.workflows[plan.name]
            cause = None if workflow.has_ended else _cause(job, plan.depends)
            if cause is not None:
                workflow.stop = workflow.stop or Stop(
                    status=JobStatus.CANCELLED,
                    reason=f"dependency failed: {cause}",
                    failed_dependency=cause,
                )
                _end_workflow(workflow, now_ms)
                is_changed = True


def _cause(job: Job, depends: Sequence[str]) -> str | None:
    """Return the workflow to blame: the one that failed by itself, not one cancelled for it."""
    for name in depends:
        workflow = job.workflows[name]
        if workflow.has_ended and workflow.ended_as is not JobStatus.COMPLETED:
            return (workflow.stop.failed_dependency if workflow.stop else "") or name
    return None


def reported(job: Job, event: JobReported, _now_ms: int) -> bool:
    if not job.has_ended:
        raise Refuse(Code.INVALID, f"job {job.id} is {job.status.value}: it has no result yet")
    if job.reported is not None:
        return False
    job.reported = Reported(by=event.by, sent=event.sent, failed=event.failed)
    return True


def _workflow(job: Job, name: str) -> WorkflowState:
    workflow = job.workflows.get(name)
    if workflow is None:
        raise Refuse(Code.UNKNOWN_WORKFLOW, f"job {job.id} has no workflow {name!r}")
    return workflow


def _part(workflow: WorkflowState, index: int) -> Part:
    if not 0 <= index < len(workflow.parts):
        raise Refuse(Code.UNKNOWN_PART, f"there is no part {index} of {len(workflow.parts)}")
    return workflow.parts[index]


TRANSITIONS: dict[type[JobEvent], Callable[[Job, Any, int], bool]] = {
    WorkflowDispatched: workflow_dispatched,
    PartRedispatched: part_redispatched,
    RowsGranted: rows_granted,
    WorkflowSetUp: workflow_set_up,
    TeardownDispatched: teardown_dispatched,
    TeardownStarted: teardown_started,
    AttemptRevoked: revoked,
    Checkpointed: checkpointed,
    PartEnded: part_ended,
    WorkflowEnded: workflow_ended,
    JobReleased: released,
    LoadChanged: load_changed,
    CancelRequested: cancelled,
    JobFinished: job_finished,
    JobReported: reported,
}
"""Takes a job, an event of the type and the time in ms; see the top of this module."""
