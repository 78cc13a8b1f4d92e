"""Questions and commands about nodes: which workers there are, and draining a node."""

import asyncio
from collections.abc import Sequence

from msgspec.structs import asdict

from hyperscale.client.messages import (
    DrainNode,
    DrainNodeReply,
    ListWorkers,
    ListWorkersReply,
    WorkerAttempt,
    WorkerRow,
)
from hyperscale.jobs.allocator.core import Allocator
from hyperscale.jobs.messages import DrainWorker, DrainWorkerReply, HeldCores
from hyperscale.ledger.core import MANAGEMENT
from hyperscale.ledger.server.operator_messages import ChangeMemberReply
from hyperscale.ledger.server.operator_requests import drain
from hyperscale.ledger.topology import NodeState
from hyperscale.membership.events import LIVING, Member
from hyperscale.nodes.jobs.job_routing import ANSWER_S, JobRouting
from hyperscale.nodes.member import MemberNode
from hyperscale.nodes.messages import metadata_of
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import RemoteError, RemoteErrorCode
from hyperscale.wire.roles import Role


class NodeRequests:
    def __init__(self, member: MemberNode, routing: JobRouting, allocator: Allocator) -> None:
        self._member = member
        self._routing = routing
        self._allocator = allocator

    async def list_workers(self, call: InboundCall, asked: ListWorkers) -> ListWorkersReply:
        async def here() -> ListWorkersReply:
            holds = self._allocator.holds()
            members = [m for m in self._member.members() if m.role is Role.WORKER]
            return ListWorkersReply(
                workers=[_worker_row(member, holds.get(member.node)) for member in members],
                unknown=[m.node for m in members if m.state in LIVING and m.node not in holds],
            )

        return await self._routing.answer(call, MANAGEMENT, asked, ListWorkersReply, here)

    async def drain(self, _call: InboundCall, asked: DrainNode) -> DrainNodeReply:
        member = next((m for m in self._member.members() if m.node == asked.node), None)
        if member is not None and member.role is Role.WORKER:
            link = self._routing.peers.link(asked.node)
            if link is None:
                raise RemoteError(
                    f"{asked.node} is not reachable from here", code=RemoteErrorCode.UNREACHABLE
                )
            deadline_s = asyncio.get_running_loop().time() + ANSWER_S
            drains = await link.call(DrainWorker(), DrainWorkerReply, deadline_s=deadline_s)
            return DrainNodeReply(left=drains.attempts)
        topology = self._routing.ledger.topology
        number = topology.number_of(asked.node)
        if number is None:
            raise RemoteError(
                f"there is no worker and no manager {asked.node}", code=RemoteErrorCode.UNKNOWN_NODE
            )
        told = ChangeMemberReply()
        if topology.nodes[number].state is NodeState.ACTIVE:
            told = await drain(self._routing.ledger, number, asked.node)
        seats = sum(number in {*group.voters, *group.settled} for group in topology.groups.values())
        return DrainNodeReply(left=seats, refused=told.refused, hint=told.hint)


def _worker_row(member: Member, holds: tuple[int, Sequence[HeldCores]] | None) -> WorkerRow:
    said = metadata_of(member.metadata)
    cores, free = (0, 0) if said is None else (said.cores, said.free)
    held: Sequence[HeldCores] = ()
    if holds is not None:  # it told the allocator later than it told everyone
        cores, held = holds
        free = cores - sum(each.cores for each in held if not each.shared)
    return WorkerRow(
        worker=member.node,
        state=member.state,
        address=member.address,
        cores=cores,
        free=free,
        is_draining=said is not None and said.is_draining,
        attempts=[
            WorkerAttempt(**asdict(each.attempt_id), cores=each.cores, is_shared=each.shared)
            for each in held
        ],
    )
