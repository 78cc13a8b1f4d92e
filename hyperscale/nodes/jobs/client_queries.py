"""Queries of clients: one job, all jobs, a live view, a final record, the workers."""

import asyncio
import time
from collections.abc import AsyncGenerator

from msgspec.structs import asdict, replace

from hyperscale.client.messages import (
    GetJob,
    GetJobRecord,
    GetJobReply,
    ListJobs,
    ListJobsReply,
    ListWorkers,
    ListWorkersReply,
    OutputLine,
    WatchJob,
    WatchJobUpdate,
    WorkerAttempt,
    WorkerRow,
)
from hyperscale.jobs.allocator.pool import taken_cores
from hyperscale.jobs.committed.events import JobStatus
from hyperscale.jobs.committed.job_table import Limits
from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.jobs.committed.state import Job, JobView, decode_job, view_of
from hyperscale.jobs.messages import AnnounceCores
from hyperscale.ledger.core import MANAGEMENT
from hyperscale.ledger.server.ledger import STRONG
from hyperscale.ledger.server.ledger_driver import wall_ms
from hyperscale.ledger.topology import GroupState
from hyperscale.membership.events import LIVING, Member
from hyperscale.nodes.jobs.job_leaders import JobLeaders
from hyperscale.nodes.jobs.job_routing import (
    FINAL_KIND,
    JobRouting,
    chunks_of,
    listed,
    no_such_job,
    not_ended,
)
from hyperscale.nodes.member import MemberNode
from hyperscale.nodes.messages import metadata_of
from hyperscale.stats.view import RunView
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import RemoteError, RemoteErrorCode
from hyperscale.wire.messages import Chunk
from hyperscale.wire.roles import Role

_UPDATE_S = 0.5
_UPDATE_CHARACTERS = 1024 * 1024  # of what a job printed, in one message
_INHERITED_MAX = 2_000  # rows of a group; some are large


class ClientQueries:
    """Answers queries from the machines, leaders and history of this node, or from other nodes."""

    def __init__(self, member: MemberNode, routing: JobRouting, leaders: JobLeaders) -> None:
        self._member = member
        self._routing = routing
        self._ledger = routing.ledger
        self._leaders = leaders

    def _machine(self, group: int) -> JobMachine | None:
        machine = self._ledger.machine(group)
        return machine if isinstance(machine, JobMachine) else None

    async def get_job(self, call: InboundCall, request: GetJob) -> GetJobReply:
        group = self._routing.group_of(request.job)

        async def here() -> GetJobReply:
            await self._ledger.fresh(group, STRONG)
            view = self._view(group, request.job)
            if view is None:
                return GetJobReply(job=await self._final_view(request.job))
            return GetJobReply(job=view, live=self._live(group, request.job))

        return await self._routing.answer(call, group, request, GetJobReply, here)

    async def watch(
        self, call: InboundCall, request: WatchJob
    ) -> AsyncGenerator[WatchJobUpdate, None]:
        group = self._routing.group_of(request.job)
        leader = self._ledger.leader_of(group)
        is_relayed = self._routing.is_relayed(call)
        if self._leaders.leader(group) is None and not is_relayed and leader:
            async for update in self._routing.watch_at(leader, call, request):
                yield update
            return
        sent = 0
        while True:
            view = self._view(group, request.job)
            if view is None:
                view = await self._final_view(request.job)
                if view is None:
                    raise no_such_job(request.job)
                yield WatchJobUpdate(job=view)
                return
            lines, sent, has_more = self._lines(request.job, sent)
            if has_more:  # the update with the last line says that the job has ended
                yield WatchJobUpdate(job=_unended(view), output=lines)
                continue
            if self._leaders.leader(group) is None and view.ended_ms == 0:
                if lines:  # no other manager has them, and an error would overtake them
                    yield WatchJobUpdate(job=view, output=lines)
                    return
                raise RemoteError(
                    "this manager does not lead the job any more", code=RemoteErrorCode.MOVED
                )
            live = None if request.is_output_only else self._live(group, request.job)
            yield WatchJobUpdate(job=view, live=live, output=lines)
            if view.ended_ms:
                return
            await asyncio.sleep(_UPDATE_S)

    def _lines(self, job: str, sent: int) -> tuple[list[OutputLine], int, bool]:
        """Return the lines after the first `sent`, as many as one message carries; how many were
        sent then; and whether there are more. A late watcher gets what is still kept."""
        output = self._leaders.output.get(job)
        if output is None:
            return [], sent, False
        lines: list[OutputLine] = []
        characters = 0
        fresh, sent = output.since(sent)
        for line in fresh:
            if lines and characters + len(line.text) > _UPDATE_CHARACTERS:
                return lines, sent, True
            characters += len(line.text)
            sent += 1
            lines.append(
                OutputLine(
                    worker=line.worker,
                    workflow=line.attempt_id.workflow,
                    slot=line.slot,
                    stream=line.stream,
                    text=line.text,
                    part=line.attempt_id.part,
                    attempt=line.attempt_id.attempt,
                    number=line.number,
                )
            )
        return lines, sent, False

    async def list_jobs(self, call: InboundCall, request: ListJobs) -> ListJobsReply:
        if request.since_ms is not None:
            return await self._routing.ended_jobs(call, request)
        found: dict[str, JobView] = {}
        missing: list[str] = []
        for group in self._leaders.led():
            leader = self._leaders.leader(group)
            machine = self._machine(group)
            if machine is not None and leader is not None:
                now_s = time.monotonic()
                views = machine.views(self._ledger.time_ms(group))
                found.update((view.job, view) for view in views)
                found.update((job.id, leader.row(job, now_s=now_s)) for job in machine.jobs())
        if not request.live_only:
            found.update((view.job, view) for view in await self._inherited())
        if not request.is_relayed:
            others, missing = await self._routing.jobs_elsewhere(request)
            found.update((view.job, view) for view in others)
        return listed(found, request, missing)

    async def _inherited(self) -> list[JobView]:
        """Return jobs that ended lately in groups that were destroyed. Only history has them; the
        leader of a group's heir lists them."""
        topology = self._ledger.topology
        gone = [
            number
            for number, group in topology.groups.items()
            if group.state is GroupState.DESTROYED
            and topology.heir_of(number) in self._leaders.led()
        ]
        since_ms = wall_ms() - Limits().ended_ms
        views: list[JobView] = []
        for group in gone:
            rows = await asyncio.to_thread(
                self._ledger.store.history, group=group, since_ms=since_ms, limit=_INHERITED_MAX
            )
            views += [
                _ended_view(decode_job(data)) for *_, kind, data in rows if kind == FINAL_KIND
            ]
        return views

    async def record(self, call: InboundCall, request: GetJobRecord) -> AsyncGenerator[Chunk, None]:
        found = await self._routing.final_record(request.job)
        if found is None:
            group = self._routing.group_of(request.job)
            view = self._view(group, request.job)
            if view is not None and not view.ended_ms:
                raise not_ended(request.job)
            if self._routing.is_relayed(call):
                raise no_such_job(request.job)
            found = await self._routing.record_elsewhere(group, request)
        for chunk in chunks_of(found):
            yield chunk

    async def list_workers(self, call: InboundCall, request: ListWorkers) -> ListWorkersReply:
        async def here() -> ListWorkersReply:
            announced = self._leaders.allocator.allocator.pool.workers
            members = [m for m in self._member.members() if m.role is Role.WORKER]
            return ListWorkersReply(
                workers=[_worker_row(member, announced.get(member.node)) for member in members],
                unknown=[m.node for m in members if m.state in LIVING and m.node not in announced],
            )

        return await self._routing.answer(call, MANAGEMENT, request, ListWorkersReply, here)

    def _live(self, group: int, job: str) -> RunView | None:
        leader = self._leaders.leader(group)
        return None if leader is None else leader.view(job, now_s=time.monotonic())

    def _view(self, group: int, job: str) -> JobView | None:
        machine = self._machine(group)
        if machine is None:
            return None
        leader, found = self._leaders.leader(group), machine.job(job)
        if leader is None or found is None:
            return machine.view(job, self._ledger.time_ms(group))
        return leader.row(found, now_s=time.monotonic())

    async def _final_view(self, job: str) -> JobView | None:
        data = await self._routing.final_record(job)
        return None if data is None else _ended_view(decode_job(data))


def _ended_view(job: Job) -> JobView:
    """Return the view of a job of which only the record is left. Its group may be gone, and with it
    the time of the group: how long ago the job ended is the only age that comes from dates."""
    since_ms = max(0, wall_ms() - job.times.ended_unix_ms)
    return view_of(job, job.times.ended_ms + since_ms)


def _unended(view: JobView) -> JobView:
    """Return the view of a job whose last lines are still to be sent."""
    return replace(view, status=JobStatus.COMPLETING, ended_ms=0) if view.ended_ms else view


def _worker_row(member: Member, announced: AnnounceCores | None) -> WorkerRow:
    metadata = metadata_of(member.metadata)
    cores, free = (0, 0) if metadata is None else (metadata.cores, metadata.free)
    held = [] if announced is None else announced.held
    if announced is not None:  # newer than the metadata
        cores = announced.total
        free = cores - taken_cores(held)
    return WorkerRow(
        worker=member.node,
        state=member.state,
        address=member.address,
        cores=cores,
        free=free,
        is_draining=metadata is not None and metadata.is_draining,
        unfit=() if announced is None else announced.unfit,
        labels={} if announced is None else announced.labels,
        reserved=0 if announced is None else announced.reserved,
        attempts=[
            WorkerAttempt(**asdict(each.attempt_id), cores=each.cores, is_shared=each.shared)
            for each in held
        ],
    )
