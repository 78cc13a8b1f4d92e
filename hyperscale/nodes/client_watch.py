"""Following a job until it has ended, whoever leads it and through whichever manager."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import msgspec

from hyperscale.errors import InputError
from hyperscale.jobs.events import Code
from hyperscale.jobs.state import JOB_ENDS, JobView, WorkflowRow
from hyperscale.nodes.client_managers import (
    PASSING,
    TELL_S,
    Managers,
    NoManagerError,
    in_short,
)
from hyperscale.nodes.client_messages import JobAsked, JobNews, JobTold, OutputLine, WatchJob
from hyperscale.reporting.results import RunResult, WorkflowResult
from hyperscale.stats.view import RunView, WorkflowView
from hyperscale.wire.errors import CallError, RemoteError

SILENCE_S = 5.0
"""News come twice a second; whoever is silent for this long is left for another manager."""
PATIENCE_S = 600.0
"""How long managers may be gone while a job that is known is followed."""
_STREAM_S = 1800.0
_PAUSE_S = 0.2
_PAUSE_MOST_S = 2.0
_LINES_REMEMBERED = 4096


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
) -> AsyncGenerator[JobNews, None]:
    """News of the job; the last one has ended. `is_known`: it was seen before, so that a
    manager that does not know it is only late. `first_patience_s`: how long managers may be
    gone otherwise."""
    loop = asyncio.get_running_loop()
    lines = _Lines()
    heard_s = loop.time()
    pause_s = _PAUSE_S
    while True:
        lines.begin()
        news_of = managers.follow(
            WatchJob(job=job), JobNews, within_s=_STREAM_S, silence_s=SILENCE_S
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
            code = error.code if isinstance(error, RemoteError) else ""
            is_over = loop.time() - heard_s >= patience_s
            if code == Code.UNKNOWN_JOB.value:
                is_known = is_known or await _exists(managers, job)
                if not is_known or is_over:
                    raise unknown_job(job) from error
            elif is_over or (code and code not in PASSING):
                raise
            elif loop.time() - heard_s >= TELL_S:  # what passes sooner is nobody's trouble
                managers.on_trouble(in_short(error))
        finally:
            await news_of.aclose()
        await asyncio.sleep(pause_s)
        pause_s = min(_PAUSE_MOST_S, pause_s * 1.5)


async def _exists(managers: Managers, job: str) -> bool:
    try:
        told = await managers.ask(JobAsked(job=job), JobTold, within_s=10.0)
    except RemoteError as error:
        if error.code == Code.UNKNOWN_JOB.value:
            return False
        raise
    return told.job is not None


class _Lines:
    """What user code printed, each line once: a new stream begins with what is still kept."""

    def __init__(self) -> None:
        self._seen: list[OutputLine] = []
        self._is_first = False
        self._known = 0  # of what was seen, so many of the last are still to come again

    def begin(self) -> None:
        self._is_first, self._known = True, 0

    def fresh(self, lines: list[OutputLine]) -> list[OutputLine]:
        if self._is_first and lines:
            self._is_first = False
            seen = self._seen
            self._known = next(
                (
                    n
                    for n in range(len(seen), 0, -1)
                    if seen[-n] == lines[0] and _agree(seen[len(seen) - n :], lines)
                ),
                0,
            )
        known = min(self._known, len(lines))
        if known and not _agree(self._seen[len(self._seen) - self._known :], lines):
            known = self._known = 0
        self._known -= known
        new = lines[known:]
        self._seen += new
        del self._seen[:-_LINES_REMEMBERED]
        return new


def _agree(seen: list[OutputLine], lines: list[OutputLine]) -> bool:
    """As far as both go."""
    return all(a == b for a, b in zip(seen, lines, strict=False))


def shown(news: JobNews, before: RunView | None = None) -> RunView:
    """The job as the terminal shows a run, also while it waits, and when its leader has
    forgotten the numbers: then they are those that were seen before."""
    job = news.job
    numbers = [view for view in (before, news.live) if view is not None]
    warnings = tuple(w for w in numbers[-1].warnings if w[:7] != "waiting") if numbers else ()
    note = waiting_note(job)
    if note:
        warnings = (*warnings, note)
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
        warnings=warnings,
        usage=numbers[-1].usage if numbers else (),
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
