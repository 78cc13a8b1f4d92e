"""Requests of clients to a gate: the same messages that a manager answers, about global jobs."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hyperscale.client.messages import (
    BLOB_CHUNK_BYTES,
    CancelJob,
    CancelJobReply,
    GetJob,
    GetJobRecord,
    GetJobReply,
    ListJobs,
    ListJobsReply,
    SubmitJob,
    SubmitJobReply,
    WatchJob,
    WatchJobUpdate,
)
from hyperscale.errors import InputError
from hyperscale.gates.committed.events import (
    GlobalCancelRequested,
    GlobalJobSubmitted,
    GlobalOptions,
    encode_global,
    global_digest,
)
from hyperscale.gates.committed.state import GlobalJob, decode_global_job
from hyperscale.gates.datacenters.routing import (
    DatacenterChoice,
    RoutingRefusal,
    RoutingRequest,
    choose_datacenters,
)
from hyperscale.gates.results import merged_record
from hyperscale.gates.slices import split_problem
from hyperscale.gates.views import global_live_view, global_view
from hyperscale.jobs.committed.events import Code, decode_reply
from hyperscale.jobs.committed.keys import KEY_HINT, key_problem, parse_job_id
from hyperscale.ledger.server.ledger import STRONG, Ledger
from hyperscale.ledger.server.tier_peers import TierPeers
from hyperscale.nodes.gates.datacenter_links import DatacenterLinks
from hyperscale.nodes.gates.owners import GlobalOwners
from hyperscale.nodes.jobs.bundles import Bundles
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import CallError, RemoteError, RemoteErrorCode
from hyperscale.wire.messages import Chunk
from hyperscale.wire.roles import Role

_UPDATE_S = 0.5
_ANSWER_S = 5.0
_LIST_S = 2.0
_FINAL_KIND = "finished"

_R = TypeVar("_R", bound=Struct)
_encode = msgspec.msgpack.Encoder().encode


class GateRequests:
    """Answers clients from the machines, owners and history of this gate, or from other gates."""

    def __init__(
        self,
        node: str,
        ledger: Ledger,
        peers: TierPeers,
        owners: GlobalOwners,
        *,
        datacenters: DatacenterLinks,
        bundles: Bundles,
    ) -> None:
        self._node = node
        self._ledger = ledger
        self._peers = peers
        self._owners = owners
        self._datacenters = datacenters
        self._bundles = bundles

    # -- commands ---------------------------------------------------------------------------

    async def submit(self, call: InboundCall, job: SubmitJob) -> SubmitJobReply:
        """Commit a job in the gate tier, unless it could run in no datacenter."""
        options = replace(
            job.across or GlobalOptions(), timeout_s=job.options.timeout_s, job=job.options
        )
        refusal = await self._refusal(job, options)
        if refusal is not None:
            return refusal
        event = GlobalJobSubmitted(
            key=job.key,
            digest=global_digest(job.plan, job.bundle, options),
            plan=job.plan,
            bundle=job.bundle,
            options=options,
            by=job.by,
        )
        done = await self._ledger.submit(job.key, encode_global(event), timeout_s=_left_s(call))
        reply = decode_reply(done.reply)
        return SubmitJobReply(
            accepted=reply.ok,
            job=reply.job,
            code=Code.OK if reply.ok else reply.code,
            error=reply.error,
            hint=reply.hint,
            retry_after_s=1.0 if reply.code is Code.CAPACITY else 0.0,
        )

    async def _refusal(self, job: SubmitJob, options: GlobalOptions) -> SubmitJobReply | None:
        refused = SubmitJobReply(accepted=False, code=Code.INVALID)
        if (problem := key_problem(job.key)) is not None:
            return replace(refused, code=Code.INVALID_KEY, error=problem, hint=KEY_HINT)
        if job.secrets:
            return replace(
                refused,
                error="gates do not carry secret parameters yet",
                hint="submit to a manager of the datacenter, or give the values another way",
            )
        choice = self.route(job.key, options)
        if isinstance(choice, RoutingRefusal):
            if choice.is_retryable:
                raise RemoteError(
                    choice.message, code=RemoteErrorCode.UNAVAILABLE, hint=choice.hint
                )
            return replace(refused, error=choice.message, hint=choice.hint)
        problem = split_problem(job.plan, len(choice.primary))
        if problem is not None and not options.vus_per_datacenter:
            return replace(refused, error=problem, hint="give it more, or name fewer datacenters")
        return await self._bundle_refusal(job) if job.bundle else None

    async def _bundle_refusal(self, job: SubmitJob) -> SubmitJobReply | None:
        """Have most gates that may own the job store its bundle."""
        if not await self._bundles.find(job.bundle, self._node):
            return SubmitJobReply(accepted=False, needs_bundle=True)
        voters = self._ledger.voters_of(self._ledger.owner_of(job.key))
        if not await self._bundles.spread(job.bundle, voters, self._node):
            raise RemoteError(
                "too few gates are up to keep the bundle safe", code=RemoteErrorCode.UNAVAILABLE
            )
        return None

    def route(self, key: str, options: GlobalOptions) -> DatacenterChoice | RoutingRefusal:
        """Return where a job with these options would go now, or why it cannot go anywhere."""
        request = RoutingRequest(
            key=key,
            count=max(1, options.datacenter_count),
            named=options.datacenters,
            may_replace=options.fallback,
            local=self._datacenters.coordinates.local,
        )
        return choose_datacenters(self._datacenters.views(), request)

    async def cancel(self, call: InboundCall, cancel: CancelJob) -> CancelJobReply:
        group = self._group_of(cancel.job)
        event = GlobalCancelRequested(job=cancel.job, reason=cancel.reason, by=cancel.by)
        done = await self._ledger.execute(group, encode_global(event), timeout_s=_left_s(call))
        reply = decode_reply(done.reply)
        if reply.code in {Code.TERMINAL, Code.UNKNOWN_JOB}:
            record = await self._record(cancel.job)
            if record is not None:
                return CancelJobReply(accepted=False, status=record.status, code=Code.TERMINAL)
        return CancelJobReply(
            accepted=reply.ok or reply.code in {Code.CANCELLING, Code.DUPLICATE},
            code=Code.OK if reply.ok else reply.code,
            error=reply.error,
        )

    # -- queries ----------------------------------------------------------------------------

    async def get_job(self, call: InboundCall, request: GetJob) -> GetJobReply:
        group = self._group_of(request.job)

        async def here() -> GetJobReply:
            await self._ledger.fresh(group, STRONG)
            update = await self._update(group, request.job)
            if update is None:
                return GetJobReply()
            return GetJobReply(job=update.job, live=update.live)

        return await self._answer(call, group, request, GetJobReply, here)

    async def watch(
        self, call: InboundCall, request: WatchJob
    ) -> AsyncGenerator[WatchJobUpdate, None]:
        group = self._group_of(request.job)
        leader = self._ledger.leader_of(group)
        is_relay = self._owners.owner(group) is None and call.peer.role is not Role.GATE
        link = self._peers.link(leader) if is_relay and leader else None
        if link is not None:
            stream = await link.stream(request, WatchJobUpdate, deadline_s=call.deadline_s)
            async with stream as updates:
                async for update in updates:
                    yield update
            return
        while True:
            found = await self._update(group, request.job)
            if found is None:
                raise _no_such_job(request.job)
            if not found.job.ended_ms and self._owners.owner(group) is None:
                raise RemoteError(
                    "this gate does not own the job any more", code=RemoteErrorCode.MOVED
                )
            yield found
            if found.job.ended_ms:
                return
            await asyncio.sleep(_UPDATE_S)

    async def list_jobs(self, _call: InboundCall, request: ListJobs) -> ListJobsReply:
        found = {
            job.id: global_view(job, self._now_ms(machine.group))
            for machine in self._owners.machines()
            for job in machine.all_jobs()
        }
        missing: list[str] = []
        if not request.is_relayed:
            others = [name for name in self._peers.living() if name != self._node]
            for name, reply in zip(
                others,
                await asyncio.gather(*(self._jobs_of(name, request) for name in others)),
                strict=True,
            ):
                if reply is None:
                    missing.append(name)
                else:
                    found.update((view.job, view) for view in reply.jobs)
        views = [view for view in found.values() if not (request.live_only and view.ended_ms)]
        views.sort(key=lambda view: -view.submitted_ms)
        return ListJobsReply(jobs=views[: request.limit], missing=missing)

    async def _jobs_of(self, name: str, request: ListJobs) -> ListJobsReply | None:
        link = self._peers.link(name)
        if link is None:
            return None
        deadline_s = asyncio.get_running_loop().time() + _LIST_S
        try:
            relayed = replace(request, is_relayed=True)
            return await link.call(relayed, ListJobsReply, deadline_s=deadline_s, retries=0)
        except CallError:  # the reply names the gates that did not answer
            return None

    async def record(self, call: InboundCall, request: GetJobRecord) -> AsyncGenerator[Chunk, None]:
        group = self._group_of(request.job)
        record = await self._record(request.job)
        if record is not None:
            data = _encode(merged_record(record))
        else:
            live = self._live_job(group, request.job)
            if live is not None and not live.has_ended:
                raise RemoteError(
                    f"job {request.job} has not ended", code=RemoteErrorCode.NOT_ENDED
                )
            if call.peer.role is Role.GATE:
                raise _no_such_job(request.job)
            data = await self._record_elsewhere(group, request)
        for start in range(0, len(data), BLOB_CHUNK_BYTES):
            yield Chunk(data[start : start + BLOB_CHUNK_BYTES])

    async def _record_elsewhere(self, group: int, request: GetJobRecord) -> bytes:
        for name in self._ledger.voters_of(group):
            link = None if name == self._node else self._peers.link(name)
            if link is None:
                continue
            deadline_s = asyncio.get_running_loop().time() + _ANSWER_S
            data = bytearray()
            try:
                async with await link.stream(request, Chunk, deadline_s=deadline_s) as chunks:
                    async for chunk in chunks:
                        data += chunk.data
            except CallError:  # another gate may have it
                continue
            return bytes(data)
        raise _no_such_job(request.job)

    # -- what this gate has -----------------------------------------------------------------

    def _group_of(self, job: str) -> int:
        try:
            group = parse_job_id(job).group
        except (InputError, ValueError) as error:
            raise RemoteError(str(error), code=RemoteErrorCode.UNKNOWN_JOB) from error
        topology = self._ledger.topology
        if topology.groups and group not in topology.groups:
            raise _no_such_job(job)
        return topology.heir_of(group)

    def _live_job(self, group: int, job: str) -> GlobalJob | None:
        machine = self._owners.machine(group)
        return None if machine is None else machine.job(job)

    async def _update(self, group: int, job: str) -> WatchJobUpdate | None:
        found = self._live_job(group, job)
        if found is None:
            found = await self._record(job)
            if found is None:
                return None
        view = global_view(found, self._now_ms(group))
        owner = self._owners.owner(group)
        if owner is None or found.has_ended:
            return WatchJobUpdate(job=view)
        live = global_live_view(
            found, owner.progress(found), now_s=time.monotonic(), now_ms=self._now_ms(group)
        )
        return WatchJobUpdate(job=view, live=live)

    def _now_ms(self, group: int) -> int:
        """Return the time of a group, by which its jobs are dated."""
        return self._ledger.time_ms(group)

    async def _record(self, job: str) -> GlobalJob | None:
        rows = await asyncio.to_thread(self._ledger.store.history, job_id=job, limit=100_000)
        final = [data for _, _, _, _, kind, data in rows if kind == _FINAL_KIND]
        return decode_global_job(final[-1]) if final else None

    async def _answer(
        self,
        call: InboundCall,
        group: int,
        request: Struct,
        reply: type[_R],
        here: Callable[[], Awaitable[_R]],
    ) -> _R:
        """Answer from the owner, which knows most; from this gate if the owner is away."""
        leader = self._ledger.leader_of(group)
        has_replica = group in self._ledger.core.replicas
        if leader and leader != self._node and call.peer.role is not Role.GATE:
            link = self._peers.link(leader)
            if link is not None:
                deadline_s = min(call.deadline_s, asyncio.get_running_loop().time() + _ANSWER_S)
                try:
                    return await link.call(request, reply, deadline_s=deadline_s, retries=0)
                except CallError:
                    if not has_replica:
                        raise
        if not has_replica:
            raise RemoteError(
                "no gate that keeps the job can be reached", code=RemoteErrorCode.UNAVAILABLE
            )
        return await here()


def _no_such_job(job: str) -> RemoteError:
    return RemoteError(f"there is no job {job}", code=RemoteErrorCode.UNKNOWN_JOB)


def _left_s(call: InboundCall) -> float:
    """Return how long a commit may take, so that its outcome reaches the caller in time."""
    return max(0.1, call.deadline_s - asyncio.get_running_loop().time() - 0.1)
