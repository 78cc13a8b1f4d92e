"""Global jobs as people see them: rows of lists, and the live view of one job."""

from hyperscale.gates.committed.job_row import global_workflow_status
from hyperscale.gates.committed.state import DatacenterAssignment, GlobalJob
from hyperscale.gates.owner.state import GlobalProgress
from hyperscale.jobs.committed.state import (
    view_status,
)
from hyperscale.stats.view import DatacenterLoad, RunView

SILENT_S = 15.0
"""A datacenter reports at least every 10 s; one that was not heard for this long is shown so."""


def global_live_view(
    job: GlobalJob, progress: GlobalProgress, *, now_s: float, now_ms: int
) -> RunView:
    """Return the merged numbers of all datacenters, as far as they have reported."""
    status = view_status(global_workflow_status(job), None)
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
