"""Commands of clients: submit and cancel are committed before they are acknowledged; drain."""

import asyncio

from msgspec.structs import replace

from hyperscale.client.messages import (
    CancelJob,
    CancelJobReply,
    ChangeLoad,
    ChangeLoadReply,
    DrainNode,
    DrainNodeReply,
    GetJob,
    GetJobOfKey,
    GetJobOfKeyReply,
    GetQueueRoom,
    SubmitJob,
    SubmitJobReply,
)
from hyperscale.jobs.allocator.queue import capacity_exceeded
from hyperscale.jobs.committed.events import (
    CancelRequested,
    Code,
    JobSubmitted,
    LoadChanged,
    decode_reply,
    payload_digest,
)
from hyperscale.jobs.committed.keys import KEY_HINT, key_problem
from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.jobs.committed.state import JOB_ENDS
from hyperscale.jobs.messages import DrainWorker, DrainWorkerReply
from hyperscale.ledger.audit import audit_of
from hyperscale.ledger.server.ledger import STRONG
from hyperscale.ledger.server.operator_messages import ChangeMemberReply
from hyperscale.ledger.server.operator_requests import drain as drain_seats
from hyperscale.ledger.topology import NodeState
from hyperscale.nodes.jobs.allocator_driver import AllocatorDriver
from hyperscale.nodes.jobs.bundles import Bundles
from hyperscale.nodes.jobs.client_queries import ClientQueries
from hyperscale.nodes.jobs.job_ownership import actor_of, audit_of_change, quota_of
from hyperscale.nodes.jobs.job_routing import ANSWER_S, JobRouting, change_reply, left_s
from hyperscale.nodes.jobs.job_secrets import JobSecrets
from hyperscale.nodes.member import MemberNode
from hyperscale.nodes.reports.reporters import NodeReporters
from hyperscale.plan.problems import plan_problem
from hyperscale.plan.secrets import SECRETS_BYTES_MAX, secrets_id
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import RemoteError, RemoteErrorCode
from hyperscale.wire.roles import Role
from hyperscale.wire.versions import AboveVersionError

_RETRY_S = 5.0
_PLACEMENTS_ASKED = 40  # as many as fit into one message; others wait for a worker
_LABELS_HINT = "'hyperscale workers' shows the labels of each worker"
_COMMIT_S = 2.0  # kept back for the commit, of the time to answer a submission


class ClientCommands:
    """Changes that clients request, in the ledger and on workers."""

    def __init__(
        self,
        member: MemberNode,
        routing: JobRouting,
        queries: ClientQueries,
        allocator: AllocatorDriver,
        *,
        bundles: Bundles,
        secrets: JobSecrets,
        reporters: NodeReporters,
    ) -> None:
        self._member = member
        self._routing = routing
        self._ledger = routing.ledger
        self._queries = queries
        self._allocator = allocator
        self._bundles = bundles
        self._secrets = secrets
        self._reporters = reporters

    async def submit(self, call: InboundCall, job: SubmitJob) -> SubmitJobReply:
        quota = await quota_of(call, job.key, self._queries.list_jobs)
        refusal = await self._refusal(call, job, quota.problem)
        if refusal is not None:
            return refusal
        event = JobSubmitted(
            key=job.key,
            digest=payload_digest(job.plan, job.bundle, job.options),
            plan=job.plan,
            bundle=job.bundle,
            options=replace(
                job.options, secrets=secrets_id(job.secrets), cores_max=quota.cores_max
            ),
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

    async def _refusal(
        self, call: InboundCall, job: SubmitJob, over_quota: str
    ) -> SubmitJobReply | None:
        """Check a submission before it is proposed; return the refusal if it has a problem."""
        refused = SubmitJobReply(accepted=False)
        if (problem := key_problem(job.key)) is not None:
            return replace(refused, code=Code.INVALID_KEY, error=problem, hint=KEY_HINT)
        problem = over_quota or self._wrong_place(job) or plan_problem(job.plan)
        if problem is None and job.options.report is not None:
            problem = await asyncio.to_thread(self._reporters.problem, job.options.report)
        if problem is not None:
            return replace(refused, code=Code.INVALID, error=problem)
        if len(job.secrets) > SECRETS_BYTES_MAX:
            error = f"the secret parameters have {len(job.secrets):,} bytes"
            return replace(refused, code=Code.INVALID, error=error)
        if (full := await self._no_room(call, job)) is not None:
            return full
        node = self._routing.node
        voters = self._ledger.voters_of(self._ledger.owner_of(job.key))
        is_kept = True
        if job.bundle:
            if not await self._bundles.find(job.bundle, node):
                return replace(refused, needs_bundle=True)
            is_kept = await self._bundles.spread(job.bundle, voters, node)
        if is_kept and job.secrets:
            is_kept = await self._secrets.spread(job.secrets, voters, node)
        if not is_kept:
            raise RemoteError(
                "too few managers are up to keep the bundle safe",
                code=RemoteErrorCode.UNAVAILABLE,
            )
        return None

    async def _no_room(self, call: InboundCall, job: SubmitJob) -> SubmitJobReply | None:
        """Refuse a job that would find the queue full, or that no known worker could ever run; one
        that was submitted before takes no room."""
        placements = dict.fromkeys(workflow.placement for workflow in job.plan.workflows)
        asked = GetQueueRoom(placements=list(placements)[:_PLACEMENTS_ASKED])
        room = await self._allocator.room(asked, until_s=call.deadline_s - _COMMIT_S)
        if (room.room > 0 and not room.unmet) or await self._is_repeated(call, job.key):
            return None
        refused = SubmitJobReply(accepted=False)
        if room.unmet:
            return replace(refused, code=Code.INVALID, error=room.unmet, hint=_LABELS_HINT)
        error = capacity_exceeded(room.waiting)
        return replace(refused, code=Code.CAPACITY, error=error, retry_after_s=_RETRY_S)

    def _wrong_place(self, job: SubmitJob) -> str | None:
        """Return why a job for gates cannot run here; None for any other job."""
        if job.across is None:
            return None
        node = self._routing.node
        return f"{node} is a manager, not a gate: it runs jobs in its own datacenter only"

    async def _is_repeated(self, call: InboundCall, key: str) -> bool:
        """Return True if the key has made a job already: a repeated submission takes no room."""
        return bool((await self.job_of_key(call, GetJobOfKey(key=key))).job)

    async def job_of_key(self, call: InboundCall, request: GetJobOfKey) -> GetJobOfKeyReply:
        group = self._ledger.owner_of(request.key)

        async def here() -> GetJobOfKeyReply:
            await self._ledger.fresh(group, STRONG)
            machine = self._ledger.machine(group)
            known = machine.key(request.key) if isinstance(machine, JobMachine) else None
            return GetJobOfKeyReply(job="" if known is None else known.job)

        return await self._routing.answer(call, group, request, GetJobOfKeyReply, here)

    async def cancel(self, call: InboundCall, cancel: CancelJob) -> CancelJobReply:
        group = self._routing.group_of(cancel.job)
        by = actor_of(call, cancel.by)
        event = CancelRequested(job=cancel.job, reason=cancel.reason, by=by)
        audit = audit_of(call, "cancel", cancel.job, detail=cancel.reason, claimed=cancel.by)
        body = self._ledger.encode(event)
        done = await self._ledger.execute(group, body, audit=audit, timeout_s=left_s(call))
        reply = decode_reply(done.reply)
        if reply.code in {Code.TERMINAL, Code.UNKNOWN_JOB}:
            # Another manager may keep the job's record.
            known = (await self._queries.get_job(call, GetJob(job=cancel.job))).job
            if known is not None and known.status in JOB_ENDS:
                return CancelJobReply(accepted=False, status=known.status, code=Code.TERMINAL)
        return CancelJobReply(
            accepted=reply.ok or reply.code in {Code.CANCELLING, Code.DUPLICATE},
            code=Code.OK if reply.ok else reply.code,
            error=reply.error,
        )

    async def change(self, call: InboundCall, change: ChangeLoad) -> ChangeLoadReply:
        """Commit a change of a job's load; its leader passes it on to the workers."""
        group = self._routing.group_of(change.job)
        wanted = replace(change.change, by=actor_of(call, change.change.by))
        event = LoadChanged(job=change.job, change=wanted)
        audit = audit_of_change(call, change)
        body = self._ledger.encode(event)
        done = await self._ledger.execute(group, body, audit=audit, timeout_s=left_s(call))
        reply = decode_reply(done.reply)
        if reply.code in {Code.TERMINAL, Code.UNKNOWN_JOB}:
            known = (await self._queries.get_job(call, GetJob(job=change.job))).job
            if known is not None and known.status in JOB_ENDS:
                return ChangeLoadReply(accepted=False, status=known.status, code=Code.TERMINAL)
        return change_reply(reply)

    async def drain(self, call: InboundCall, drain: DrainNode) -> DrainNodeReply:
        """Drain a worker, or a manager's seats in the ledger."""
        member = self._member.known(drain.node)
        if member is not None and member.role is Role.WORKER:
            link = self._routing.link(drain.node)
            await self._ledger.note_request(audit_of(call, "drain", drain.node))
            deadline_s = asyncio.get_running_loop().time() + ANSWER_S
            drains = await link.call(DrainWorker(), DrainWorkerReply, deadline_s=deadline_s)
            return DrainNodeReply(left=drains.attempts)
        topology = self._ledger.topology
        number = topology.number_of(drain.node)
        if number is None:
            raise RemoteError(
                f"there is no worker and no manager {drain.node}", code=RemoteErrorCode.UNKNOWN_NODE
            )
        reply = ChangeMemberReply()
        if topology.nodes[number].state is NodeState.ACTIVE:
            audit = audit_of(call, "drain", drain.node)
            reply = await drain_seats(self._ledger, number, drain.node, audit=audit)
        seats = sum(number in {*group.voters, *group.settled} for group in topology.groups.values())
        return DrainNodeReply(left=seats, refused=reply.refused, hint=reply.hint)
