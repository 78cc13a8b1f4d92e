"""What a client reports about a job: to its caller, to callbacks of a program, to the terminal."""

import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

from hyperscale.client.messages import WatchJobUpdate
from hyperscale.client.push_limit import PushLimit
from hyperscale.jobs.committed.events import JobStatus
from hyperscale.jobs.committed.state import (
    JOB_ENDS,
    WORKFLOW_ENDS,
    JobView,
    WorkflowRow,
    view_status,
)
from hyperscale.reporting.results import RunResult, StepResult, WorkflowResult
from hyperscale.reporting.verdict import faults_of
from hyperscale.stats.view import RunView, StepView, ViewStatus, WorkflowView

_log = logging.getLogger("hyperscale.client")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatusPush:
    """The state of a job at one moment."""

    job_id: str
    status: str
    message: str = ""
    total_completed: int = 0
    total_failed: int = 0
    overall_rate: float = 0.0  # requests per second
    total_sent: int = 0  # requests
    elapsed_seconds: float = 0.0
    is_final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """The counts of one step so far."""

    step_name: str
    completed_count: int
    failed_count: int
    total_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedStatsPush:
    """The numbers of a workflow so far, over all its workers. Counts only grow."""

    job_id: str
    workflow_id: str
    workflow_name: str
    completed_count: int
    failed_count: int
    rate_per_second: float  # calls of steps
    elapsed_seconds: float
    step_stats: tuple[StepStats, ...] = ()
    worker_count: int = 0
    is_aggregated: bool = True
    datacenter: str = ""
    sent: int = 0  # requests
    requests_per_second: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowResultPush:
    """A workflow that has ended. `result` is set once the whole job has ended."""

    job_id: str
    workflow_id: str
    workflow_name: str
    status: str
    total_completed: int = 0
    total_failed: int = 0
    error: str | None = None
    elapsed_seconds: float = 0.0
    result: WorkflowResult | None = None

    @classmethod
    def of(cls, job_id: str, result: WorkflowResult) -> Self:
        """Return the update for a workflow's final result."""
        return cls(
            job_id=job_id,
            workflow_id=result.name,
            workflow_name=result.name,
            status=result.status.value,
            total_completed=result.ok,
            total_failed=result.failed,
            error=result.error,
            elapsed_seconds=result.elapsed_seconds,
            result=result,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelResult:
    """`accepted`: the job is being cancelled, or was cancelled before. If False, the job had
    already ended with `status`."""

    job_id: str
    accepted: bool
    status: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFinalResult:
    """The results of a job that has ended."""

    job_id: str
    status: str
    reason: str
    datacenter: str
    workflow_results: tuple[WorkflowResult, ...]
    total_completed: int
    total_failed: int
    errors: tuple[str, ...]
    elapsed_seconds: float
    result: RunResult  # all of it, as `hyperscale run --json` writes it
    exit_code: int = 0

    def as_progress(self) -> "list[WindowedStatsPush]":
        """Return the last numbers of each workflow that ran."""
        ran = [workflow for workflow in self.workflow_results if workflow.elapsed_seconds]
        return [_last_progress(self.job_id, workflow) for workflow in ran]

    def as_status(self) -> JobStatusPush:
        """Return the last status update of the job."""
        workflows = self.workflow_results
        return JobStatusPush(
            job_id=self.job_id,
            status=self.status,
            message=self.reason,
            total_completed=self.total_completed,
            total_failed=self.total_failed,
            total_sent=sum(workflow.sent for workflow in workflows),
            overall_rate=sum(workflow.requests_per_second for workflow in workflows),
            elapsed_seconds=self.elapsed_seconds,
            is_final=True,
        )


def _step_stats(steps: Iterable[StepView | StepResult]) -> tuple[StepStats, ...]:
    return tuple(
        StepStats(
            step_name=step.name,
            completed_count=step.ok,
            failed_count=step.failed,
            total_count=step.total,
        )
        for step in steps
    )


def _last_progress(job_id: str, workflow: WorkflowResult) -> WindowedStatsPush:
    return WindowedStatsPush(
        job_id=job_id,
        workflow_id=workflow.name,
        workflow_name=workflow.name,
        completed_count=workflow.ok,
        failed_count=workflow.failed,
        rate_per_second=workflow.rate_per_second,
        elapsed_seconds=workflow.elapsed_seconds,
        step_stats=_step_stats(workflow.steps),
        worker_count=len(workflow.workers),
        sent=workflow.sent,
        requests_per_second=workflow.requests_per_second,
    )


def status_of(news: WatchJobUpdate) -> JobStatusPush:
    """Return the status update for what a manager said about a job."""
    job, live = news.job, news.live
    workflows = () if live is None else live.workflows
    return JobStatusPush(
        job_id=job.job,
        status=job.status.value,
        message=queue_note(job) or job.reason,
        total_completed=sum(workflow.ok for workflow in workflows),
        total_failed=sum(workflow.failed for workflow in workflows),
        total_sent=sum(workflow.sent for workflow in workflows),
        overall_rate=sum(workflow.requests_now for workflow in workflows),
        elapsed_seconds=0.0 if live is None else live.elapsed_s,
        is_final=job.status in JOB_ENDS,
    )


def progress_of(news: WatchJobUpdate) -> Iterator[WindowedStatsPush]:
    """Yield the numbers of each workflow that has started."""
    if news.live is None:
        return
    workers = {row.name: len(row.workers) for row in news.job.workflows}
    for view in news.live.workflows:
        if view.elapsed_s <= 0:
            continue
        yield WindowedStatsPush(
            job_id=news.job.job,
            workflow_id=view.name,
            workflow_name=view.name,
            completed_count=view.ok,
            failed_count=view.failed,
            rate_per_second=view.rate_now,
            elapsed_seconds=view.elapsed_s,
            step_stats=_step_stats(view.steps),
            worker_count=workers.get(view.name, 0),
            sent=view.sent,
            requests_per_second=view.requests_now,
        )


def results_in(news: WatchJobUpdate) -> Iterator[WorkflowResultPush]:
    """Yield an update for each workflow that has ended."""
    live = () if news.live is None else news.live.workflows
    views = {view.name: view for view in live}
    for row in news.job.workflows:
        if row.status not in WORKFLOW_ENDS:
            continue
        view = views.get(row.name)
        yield WorkflowResultPush(
            job_id=news.job.job,
            workflow_id=row.name,
            workflow_name=row.name,
            status=row.status.value,
            total_completed=0 if view is None else view.ok,
            total_failed=0 if view is None else view.failed,
            error=row.error,
            elapsed_seconds=0.0 if view is None else view.elapsed_s,
        )


def final_of(result: RunResult, job: JobView) -> JobFinalResult:
    """Return the final result of a job that has ended."""
    return JobFinalResult(
        job_id=job.job,
        status=result.status.value,
        reason=job.reason,
        datacenter=", ".join(result.datacenters),
        workflow_results=tuple(result.workflows),
        total_completed=sum(workflow.ok for workflow in result.workflows),
        total_failed=sum(workflow.failed for workflow in result.workflows),
        errors=tuple(f"{w.name}: {w.error}" for w in result.workflows if w.error),
        elapsed_seconds=result.elapsed_seconds,
        result=result,
        exit_code=result.exit_code,
    )


async def call_back(
    updates: AsyncIterator[WatchJobUpdate],
    final_result: Callable[[WatchJobUpdate], Awaitable[JobFinalResult]],
    *,
    on_status: Callable[[JobStatusPush], Any] | None,
    on_progress: Callable[[WindowedStatsPush], Any] | None,
    on_result: Callable[[WorkflowResultPush], Any] | None,
) -> None:
    """Call the callbacks, one after the other, until the job has ended; its end comes last."""
    reported: set[str] = set()  # workflows whose results were passed on
    status: JobStatus | None = None
    limit = PushLimit()
    async for news in updates:
        for progress in limit.admit(list(progress_of(news)), now_s=time.monotonic()):
            await _call(on_progress, progress)
        pushes, final = results_in(news), None
        if news.job.status in JOB_ENDS:
            final = await final_result(news)
            pushes = (WorkflowResultPush.of(final.job_id, row) for row in final.workflow_results)
            for last in final.as_progress():  # the last numbers are always passed on
                await _call(on_progress, last)
        for push in pushes:
            if push.workflow_id not in reported:
                reported.add(push.workflow_id)
                await _call(on_result, push)
        if news.job.status is not status:
            status = news.job.status
            await _call(on_status, status_of(news) if final is None else final.as_status())


async def _call(callback: Callable[[Any], Any] | None, value: object) -> None:
    """Call a callback and await its result if it is awaitable. Log its error: the job goes on."""
    if callback is None:
        return
    try:
        answer = callback(value)
        if inspect.isawaitable(answer):
            await answer
    except Exception:  # noqa: BLE001  user code may raise anything
        _log.exception("callback.failed", extra={"callback": getattr(callback, "__name__", "?")})


def display_of(news: WatchJobUpdate, before: RunView | None = None) -> RunView:
    """Return the view of the job after this update.

    `before` is the view that was displayed last: it has numbers that a new job leader lacks.
    """
    job = news.job
    views = [view for view in (before, news.live) if view is not None]
    known: dict[str, WorkflowView] = {}
    for view in (workflow for each in views for workflow in each.workflows):
        # A new leader has older numbers at first, and none of a job that has ended.
        if view.name not in known or _progress(view) >= _progress(known[view.name]):
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
        datacenters=next((v.datacenters for v in reversed(views) if v.datacenters), ()),
    )


def _progress(view: WorkflowView) -> int:
    return view.total + view.none + view.sent


def _workflow(row: WorkflowRow, known: WorkflowView | None) -> WorkflowView:
    view = known or WorkflowView(
        row.name, ViewStatus.WAITING, cores=row.cores, shared_cores=row.shared_cores
    )
    status = view_status(row.status, row.ended_as)
    return replace(view, status=status, error=row.error or view.error)


def with_results(view: RunView, result: RunResult) -> RunView:
    """Return the last view with the numbers of the results, which are later than its own."""
    results = {workflow.name: workflow for workflow in result.workflows}
    workflows = [_with_result(each, results.get(each.name)) for each in view.workflows]
    elapsed_s = max((each.elapsed_s for each in workflows), default=0.0)
    return replace(view, elapsed_s=max(view.elapsed_s, elapsed_s), workflows=tuple(workflows))


def _with_result(view: WorkflowView, end: WorkflowResult | None) -> WorkflowView:
    if end is None or not (end.total or end.sent):
        return view
    return replace(
        view,
        faults=tuple(faults_of(end)),
        elapsed_s=end.elapsed_seconds,
        total=end.total,
        ok=end.ok,
        failed=end.failed,
        none=end.none,
        cut=end.cut,
        sent=end.sent,
        iterations=end.iterations,
        late=end.late,
        dropped=end.dropped,
        rate_total=end.rate_per_second,
        requests_total=end.requests_per_second,
    )


def queue_note(job: JobView) -> str:
    """Return the job's position in the queue for cores, and why it waits; empty if it does not."""
    if not job.position:
        return ""
    why = f": {job.reason}" if job.reason else ""
    return f"waiting for cores, number {job.position} in the queue{why}"
