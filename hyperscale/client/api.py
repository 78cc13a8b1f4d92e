"""What a client says in and out: submissions, and what callbacks and waiters are given."""

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hyperscale.client.messages import WatchJobUpdate
from hyperscale.client.watch import waiting_note
from hyperscale.jobs.committed.state import JOB_ENDS, WORKFLOW_ENDS, JobView
from hyperscale.reporting.results import RunResult, WorkflowResult

if TYPE_CHECKING:  # what makes runs and packages is not loaded to ask a question
    from hyperscale.plan import Plan
    from hyperscale.reporting.reporter import Sink
    from hyperscale.runner.local import Given

_log = logging.getLogger("hyperscale.client")


@dataclass(frozen=True, kw_only=True)
class JobSubmission:
    """A job to be: a test file, or workflows."""

    workflows: "Iterable[Given | tuple[Iterable[str], Given]]" = ()
    file: str | Path | None = None
    test_name: str = ""
    vus: int | None = None
    duration: str | float | None = None
    only: Sequence[str] = ()
    timeout: str | float | None = None
    dispatch_timeout: str | float | None = None
    key: str = ""
    target_datacenters: Sequence[str] = ()
    on_isolation: str = "stop"
    log_level: str = "info"
    static: bool = True
    by: str = ""


@dataclass(frozen=True, slots=True)
class Package:
    """A plan and one bundle, ready to be submitted, as often as need be."""

    plan: "Plan"
    payload: bytes
    sha256: str
    reporters: "tuple[Sink, ...]" = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatusPush:
    job_id: str
    status: str
    message: str = ""
    total_completed: int = 0
    total_failed: int = 0
    overall_rate: float = 0.0
    elapsed_seconds: float = 0.0
    is_final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    step_name: str
    completed_count: int
    failed_count: int
    total_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedStatsPush:
    """A workflow so far, over all its workers. Counts only grow."""

    job_id: str
    workflow_id: str
    workflow_name: str
    completed_count: int
    failed_count: int
    rate_per_second: float
    elapsed_seconds: float
    step_stats: tuple[StepStats, ...] = ()
    worker_count: int = 0
    is_aggregated: bool = True
    datacenter: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowResultPush:
    """A workflow that has ended. `result` is there once the job has ended too."""

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
    """`accepted`: the job ends, or has been cancelled before. Otherwise it had ended as
    `status` says."""

    job_id: str
    accepted: bool
    status: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFinalResult:
    job_id: str
    status: str
    reason: str
    datacenter: str
    workflow_results: tuple[WorkflowResult, ...]
    total_completed: int
    total_failed: int
    errors: tuple[str, ...]
    elapsed_seconds: float
    result: RunResult  # the whole of it, as `hyperscale run --json` would write it
    exit_code: int = 0

    def as_status(self) -> JobStatusPush:
        rate = sum(workflow.rate_per_second for workflow in self.workflow_results)
        return JobStatusPush(
            job_id=self.job_id,
            status=self.status,
            message=self.reason,
            total_completed=self.total_completed,
            total_failed=self.total_failed,
            overall_rate=rate,
            elapsed_seconds=self.elapsed_seconds,
            is_final=True,
        )


@dataclass(frozen=True, slots=True)
class Callbacks:
    on_status: Callable[[JobStatusPush], Any] | None = None
    on_progress: Callable[[WindowedStatsPush], Any] | None = None
    on_result: Callable[[WorkflowResultPush], Any] | None = None

    @property
    def are_any(self) -> bool:
        return any((self.on_status, self.on_progress, self.on_result))


async def called(callback: Callable[[Any], Any], value: object) -> None:
    """Calls it, waits if it wants to be waited for. What it raises is logged: jobs go on."""
    try:
        answer = callback(value)
        if inspect.isawaitable(answer):
            await answer
    except Exception:  # noqa: BLE001  the user's own, whatever it is
        _log.exception("a callback failed")


def status_of(news: WatchJobUpdate) -> JobStatusPush:
    job, live = news.job, news.live
    workflows = () if live is None else live.workflows
    return JobStatusPush(
        job_id=job.job,
        status=job.status.value,
        message=waiting_note(job) or job.reason,
        total_completed=sum(workflow.ok for workflow in workflows),
        total_failed=sum(workflow.failed for workflow in workflows),
        overall_rate=sum(workflow.rate_now for workflow in workflows),
        elapsed_seconds=0.0 if live is None else live.elapsed_s,
        is_final=job.status in JOB_ENDS,
    )


def progress_of(news: WatchJobUpdate) -> Iterator[WindowedStatsPush]:
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
            step_stats=tuple(
                StepStats(
                    step_name=step.name,
                    completed_count=step.ok,
                    failed_count=step.failed,
                    total_count=step.total,
                )
                for step in view.steps
            ),
            worker_count=workers.get(view.name, 0),
        )


_ENDS = frozenset(status.value for status in WORKFLOW_ENDS)


def results_in(news: WatchJobUpdate) -> Iterator[WorkflowResultPush]:
    """The workflows that have ended by now."""
    views: Mapping[str, Any] = (
        {} if news.live is None else {view.name: view for view in news.live.workflows}
    )
    for row in news.job.workflows:
        if row.status.value not in _ENDS:
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
