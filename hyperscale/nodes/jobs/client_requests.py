"""What clients and operators ask of a manager about jobs, answered here or passed on."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from hyperscale.client.messages import (
    BLOB_CHUNK_BYTES,
    NEEDS_BUNDLE,
    CancelJob,
    CancelJobReply,
    DrainNode,
    DrainNodeReply,
    GetJob,
    GetJobOfKey,
    GetJobOfKeyReply,
    GetJobRecord,
    GetJobReply,
    ListJobs,
    ListJobsReply,
    ListWorkers,
    ListWorkersReply,
    OutputLine,
    SubmitJob,
    SubmitJobReply,
    WatchJob,
    WatchJobUpdate,
    WorkerRow,
    WorkerRun,
)
from hyperscale.errors import InputError
from hyperscale.jobs.allocator.queue import capacity_exceeded
from hyperscale.jobs.committed.events import (
    CancelRequested,
    Code,
    JobStatus,
    JobSubmitted,
    decode_reply,
    encode,
    payload_digest,
)
from hyperscale.jobs.committed.keys import key_problem, parse_job_id
from hyperscale.jobs.committed.machine import JobMachine, Limits
from hyperscale.jobs.committed.state import JOB_ENDS, Job, JobView, decode_job, view_of
from hyperscale.jobs.messages import DrainWorker, DrainWorkerReply, HeldCores
from hyperscale.ledger.core import MANAGEMENT
from hyperscale.ledger.topology import GroupState, NodeState
from hyperscale.membership.events import LIVING, Member
from hyperscale.nodes.jobs.bundles import Bundles
from hyperscale.nodes.jobs.jobs_driver import JobsDriver
from hyperscale.nodes.ledger.local_ledger import STRONG, Read
from hyperscale.nodes.ledger.operator import drain
from hyperscale.nodes.ledger.operator_messages import ChangeMemberReply
from hyperscale.nodes.ledger.peers import Peers
from hyperscale.nodes.ledger.routing import Ledger
from hyperscale.nodes.member import MemberNode
from hyperscale.nodes.messages import metadata_of
from hyperscale.plan.problems import plan_problem
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import CallError, RemoteError, RemoteErrorCode
from hyperscale.wire.messages import Chunk
from hyperscale.wire.roles import Role

_NEWS_S = 0.5
_NEWS_CHARACTERS = 1024 * 1024  # of what a job printed, in one message
_RETRY_S = 5.0
_ANSWER_S = 5.0
_COMMIT_S = 2.0  # of the time to answer a submission: to make it safe
_FINAL_KIND = "finished"
_INHERITED_MOST = 2_000  # rows of a group; some are large

_R = TypeVar("_R", bound=Struct)


class ClientRequests:
    """Answers for every job of the datacenter, wherever it is led."""

    def __init__(
        self, member: MemberNode, ledger: Ledger, driver: JobsDriver, bundles: Bundles, peers: Peers
    ) -> None:
        self._member = member
        self._ledger = ledger
        self._driver = driver
        self._bundles = bundles
        self._peers = peers
        self._loop = asyncio.get_running_loop()

    # -- submitting -----------------------------------------------------------------------

    async def submit(self, call: InboundCall, job: SubmitJob) -> SubmitJobReply:
        if (problem := key_problem(job.key)) is not None:
            return SubmitJobReply(
                accepted=False, key=job.key, code=Code.INVALID_KEY.value, error=problem
            )
        if (problem := plan_problem(job.plan)) is not None:
            return SubmitJobReply(
                accepted=False, key=job.key, code=Code.INVALID.value, error=problem
            )
        told = await self._driver.room(until_s=call.deadline_s - _COMMIT_S)
        if told.room <= 0 and not await self._has_made_a_job(call, job.key):
            return SubmitJobReply(
                accepted=False,
                key=job.key,
                code=Code.CAPACITY.value,
                error=capacity_exceeded(told.waiting),
                retry_after_s=_RETRY_S,
            )
        if job.bundle:
            if not await self._bundles.find(job.bundle, self._member.node_id):
                return SubmitJobReply(accepted=False, key=job.key, code=NEEDS_BUNDLE)
            group = self._ledger.topology.owners[self._ledger.core.slot_of(job.key)]
            voters = self._ledger.voters_of(group)
            if not await self._bundles.spread(job.bundle, voters, self._member.node_id):
                raise RemoteError(
                    "too few managers are up to keep the bundle safe",
                    code=RemoteErrorCode.UNAVAILABLE,
                )
        event = JobSubmitted(
            key=job.key,
            digest=payload_digest(job.plan, job.bundle, job.options),
            plan=job.plan,
            bundle=job.bundle,
            options=job.options,
            by=job.by,
        )
        left_s = max(0.1, call.deadline_s - self._loop.time() - 0.1)
        done = await self._ledger.submit(job.key, encode(event), timeout_s=left_s)
        reply = decode_reply(done.reply)
        return SubmitJobReply(
            accepted=reply.ok,
            job=reply.job,
            key=job.key,
            was_duplicate=reply.was_duplicate,
            original_job_id=reply.job if reply.was_duplicate else "",
            code="" if reply.ok else reply.code.value,
            error=reply.error,
            retry_after_s=0.0 if reply.ok or reply.is_permanent else 1.0,
            group=done.group,
            index=done.index,
        )

    async def _has_made_a_job(self, call: InboundCall, key: str) -> bool:
        """Whether this is a repeated submission: it takes no room."""
        group = self._ledger.topology.owners[self._ledger.core.slot_of(key)]
        return bool((await self._key(call, group, GetJobOfKey(key=key))).job)

    async def key(self, call: InboundCall, asked: GetJobOfKey) -> GetJobOfKeyReply:
        group = self._ledger.topology.owners[self._ledger.core.slot_of(asked.key)]
        return await self._key(call, group, asked)

    async def _key(self, call: InboundCall, group: int, asked: GetJobOfKey) -> GetJobOfKeyReply:
        async def here() -> GetJobOfKeyReply:
            await self._ledger.fresh(group, STRONG)
            machine = self._machine(group)
            known = None if machine is None else machine.key(asked.key)
            return GetJobOfKeyReply(job="" if known is None else known.job)

        return await self._answered(call, group, asked, GetJobOfKeyReply, here)

    async def cancel(self, call: InboundCall, cancel: CancelJob) -> CancelJobReply:
        group = self._group(cancel.job)
        event = CancelRequested(job=cancel.job, reason=cancel.reason, by=cancel.by)
        left_s = max(0.1, call.deadline_s - self._loop.time() - 0.1)
        done = await self._ledger.execute(group, encode(event), timeout_s=left_s)
        reply = decode_reply(done.reply)
        if reply.code in {Code.TERMINAL, Code.UNKNOWN_JOB}:
            # From whoever keeps its record: that need not be this node.
            known = (await self.told(call, GetJob(job=cancel.job))).job
            if known is not None and known.status in JOB_ENDS:
                return CancelJobReply(
                    accepted=False, status=known.status.value, code=Code.TERMINAL.value
                )
        return CancelJobReply(
            accepted=reply.ok or reply.code in {Code.CANCELLING, Code.DUPLICATE},
            code="" if reply.ok else reply.code.value,
            error=reply.error,
        )

    # -- reading --------------------------------------------------------------------------

    async def told(self, call: InboundCall, asked: GetJob) -> GetJobReply:
        group = self._group(asked.job)

        async def here() -> GetJobReply:
            await self._ledger.fresh(group, Read(asked.read))
            view = self._view(group, asked.job)
            if view is None:
                record = await self._record(asked.job)
                return GetJobReply(job=None if record is None else view_of(record))
            leader = self._driver.leaders.get(group)
            live = None
            if leader is not None:
                live = leader.view(asked.job, now_s=time.monotonic())
            return GetJobReply(job=view, live=live)

        return await self._answered(call, group, asked, GetJobReply, here)

    async def watch(
        self, call: InboundCall, asked: WatchJob
    ) -> AsyncGenerator[WatchJobUpdate, None]:
        group = self._group(asked.job)
        leader = self._ledger.leader_of(group)
        if group not in self._driver.leaders and call.peer.role is not Role.MANAGER and leader:
            link = self._peers.link(leader)
            if link is None:
                raise RemoteError(
                    f"{leader} is not reachable from here", code=RemoteErrorCode.MOVED
                )
            stream = await link.stream(asked, WatchJobUpdate, deadline_s=call.deadline_s)
            async with stream as news:
                async for each in news:
                    yield each
            return
        sent = 0
        while True:
            view = self._view(group, asked.job)
            if view is None:
                record = await self._record(asked.job)
                if record is None:
                    raise RemoteError(
                        f"there is no job {asked.job}", code=RemoteErrorCode.UNKNOWN_JOB
                    )
                yield WatchJobUpdate(job=view_of(record))
                return
            core = self._driver.leaders.get(group)
            lines, sent, has_more = self._lines(asked.job, sent)
            if has_more:  # the end is told with the last of them
                yield WatchJobUpdate(job=_unended(view), output=lines)
                continue
            if core is None and view.ended_ms == 0:
                if lines:  # nobody else has them, and a failure would overtake them
                    yield WatchJobUpdate(job=view, output=lines)
                    return
                raise RemoteError(
                    "this manager does not lead the job any more", code=RemoteErrorCode.MOVED
                )
            live = None if core is None else core.view(asked.job, now_s=time.monotonic())
            yield WatchJobUpdate(job=view, live=live, output=lines)
            if view.ended_ms:
                return
            await asyncio.sleep(_NEWS_S)

    def _lines(self, job: str, sent: int) -> tuple[list[OutputLine], int, bool]:
        """Lines since the last news, as many as one message is to carry; how many were sent
        then; whether there are more. A watcher that comes late gets what is still kept."""
        output = self._driver.output.get(job)
        if output is None:
            return [], sent, False
        lines: list[OutputLine] = []
        characters = 0
        fresh, sent = output.since(sent)
        for line in fresh:
            if lines and characters + len(line.text) > _NEWS_CHARACTERS:
                return lines, sent, True
            characters += len(line.text)
            sent += 1
            lines.append(
                OutputLine(
                    worker=line.worker,
                    workflow=line.run.workflow,
                    slot=line.slot,
                    stream=line.stream,
                    text=line.text,
                    part=line.run.part,
                    attempt=line.run.attempt,
                    number=line.number,
                )
            )
        return lines, sent, False

    async def jobs(self, _call: InboundCall, asked: ListJobs) -> ListJobsReply:
        found: dict[str, JobView] = {}
        missing: list[str] = []
        for group, leader in self._driver.leaders.items():
            machine = self._machine(group)
            if machine is not None:
                found.update((view.job, view) for view in machine.views())
                found.update((job.id, leader.row(job)) for job in machine.jobs())
        if not asked.live_only:
            found.update((view.job, view) for view in await self._inherited())
        if not asked.is_relayed:
            others = [name for name in self._peers.living() if name != self._member.node_id]
            told = await asyncio.gather(*(self._jobs_of(name, asked) for name in others))
            for name, answer in zip(others, told, strict=True):
                if answer is None:
                    missing.append(name)
                else:
                    found.update((view.job, view) for view in answer.jobs)
        views = [view for view in found.values() if not (asked.live_only and view.ended_ms)]
        views.sort(key=lambda view: -view.submitted_ms)
        return ListJobsReply(jobs=views[: asked.limit], missing=missing)

    async def _inherited(self) -> list[JobView]:
        """What ended lately in groups that are gone: the history is all there is of it, and
        whoever leads the heir tells it."""
        topology = self._ledger.topology
        gone = [
            number
            for number, group in topology.groups.items()
            if group.state is GroupState.DESTROYED
            and topology.heir_of(number) in self._driver.leaders
        ]
        since_ms = int(time.time() * 1000) - Limits().ended_ms
        views: list[JobView] = []
        for group in gone:
            rows = await asyncio.to_thread(
                self._ledger.store.history, group=group, since_ms=since_ms, limit=_INHERITED_MOST
            )
            views += [view_of(decode_job(data)) for *_, kind, data in rows if kind == _FINAL_KIND]
        return views

    async def _jobs_of(self, name: str, asked: ListJobs) -> ListJobsReply | None:
        link = self._peers.link(name)
        if link is None:
            return None
        relayed = ListJobs(limit=asked.limit, live_only=asked.live_only, is_relayed=True)
        deadline_s = self._loop.time() + 2.0
        try:
            return await link.call(relayed, ListJobsReply, deadline_s=deadline_s, retries=0)
        except CallError:
            return None

    async def record(self, call: InboundCall, asked: GetJobRecord) -> AsyncGenerator[Chunk, None]:
        found = await self._record_bytes(asked.job)
        if found is None:
            group = self._group(asked.job)
            view = self._view(group, asked.job)
            if view is not None and not view.ended_ms:
                raise RemoteError(f"job {asked.job} has not ended", code=RemoteErrorCode.NOT_ENDED)
            if call.peer.role is Role.MANAGER:
                raise RemoteError(f"there is no job {asked.job}", code=RemoteErrorCode.UNKNOWN_JOB)
            found = await self._record_elsewhere(group, asked)
        for start in range(0, len(found), BLOB_CHUNK_BYTES):
            yield Chunk(found[start : start + BLOB_CHUNK_BYTES])

    async def _record_elsewhere(self, group: int, asked: GetJobRecord) -> bytes:
        last: CallError | None = None
        for name in self._ledger.voters_of(group):
            link = None if name == self._member.node_id else self._peers.link(name)
            if link is None:
                continue
            try:
                deadline_s = self._loop.time() + _ANSWER_S
                data = bytearray()
                async with await link.stream(asked, Chunk, deadline_s=deadline_s) as chunks:
                    async for chunk in chunks:
                        data += chunk.data
                return bytes(data)
            except CallError as error:
                last = error
        if isinstance(last, RemoteError):
            raise last
        raise RemoteError(f"there is no job {asked.job}", code=RemoteErrorCode.UNKNOWN_JOB)

    # -- workers and nodes ----------------------------------------------------------------

    async def workers(self, call: InboundCall, asked: ListWorkers) -> ListWorkersReply:
        async def here() -> ListWorkersReply:
            holds = self._driver.allocator.holds()
            members = [m for m in self._member.members() if m.role is Role.WORKER]
            return ListWorkersReply(
                workers=[_worker_row(member, holds.get(member.node)) for member in members],
                unknown=[m.node for m in members if m.state in LIVING and m.node not in holds],
            )

        return await self._answered(call, MANAGEMENT, asked, ListWorkersReply, here)

    async def drain(self, _call: InboundCall, asked: DrainNode) -> DrainNodeReply:
        member = next((m for m in self._member.members() if m.node == asked.node), None)
        if member is not None and member.role is Role.WORKER:
            link = self._peers.link(asked.node)
            if link is None:
                raise RemoteError(
                    f"{asked.node} is not reachable from here", code=RemoteErrorCode.UNREACHABLE
                )
            deadline_s = self._loop.time() + _ANSWER_S
            drains = await link.call(DrainWorker(), DrainWorkerReply, deadline_s=deadline_s)
            return DrainNodeReply(left=drains.runs)
        topology = self._ledger.topology
        number = topology.number_of(asked.node)
        if number is None:
            raise RemoteError(
                f"there is no worker and no manager {asked.node}", code=RemoteErrorCode.UNKNOWN_NODE
            )
        told = ChangeMemberReply()
        if topology.nodes[number].state is NodeState.ACTIVE:
            told = await drain(self._ledger, number, asked.node)
        seats = sum(number in {*group.voters, *group.settled} for group in topology.groups.values())
        return DrainNodeReply(left=seats, refused=told.refused, hint=told.hint)

    # -- inside ---------------------------------------------------------------------------

    def _group(self, job: str) -> int:
        try:
            group = parse_job_id(job).group
        except (InputError, ValueError) as error:
            raise RemoteError(str(error), code=RemoteErrorCode.UNKNOWN_JOB) from error
        topology = self._ledger.topology
        if topology.groups and group not in topology.groups:
            raise RemoteError(f"there is no job {job}", code=RemoteErrorCode.UNKNOWN_JOB)
        return topology.heir_of(group)

    def _machine(self, group: int) -> JobMachine | None:
        machine = self._ledger.machine(group)
        return machine if isinstance(machine, JobMachine) else None

    def _view(self, group: int, job: str) -> JobView | None:
        machine = self._machine(group)
        if machine is None:
            return None
        leader, found = self._driver.leaders.get(group), machine.job(job)
        return machine.view(job) if leader is None or found is None else leader.row(found)

    async def _record_bytes(self, job: str) -> bytes | None:
        rows = await asyncio.to_thread(self._ledger.store.history, job_id=job, limit=100_000)
        final = [data for _, _, _, _, kind, data in rows if kind == _FINAL_KIND]
        return final[-1] if final else None

    async def _record(self, job: str) -> Job | None:
        data = await self._record_bytes(job)
        return None if data is None else decode_job(data)

    async def _answered(
        self,
        call: InboundCall,
        group: int,
        asked: Struct,
        reply: type[_R],
        here: Callable[[], Awaitable[_R]],
    ) -> _R:
        """From the leader, who knows most; from here if it is this node or cannot be asked."""
        leader = self._ledger.leader_of(group) or next(iter(self._ledger.voters_of(group)), "")
        is_here = group in self._ledger.core.replicas
        if leader and leader != self._member.node_id and call.peer.role is not Role.MANAGER:
            link = self._peers.link(leader)
            if link is not None:
                deadline_s = min(call.deadline_s, self._loop.time() + _ANSWER_S)
                try:
                    return await link.call(asked, reply, deadline_s=deadline_s, retries=0)
                except CallError:
                    if not is_here:
                        raise
        if not is_here:
            raise RemoteError(
                "nobody who knows the job can be asked", code=RemoteErrorCode.UNAVAILABLE
            )
        return await here()


def _worker_row(member: Member, holds: tuple[int, Sequence[HeldCores]] | None) -> WorkerRow:
    said = metadata_of(member.metadata)
    cores, free = (0, 0) if said is None else (said.cores, said.free)
    held: Sequence[HeldCores] = ()
    if holds is not None:  # it told the allocator later than it told everyone
        cores, held = holds
        free = cores - sum(each.cores for each in held if not each.shared)
    return WorkerRow(
        worker=member.node,
        state=str(member.state),
        address=member.address,
        cores=cores,
        free=free,
        is_draining=said is not None and said.is_draining,
        runs=[
            WorkerRun(
                job=each.run.job,
                workflow=each.run.workflow,
                part=each.run.part,
                attempt=each.run.attempt,
                cores=each.cores,
                is_shared=each.shared,
            )
            for each in held
        ],
    )


def _unended(view: JobView) -> JobView:
    """As long as there is more to be told of it."""
    return replace(view, status=JobStatus.COMPLETING, ended_ms=0) if view.ended_ms else view
