"""Which node of a tier answers for a job, and what the others know: for managers and gates alike.

A request about a job goes to the leader of the job's group; a node with a replica answers if the
leader is away. Final records are in the history of the group's voters.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from hyperscale.client.messages import (
    BLOB_CHUNK_BYTES,
    ChangeLoadReply,
    GetJobRecord,
    ListJobs,
    ListJobsReply,
    WatchJob,
    WatchJobUpdate,
)
from hyperscale.errors import InputError
from hyperscale.jobs.committed.events import Code, Reply
from hyperscale.jobs.committed.keys import parse_job_id
from hyperscale.jobs.committed.state import ENDED_JOBS, JobView, decode_ended
from hyperscale.ledger.server.ledger import Ledger
from hyperscale.ledger.server.ledger_driver import wall_ms
from hyperscale.ledger.server.operator_messages import ListEvents, ListEventsReply
from hyperscale.ledger.server.tier_peers import TierPeers
from hyperscale.ledger.store import position_of
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import CallError, RemoteError, RemoteErrorCode
from hyperscale.wire.link import PeerLink
from hyperscale.wire.messages import Chunk
from hyperscale.wire.roles import Role

ANSWER_S = 5.0
FINAL_KIND = "finished"  # of the history row that is the final record of a job
_LIST_S = 2.0
_HISTORY_ROWS = 100_000

_R = TypeVar("_R", bound=Struct)
ListTierEvents = Callable[[InboundCall, ListEvents], Awaitable[ListEventsReply]]


class JobRouting:
    """The way to what a tier knows about jobs. `role` is that of its nodes."""

    def __init__(
        self, node: str, ledger: Ledger, peers: TierPeers, role: Role, events: ListTierEvents
    ) -> None:
        self._events = events
        self.node = node
        self.ledger = ledger
        self.peers = peers
        self._role = role

    def group_of(self, job: str) -> int:
        """Return the group that answers for a job; raise `RemoteError` if there is no such job."""
        try:
            group = parse_job_id(job).group
        except (InputError, ValueError) as error:
            raise RemoteError(str(error), code=RemoteErrorCode.UNKNOWN_JOB) from error
        topology = self.ledger.topology
        if topology.groups and group not in topology.groups:
            raise no_such_job(job)
        return topology.heir_of(group)

    def link(self, node: str, code: RemoteErrorCode = RemoteErrorCode.UNREACHABLE) -> PeerLink:
        """Return a link to a node; raise `RemoteError` if there is none."""
        link = self.peers.link(node)
        if link is None:
            raise RemoteError(f"{node} is not reachable from here", code=code)
        return link

    def is_relayed(self, call: InboundCall) -> bool:
        """Return True if another node of the tier passed the request on."""
        return call.peer.role is self._role

    async def answer(
        self,
        call: InboundCall,
        group: int,
        request: Struct,
        reply: type[_R],
        here: Callable[[], Awaitable[_R]],
    ) -> _R:
        """Answer from the group's leader, which knows most; from this node if it is the leader, or
        if the leader cannot be reached and this node has a replica."""
        ledger = self.ledger
        leader = ledger.leader_of(group) or next(iter(ledger.voters_of(group)), "")
        has_replica = group in ledger.core.replicas
        if leader and leader != self.node and not self.is_relayed(call):
            link = self.peers.link(leader)
            if link is not None:
                deadline_s = min(call.deadline_s, asyncio.get_running_loop().time() + ANSWER_S)
                try:
                    return await link.call(request, reply, deadline_s=deadline_s, retries=0)
                except CallError:
                    if not has_replica:
                        raise
        if not has_replica:
            raise RemoteError(
                f"no {self._role.value} that keeps the job can be reached",
                code=RemoteErrorCode.UNAVAILABLE,
            )
        return await here()

    async def watch_at(
        self, leader: str, call: InboundCall, request: WatchJob
    ) -> AsyncGenerator[WatchJobUpdate, None]:
        """Pass on the updates of a job from the node that leads it."""
        link = self.link(leader, RemoteErrorCode.MOVED)
        stream = await link.stream(request, WatchJobUpdate, deadline_s=call.deadline_s)
        async with stream as updates:
            async for update in updates:
                yield update

    async def jobs_elsewhere(self, request: ListJobs) -> tuple[list[JobView], list[str]]:
        """Return the jobs that the other nodes list, and the nodes that did not answer."""
        others = [name for name in self.peers.living() if name != self.node]
        replies = await asyncio.gather(*(self._jobs_of(name, request) for name in others))
        answers = dict(zip(others, replies, strict=True))
        views = [view for reply in replies if reply is not None for view in reply.jobs]
        return views, [name for name, reply in answers.items() if reply is None]

    async def _jobs_of(self, name: str, request: ListJobs) -> ListJobsReply | None:
        deadline_s = asyncio.get_running_loop().time() + _LIST_S
        relayed = replace(request, is_relayed=True)
        try:
            link = self.link(name)
            return await link.call(relayed, ListJobsReply, deadline_s=deadline_s, retries=0)
        except CallError:  # the reply names the nodes that did not answer
            return None

    async def ended_jobs(self, call: InboundCall, request: ListJobs) -> ListJobsReply:
        """Return the jobs that ended since a date, as long as there is history."""
        asked = ListEvents(
            job=ENDED_JOBS,
            since_ms=request.since_ms or 0,
            limit=max(1, request.limit),
            after=request.after,
        )
        reply = await self._events(call, asked)
        now_ms = wall_ms()
        return ListJobsReply(
            jobs=[decode_ended(row[5], unix_ms=now_ms) for row in reply.rows],
            after=position_of(reply.rows[-1]) if reply.has_more and reply.rows else None,
        )

    async def final_record(self, job: str) -> bytes | None:
        """Return the final record of a job, if this node's history has it."""
        final = await self.history(job, FINAL_KIND)
        return final[-1] if final else None

    async def history(self, job: str, kind: str) -> list[bytes]:
        """Return the rows of a kind that this node's history has of a job, oldest first."""
        rows = await asyncio.to_thread(self.ledger.store.history, job_id=job, limit=_HISTORY_ROWS)
        return [data for _, _, _, _, found, data in rows if found == kind]

    async def record_elsewhere(self, group: int, request: GetJobRecord) -> bytes:
        """Return what another voter of the group sends as the final record of a job."""
        last: CallError | None = None
        for name in self.ledger.voters_of(group):
            link = None if name == self.node else self.peers.link(name)
            if link is None:
                continue
            try:
                deadline_s = asyncio.get_running_loop().time() + ANSWER_S
                data = bytearray()
                async with await link.stream(request, Chunk, deadline_s=deadline_s) as chunks:
                    async for chunk in chunks:
                        data += chunk.data
                return bytes(data)
            except CallError as error:
                last = error
        if isinstance(last, RemoteError):
            raise last
        raise no_such_job(request.job)


def chunks_of(data: bytes) -> list[Chunk]:
    """Return a record as the messages that carry it."""
    starts = range(0, len(data), BLOB_CHUNK_BYTES)
    return [Chunk(data[start : start + BLOB_CHUNK_BYTES]) for start in starts]


def listed(views: dict[str, JobView], request: ListJobs, missing: list[str]) -> ListJobsReply:
    """Return jobs by id as a list, newest first."""
    found = [view for view in views.values() if not (request.live_only and view.ended_ms)]
    found.sort(key=lambda view: view.submitted_ago_s or 0.0)
    return ListJobsReply(jobs=found[: request.limit], missing=missing)


def change_reply(reply: Reply) -> ChangeLoadReply:
    """Return what the submitter of a change gets for the machine's reply."""
    return ChangeLoadReply(
        accepted=reply.ok or reply.code is Code.DUPLICATE,
        code=Code.OK if reply.ok else reply.code,
        error=reply.error,
        hint=reply.hint,
    )


def no_such_job(job: str) -> RemoteError:
    return RemoteError(f"there is no job {job}", code=RemoteErrorCode.UNKNOWN_JOB)


def not_ended(job: str) -> RemoteError:
    return RemoteError(f"job {job} has not ended", code=RemoteErrorCode.NOT_ENDED)


def left_s(call: InboundCall) -> float:
    """Return how long a commit may take, so that its outcome reaches the caller in time."""
    return max(0.1, call.deadline_s - asyncio.get_running_loop().time() - 0.1)
