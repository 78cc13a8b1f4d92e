"""Global jobs as people see them: rows of lists, and the live view of one job."""

from hyperscale.gates.committed.state import DatacenterAssignment, GlobalJob
from hyperscale.gates.owner.state import GlobalProgress
from hyperscale.jobs.committed.events import JobStatus
from hyperscale.jobs.committed.state import (
    JobView,
    WorkflowRow,
    WorkflowStatus,
    ago_s,
    view_status,
)
from hyperscale.stats.view import DatacenterLoad, RunView

SILENT_S = 15.0
"""A datacenter reports at least every 10 s; one that was not heard for this long is shown so."""
_ENDED = {
    JobStatus.COMPLETED: WorkflowStatus.COMPLETED,
    JobStatus.FAILED: WorkflowStatus.FAILED,
}


def global_view(job: GlobalJob, now_ms: int) -> JobView:
    """Return a global job as lists show it, at a time of its group; its workers are
    datacenters."""
    where = [each.datacenter for each in job.counted()]
    return JobView(
        job=job.id,
        status=job.status,
        file=job.plan.file,
        reason=job.reason or (job.stop.reason if job.stop else ""),
        aborted_by=job.stop.aborted_by if job.stop else "",
        submitted_ms=job.times.submitted_unix_ms,
        started_ms=job.times.started_unix_ms,
        ended_ms=job.times.ended_unix_ms,
        submitted_ago_s=ago_s(job.submitted_ms, now_ms),
        started_ago_s=ago_s(job.started_ms, now_ms),
        ended_ago_s=ago_s(job.ended_ms, now_ms),
        by=job.by,
        workflows=[
            WorkflowRow(
                name=plan.name,
                status=_workflow_status(job),
                workers=where,
                ended_as=job.status if job.has_ended else None,
            )
            for plan in job.plan.workflows
        ],
        reported=job.reported,
    )


def _workflow_status(job: GlobalJob) -> WorkflowStatus:
    if job.has_ended:
        return _ENDED.get(job.status, WorkflowStatus.CANCELLED)
    if job.stop is not None:
        return WorkflowStatus.CANCELLING
    if job.started_ms:
        return WorkflowStatus.RUNNING
    return WorkflowStatus.DISPATCHED if job.assignments else WorkflowStatus.PENDING


def global_live_view(
    job: GlobalJob, progress: GlobalProgress, *, now_s: float, now_ms: int
) -> RunView:
    """Return the merged numbers of all datacenters, as far as they have reported."""
    status = view_status(_workflow_status(job), None)
    workflows = tuple(
        statistics.meter.view(
            now_s=now_s,
            status=status,
            cores=0,
            shared_cores=0,
            error=job.stop.reason if job.stop else None,
            is_final=False,
        )
        for statistics in progress.statistics_of(job).values()
    )
    elapsed_s = max([each.elapsed_s for each in workflows] or [0.0])
    if job.started_ms:
        elapsed_s = max(elapsed_s, (now_ms - job.started_ms) / 1000)
    not_completed = [
        f"{each.datacenter}: {each.reason or each.status.value}"
        for each in job.counted()
        if each.has_ended and not each.is_completed
    ]
    return RunView(
        file=job.plan.file,
        elapsed_s=elapsed_s,
        workflows=workflows,
        warnings=(*job.plan.warnings, *not_completed),
        datacenters=tuple(_load(job, each, progress, now_s) for each in job.counted()),
    )


def _load(
    job: GlobalJob, part: DatacenterAssignment, progress: GlobalProgress, now_s: float
) -> DatacenterLoad:
    heard = progress.heard_of(part.datacenter)
    silent_s = now_s - heard.at_s
    state, note = part.status.value, part.reason
    if part.ended_as is not None:
        state = part.ended_as.value
    elif not part.has_ended and silent_s > SILENT_S:
        state, note = "silent", f"not heard for {silent_s:.0f} s"
    elif heard.began_s is not None:
        state = "paused" if job.is_paused and not part.changes.open else "running"
    elif heard.is_ready:
        state = "ready"
    is_running = not part.has_ended
    if heard.statistics is None:
        return DatacenterLoad(part.datacenter, state, note=note)
    return heard.statistics.load(part.datacenter, state, is_running=is_running, note=note)
