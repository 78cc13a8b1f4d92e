"""Why a job ended without completing, as one of a few reasons that people alert on."""

from enum import StrEnum

from hyperscale.jobs.committed.events import JobStatus
from hyperscale.jobs.committed.state import Job, WorkflowState
from hyperscale.plan.status import PartStatus


class FailureReason(StrEnum):
    """Why a job failed, timed out or completed only in part."""

    THRESHOLD = "threshold"  # one that aborts the run was crossed
    TEST = "test"  # its own code could not be prepared, failed or blocked
    WORKERS = "workers"  # attempts failed too often, or no other worker could take a part
    NOT_DISPATCHED = "not_dispatched"  # a workflow got no cores, or a value it needs was missing
    TIMEOUT = "timeout"  # of the job, or of a workflow that took too long
    INTERNAL = "internal"  # a bug of the job leader


_FAILURES = frozenset({JobStatus.FAILED, JobStatus.PARTIAL, JobStatus.TIMEOUT})
_STOPPED = {
    JobStatus.TIMEOUT: FailureReason.TIMEOUT,
    JobStatus.FAILED: FailureReason.THRESHOLD,
}


def failure_reason(job: Job) -> FailureReason | None:
    """Return why an ended job failed; None if it completed or was cancelled."""
    if job.status not in _FAILURES:
        return None
    if job.stop is not None:
        return _STOPPED.get(job.stop.status)
    # Workflows that depend on a failed one were cancelled for that.
    ends = (JobStatus.FAILED, JobStatus.TIMEOUT)
    failed = [each for each in job.workflows.values() if each.ended_as in ends]
    reasons = {_reason_of(workflow) for workflow in failed}
    return min(reasons, key=list(FailureReason).index, default=FailureReason.INTERNAL)


def _reason_of(workflow: WorkflowState) -> FailureReason:
    if not workflow.parts:
        return FailureReason.NOT_DISPATCHED
    if workflow.ended_as is JobStatus.TIMEOUT:
        return FailureReason.TIMEOUT
    ends = [part.end for part in workflow.parts]
    if any(end is not None and end.status is PartStatus.FAILED for end in ends):
        return FailureReason.TEST
    return FailureReason.WORKERS
