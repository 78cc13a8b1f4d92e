"""How committed events change one global job: one function per event.

Each function changes the job and returns True, returns False if the event was applied before, or
raises `Refuse` and has changed nothing. `machine` finds the job and replies.
"""

from collections.abc import Callable
from typing import Any

from hyperscale.errors import InputError
from hyperscale.gates.changes import by_workflow, split_changes
from hyperscale.gates.committed.events import (
    AssignmentAccepted,
    AssignmentChanged,
    AssignmentRecalled,
    AssignmentRefused,
    DatacenterBegan,
    DatacenterFinished,
    DatacenterLost,
    DatacentersAssigned,
    GlobalCancelRequested,
    GlobalJobEvent,
    GlobalJobFinished,
    GlobalJobReported,
    GlobalLoadChanged,
    GlobalStartOrdered,
)
from hyperscale.gates.committed.state import (
    AssignmentStatus,
    DatacenterAssignment,
    GlobalChange,
    GlobalJob,
    PartChanges,
    Withdrawal,
)
from hyperscale.gates.slices import PlanShare
from hyperscale.gates.vacancies import target_of
from hyperscale.jobs.committed.events import Code, JobStatus
from hyperscale.jobs.committed.job_table import Refuse
from hyperscale.jobs.committed.state import JOB_ENDS, Stop
from hyperscale.jobs.committed.transitions import CHANGES_MAX
from hyperscale.plan import WorkflowPlan
from hyperscale.plan.changes import ChangeKind, LoadChange, applied

DATACENTERS_MAX = 100
_STOPS = (JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.TIMEOUT)


def assigned(job: GlobalJob, event: DatacentersAssigned, now_ms: int) -> bool:
    names = [share.datacenter for share in event.shares]
    if names and all(job.assignment(name) is not None for name in names):
        return False
    if job.stop is not None:
        raise Refuse(Code.CANCELLING, f"global job {job.id} is being cancelled")
    is_empty = not names and not event.given
    if is_empty or len(set(names)) != len(names) or any(map(job.assignment, names)):
        raise Refuse(Code.INVALID, f"datacenters of {job.id} are assigned twice: {names}")
    if len(job.assignments) + len(names) > DATACENTERS_MAX:
        raise Refuse(Code.INVALID, f"more than {DATACENTERS_MAX} datacenters for {job.id}")
    replaced = _replaced(job, event, names)
    grown = _grown(job, event, names)
    for share in event.shares:
        if set(share.workflows) != {workflow.name for workflow in job.plan.workflows}:
            raise Refuse(Code.INVALID, f"the share of {share.datacenter} has other workflows")
    earlier = [each for made in job.changes for each in by_workflow(made.change, made.targets)]
    if replaced is not None:
        earlier = _inherited(job, event, replaced, names)
    changes = _split(job, earlier, [share.workflows for share in event.shares])
    for share, mine in zip(event.shares, changes, strict=True):
        job.assignments.append(
            DatacenterAssignment(
                datacenter=share.datacenter,
                index=len(job.assignments),
                workflows=share.workflows,
                replaces=event.replaces,
                assigned_ms=now_ms,
                changes=PartChanges(all=mine),
            )
        )
    if replaced is not None:
        replaced.replaced_by = ", ".join([*names, *(part.datacenter for part in grown)])
        for part in grown:
            part.changes.all += _growth(job, event, replaced, part)
    job.routing = job.routing or event.routing  # the choice of the job, not of a replacement
    if job.status is JobStatus.SUBMITTED:
        job.become(JobStatus.DISPATCHING)
    return True


def _replaced(
    job: GlobalJob, event: DatacentersAssigned, names: list[str]
) -> DatacenterAssignment | None:
    """Return the assignment that is replaced: only one that nobody runs, for certain, can be."""
    if not event.replaces:
        if job.assignments:
            raise Refuse(Code.TERMINAL, f"global job {job.id} has its datacenters already")
        return None
    found = job.assignment(event.replaces)
    if found is None or not found.is_vacant:
        raise Refuse(Code.TERMINAL, f"{event.replaces} may run {job.id}, or is replaced")
    if len(names) > 1:
        raise Refuse(Code.INVALID, f"{len(names)} new datacenters cannot replace one")
    return found


def _grown(
    job: GlobalJob, event: DatacentersAssigned, names: list[str]
) -> list[DatacenterAssignment]:
    """Return the parts that get some of another one."""
    grown = [_assignment(job, name) for name in event.given if name not in names]
    if ended := [part.datacenter for part in grown if part.has_ended]:
        raise Refuse(Code.TERMINAL, f"{ended[0]} has ended its part of {job.id}")
    workflows = {workflow.name for workflow in job.plan.workflows}
    if any(set(given) - workflows for given in event.given.values()):
        raise Refuse(Code.INVALID, f"{job.id} has no such workflow to split")
    return grown


def _growth(
    job: GlobalJob,
    event: DatacentersAssigned,
    replaced: DatacenterAssignment,
    part: DatacenterAssignment,
) -> list[LoadChange]:
    """Return the changes that bring a part to its share of another one as well."""
    # Two parts may become vacant at once, so what a part has by now counts, not what it had.
    return [
        _scaled_to(
            workflow,
            more + target_of(part.workflows[workflow.name], workflow.name, part.changes.all),
            replaced.datacenter,
        )
        for workflow in job.plan.workflows
        if (more := event.given[part.datacenter].get(workflow.name, 0.0)) > 0
    ]


def _inherited(
    job: GlobalJob, event: DatacentersAssigned, replaced: DatacenterAssignment, names: list[str]
) -> list[LoadChange]:
    """Return the changes of a replaced part for the datacenter that takes it, or some of it."""
    given = event.given.get(names[0]) if names else None
    if given is None:
        return replaced.changes.all
    scaled = {each.workflow for each in replaced.changes.all if each.kind is ChangeKind.SCALE}
    return [each for each in replaced.changes.all if each.kind is not ChangeKind.SCALE] + [
        _scaled_to(workflow, given[workflow.name], replaced.datacenter)
        for workflow in job.plan.workflows
        if workflow.name in scaled
    ]


def _scaled_to(workflow: WorkflowPlan, target: float, replaced: str) -> LoadChange:
    return LoadChange(
        id=f"part of {replaced}/{workflow.name}",
        kind=ChangeKind.SCALE,
        workflow=workflow.name,
        vus=None if workflow.is_open else round(target),
        rate=target if workflow.is_open else None,
        by=f"the part of {replaced}",
    )


def accepted(job: GlobalJob, event: AssignmentAccepted, now_ms: int) -> bool:  # noqa: ARG001 -- one signature
    assignment = _assignment(job, event.datacenter)
    if assignment.status is not AssignmentStatus.ASSIGNED:
        return False
    assignment.become(AssignmentStatus.ACCEPTED)
    assignment.local_job = event.local_job
    return True


def refused(job: GlobalJob, event: AssignmentRefused, now_ms: int) -> bool:  # noqa: ARG001 -- one signature
    assignment = _assignment(job, event.datacenter)
    if assignment.status is AssignmentStatus.REFUSED:
        return False
    if assignment.status is not AssignmentStatus.ASSIGNED:
        raise Refuse(Code.TERMINAL, f"{event.datacenter} is {assignment.status.value}")
    assignment.become(AssignmentStatus.REFUSED)
    assignment.reason = event.reason
    _conclude(job)
    return True


def start_ordered(job: GlobalJob, event: GlobalStartOrdered, now_ms: int) -> bool:
    if job.started_ms:
        return False
    if job.stop is not None:
        raise Refuse(Code.CANCELLING, f"global job {job.id} is being cancelled")
    if not job.assignments:
        raise Refuse(Code.INVALID, f"global job {job.id} has no datacenters yet")
    job.times.started_ms = now_ms
    job.started_with = event.ready
    if job.status is JobStatus.DISPATCHING:
        job.become(JobStatus.RUNNING)
    return True


def began(job: GlobalJob, event: DatacenterBegan, now_ms: int) -> bool:  # noqa: ARG001 -- one signature
    assignment = _assignment(job, event.datacenter)
    if assignment.began_ms or assignment.has_ended:
        return False
    assignment.began_ms = event.began_ms
    return True


def finished_datacenter(job: GlobalJob, event: DatacenterFinished, now_ms: int) -> bool:  # noqa: ARG001 -- one signature
    assignment = _assignment(job, event.datacenter)
    if event.status not in JOB_ENDS:
        raise Refuse(Code.INVALID, f"no datacenter ends a job as {event.status.value}")
    if assignment.status is AssignmentStatus.FINISHED:
        return False
    if assignment.status is AssignmentStatus.REFUSED:
        raise Refuse(Code.TERMINAL, f"{event.datacenter} has refused the job")
    assignment.become(AssignmentStatus.FINISHED)
    assignment.is_late = job.has_ended
    assignment.ended_as, assignment.reason = event.status, event.reason
    assignment.elapsed_s = event.elapsed_s
    assignment.began_ms = event.began_ms or assignment.began_ms
    assignment.local_job = event.local_job or assignment.local_job
    # The record of an ended job is in history; a late result is a row of its own there.
    assignment.result = b"" if job.has_ended else event.result
    _conclude(job)
    return True


def lost(job: GlobalJob, event: DatacenterLost, now_ms: int) -> bool:  # noqa: ARG001 -- one signature
    assignment = _assignment(job, event.datacenter)
    if assignment.has_ended:
        return False
    assignment.become(AssignmentStatus.LOST)
    assignment.reason = event.reason
    assignment.result = event.result
    assignment.began_ms = event.began_ms or assignment.began_ms
    assignment.withdrawn = Withdrawal.REMOVED if event.is_removed else assignment.withdrawn
    _conclude(job)
    return True


def recalled(job: GlobalJob, event: AssignmentRecalled, now_ms: int) -> bool:  # noqa: ARG001 -- one signature
    assignment = _assignment(job, event.datacenter)
    if assignment.withdrawn is not None:
        return False
    if assignment.has_ended or job.stop is not None:
        raise Refuse(Code.TERMINAL, f"{event.datacenter} cannot give {job.id} back any more")
    assignment.withdrawn, assignment.reason = Withdrawal.RECALLED, event.reason
    return True


def load_changed(job: GlobalJob, event: GlobalLoadChanged, now_ms: int) -> bool:
    change = event.change
    if any(each.change.id == change.id for each in job.changes):
        return False
    if job.stop is not None:
        raise Refuse(Code.CANCELLING, f"global job {job.id} is being cancelled")
    parts = [each for each in job.assignments if not each.has_ended or each.is_vacant]
    if job.assignments and not parts:
        raise Refuse(Code.TERMINAL, f"global job {job.id} has ended in every datacenter")
    workflows = job.plan.workflows
    try:
        # Which workflows have ended is known in the datacenters, which leave those as they are.
        names = [plan.name for plan in workflows]
        targets = applied(change, workflows, names, is_paused=job.is_paused)
    except InputError as error:
        raise Refuse(Code.INVALID, error.message, hint=error.hint, job=job.id) from error
    made = by_workflow(change, targets)
    if len(job.changes) * len(workflows) + len(made) > CHANGES_MAX:
        raise Refuse(Code.CAPACITY, f"the load was changed {len(job.changes):,} times: no more fit")
    job.changes.append(GlobalChange(change=change, at_ms=now_ms, targets=targets))
    for part, mine in zip(parts, _split(job, made, [p.workflows for p in parts]), strict=True):
        part.changes.all += mine
    return True


def _split(
    job: GlobalJob, changes: list[LoadChange], parts: list[PlanShare]
) -> list[list[LoadChange]]:
    if job.options.vus_per_datacenter:  # what is asked for holds for every datacenter
        return [list(changes) for _ in parts]
    return split_changes(changes, parts)


def changed_datacenter(job: GlobalJob, event: AssignmentChanged, now_ms: int) -> bool:  # noqa: ARG001 -- one signature
    changes = _assignment(job, event.datacenter).changes
    if event.taken > len(changes.all):
        raise Refuse(Code.INVALID, f"{event.datacenter} has taken changes that nobody made")
    if event.taken <= changes.taken:
        return False
    changes.taken = event.taken
    return True


def cancelled(job: GlobalJob, event: GlobalCancelRequested, now_ms: int) -> bool:  # noqa: ARG001 -- one signature
    if event.status not in _STOPS:
        raise Refuse(Code.INVALID, f"no job is stopped as {event.status.value}")
    if job.stop is not None or job.status is JobStatus.COMPLETING:
        return False
    job.stop = Stop(status=event.status, reason=event.reason, aborted_by=event.aborted_by)
    job.become(JobStatus.CANCELLING)
    return True


def job_finished(job: GlobalJob, event: GlobalJobFinished, now_ms: int) -> bool:
    if event.status not in JOB_ENDS:
        raise Refuse(Code.INVALID, f"no job ends as {event.status.value}")
    if any(True for _ in job.open_assignments()):
        raise Refuse(Code.INVALID, f"datacenters of {job.id} have not ended")
    job.become(event.status)
    job.reason, job.times.ended_ms = event.reason, now_ms
    return True


def reported(job: GlobalJob, event: GlobalJobReported, now_ms: int) -> bool:  # noqa: ARG001 -- one signature
    if not job.has_ended:
        raise Refuse(Code.INVALID, f"job {job.id} is {job.status.value}: it has no result yet")
    if job.reported is not None:
        return False
    job.reported = event.reported
    return True


def _conclude(job: GlobalJob) -> None:
    """Note that all that is missing is the end of the job, unless a part can be replaced."""
    is_open = any(True for _ in job.open_assignments())
    is_vacant = any(each.is_vacant for each in job.counted())
    if job.status is JobStatus.RUNNING and not is_open and not is_vacant:
        job.become(JobStatus.COMPLETING)


def _assignment(job: GlobalJob, datacenter: str) -> DatacenterAssignment:
    found = job.assignment(datacenter)
    if found is None:
        raise Refuse(Code.UNKNOWN_PART, f"{job.id} was not assigned to {datacenter!r}")
    return found


GLOBAL_TRANSITIONS: dict[type[GlobalJobEvent], Callable[[GlobalJob, Any, int], bool]] = {
    DatacentersAssigned: assigned,
    AssignmentAccepted: accepted,
    AssignmentRefused: refused,
    GlobalStartOrdered: start_ordered,
    DatacenterBegan: began,
    DatacenterFinished: finished_datacenter,
    DatacenterLost: lost,
    AssignmentRecalled: recalled,
    GlobalLoadChanged: load_changed,
    AssignmentChanged: changed_datacenter,
    GlobalCancelRequested: cancelled,
    GlobalJobFinished: job_finished,
    GlobalJobReported: reported,
}
"""Takes a job, an event of the type and the time in ms; see the top of this module."""
