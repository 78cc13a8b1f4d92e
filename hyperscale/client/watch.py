"""A job as managers report it: its state now, its updates until it has ended, its final record.

Any manager is asked, across changes of the job's leader. A stream that begins with a new leader
repeats the lines of output that the leader still keeps; each line is passed on once.
"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator

import msgspec

from hyperscale.client.cluster_connection import ClusterConnection, UnknownJobError
from hyperscale.client.manager_connections import (
    REPORT_AFTER_S,
    TRANSIENT_CODES,
    ManagerConnections,
    NoManagerError,
    short_reason,
)
from hyperscale.client.messages import (
    GetJob,
    GetJobRecord,
    GetJobReply,
    OutputLine,
    WatchJob,
    WatchJobUpdate,
)
from hyperscale.errors import InputError, RunError
from hyperscale.jobs.committed.state import JOB_ENDS
from hyperscale.wire.errors import CallError, RemoteError, RemoteErrorCode
from hyperscale.wire.messages import Chunk

SILENCE_S = 5.0
"""Managers send updates twice a second; after this much silence another manager is asked."""
PATIENCE_S = 600.0
"""How long managers may be unreachable while a job that is known to exist is followed."""
RECORD_S = 120.0
ATTEMPTS_REMEMBERED_MAX = 4096
SPANS_REMEMBERED_MAX = 64
_STREAM_S = 1800.0
_EXISTS_S = 10.0
_PAUSE_S = 0.2
_PAUSE_MOST_S = 2.0
_RECORD_SILENCE_S = 15.0
_RECORD_RETRY_S = 0.3
_NO_RECORD_YET = frozenset({RemoteErrorCode.UNKNOWN_JOB, RemoteErrorCode.NOT_ENDED})

_AttemptKey = tuple[str, str, int, int]
"""Worker, workflow, part and attempt: the lines of one key are numbered together."""
_Span = tuple[int, int]
"""The first and the last of consecutive numbers that were seen."""


async def follow_job(
    managers: ManagerConnections,
    job: str,
    *,
    is_known: bool = False,
    patience_s: float = PATIENCE_S,
    first_patience_s: float = 0.0,
) -> AsyncGenerator[WatchJobUpdate, None]:
    """Yield updates of the job; in the last one the job has ended.

    `is_known`: the job exists, so a manager that does not know it lags behind.
    `patience_s`, `first_patience_s`: how long managers may be unreachable while the job is
    known to exist, and while it is not.
    """
    loop = asyncio.get_running_loop()
    seen = SeenOutput()
    heard_s = loop.time()
    pause_s = _PAUSE_S
    while True:
        updates = managers.follow(
            WatchJob(job=job), WatchJobUpdate, within_s=_STREAM_S, silence_s=SILENCE_S
        )
        try:
            async for news in updates:
                is_known, heard_s, pause_s = True, loop.time(), _PAUSE_S
                yield msgspec.structs.replace(news, output=seen.new_lines(news.output))
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
                    raise UnknownJobError(job) from error
            elif is_over or (code is not None and code not in TRANSIENT_CODES):
                raise
            elif loop.time() - heard_s >= REPORT_AFTER_S:
                managers.on_trouble(short_reason(error))
        finally:
            await updates.aclose()
        await asyncio.sleep(pause_s)
        pause_s = min(_PAUSE_MOST_S, pause_s * 1.5)


async def _exists(managers: ManagerConnections, job: str) -> bool:
    try:
        reply = await managers.ask(GetJob(job=job), GetJobReply, within_s=_EXISTS_S)
    except RemoteError as error:
        if error.code is RemoteErrorCode.UNKNOWN_JOB:
            return False
        raise
    return reply.job is not None


async def fetch_job(cluster: ClusterConnection, job_id: str) -> WatchJobUpdate:
    """Return the job's state now; raise `InputError` if there is no such job."""
    reply = await cluster.ask_about(job_id, GetJob(job=job_id), GetJobReply)
    if reply.job is None:
        raise UnknownJobError(job_id)
    return WatchJobUpdate(job=reply.job, live=reply.live)


async def fetch_record(cluster: ClusterConnection, job_id: str, *, within_s: float) -> bytes:
    """Return the final record of a job that has ended (`jobs.committed.state.decode_job`)."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + within_s
    if not cluster.managers.has_reached:
        await fetch_job(cluster, job_id)  # fails soon if no manager answers or knows the job
    while True:
        try:
            data = bytearray()
            pieces = cluster.managers.follow(
                GetJobRecord(job=job_id), Chunk, within_s=within_s, silence_s=_RECORD_SILENCE_S
            )
            async for piece in pieces:
                data += piece.data
            return bytes(data)
        except RemoteError as error:
            is_late = loop.time() >= deadline_s
            if is_late or error.code in _NO_RECORD_YET:
                status = (await fetch_job(cluster, job_id)).job.status
                if status not in JOB_ENDS:
                    raise InputError(
                        f"job {job_id} has not ended: it is {status.value}",
                        hint=f"follow it with 'hyperscale watch {job_id}'",
                    ) from error
                if is_late:
                    raise RunError(f"no manager has the results of {job_id}: {error}") from error
        except NoManagerError as error:
            if loop.time() >= deadline_s:
                raise
            cluster.on_trouble(error.message)
        except CallError as error:
            if loop.time() >= deadline_s:
                raise RunError(f"the results of {job_id} could not be fetched: {error}") from error
        await asyncio.sleep(_RECORD_RETRY_S)


class SeenOutput:
    """The numbers of the lines seen so far, bounded in attempts and in spans of each."""

    def __init__(self) -> None:
        self._spans: dict[_AttemptKey, list[_Span]] = {}  # the attempt seen last is last

    def new_lines(self, lines: list[OutputLine]) -> list[OutputLine]:
        """Return the lines not seen before, and remember them. Unnumbered lines are new."""
        return [line for line in lines if not line.number or self._is_new(line)]

    def _is_new(self, line: OutputLine) -> bool:
        key = (line.worker, line.workflow, line.part, line.attempt)
        spans = self._spans.pop(key, [])
        self._spans[key] = spans
        if len(self._spans) > ATTEMPTS_REMEMBERED_MAX:
            del self._spans[next(iter(self._spans))]
        return _add(spans, line.number)


def _add(spans: list[_Span], number: int) -> bool:
    """Add a number to ordered spans; return False if it was in one of them.

    Lines arrive in order, except those that a former leader still has when it leads again, so
    there is nearly always a single span.
    """
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
    if len(spans) > SPANS_REMEMBERED_MAX:  # no leader keeps lines as old as the first gap
        spans[:2] = [(spans[0][0], spans[1][1])]
    return True
