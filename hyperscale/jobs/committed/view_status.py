"""The status of a workflow as people see it, from its committed state."""

from hyperscale.jobs.committed.events import JobStatus
from hyperscale.jobs.committed.state import WorkflowStatus
from hyperscale.stats.view import ViewStatus

_VIEW_STATUS = {
    WorkflowStatus.PENDING: ViewStatus.WAITING,
    WorkflowStatus.DISPATCHED: ViewStatus.PREPARING,
    WorkflowStatus.RUNNING: ViewStatus.RUNNING,
    WorkflowStatus.COMPLETED: ViewStatus.COMPLETED,
    WorkflowStatus.FAILED: ViewStatus.FAILED,
    WorkflowStatus.FAILED_CANCELING_DEPENDENTS: ViewStatus.FAILED,
    WorkflowStatus.FAILED_READY_FOR_RETRY: ViewStatus.WAITING,
    WorkflowStatus.CANCELLING: ViewStatus.CANCELLING,
    WorkflowStatus.CANCELLED: ViewStatus.CANCELLED,
    WorkflowStatus.AGGREGATED: ViewStatus.COMPLETED,
}


def view_status(status: WorkflowStatus, ended_as: JobStatus | None) -> ViewStatus:
    """Return the status of a workflow as people see it."""
    return _VIEW_STATUS[status] if ended_as is None else ViewStatus(ended_as.value)
