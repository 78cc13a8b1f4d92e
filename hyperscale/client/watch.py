"""Following a job until it has ended, whoever leads it and through whichever manager."""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator
from dataclasses import replace

import msgspec

from hyperscale.client.manager_links import (
    PASSING,
    TELL_S,
    Managers,
    NoManagerError,
    in_short,
)
from hyperscale.client.messages import GetJob, GetJobReply, OutputLine, WatchJob, WatchJobUpdate
from hyperscale.errors import InputError
from hyperscale.jobs.committed.state import JOB_ENDS, JobView, WorkflowRow
from hyperscale.reporting.results import RunResult, WorkflowResult
from hyperscale.stats.view import RunView, WorkflowView
from hyperscale.wire.errors import CallError, RemoteError, RemoteErrorCode

SILENCE_S = 5.0
"""News come twice a second; whoever is silent for this long is left for another manager."""
PATIENCE_S = 600.0
"""How long managers may be gone while a job that is known is followed."""
_STREAM_S = 1800.0
_PAUSE_S = 0.2
_PAUSE_MOST_S = 2.0
_RUNS_REMEMBERED = 4096
_SPANS_REMEMBERED = 64

_RunKey = tuple[str, str, int, int]
"""Worker, workflow, part and attempt: whose lines are numbered together."""
_Span = tuple[int, int]
"""The first and the last of numbers that were seen without a gap."""


def unknown_job(job: str) -> InputError:
    return InputError(
        f"there is no job {job!r} in this cluster", hint="'hyperscale jobs' lists those there are"
    )


async def follow_job(
    managers: Managers,
    job: str,
    *,
    is_known: bool = False,
    patience_s: float = PATIENCE_S,
    first_patience_s: float = 0.0,
) -> AsyncGenerator[WatchJobUpdate, None]:
    """News of the job; the last one has ended. `is_known`: it was seen before, so that a
    manager that does not know it is only late. `first_patience_s`: how long managers may be
    gone otherwise."""
    loop = asyncio.get_running_loop()
    lines = _Lines()
    heard_s = loop.time()
    pause_s = _PAUSE_S
    while True:
        news_of = managers.follow(
            WatchJob(job=job), WatchJobUpdate, within_s=_STREAM_S, silence_s=SILENCE_S
        )
        try:
            async for news in news_of:
                is_known, heard_s, pause_s = True, loop.time(), _PAUSE_S
                yield msgspec.structs.replace(news, output=lines.fresh(news.output))
                if news.job.status in JOB_ENDS:
                    return
        except NoManagerError as error:
            if loop.time() - heard_s >= (patience_s if is_known else first_patience_s):
                raise
            managers.on_trouble(error.message)
        except CallError as error:
            code = error.code if isinstance(error, RemoteError) else None
            is_over = loop.time() - heard_s >= patience_s
            if code is RemoteErrorCode.UNKNOWN_JOB:
                is_known = is_known or await _exists(managers, job)
                if not is_known or is_over:
                    raise unknown_job(job) from error
            elif is_over or (code is not None and code not in PASSING):
                raise
            elif loop.time() - heard_s >= TELL_S:  # what passes sooner is nobody's trouble
                managers.on_trouble(in_short(error))
        finally:
            await news_of.aclose()
        await asyncio.sleep(pause_s)
        pause_s = min(_PAUSE_MOST_S, pause_s * 1.5)


async def _exists(managers: Managers, job: str) -> bool:
    try:
        told = await managers.ask(GetJob(job=job), GetJobReply, within_s=10.0)
    except RemoteError as error:
        if error.code is RemoteErrorCode.UNKNOWN_JOB:
            return False
        raise
    return told.job is not None


class _Lines:
    """What user code printed, each line once: a new stream begins with what is still kept."""

    def __init__(self) -> None:
        self._seen: dict[_RunKey, list[_Span]] = {}  # who printed last is last

    def fresh(self, lines: list[OutputLine]) -> list[OutputLine]:
        return [line for line in lines if not line.number or self._is_new(line)]

    def _is_new(self, line: OutputLine) -> bool:
        run = (line.worker, line.workflow, line.part, line.attempt)
        spans = self._seen.pop(run, [])
        self._seen[run] = spans
        if len(self._seen) > _RUNS_REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return _add(spans, line.number)


def _add(spans: list[_Span], number: int) -> bool:
    """Whether the number was in none of the spans, which are in order; it is then. Lines come in
    order but for those a former leader still has when it leads again, so that one is enough
    nearly always."""
    after = bisect_right(spans, number, key=lambda span: span[0])
    first = last = number
    at = after
    if after and spans[after - 1][1] >= number - 1:
        at -= 1
        first, end = spans[at]
        if end >= number:
            return False
    if after < len(spans) and spans[after][0] == number + 1:
        last = spans[after][1]
        after += 1
    spans[at:after] = [(first, last)]
    if len(spans) > _SPANS_REMEMBERED:  # what is missing longest is hardly kept anywhere
        spans[:2] = [(spans[0][0], spans[1][1])]
    return True


def shown(news: WatchJobUpdate, before: RunView | None = None) -> RunView:
    """The job as the terminal shows a run, also while it waits, and when its leader has
    forgotten the numbers: then they are those that were seen before."""
    job = news.job
    numbers = [view for view in (before, news.live) if view is not None]
    known: dict[str, WorkflowView] = {}
    for view in (each for one in numbers for each in one.workflows):
        # A new leader knows less for a moment, and one that has done with the job nothing.
        if view.name not in known or view.total >= known[view.name].total:
            known[view.name] = view
    workflows = []
    for row in job.workflows:
        view = known.get(row.name) or _nothing_yet(row)
        status = row.status.value if row.ended_as is None else row.ended_as.value
        error = row.error or view.error
        workflows.append(replace(view, status=_STATUS.get(status, status), error=error))
    return RunView(
        file=job.file,
        elapsed_s=max((view.elapsed_s for view in numbers), default=0.0),
        workflows=tuple(workflows),
        saturated=any(view.saturated for view in numbers),
        warnings=numbers[-1].warnings if numbers else (),
        usage=numbers[-1].usage if numbers else (),
        waiting=waiting_note(job),
    )


def concluded(view: RunView, result: RunResult) -> RunView:
    """The last view, with the numbers of the result: the last report came before the end."""
    results = {workflow.name: workflow for workflow in result.workflows}
    workflows = [_concluded(each, results.get(each.name)) for each in view.workflows]
    elapsed_s = max((each.elapsed_s for each in workflows), default=0.0)
    return replace(view, elapsed_s=max(view.elapsed_s, elapsed_s), workflows=tuple(workflows))


def _concluded(view: WorkflowView, end: WorkflowResult | None) -> WorkflowView:
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


def _nothing_yet(row: WorkflowRow) -> WorkflowView:
    return WorkflowView(
        name=row.name,
        status="waiting",
        vus=0,
        cores=row.cores,
        elapsed_s=0.0,
        duration_s=0.0,
        progress=0.0,
        rate_now=0.0,
        rate_total=0.0,
        total=0,
        ok=0,
        failed=0,
        cut=0,
    )


def waiting_note(job: JobView) -> str:
    """Where it stands in the queue for cores, and why, if it does."""
    if not job.position:
        return ""
    why = f": {job.reason}" if job.reason else ""
    return f"waiting for cores, number {job.position} in the queue{why}"


# What the terminal calls the phases of a workflow.
_STATUS = {
    "pending": "waiting",
    "dispatched": "preparing",
    "aggregated": "completed",
    "failed_canceling_deps": "failed",
    "failed_ready": "waiting",
}
