"""What a client asks gates about datacenters: change one, and where jobs go."""

import secrets

from hyperscale.client.cluster_connection import ClusterConnection
from hyperscale.client.inputs import (
    across_of,
    checked_job,
    checked_key,
    checked_names,
    checked_text,
    placed_plan,
)
from hyperscale.client.submission import JobSubmission, Package
from hyperscale.errors import InputError, RunError
from hyperscale.gates.datacenters.registry import DatacenterState
from hyperscale.gates.messages import (
    ChangeDatacenter,
    ChangeDatacenterReply,
    RouteJob,
    RouteJobReply,
)


async def change_datacenter(
    cluster: ClusterConnection, name: str, state: DatacenterState, *, force: bool
) -> None:
    """Drain, resume or remove a datacenter."""
    name = checked_text(name, where="datacenter")
    change = ChangeDatacenter(datacenter=name, state=state, is_forced=force)
    reply = await cluster.ask(change, ChangeDatacenterReply)
    if reply.refused:
        error = InputError if reply.is_unknown else RunError
        raise error(reply.refused, hint=reply.hint)


async def route_job(
    cluster: ClusterConnection, package: Package, options: JobSubmission
) -> RouteJobReply:
    """Return where a job would go now."""
    names = checked_names(options.target_datacenters, where="target_datacenters")
    request = RouteJob(
        key=checked_key(options.key or secrets.token_urlsafe(24)),
        plan=placed_plan(package.plan, options),
        options=across_of(options, names),
    )
    return await cluster.ask(request, RouteJobReply)


async def route_of(cluster: ClusterConnection, job_id: str) -> RouteJobReply:
    """Return where a job went."""
    job_id = checked_job(job_id)
    return await cluster.ask_about(job_id, RouteJob(job=job_id), RouteJobReply)
