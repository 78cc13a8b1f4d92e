"""Submit a job: repeat the submission with its key until it is accepted or refused."""

import asyncio

import msgspec

from hyperscale.client.cluster_connection import ClusterConnection
from hyperscale.client.messages import SubmitJob, SubmitJobReply
from hyperscale.client.submission import Package
from hyperscale.client.upload import upload
from hyperscale.errors import InputError, RunError
from hyperscale.jobs.committed.events import Code, JobOptions

PLAN_BYTES_MAX = 15 * 1024 * 1024
_ASK_AT_LEAST_S = 0.1


async def submit_package(
    cluster: ClusterConnection,
    package: Package,
    *,
    key: str,
    options: JobOptions,
    by: str,
    within_s: float,
) -> str:
    """Return the id of the job that `key` made; upload the bundle if no manager has it."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + within_s
    submission = SubmitJob(
        key=key, plan=package.plan, bundle=package.sha256, options=options, by=by
    )
    size = len(msgspec.msgpack.encode(submission))
    if size > PLAN_BYTES_MAX:
        raise InputError(
            f"the plan is {size / 2**20:.1f} MiB, over the limit of {PLAN_BYTES_MAX >> 20} MiB",
            hint="put large values into files, which travel in the bundle",
        )
    while True:
        left_s = max(_ASK_AT_LEAST_S, deadline_s - loop.time())
        reply = await cluster.ask(submission, SubmitJobReply, within_s=left_s)
        if reply.accepted:
            return reply.job
        if reply.needs_bundle:
            began_s = loop.time()
            if began_s >= deadline_s:
                raise RunError(
                    f"no manager kept the bundle within {within_s:g} s",
                    hint="more than half of the managers must be up",
                )
            await upload(cluster.managers, package, within_s=within_s)
            deadline_s += loop.time() - began_s  # the time of a slow upload does not count
            continue
        why = reply.error or reply.code.value
        if reply.code is not Code.CAPACITY:
            raise InputError(f"the job was refused: {why}")
        if loop.time() + reply.retry_after_s >= deadline_s:
            raise RunError(
                f"the cluster has no room for another job: {why}",
                hint=f"try again later; the client tried for {within_s:g} s",
            )
        cluster.on_trouble(f"the cluster has no room for another job yet: {why}")
        await asyncio.sleep(max(_ASK_AT_LEAST_S, reply.retry_after_s))


async def check_datacenters(cluster: ClusterConnection, wanted: list[str]) -> None:
    """Raise `InputError` if the cluster has no datacenter of one of these names."""
    if not wanted:
        return
    known = await datacenters_of(cluster)
    unknown = sorted(set(wanted) - set(known))
    if unknown:
        raise InputError(
            f"target_datacenters: there is no datacenter {', '.join(unknown)}",
            hint=f"this cluster has {', '.join(known)}",
        )


async def datacenters_of(cluster: ClusterConnection) -> list[str]:
    """Return the datacenters of the managers that this client has reached."""
    await cluster.managers.connected()
    return cluster.managers.datacenters
