"""Follow a job until it has ended, through any manager and across changes of its leader."""

import asyncio
from collections.abc import AsyncGenerator

import msgspec

from hyperscale.client.manager_connections import (
    REPORT_AFTER_S,
    TRANSIENT_CODES,
    ManagerConnections,
    NoManagerError,
    short_reason,
)
from hyperscale.client.messages import GetJob, GetJobReply, WatchJob, WatchJobUpdate
from hyperscale.client.output_lines import SeenOutput
from hyperscale.errors import InputError
from hyperscale.jobs.committed.state import JOB_ENDS
from hyperscale.wire.errors import CallError, RemoteError, RemoteErrorCode

SILENCE_S = 5.0
"""Managers send updates twice a second; after this much silence another manager is asked."""
PATIENCE_S = 600.0
"""How long managers may be unreachable while a job that is known to exist is followed."""
_STREAM_S = 1800.0
_EXISTS_S = 10.0
_PAUSE_S = 0.2
_PAUSE_MOST_S = 2.0


def unknown_job(job: str) -> InputError:
    """Return the error for a job id that the cluster does not know."""
    return InputError(
        f"there is no job {job!r} in this cluster", hint="'hyperscale jobs' lists the jobs"
    )


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
                    raise unknown_job(job) from error
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
