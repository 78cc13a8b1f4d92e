"""Runs the cores: a job leader for each group this node leads, the allocator if it manages.

Feeds them what the ledger applied, what workers say and what membership sees, and performs what
they ask for. Decides nothing.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable
from typing import Any

from msgspec import Struct

from hyperscale.client.messages import GetQueueRoom, GetQueueRoomReply
from hyperscale.errors import HyperscaleError
from hyperscale.health.correlation import CorrelationGuard
from hyperscale.health.overload import OverloadLevel
from hyperscale.jobs.allocator.core import Allocator
from hyperscale.jobs.allocator.events import (
    AllocatorEvent,
    AnswerRequest,
    BecameAllocator,
    CoresAnnounced,
    CoresReleased,
    CoresRequested,
    LostAllocator,
    SendGrant,
)
from hyperscale.jobs.committed.events import Event, Reply, encode
from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.jobs.leader.core import JobLeader
from hyperscale.jobs.leader.effects import (
    Ask,
    Command,
    Confirm,
    Effect,
    Propose,
    Release,
    Send,
    Trouble,
)
from hyperscale.jobs.messages import (
    AcknowledgeResult,
    AnnounceCores,
    AnnounceCoresReply,
    AnnouncePrepareFailed,
    AnnounceReady,
    Backpressure,
    DeliverResult,
    ForwardOutput,
    ListAttempts,
    ListAttemptsReply,
    PartCommandReply,
    ReleaseCores,
    RenewLeases,
    RenewLeasesReply,
    ReportProgress,
    ReportProgressReply,
    RequestCores,
    RequestCoresReply,
)
from hyperscale.jobs.worker_events import WorkerDown, WorkerUp
from hyperscale.ledger.core import MANAGEMENT, AppliedEntry
from hyperscale.membership.events import LIVING, MemberChanged, MemberDied, MemberState
from hyperscale.membership.messages import ClaimedState
from hyperscale.nodes.jobs.output import Outputs
from hyperscale.nodes.ledger.local_ledger import STRONG, now_ms
from hyperscale.nodes.ledger.peers import Peers
from hyperscale.nodes.ledger.routing import Ledger
from hyperscale.nodes.member import MemberNode
from hyperscale.sansio.core import Tick
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import CallError, RemoteError, RemoteErrorCode
from hyperscale.wire.roles import Role

CALL_S = 2.0
PREPARE_S = 5.0
_TICK_S = 0.25
_TICK_S_MIN = 0.005
_FORGET_S = 5.0
_ROOM_AGAIN_S = 0.25

_BACKPRESSURE = {
    OverloadLevel.HEALTHY: Backpressure.NONE,
    OverloadLevel.BUSY: Backpressure.THROTTLE,
    OverloadLevel.STRESSED: Backpressure.BATCH,
    OverloadLevel.OVERLOADED: Backpressure.REJECT,
}
_log = logging.getLogger("hyperscale.jobs")


class JobsDriver:
    """The cores of one manager. Begins with its ledger."""

    def __init__(
        self, member: MemberNode, ledger: Ledger, peers: Peers, allocator: Allocator
    ) -> None:
        self.ledger = ledger
        self.leaders: dict[int, JobLeader] = {}
        self.allocator = allocator
        self.output = Outputs()
        self._member = member
        self._peers = peers
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._asks: dict[str, RequestCores] = {}  # of leaders here
        self._forget_s = 0.0
        self._guard = CorrelationGuard()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._is_open = True
        ledger.hooks.leading.append(self._leads)
        ledger.hooks.following.append(self._follows)
        ledger.hooks.applied.append(self._applied)
        self._tick()

    async def close(self) -> None:
        self._is_open = False
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- who leads ------------------------------------------------------------------------

    def _workers(self) -> list[str]:
        return [
            member.node
            for member in self._member.members()
            if member.role is Role.WORKER and member.state in LIVING
        ]

    def _leads(self, group: int, term: int) -> None:
        now_s = time.monotonic()
        if group == MANAGEMENT:
            self._allocate(BecameAllocator(tuple(self._workers())))
            return
        machine = self.ledger.machine(group)
        assert isinstance(machine, JobMachine)
        leader = JobLeader(group, self._member.node_id, machine)
        self.leaders[group] = leader
        self._perform(group, leader.lead(term, self._workers(), now_s=now_s, now_ms=now_ms()))

    def _follows(self, group: int) -> None:
        if group == MANAGEMENT:
            self._allocate(LostAllocator())
        elif (leader := self.leaders.pop(group, None)) is not None:
            leader.follow()

    def _applied(self, entry: AppliedEntry) -> None:
        leader = self.leaders.get(entry.group)
        if leader is None:
            return
        event, reply = entry.event, entry.reply
        if isinstance(event, Event) and isinstance(reply, Reply):
            self._perform(entry.group, leader.applied(event, reply, now_s=time.monotonic()))

    # -- effects --------------------------------------------------------------------------

    def _perform(self, group: int, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Propose(event=event):
                    self._spawn(self._propose(group, event), "propose")
                case Send(worker=worker, command=AcknowledgeResult() as command):
                    self._send(worker, command)
                case Send(worker=worker, command=command):
                    leader = self.leaders[group]
                    self._spawn(self._command(group, leader, worker, command), "command")
                case Ask(wish=wish):
                    self._asks[wish.ask] = wish
                    self._spawn(self._ask(group, wish), "ask")
                case Release(release=release):
                    self._asks.pop(release.ask, None)
                    self._release(release)
                case Confirm(question=question):
                    leader = self.leaders[group]
                    self._spawn(self._confirm(group, leader, question), "confirm")
                case Trouble(job=job, error=error):
                    _log.error("job.failed_here", exc_info=error, extra={"job": job})
        self._arm()

    async def _propose(self, group: int, event: Event) -> None:
        try:
            await self.ledger.propose(group, encode(event))
        except HyperscaleError as error:
            leader = self.leaders.get(group)
            _log.info("proposal.failed: %s", error, extra={"group": group})
            if leader is not None:
                effects = leader.proposal_failed(event, now_s=time.monotonic())
                self._perform(group, effects)

    async def _confirm(self, group: int, leader: JobLeader, question: int) -> None:
        try:
            await self.ledger.fresh(group, STRONG)
        except HyperscaleError as error:
            _log.info("leadership.unconfirmed: %s", error, extra={"group": group})
            return
        # The answer may be another leader's: then this one has been told to follow by now.
        if self.leaders.get(group) is leader:
            self._perform(group, leader.confirmed(question, now_s=time.monotonic()))

    def _send(self, node: str, message: Struct) -> None:
        link = self._peers.link(node)
        connection = None if link is None else link.connection
        if connection is None:
            return
        try:
            connection.send(message)
        except CallError as error:
            _log.debug("message.dropped: %s", error, extra={"to": node})

    async def _command(self, group: int, leader: JobLeader, worker: str, command: Command) -> None:
        answer: PartCommandReply | RenewLeasesReply | ListAttemptsReply | None = None
        begun_s = self._loop.time()
        link = self._peers.link(worker)
        # Where nobody listens there is nothing to wait for.
        if link is not None and (link.refused_s is None or link.connection is not None):
            expected = _ANSWERS.get(type(command), PartCommandReply)
            # Renewals and questions are repeated; whether anyone is there is known soon.
            wait_s = CALL_S if isinstance(command, RenewLeases | ListAttempts) else PREPARE_S
            try:
                answer = await link.call(command, expected, deadline_s=begun_s + wait_s, retries=0)
            except CallError as error:
                _log.info(
                    "command.unanswered: %s",
                    error,
                    extra={"command": type(command).__name__, "worker": worker},
                )
        # What was answered to a leader here says nothing to the next one.
        if self.leaders.get(group) is leader:
            effects = leader.answered(
                worker,
                command,
                answer,
                now_s=time.monotonic(),
                rtt_s=self._loop.time() - begun_s,
                refused_s=None if link is None else link.refused_s,
            )
            self._perform(group, effects)

    # -- the allocator --------------------------------------------------------------------

    async def _ask(self, group: int, wish: RequestCores) -> None:
        if self.allocator.is_leading:
            answer = self._request_cores(wish)
        else:
            link = self._peers.link(self.ledger.leader_of(MANAGEMENT))
            if link is None:
                return
            try:
                answer = await link.call(
                    wish, RequestCoresReply, deadline_s=self._loop.time() + CALL_S, retries=0
                )
            except CallError as error:
                _log.info("allocator.unanswered: %s", error)
                return
        self._granted(group, answer)

    async def room(self, *, until_s: float) -> GetQueueRoomReply:
        """How many more workflows may wait for cores. An allocator that cannot be asked until
        then, nor one that takes its place, refuses nobody: what it does not take on waits with
        its leader."""
        while not self.allocator.is_leading:
            told = await self._ask_room()
            if told is not None:
                return told
            if self._loop.time() + _ROOM_AGAIN_S >= until_s:
                return GetQueueRoomReply(room=1)
            await asyncio.sleep(_ROOM_AGAIN_S)
        return self.told_room()

    async def _ask_room(self) -> GetQueueRoomReply | None:
        leader = self.ledger.leader_of(MANAGEMENT)
        link = None if leader == self._member.node_id else self._peers.link(leader)
        if link is None:
            return None
        deadline_s = self._loop.time() + CALL_S
        try:
            return await link.call(
                GetQueueRoom(), GetQueueRoomReply, deadline_s=deadline_s, retries=0
            )
        except CallError as error:
            _log.info("allocator.unanswered: %s", error)
            return None

    def told_room(self) -> GetQueueRoomReply:
        if not self.allocator.is_leading:
            raise RemoteError("this manager does not grant cores", code=RemoteErrorCode.MOVED)
        return GetQueueRoomReply(room=self.allocator.room, waiting=self.allocator.waiting)

    def _granted(self, group: int, answer: RequestCoresReply) -> None:
        leader = self.leaders.get(group)
        if leader is not None:
            self._perform(group, leader.cores(answer, now_s=time.monotonic()))

    def _release(self, release: ReleaseCores) -> None:
        if self.allocator.is_leading:
            self._allocate(CoresReleased(release))
        else:
            self._send(self.ledger.leader_of(MANAGEMENT), release)

    def _allocate(self, event: AllocatorEvent) -> None:
        for effect in self.allocator.handle(event, now_s=time.monotonic()):
            match effect:
                case AnswerRequest(token=answer, reply=reply):
                    answer(reply)
                case SendGrant(leader=leader, reply=reply):
                    if leader == self._member.node_id:
                        self.cores_told(reply)
                    else:
                        self._send(leader, reply)
        self._arm()

    def _request_cores(self, request: RequestCores) -> RequestCoresReply:
        replies: list[RequestCoresReply] = []
        self._allocate(CoresRequested(request, replies.append))
        return replies[0]

    def cores_told(self, answer: RequestCoresReply) -> None:
        """The allocator's later word on an ask of a leader here."""
        wish = self._asks.get(answer.ask)
        if wish is not None:
            self._granted(wish.group, answer)

    # -- messages -------------------------------------------------------------------------

    def told_cores(self, call: InboundCall, answer: RequestCoresReply) -> None:
        # One that stood still for a while may not know yet that another grants cores now.
        if call.peer.node_id == self.ledger.leader_of(MANAGEMENT):
            self.cores_told(answer)

    def asked_cores(self, _call: InboundCall, wish: RequestCores) -> RequestCoresReply:
        return self._request_cores(wish)

    def released_cores(self, _call: InboundCall, release: ReleaseCores) -> None:
        self._allocate(CoresReleased(release))

    def worker_told(self, call: InboundCall, cores: AnnounceCores) -> AnnounceCoresReply | None:
        self._allocate(CoresAnnounced(cores))
        if not call.wants_answer:
            return None
        return AnnounceCoresReply(is_known=cores.worker in self.allocator.holds())

    def received(
        self, _call: InboundCall, message: AnnounceReady | AnnouncePrepareFailed | DeliverResult
    ) -> None:
        """What a worker says by itself; repeated by it until somebody who leads answers."""
        group = self._heir_of(message.group)
        leader = self.leaders.get(group)
        if leader is not None:
            self._perform(group, leader.received(message, now_s=time.monotonic()))

    def progress(self, _call: InboundCall, progress: ReportProgress) -> ReportProgressReply:
        group = self._heir_of(progress.group)
        leader = self.leaders.get(group)
        if leader is None:
            return ReportProgressReply(leader=self.ledger.leader_of(group))
        # A busy CPU that keeps up is no reason to hear less.
        leader.backpressure = _BACKPRESSURE[self._member.vitals.detector.backlog]
        taken, effects = leader.progress(progress, now_s=time.monotonic())
        self._perform(group, effects)
        return taken

    def _heir_of(self, group: int) -> int:
        """Who answers workers: of a group that is gone, which has no job that goes on, its heir."""
        return group if group in self.leaders else self.ledger.topology.heir_of(group)

    def printed(self, _call: InboundCall, output: ForwardOutput) -> None:
        self.output.add(output)

    def bundles(self) -> set[str]:
        """Those of the jobs this node has a replica of."""
        machines = [self.ledger.machine(group) for group in self.ledger.topology.groups]
        jobs = [each.jobs() for each in machines if isinstance(each, JobMachine)]
        return {job.bundle for some in jobs for job in some}

    # -- membership -----------------------------------------------------------------------

    def member_changed(self, change: MemberChanged | MemberDied) -> None:
        member = change.member
        if member.role is not Role.WORKER:
            return
        now_s = time.monotonic()
        worker = member.node
        if isinstance(change, MemberDied):
            is_certain = change.evidence is ClaimedState.REFUSED
            self._guard.failed(worker, is_certain=is_certain, now_s=now_s)
            self._worker_down(worker, is_certain=is_certain, now_s=now_s)
        elif member.state is MemberState.LEFT:
            self._guard.recovered(worker)  # a farewell is no failure
            self._worker_down(worker, is_certain=True, now_s=now_s)
        elif member.state is MemberState.ALIVE and change.before not in LIVING:
            self._guard.recovered(worker)
            if (link := self._peers.link(worker)) is not None:
                link.hope()
            self._allocate(WorkerUp(worker))
            for group, leader in list(self.leaders.items()):
                self._perform(group, leader.worker_up(worker, now_s=now_s))

    def _worker_down(self, worker: str, *, is_certain: bool, now_s: float) -> None:
        self._allocate(WorkerDown(worker))
        link = self._peers.link(worker)
        ended_s = None if link is None else link.refused_s
        for group, leader in list(self.leaders.items()):
            effects = leader.worker_down(
                worker, is_certain=is_certain, now_s=now_s, ended_s=ended_s
            )
            self._perform(group, effects)

    # -- time -----------------------------------------------------------------------------

    def _arm(self) -> None:
        """Wakes at the earliest wish of any core."""
        if not self._is_open:
            return
        now_s = time.monotonic()
        wishes = [leader.wake_at_s() for leader in self.leaders.values()]
        if (allocator_at_s := self.allocator.wake_at_s()) is not None:
            wishes.append(allocator_at_s)
        at_s = max(min([now_s + _TICK_S, *wishes]), now_s + _TICK_S_MIN)
        if self._timer is not None:
            if self._timer_s <= at_s:
                return  # this is asked for after every message
            self._timer.cancel()
        self._timer_s = at_s
        self._timer = self._loop.call_later(at_s - now_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_s = time.monotonic()
        if self.allocator.is_leading:
            self._allocate(Tick())
        held = self._held(now_s)
        for group, leader in list(self.leaders.items()):
            leader.hold(held)
            if now_s < leader.wake_at_s():
                continue
            try:
                self._perform(group, leader.tick(now_s=now_s))
            except Exception:  # noqa: BLE001  a bug of ours: the other groups have no part in it
                _log.exception("jobs.tick_failed", extra={"group": group})
        if now_s >= self._forget_s:
            self._forget_s = now_s + _FORGET_S
            self._forget()
        self._arm()

    def _forget(self) -> None:
        """What is kept of jobs, once they are gone."""
        machines = [self.ledger.machine(group) for group in self.ledger.topology.groups]
        here = [each for each in machines if isinstance(each, JobMachine)]
        self.output.keep(lambda job: any(each.job(job) is not None for each in here))
        self._asks = {ask: wish for ask, wish in self._asks.items() if self._is_live(wish)}

    def _is_live(self, wish: RequestCores) -> bool:
        machine = self.ledger.machine(wish.group) if wish.group in self.leaders else None
        job = machine.job(wish.job) if isinstance(machine, JobMachine) else None
        return job is not None and not job.has_ended

    def _held(self, now_s: float) -> frozenset[str]:
        """Workers whose silence is put down to the network for now."""
        suspects = self._guard.suspects(now_s=now_s)
        if not suspects:
            return frozenset()
        nodes = len({*self._workers(), *suspects})  # the dead were there too
        return frozenset(
            worker for worker in suspects if self._guard.is_held(worker, nodes=nodes, now_s=now_s)
        )


_ANSWERS: dict[type, type[Any]] = {RenewLeases: RenewLeasesReply, ListAttempts: ListAttemptsReply}
