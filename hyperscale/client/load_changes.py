"""Changes of the load of a job: brings them to a cluster."""

from typing import Unpack

from hyperscale.client.cluster_connection import ClusterConnection, UnknownJobError
from hyperscale.client.inputs import checked_job
from hyperscale.client.messages import ChangeLoad, ChangeLoadReply
from hyperscale.errors import InputError
from hyperscale.graph.changes import ScaleTarget, pause, resume, scale_to
from hyperscale.jobs.committed.events import Code
from hyperscale.plan.changes import LoadChange


async def change_load(cluster: ClusterConnection, job_id: str, change: LoadChange) -> None:
    """Have a change committed; it is not lost from then on, whichever node dies.

    Raises InputError if there is no such job, if it has ended, or if the change does not fit.
    """
    request = ChangeLoad(job=job_id, change=change)
    reply = await cluster.ask_about(job_id, request, ChangeLoadReply)
    if reply.accepted:
        return
    if reply.status is not None:
        raise InputError(f"job {job_id} has ended: {reply.status.value}")
    if reply.code is Code.UNKNOWN_JOB:
        raise UnknownJobError(job_id)
    raise InputError(f"job {job_id}: {reply.error or reply.code.value}", hint=reply.hint)


class JobLoadControl:
    """The calls of a client that change the load of a running job."""

    _cluster: ClusterConnection

    async def scale_job(self, job_id: str, **target: Unpack[ScaleTarget]) -> None:
        """Change the load of a job: `vus=500` or `rate="500/s"`, and `over="30s"`, `workflow=…`."""
        await self.change_load(job_id, scale_to(**target))

    async def pause_job(self, job_id: str) -> None:
        """Pause the load of a job: users finish their iteration and wait."""
        await self.change_load(job_id, pause())

    async def resume_job(self, job_id: str) -> None:
        """Let the load of a paused job go on where it was."""
        await self.change_load(job_id, resume())

    async def change_load(self, job_id: str, change: LoadChange) -> None:
        """Make a change of the load of a job; making the same one twice is harmless."""
        await change_load(self._cluster, checked_job(job_id), change)
