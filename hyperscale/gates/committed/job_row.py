"""A global job as lists show it."""

from hyperscale.gates.committed.state import GlobalJob
from hyperscale.jobs.committed.events import JobStatus
from hyperscale.jobs.committed.state import JobView, WorkflowRow, WorkflowStatus, ago_s

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
                status=global_workflow_status(job),
                workers=where,
                ended_as=job.status if job.has_ended else None,
            )
            for plan in job.plan.workflows
        ],
        reported=job.reported,
    )


def global_workflow_status(job: GlobalJob) -> WorkflowStatus:
    """Return what all workflows of a global job are shown as."""
    if job.has_ended:
        return _ENDED.get(job.status, WorkflowStatus.CANCELLED)
    if job.stop is not None:
        return WorkflowStatus.CANCELLING
    if job.started_ms:
        return WorkflowStatus.RUNNING
    return WorkflowStatus.DISPATCHED if job.assignments else WorkflowStatus.PENDING
