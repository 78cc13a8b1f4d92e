"""Requests of clients to a gate: the same messages that a manager answers, about global jobs."""

import asyncio
import time
from collections.abc import AsyncGenerator

import msgspec
from msgspec.structs import replace

from hyperscale.client.messages import (
    CancelJob,
    CancelJobReply,
    ChangeLoad,
    ChangeLoadReply,
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
from hyperscale.gates.committed.events import (
    DatacenterFinished,
    GlobalCancelRequested,
    GlobalJobSubmitted,
    GlobalLoadChanged,
    GlobalOptions,
    decode_global,
    global_digest,
)
from hyperscale.gates.committed.job_row import global_view
from hyperscale.gates.committed.machine import LATE
from hyperscale.gates.committed.state import GlobalJob, decode_global_job
from hyperscale.gates.datacenters.routing import (
    DatacenterChoice,
    RoutingRefusal,
    RoutingRequest,
    choose_datacenters,
)
from hyperscale.gates.messages import RouteJob, RouteJobReply
from hyperscale.gates.results import merged_record
from hyperscale.gates.slices import split_problem
from hyperscale.gates.views import global_live_view
from hyperscale.jobs.committed.events import Code, decode_reply
from hyperscale.jobs.committed.keys import KEY_HINT, key_problem
from hyperscale.ledger.audit import audit_of
from hyperscale.ledger.server.ledger import STRONG
from hyperscale.nodes.gates.datacenter_links import DatacenterLinks
from hyperscale.nodes.gates.datacenter_requests import DatacenterOutput
from hyperscale.nodes.gates.owners import GlobalOwners
from hyperscale.nodes.jobs.bundles import Bundles
from hyperscale.nodes.jobs.job_ownership import actor_of, audit_of_change, quota_of
from hyperscale.nodes.jobs.job_routing import (
    JobRouting,
    change_reply,
    chunks_of,
    left_s,
    listed,
    no_such_job,
    not_ended,
)
from hyperscale.nodes.jobs.job_secrets import JobSecrets
from hyperscale.nodes.reports.reporters import NodeReporters
from hyperscale.plan.secrets import secrets_id
from hyperscale.sansio.tasks import TaskSupervisor
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import RemoteError, RemoteErrorCode
from hyperscale.wire.messages import Chunk
from hyperscale.wire.versions import AboveVersionError

_UPDATE_S = 0.5
_LAST_LINES_S = 2.0  # how long the end of a job waits for the last lines that it printed

_encode = msgspec.msgpack.Encoder().encode


class GateRequests:
    """Answers clients from the machines, owners and history of this gate, or from other gates."""

    def __init__(
        self,
        routing: JobRouting,
        owners: GlobalOwners,
        *,
        datacenters: DatacenterLinks,
        bundles: Bundles,
        secrets: JobSecrets,
        reporters: NodeReporters,
        tasks: TaskSupervisor,
    ) -> None:
        self._tasks = tasks
        self._routing = routing
        self._ledger = routing.ledger
        self._owners = owners
        self._datacenters = datacenters
        self._bundles = bundles
        self._secrets = secrets
        self._reporters = reporters

    # -- commands ---------------------------------------------------------------------------

    async def submit(self, call: InboundCall, job: SubmitJob) -> SubmitJobReply:
        """Commit a job in the gate tier, unless it could run in no datacenter."""
        across = job.across or GlobalOptions()
        options = replace(across, timeout_s=job.options.timeout_s, job=job.options)
        quota = await quota_of(call, job.key, self.list_jobs)
        if quota.problem:
            return SubmitJobReply(accepted=False, code=Code.INVALID, error=quota.problem)
        refusal = await self._refusal(job, options)
        if refusal is not None:
            return refusal
        of_job = replace(job.options, secrets=secrets_id(job.secrets), cores_max=quota.cores_max)
        event = GlobalJobSubmitted(
            key=job.key,
            digest=global_digest(job.plan, job.bundle, options),
            plan=job.plan,
            bundle=job.bundle,
            options=replace(options, job=of_job),
            by=actor_of(call, job.by),
        )
        try:
            body = self._ledger.encode(event, is_strict=True)
        except AboveVersionError as error:
            return SubmitJobReply(
                accepted=False, code=Code.INVALID, error=error.message, hint=error.hint
            )
        audit = audit_of(call, "submit", detail=job.plan.file, claimed=job.by)
        done = await self._ledger.submit(job.key, body, audit=audit, timeout_s=left_s(call))
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
        if self._is_repeated(job.key):
            return None  # it is the same job, wherever datacenters stand by now
        choice = self._route(job.key, options)
        if isinstance(choice, RoutingRefusal):
            if choice.is_retryable:
                raise RemoteError(
                    choice.message, code=RemoteErrorCode.UNAVAILABLE, hint=choice.hint
                )
            return replace(refused, error=choice.message, hint=choice.hint)
        problem = split_problem(job.plan, len(choice.primary))
        if problem is not None and not options.vus_per_datacenter:
            return replace(refused, error=problem, hint="give it more, or name fewer datacenters")
        if job.options.report is not None:
            problem = await asyncio.to_thread(self._reporters.problem, job.options.report)
            if problem is not None:
                return replace(refused, error=problem)
        return await self._unsafe(job)

    def _is_repeated(self, key: str) -> bool:
        """Return True if the key has made a job already, as far as this gate knows."""
        machine = self._owners.machine(self._ledger.owner_of(key))
        return machine is not None and machine.key(key) is not None

    async def _unsafe(self, job: SubmitJob) -> SubmitJobReply | None:
        """Have most gates that may own the job store its bundle and its secret parameters."""
        node = self._routing.node
        voters = self._ledger.voters_of(self._ledger.owner_of(job.key))
        is_kept = True
        if job.bundle:
            if not await self._bundles.find(job.bundle, node):
                return SubmitJobReply(accepted=False, needs_bundle=True)
            is_kept = await self._bundles.spread(job.bundle, voters, node)
        if is_kept and job.secrets:
            is_kept = await self._secrets.spread(job.secrets, voters, node)
        if not is_kept:
            raise RemoteError(
                "too few gates are up to keep the bundle safe", code=RemoteErrorCode.UNAVAILABLE
            )
        return None

    async def cancel(self, call: InboundCall, cancel: CancelJob) -> CancelJobReply:
        group = self._routing.group_of(cancel.job)
        by = actor_of(call, cancel.by)
        event = GlobalCancelRequested(job=cancel.job, reason=cancel.reason, by=by)
        audit = audit_of(call, "cancel", cancel.job, detail=cancel.reason, claimed=cancel.by)
        body = self._ledger.encode(event)
        done = await self._ledger.execute(group, body, audit=audit, timeout_s=left_s(call))
        reply = decode_reply(done.reply)
        if reply.code in {Code.TERMINAL, Code.UNKNOWN_JOB}:
            known = (await self.get_job(call, GetJob(job=cancel.job))).job
            if known is not None and known.ended_ms:
                return CancelJobReply(accepted=False, status=known.status, code=Code.TERMINAL)
        return CancelJobReply(
            accepted=reply.ok or reply.code in {Code.CANCELLING, Code.DUPLICATE},
            code=Code.OK if reply.ok else reply.code,
            error=reply.error,
        )

    async def change(self, call: InboundCall, change: ChangeLoad) -> ChangeLoadReply:
        """Commit a change of a job's load; the owner brings it to every datacenter."""
        group = self._routing.group_of(change.job)
        wanted = replace(change.change, by=actor_of(call, change.change.by))
        event = GlobalLoadChanged(job=change.job, change=wanted)
        audit = audit_of_change(call, change)
        body = self._ledger.encode(event)
        done = await self._ledger.execute(group, body, audit=audit, timeout_s=left_s(call))
        reply = decode_reply(done.reply)
        if reply.code in {Code.TERMINAL, Code.UNKNOWN_JOB}:
            known = (await self.get_job(call, GetJob(job=change.job))).job
            if known is not None and known.ended_ms:
                return ChangeLoadReply(accepted=False, status=known.status, code=Code.TERMINAL)
        return change_reply(reply)

    # -- routing ----------------------------------------------------------------------------

    async def route(self, call: InboundCall, request: RouteJob) -> RouteJobReply:
        """Say where a job would go, as the gate that would own it decides; or where it went."""
        if request.job:
            group = self._routing.group_of(request.job)
        else:
            group = self._ledger.owner_of(request.key)

        async def here() -> RouteJobReply:
            if not request.job:
                return self._would_go(group, request)
            found = await self._job(group, request.job)
            if found is None:
                raise no_such_job(request.job)
            if found.routing is None:
                return RouteJobReply(
                    refused=f"{found.id} has no datacenters yet", is_retryable=True
                )
            return RouteJobReply(
                choice=found.routing,
                shares={
                    each.datacenter: {name: share.vus for name, share in each.workflows.items()}
                    for each in found.assignments
                },
                by=self._routing.node,
            )

        return await self._routing.answer(call, group, request, RouteJobReply, here)

    def _would_go(self, group: int, request: RouteJob) -> RouteJobReply:
        choice = self._route(request.key, request.options)
        if isinstance(choice, RoutingRefusal):
            return RouteJobReply(
                refused=choice.message,
                hint=choice.hint,
                is_retryable=choice.is_retryable,
                by=self._routing.node,
            )
        owner, plan = self._owners.owner(group), request.plan
        if owner is None or plan is None:
            return RouteJobReply(choice=choice, by=self._routing.node)
        problem = split_problem(plan, len(choice.primary))
        if problem is not None and not request.options.vus_per_datacenter:
            return RouteJobReply(choice=choice, refused=problem, by=self._routing.node)
        shares = owner.split(plan, request.options, choice)
        return RouteJobReply(
            choice=choice,
            shares={
                name: {workflow: share.vus for workflow, share in shared.items()}
                for name, shared in shares.items()
            },
            by=self._routing.node,
        )

    def _route(self, key: str, options: GlobalOptions) -> DatacenterChoice | RoutingRefusal:
        """Return where a job with these options would go now, or why it cannot go anywhere."""
        owner = self._owners.owner(self._ledger.owner_of(key))
        if owner is not None:
            return owner.route(key, options)
        request = RoutingRequest(
            key=key,
            count=max(1, options.datacenter_count),
            named=options.datacenters,
            may_replace=options.fallback,
            local=self._datacenters.coordinates.local,
        )
        return choose_datacenters(self._datacenters.views(), request)

    # -- queries ----------------------------------------------------------------------------

    async def get_job(self, call: InboundCall, request: GetJob) -> GetJobReply:
        group = self._routing.group_of(request.job)

        async def here() -> GetJobReply:
            await self._ledger.fresh(group, STRONG)
            update = await self._update(group, request.job)
            if update is None:
                return GetJobReply()
            return GetJobReply(job=update.job, live=update.live)

        return await self._routing.answer(call, group, request, GetJobReply, here)

    async def watch(
        self, call: InboundCall, request: WatchJob
    ) -> AsyncGenerator[WatchJobUpdate, None]:
        group = self._routing.group_of(request.job)
        leader = self._ledger.leader_of(group)
        if self._owners.owner(group) is None and not self._routing.is_relayed(call) and leader:
            async for update in self._routing.watch_at(leader, call, request):
                yield update
            return
        output = DatacenterOutput(self._datacenters, self._tasks)
        try:
            while True:
                found = await self._update(group, request.job)
                if found is None:
                    raise no_such_job(request.job)
                if found.job.ended_ms:
                    yield replace(found, output=await output.finish(within_s=_LAST_LINES_S))
                    return
                if self._owners.owner(group) is None:
                    raise RemoteError(
                        "this gate does not own the job any more", code=RemoteErrorCode.MOVED
                    )
                if (job := self._live_job(group, request.job)) is not None:
                    output.follow(job)
                yield replace(found, output=output.take())
                await asyncio.sleep(_UPDATE_S)
        finally:
            output.stop()

    async def list_jobs(self, call: InboundCall, request: ListJobs) -> ListJobsReply:
        if request.since_ms is not None:
            return await self._routing.ended_jobs(call, request)
        found = {
            job.id: global_view(job, self._now_ms(machine.group))
            for machine in self._owners.machines()
            for job in machine.all_jobs()
        }
        missing: list[str] = []
        if not request.is_relayed:
            others, missing = await self._routing.jobs_elsewhere(request)
            found = {**{view.job: view for view in others}, **found}
        return listed(found, request, missing)

    async def record(self, call: InboundCall, request: GetJobRecord) -> AsyncGenerator[Chunk, None]:
        group = self._routing.group_of(request.job)
        record = await self._record(request.job)
        if record is not None:
            late = [decode_global(data) for data in await self._routing.history(record.id, LATE)]
            ends = [event for event in late if isinstance(event, DatacenterFinished)]
            data = _encode(await asyncio.to_thread(merged_record, record, ends))
        else:
            live = self._live_job(group, request.job)
            if live is not None and not live.has_ended:
                raise not_ended(request.job)
            if self._routing.is_relayed(call):
                raise no_such_job(request.job)
            data = await self._routing.record_elsewhere(group, request)
        for chunk in chunks_of(data):
            yield chunk

    # -- what this gate has -----------------------------------------------------------------

    def _live_job(self, group: int, job: str) -> GlobalJob | None:
        machine = self._owners.machine(group)
        return None if machine is None else machine.job(job)

    async def _job(self, group: int, job: str) -> GlobalJob | None:
        return self._live_job(group, job) or await self._record(job)

    async def _update(self, group: int, job: str) -> WatchJobUpdate | None:
        found = await self._job(group, job)
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
        data = await self._routing.final_record(job)
        return None if data is None else decode_global_job(data)
