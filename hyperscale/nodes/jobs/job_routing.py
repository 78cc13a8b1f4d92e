"""Which manager answers for a job: the leader of the job's group, or a node with a replica."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import Struct

from hyperscale.errors import InputError
from hyperscale.jobs.committed.keys import parse_job_id
from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.ledger.server.ledger import Ledger
from hyperscale.ledger.server.tier_peers import TierPeers
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import CallError, RemoteError, RemoteErrorCode
from hyperscale.wire.link import PeerLink
from hyperscale.wire.roles import Role

ANSWER_S = 5.0

_R = TypeVar("_R", bound=Struct)


class JobRouting:
    def __init__(self, node: str, ledger: Ledger, peers: TierPeers) -> None:
        self.node = node
        self.ledger = ledger
        self.peers = peers

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

    def machine(self, group: int) -> JobMachine | None:
        machine = self.ledger.machine(group)
        return machine if isinstance(machine, JobMachine) else None

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
        if leader and leader != self.node and call.peer.role is not Role.MANAGER:
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
                "no manager that keeps the job can be reached", code=RemoteErrorCode.UNAVAILABLE
            )
        return await here()


def no_such_job(job: str) -> RemoteError:
    return RemoteError(f"there is no job {job}", code=RemoteErrorCode.UNKNOWN_JOB)
