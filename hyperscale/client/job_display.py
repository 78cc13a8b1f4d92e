"""A job as the terminal shows it: the latest numbers, the phase of each workflow, the queue."""

from dataclasses import replace

from hyperscale.client.messages import WatchJobUpdate
from hyperscale.jobs.committed.state import JobView, WorkflowRow, view_status
from hyperscale.reporting.results import RunResult, WorkflowResult
from hyperscale.stats.view import RunView, ViewStatus, WorkflowView


def display_of(news: WatchJobUpdate, before: RunView | None = None) -> RunView:
    """Return the view of the job after this update.

    `before` is the view that was displayed last: it has numbers that a new job leader lacks.
    """
    job = news.job
    views = [view for view in (before, news.live) if view is not None]
    known: dict[str, WorkflowView] = {}
    for view in (workflow for each in views for workflow in each.workflows):
        # A new leader has older numbers at first, and none of a job that has ended.
        if view.name not in known or view.total >= known[view.name].total:
            known[view.name] = view
    return RunView(
        file=job.file,
        elapsed_s=max((view.elapsed_s for view in views), default=0.0),
        workflows=tuple(_workflow(row, known.get(row.name)) for row in job.workflows),
        saturated=any(view.saturated for view in views),
        warnings=views[-1].warnings if views else (),
        usage=views[-1].usage if views else (),
        waiting=queue_note(job),
        saturation=views[-1].saturation if views else {},
    )


def _workflow(row: WorkflowRow, known: WorkflowView | None) -> WorkflowView:
    view = known or WorkflowView(row.name, ViewStatus.WAITING, cores=row.cores)
    status = view_status(row.status, row.ended_as)
    return replace(view, status=status, error=row.error or view.error)


def with_results(view: RunView, result: RunResult) -> RunView:
    """Return the last view with the numbers of the results, which are later than its own."""
    results = {workflow.name: workflow for workflow in result.workflows}
    workflows = [_with_result(each, results.get(each.name)) for each in view.workflows]
    elapsed_s = max((each.elapsed_s for each in workflows), default=0.0)
    return replace(view, elapsed_s=max(view.elapsed_s, elapsed_s), workflows=tuple(workflows))


def _with_result(view: WorkflowView, end: WorkflowResult | None) -> WorkflowView:
    if end is None or not end.total:
        return view
    return replace(
        view,
        elapsed_s=end.elapsed_seconds,
        total=end.total,
        ok=end.ok,
        failed=end.failed,
        cut=end.cut,
        rate_total=end.rate_per_second,
    )


def queue_note(job: JobView) -> str:
    """Return the job's position in the queue for cores, and why it waits; empty if it does not."""
    if not job.position:
        return ""
    why = f": {job.reason}" if job.reason else ""
    return f"waiting for cores, number {job.position} in the queue{why}"
