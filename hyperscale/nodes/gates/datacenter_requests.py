"""What gates ask datacenters for others: their workers, their nodes, and what tests print there."""

import asyncio
from collections import deque
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hyperscale.client.messages import (
    DrainNode,
    DrainNodeReply,
    ListWorkers,
    ListWorkersReply,
    OutputLine,
    WatchJob,
    WatchJobUpdate,
)
from hyperscale.gates.committed.state import GlobalJob
from hyperscale.gates.messages import AskDatacenter, AskDatacenterReply
from hyperscale.ledger.audit import audit_of
from hyperscale.ledger.server.ledger import Ledger
from hyperscale.ledger.server.operator_messages import (
    ChangeMember,
    ChangeMemberReply,
    GetLedgerStatus,
    GetLedgerStatusReply,
)
from hyperscale.nodes.gates.datacenter_links import DatacenterLinks
from hyperscale.nodes.messages import ListMembers, ListMembersReply
from hyperscale.sansio.tasks import TaskSupervisor
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.client_access import Permission
from hyperscale.wire.errors import CallError, RemoteError, RemoteErrorCode
from hyperscale.wire.registry import REGISTRY

_ANSWER_S = 5.0
_RETRY_S = 1.0
_STREAM_S = 1800.0
_LINES_MAX = 10_000
_RELAYED: dict[type[Struct], type[Struct]] = {
    ListWorkers: ListWorkersReply,
    ListMembers: ListMembersReply,
    DrainNode: DrainNodeReply,
    GetLedgerStatus: GetLedgerStatusReply,
    ChangeMember: ChangeMemberReply,
}


class DatacenterRequests:
    """Passes requests on to the managers of datacenters."""

    def __init__(self, datacenters: DatacenterLinks, ledger: Ledger) -> None:
        self._datacenters = datacenters
        self._ledger = ledger

    async def ask(self, call: InboundCall, request: AskDatacenter) -> AskDatacenterReply:
        """Pass on a request that the caller might make itself."""
        message = REGISTRY.unpack(request.request)
        reply = _RELAYED.get(type(message))
        if reply is None:
            raise RemoteError(
                f"gates do not pass on {type(message).__name__}", code=RemoteErrorCode.ROLE
            )
        spec = REGISTRY.spec_of(message)
        problem = spec.sending_problem(call.peer.role, call.principal)
        if problem:
            raise RemoteError(problem, code=RemoteErrorCode.ROLE)
        if request.datacenter not in self._datacenters.views():
            known = ", ".join(sorted(self._datacenters.views())) or "none yet"
            raise RemoteError(
                f"no datacenter is called {request.datacenter!r}",
                code=RemoteErrorCode.INVALID,
                hint=f"known datacenters: {known}",
            )
        if spec.permission is Permission.OPERATE:
            audit = audit_of(call, "ask datacenter", request.datacenter, detail=str(message))
            await self._ledger.note_request(audit)
        answer = await self._call(request.datacenter, message, reply)
        return AskDatacenterReply(reply=REGISTRY.pack(answer))

    async def _call(self, datacenter: str, message: Struct, reply: type[Struct]) -> Any:
        try:
            return await self._datacenters.call(datacenter, message, reply, within_s=_ANSWER_S)
        except RemoteError:
            raise
        except CallError as error:
            raise RemoteError(
                f"no manager of {datacenter} answers: {error}", code=RemoteErrorCode.UNAVAILABLE
            ) from error

    async def list_workers(self, _call: InboundCall, request: ListWorkers) -> ListWorkersReply:
        """Return the workers of all datacenters."""
        names = sorted(self._datacenters.views())
        replies = await asyncio.gather(
            *(self._call(name, request, ListWorkersReply) for name in names),
            return_exceptions=True,
        )
        found = ListWorkersReply()
        for name, reply in zip(names, replies, strict=True):
            if isinstance(reply, RemoteError):
                found.missing.append(name)
            elif isinstance(reply, BaseException):
                raise reply
            else:
                found.workers.extend(replace(row, datacenter=name) for row in reply.workers)
                found.unknown.extend(f"{name}/{worker}" for worker in reply.unknown)
        return found


class DatacenterOutput:
    """What a job prints in its datacenters, for one client that watches it.

    Each datacenter is watched while the client watches; lines that a broken stream repeats are
    recognised by the client.
    """

    def __init__(self, datacenters: DatacenterLinks, tasks: TaskSupervisor) -> None:
        self._datacenters = datacenters
        self._spawn = tasks.spawn_request
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._lines: deque[OutputLine] = deque(maxlen=_LINES_MAX)

    def follow(self, job: GlobalJob) -> None:
        """Watch every datacenter that has accepted its part."""
        for part in job.assignments:
            if part.local_job and part.datacenter not in self._tasks:
                reading = self._read(part.datacenter, part.local_job)
                name = f"output:{part.datacenter}"
                self._tasks[part.datacenter] = self._spawn(reading, name)

    def take(self) -> list[OutputLine]:
        """Return the lines that came since the last call."""
        lines = list(self._lines)
        self._lines.clear()
        return lines

    async def finish(self, *, within_s: float) -> list[OutputLine]:
        """Return the last lines of a job that has ended."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=within_s)
        return self.take()

    def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def _read(self, datacenter: str, job: str) -> None:
        while True:
            try:
                request = WatchJob(job=job, is_output_only=True)
                stream = await self._datacenters.stream(
                    datacenter, request, WatchJobUpdate, within_s=_STREAM_S
                )
                async with stream as updates:
                    async for update in updates:
                        self._lines.extend(
                            replace(line, worker=f"{datacenter}/{line.worker}")
                            for line in update.output
                        )
                return  # the job has ended there
            except CallError:  # another manager leads the job, or the link is down: watch again
                await asyncio.sleep(_RETRY_S)
