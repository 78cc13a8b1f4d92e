"""Runs the allocator on the leader of the management group; reaches it from every other manager."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct

from hyperscale.client.messages import GetQueueRoom, GetQueueRoomReply
from hyperscale.jobs.allocator.core import Allocator
from hyperscale.jobs.allocator.events import (
    AllocatorEffect,
    AllocatorEvent,
    AnswerRequest,
    CoresRequested,
    SendGrant,
)
from hyperscale.jobs.messages import (
    AnnounceCores,
    AnnounceCoresReply,
    ReleaseCores,
    RequestCores,
    RequestCoresReply,
)
from hyperscale.ledger.core import MANAGEMENT
from hyperscale.ledger.server.ledger import Ledger
from hyperscale.ledger.server.tier_peers import TierPeers
from hyperscale.sansio.driver import CoreDriver
from hyperscale.sansio.tasks import TaskSupervisor
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import CallError, RemoteError, RemoteErrorCode

CALL_S = 2.0
_ROOM_AGAIN_S = 0.25

_Reply = TypeVar("_Reply", bound=Struct)
_Answer = Callable[[RequestCoresReply], None]

_log = logging.getLogger("hyperscale.jobs")


class AllocatorDriver:
    """Feeds the allocator of this node, or sends requests to the node whose allocator leads."""

    def __init__(
        self,
        allocator: Allocator,
        *,
        node: str,
        ledger: Ledger,
        peers: TierPeers,
        tasks: TaskSupervisor,
        on_grant: _Answer,
    ) -> None:
        """`on_grant` gets grants for leaders on this node that were not in an immediate reply."""
        self.allocator = allocator
        self._node = node
        self._ledger = ledger
        self._peers = peers
        self._tasks = tasks
        self._on_grant = on_grant
        driver: CoreDriver[AllocatorEvent, AllocatorEffect] = CoreDriver(
            allocator, self._perform, clock=time.monotonic, on_failure=tasks.fail
        )
        self.feed = driver.feed
        self.stop = driver.stop

    def _perform(self, effect: AllocatorEffect) -> None:
        match effect:
            case AnswerRequest(token=answer, reply=reply):
                answer(reply)
            case SendGrant(leader=leader, reply=reply) if leader == self._node:
                self._on_grant(reply)
            case SendGrant(leader=leader, reply=reply):
                self._peers.send(leader, reply)

    # -- leaders on this node ---------------------------------------------------------------

    def request(self, request: RequestCores, answer: _Answer) -> None:
        """Bring a request to the allocator, on this node or another. It may get lost."""
        if self.allocator.is_leading:
            self.feed(CoresRequested(request, answer))
        else:
            self._tasks.spawn_request(self._forward(request, answer), "request-cores")

    async def _forward(self, request: RequestCores, answer: _Answer) -> None:
        reply = await self._call(request, RequestCoresReply)
        if reply is not None:
            answer(reply)

    async def _call(self, request: Struct, reply: type[_Reply]) -> _Reply | None:
        """Send a request to the allocator's node; return None if there is no reply in time."""
        leader = self._ledger.leader_of(MANAGEMENT)
        link = None if leader == self._node else self._peers.link(leader)
        if link is None:
            return None
        deadline_s = asyncio.get_running_loop().time() + CALL_S
        try:
            return await link.call(request, reply, deadline_s=deadline_s, retries=0)
        except CallError as error:
            _log.info("allocator.unanswered: %s", error)
            return None

    def release(self, release: ReleaseCores) -> None:
        if self.allocator.is_leading:
            self.feed(release)
        else:
            self._peers.send(self._ledger.leader_of(MANAGEMENT), release)

    async def room(self, request: GetQueueRoom, *, until_s: float) -> GetQueueRoomReply:
        """Return how many more workflows may wait for cores, and which placement is never met.

        If no allocator can be reached until `until_s`, there is room: the job leader then waits
        until an allocator takes its request.
        """
        loop = asyncio.get_running_loop()
        while not self.allocator.is_leading:
            reply = await self._call(request, GetQueueRoomReply)
            if reply is not None:
                return reply
            if loop.time() + _ROOM_AGAIN_S >= until_s:
                return GetQueueRoomReply(room=1)
            await asyncio.sleep(_ROOM_AGAIN_S)
        return self.room_here(request)

    # -- messages of other nodes ------------------------------------------------------------

    def room_here(self, request: GetQueueRoom) -> GetQueueRoomReply:
        if not self.allocator.is_leading:
            raise RemoteError("this manager does not grant cores", code=RemoteErrorCode.MOVED)
        return GetQueueRoomReply(
            room=self.allocator.room,
            waiting=self.allocator.waiting,
            unmet=self.allocator.why_unmet(request.placements),
        )

    def cores_announced(self, call: InboundCall, cores: AnnounceCores) -> AnnounceCoresReply | None:
        self.feed(cores)
        if not call.wants_answer:
            return None
        return AnnounceCoresReply(is_known=cores.worker in self.allocator.pool.workers)

    def grant_received(self, call: InboundCall, reply: RequestCoresReply) -> None:
        # A manager that was suspended may not know yet that another one is the allocator now.
        if call.peer.node_id == self._ledger.leader_of(MANAGEMENT):
            self._on_grant(reply)
