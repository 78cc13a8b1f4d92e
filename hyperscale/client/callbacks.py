"""Report what happens to a job to the callbacks that its submitter passed in."""

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from hyperscale.client.messages import WatchJobUpdate
from hyperscale.client.updates import (
    JobFinalResult,
    JobStatusPush,
    WindowedStatsPush,
    WorkflowResultPush,
    progress_of,
    results_in,
    status_of,
)
from hyperscale.jobs.committed.events import JobStatus
from hyperscale.jobs.committed.state import JOB_ENDS

_log = logging.getLogger("hyperscale.client")


@dataclass(frozen=True, slots=True)
class JobCallbacks:
    """Functions or coroutine functions, each called with one update at a time."""

    on_status: Callable[[JobStatusPush], Any] | None = None
    on_progress: Callable[[WindowedStatsPush], Any] | None = None
    on_result: Callable[[WorkflowResultPush], Any] | None = None

    @property
    def are_any(self) -> bool:
        return any((self.on_status, self.on_progress, self.on_result))


async def call_back(
    callbacks: JobCallbacks,
    updates: AsyncIterator[WatchJobUpdate],
    final_result: Callable[[WatchJobUpdate], Awaitable[JobFinalResult]],
) -> None:
    """Call the callbacks, one after the other, until the job has ended; its end comes last."""
    reported: set[str] = set()  # workflows whose results were passed on
    status: JobStatus | None = None
    async for news in updates:
        for progress in progress_of(news):
            await _call(callbacks.on_progress, progress)
        if news.job.status in JOB_ENDS:
            final = await final_result(news)
            for result in final.workflow_results:
                if result.name not in reported:
                    await _call(callbacks.on_result, WorkflowResultPush.of(final.job_id, result))
            await _call(callbacks.on_status, final.as_status())
            continue
        for push in results_in(news):
            if push.workflow_id not in reported:
                reported.add(push.workflow_id)
                await _call(callbacks.on_result, push)
        if news.job.status is not status:
            status = news.job.status
            await _call(callbacks.on_status, status_of(news))


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
