"""A job to submit: its options, its plan and bundle, and how a manager gets them.

A submission is repeated with its key until it is accepted or refused. The bundle is uploaded in
pieces, across lost connections: each answer names the offset of the next piece. A manager that is
asked next names the offset it needs: 0, or where an earlier upload to it had stopped.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hyperscale.client.cluster_connection import ClusterConnection
from hyperscale.client.manager_connections import ManagerConnections
from hyperscale.client.messages import PutBlob, PutBlobReply, SubmitJob, SubmitJobReply
from hyperscale.errors import InputError, RunError
from hyperscale.jobs.committed.events import Code

if TYPE_CHECKING:  # a client that only asks questions does not load what builds runs
    from hyperscale.plan import Plan
    from hyperscale.reporting.reporter import Sink
    from hyperscale.runner.local import Given

PLAN_BYTES_MAX = 15 * 1024 * 1024
PIECE_BYTES = 128 * 1024
"""Small enough to arrive over a slow network before the next manager is asked."""
_ASK_AT_LEAST_S = 0.1
_PIECE_ANSWER_S = 1.0  # the least time for each piece
_PIECE_PAUSE_S = 0.02
_RESTARTS_MAX = 5


@dataclass(frozen=True, kw_only=True)
class JobSubmission:
    """A test file or workflows, and the options of the job."""

    workflows: "Iterable[Given | tuple[Iterable[str], Given]]" = ()
    file: str | Path | None = None
    test_name: str = ""
    vus: int | None = None
    duration: str | float | None = None
    only: Sequence[str] = ()
    params: Mapping[str, object] | None = None
    timeout: str | float | None = None
    dispatch_timeout: str | float | None = None
    key: str = ""
    target_datacenters: Sequence[str] = ()
    datacenter_count: int = 1
    fallback: bool = False
    on_datacenter_lost: str = "best_effort"
    vus_per_datacenter: bool = False
    start_timeout: str | float = 30.0
    lost_after: str | float = 120.0
    spill_over: str | float | None = None
    constraints: Mapping[str, str | Sequence[str]] | None = None
    spread: str | None = None
    on_isolation: str = "stop"
    log_level: str = "info"
    static: bool = True
    report_from: str = "client"
    report: Sequence[str] = ()
    by: str = ""


@dataclass(frozen=True, slots=True)
class Package:
    """A plan and the bundle of its code. It may be submitted more than once."""

    plan: "Plan"
    payload: bytes
    sha256: str
    reporters: "tuple[Sink, ...]" = ()
    secrets: bytes = b""  # values of secret parameters, as `pack_secrets` made them


async def submit(
    cluster: ClusterConnection, submission: SubmitJob, package: Package, *, within_s: float
) -> str:
    """Return the id of the job that the key made; upload the bundle if no manager has it."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + within_s
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
            raise InputError(f"the job was refused: {why}", hint=reply.hint)
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
    known = await cluster.datacenters()
    unknown = sorted(set(wanted) - set(known))
    if unknown:
        raise InputError(
            f"target_datacenters: there is no datacenter {', '.join(unknown)}",
            hint=f"this cluster has {', '.join(known)}",
        )


async def upload(managers: ManagerConnections, package: Package, *, within_s: float) -> None:
    """Return when a manager has the whole bundle; raise if `within_s` pass without progress."""
    loop = asyncio.get_running_loop()
    payload, size = package.payload, len(package.payload)
    offset = farthest = restarts = 0
    deadline_s = loop.time() + within_s
    while True:
        left_s = deadline_s - loop.time()
        if left_s <= 0:
            raise RunError(
                f"the bundle of {size / 2**20:.1f} MiB got no further than "
                f"{farthest / 2**20:.1f} MiB within {within_s:g} s",
                hint="check the network between this machine and the managers",
            )
        piece = PutBlob(
            sha256=package.sha256,
            size=size,
            offset=offset,
            data=payload[offset : offset + PIECE_BYTES],
        )
        taken = await managers.ask(piece, PutBlobReply, within_s=max(left_s, _PIECE_ANSWER_S))
        if taken.is_complete:
            return
        offset = taken.offset
        farthest = max(farthest, offset)
        restarts += offset < piece.offset  # another manager starts from the beginning
        if offset > piece.offset and restarts <= _RESTARTS_MAX:
            deadline_s = loop.time() + within_s
        elif offset <= piece.offset:
            await asyncio.sleep(_PIECE_PAUSE_S)
