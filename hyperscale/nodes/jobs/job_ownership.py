"""Whose job it is: what named clients may do with the jobs of others, on managers and gates alike.

The node that a client is connected to decides; nodes that pass a request on trust each other.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from hyperscale.client.messages import (
    ChangeLoad,
    GetJob,
    GetJobReply,
    ListJobs,
    ListJobsReply,
    WatchJob,
    WatchJobUpdate,
)
from hyperscale.jobs.committed.keys import job_id, parse_job_id
from hyperscale.jobs.committed.state import WORKFLOW_ENDS, JobView
from hyperscale.ledger.audit import audit_of
from hyperscale.nodes.jobs.job_routing import no_such_job
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.client_access import Permission
from hyperscale.wire.errors import RemoteError, RemoteErrorCode

_LISTED_MAX = 100_000

FindJob = Callable[[InboundCall, GetJob], Awaitable[GetJobReply]]
FindJobs = Callable[[InboundCall, ListJobs], Awaitable[ListJobsReply]]


def actor_of(call: InboundCall, claimed: str) -> str:
    """Return who submits or cancels a job: the name that the client has proved, or, if clients have
    no names, the one that it claims."""
    return claimed if call.principal is None else call.principal.name


def audit_of_change(call: InboundCall, request: ChangeLoad) -> bytes:
    """Return the audit entry for a change of a job's load."""
    change = request.change
    return audit_of(
        call, change.kind.value, request.job, detail=change.describe(), claimed=change.by
    )


async def check_owner(call: InboundCall, request: Struct, find: FindJob) -> None:
    """Raise `RemoteError` if the request is about a job that the caller may not change."""
    principal = call.principal
    if principal is None or call.spec.permission is not Permission.OWN:
        return
    if principal.may(Permission.OPERATE):
        return
    job: str = getattr(request, "job")  # noqa: B009  messages that need OWN are about a job
    owner = await _owner(call, job, find)
    if not principal.may_change(owner):
        raise RemoteError(
            f"{job} belongs to {owner or 'a client without a name'}, not to {principal.name}",
            code=RemoteErrorCode.ROLE,
            hint="only its owner and operators may change it or read its results",
        )


async def without_output_of_others(
    call: InboundCall,
    request: WatchJob,
    find: FindJob,
    updates: AsyncGenerator[WatchJobUpdate, None],
) -> AsyncGenerator[WatchJobUpdate, None]:
    """Pass on the updates of a job, without what it prints unless the caller may read that."""
    principal = call.principal
    may_read = principal is None or principal.may(Permission.OPERATE)
    if principal is not None and not may_read:
        may_read = principal.may_change(await _owner(call, request.job, find))
    async for update in updates:
        yield update if may_read or not update.output else replace(update, output=[])


class JobQuota(NamedTuple):
    """What the submitter may still use: `problem` says why not even one more job."""

    problem: str = ""
    cores_max: int = 0  # of the job; 0: any number


async def quota_of(call: InboundCall, key: str, listed: FindJobs) -> JobQuota:
    """Return what is left of the caller's quotas for the job that `key` makes.

    Nodes that take submissions of one client in the same moment do not see each other's."""
    principal = call.principal
    if principal is None or not (principal.jobs_max or principal.cores_max):
        return JobQuota()
    reply = await listed(call, ListJobs(limit=_LISTED_MAX, live_only=True))
    same = job_id("", 0, key).rpartition("-")[2]  # a submission that is repeated counts once
    own = [
        view
        for view in reply.jobs
        if view.by == principal.name and parse_job_id(view.job).id != same
    ]
    if principal.jobs_max and len(own) >= principal.jobs_max:
        return JobQuota(
            f"{principal.name} has {len(own)} of {principal.jobs_max} jobs that may run or wait"
        )
    held = sum(_cores(view) for view in own)
    if principal.cores_max and held >= principal.cores_max:
        return JobQuota(f"the jobs of {principal.name} hold {held} of {principal.cores_max} cores")
    return JobQuota(cores_max=max(0, principal.cores_max - held))


def _cores(view: JobView) -> int:
    return sum(row.cores for row in view.workflows if row.status not in WORKFLOW_ENDS)


async def _owner(call: InboundCall, job: str, find: FindJob) -> str:
    found = (await find(call, GetJob(job=job))).job
    if found is None:
        raise no_such_job(job)
    return found.by
