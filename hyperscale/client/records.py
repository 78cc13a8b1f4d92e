"""Fetch a job's state and, once it has ended, its final record."""

import asyncio

from hyperscale.client.cluster_connection import ClusterConnection
from hyperscale.client.manager_connections import NoManagerError
from hyperscale.client.messages import GetJob, GetJobRecord, GetJobReply, WatchJobUpdate
from hyperscale.client.watch import unknown_job
from hyperscale.errors import InputError, RunError
from hyperscale.jobs.committed.state import JOB_ENDS
from hyperscale.wire.errors import CallError, RemoteError, RemoteErrorCode
from hyperscale.wire.messages import Chunk

RECORD_S = 120.0
_SILENCE_S = 15.0
_RETRY_S = 0.3
_NO_RECORD_YET = frozenset({RemoteErrorCode.UNKNOWN_JOB, RemoteErrorCode.NOT_ENDED})


async def fetch_job(cluster: ClusterConnection, job_id: str) -> WatchJobUpdate:
    """Return the job's state now; raise `InputError` if there is no such job."""
    reply = await cluster.ask_about(job_id, GetJob(job=job_id), GetJobReply)
    if reply.job is None:
        raise unknown_job(job_id)
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
                GetJobRecord(job=job_id), Chunk, within_s=within_s, silence_s=_SILENCE_S
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
        await asyncio.sleep(_RETRY_S)
