"""A manager's process: drives job leaders, the allocator and the state machines."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hyperscale.jobs.allocator.core import Allocator
from hyperscale.jobs.allocator.events import (
    AllocatorEvent,
    AnswerRequest,
    BecameAllocator,
    CoresRequested,
    LostAllocator,
    SendGrant,
)
from hyperscale.jobs.committed.events import Event, Reply
from hyperscale.jobs.leader import events as ev
from hyperscale.jobs.leader.core import JobLeader
from hyperscale.jobs.messages import (
    AcknowledgeResult,
    AnnounceCores,
    AnnouncePrepareFailed,
    AnnounceReady,
    AnnounceRows,
    AnnounceSetUp,
    DeliverResult,
    ReleaseCores,
    ReportProgress,
    ReportProgressReply,
    RequestCores,
    RequestCoresReply,
)
from hyperscale.jobs.worker_events import WorkerDown, WorkerUp
from hyperscale.ledger.group_clock import GroupClocks, TimeSource
from hyperscale.sansio.core import Tick
from tests.simulation import network
from tests.simulation.committed_log import ALLOCATION, Ledger

if TYPE_CHECKING:
    from tests.simulation.jobs.schedules import Setup
    from tests.simulation.kernel import Host

_LOOK_EVERY_S = 0.25
_SILENT_S = (4.0, 12.0)


class _Seen:
    """The membership state of a worker at one manager."""

    def __init__(self) -> None:
        self.life = 0
        self.is_up = False
        self.silent_since_s: float | None = None
        self.patience_s = 0.0
        self.refused_at_s: float | None = None
        self.closed_s: float | None = None


class ManagerProgram:
    def __init__(self, host: "Host", setup: "Setup") -> None:
        self.host = host
        self.setup = setup
        self.ledger: Ledger = setup.ledger
        self._origin_s = 900.0 * host.index  # of its monotonic clock
        groups = range(1, setup.plan.groups + 1)
        self.machines = {group: self.ledger.machine(group) for group in groups}
        self.leaders: dict[int, JobLeader] = {}  # of the groups that this node leads
        self.terms: dict[int, int] = {}
        self.applied = dict.fromkeys(groups, 0)
        self.allocator: Allocator = setup.allocator()
        self.seen = {worker: _Seen() for worker in setup.plan.workers}
        self.clocks: GroupClocks = setup.clocks(host)
        self._look_at_s = 0.0

    def start(self, now_s: float) -> None:
        for group in self.machines:
            # Entries that it missed come from the leader, which sends the latest at once. Without
            # one this manager must not know more than its disk.
            is_led = self.ledger.is_led(group)
            kept = self.host.disk.read(("applied", group), 0)
            self.clocks.open(group, kept if is_led else len(self.ledger.groups[group].log))
            list(self._apply(group, now_s))
        self._look_at_s = now_s

    def time_ms(self, group: int, now_s: float) -> int:
        """Return the time of a group, by the clocks of this manager."""
        self.clocks.now_s = now_s + self._origin_s
        clock = self.clocks.get(group)
        if clock.source is TimeSource.NOTHING:
            self.clocks.applied(group, 0, 0, age_s=0.0)
        return clock.read_ms(now_s + self._origin_s)

    # --- the ledger's hooks ---------------------------------------------------------------

    def entry(self, group: int, now_s: float) -> None:
        """Apply the committed entries of a group."""
        for event, reply in self._apply(group, now_s):
            self._lead(group, ev.EventApplied(event, reply), now_s)

    def _apply(self, group: int, now_s: float) -> Iterator[tuple[Event, Reply]]:
        log = self.ledger.groups[group].log
        self.clocks.now_s = now_s + self._origin_s
        while self.applied[group] < len(log):
            entry = log[self.applied[group]]
            self.applied[group] += 1
            applied = self.machines[group].apply(
                self.applied[group], entry.time_ms, entry.body, unix_ms=entry.unix_ms
            )
            self.clocks.applied(
                group,
                self.applied[group],
                entry.time_ms,
                age_s=(self.host.wall_ms() - entry.unix_ms) / 1000,
            )
            self.host.disk.write(("applied", group), self.applied[group])
            self.host.disk.sync()
            yield entry.event, applied.reply

    def lead(self, payload: tuple[int, int], now_s: float) -> None:
        group, term = payload
        if not self.ledger.leads(self.host.address, group, term):
            return
        workers = [name for name, seen in self.seen.items() if seen.is_up]
        self.terms[group] = term
        if group == ALLOCATION:
            self._allocate(BecameAllocator(tuple(workers)), now_s)
            return
        self.entry(group, now_s)
        time_ms = self.time_ms(group, now_s)
        is_estimate = self.clocks.get(group).source is TimeSource.DATES
        self.setup.took_over(group, is_estimate=is_estimate)
        self.leaders[group] = self.setup.leader(group, self.host.address, self.machines[group])
        self._lead(group, ev.BecameLeader(term, tuple(workers), time_ms, is_estimate), now_s)

    def follow(self, payload: tuple[int, int], now_s: float) -> None:
        group, term = payload
        if self.terms.get(group, 0) != term:
            return
        if self.ledger.leads(self.host.address, group, term):
            if self.ledger.groups[group].lost_s is None:
                return  # it was cut off only for a moment
            self.ledger.stepped_down(group)
        if group == ALLOCATION:
            self._allocate(LostAllocator(), now_s)
        else:
            self.leaders.pop(group, None)

    def confirmed(self, payload: tuple[int, int, int], now_s: float) -> None:
        group, term, question = payload
        if self.terms.get(group, 0) == term:
            self._lead(group, ev.LeadershipConfirmed(question), now_s)

    # --- the world ------------------------------------------------------------------------

    def datagram(self, source: str, payload: Any, now_s: float) -> None:
        match payload:
            case (
                AnnounceSetUp()
                | AnnounceReady()
                | AnnounceRows()
                | AnnouncePrepareFailed()
                | DeliverResult()
            ):
                self._lead(payload.group, ev.WorkerAnnounced(payload), now_s)
            case AnnounceCores():
                self._allocate(payload, now_s)
            case ReleaseCores():
                self._allocate(payload, now_s)
            case (int() as group, RequestCoresReply() as answer):
                self._lead(group, ev.CoresAnswered(answer), now_s)

    def stream(self, event: Any, now_s: float) -> None:
        match event:
            case network.Asked(message=RequestCores() as request, handle=handle):
                self._allocate(CoresRequested(request, handle), now_s)
            case network.Asked(message=ReportProgress() as progress, handle=handle):
                self._progress(progress, handle, now_s)
            case network.Answered(token=("ask", group), message=answer):
                self._lead(group, ev.CoresAnswered(answer), now_s)
            case network.Answered(token=("send", group, term, command, at_s), source=worker):
                if term == self.terms[group]:
                    answered = ev.CommandAnswered(worker, command, event.message, now_s - at_s)
                    self._lead(group, answered, now_s)
            case network.Failed(token=("send", group, term, command, _), source=worker):
                if term == self.terms[group]:
                    refused_s = now_s if event.refused else None
                    answered = ev.CommandAnswered(worker, command, None, refused_s=refused_s)
                    self._lead(group, answered, now_s)

    def _progress(self, progress: ReportProgress, handle: Any, now_s: float) -> None:
        if progress.group in self.leaders:
            self._lead(progress.group, ev.ProgressReported(progress, handle), now_s)
        else:
            leader = self.ledger.groups[progress.group].leader or ""
            self.host.answer(handle, ReportProgressReply(leader=leader))

    def disk(self, token: Any, now_s: float) -> None: ...

    def wake(self, now_s: float) -> None:
        if self._look_at_s <= now_s:
            self._look_at_s = now_s + _LOOK_EVERY_S
            for worker, seen in self.seen.items():
                self._look(worker, seen, now_s)
        for group, leader in sorted(self.leaders.items()):
            leader_at_s = leader.wake_at_s()
            if leader_at_s is not None and leader_at_s <= now_s:
                self._lead(group, Tick(), now_s)
        wake_at_s = self.allocator.wake_at_s()
        if wake_at_s is not None and wake_at_s <= now_s:
            self._allocate(Tick(), now_s)

    def wake_at_s(self) -> float:
        due_s = [core.wake_at_s() for core in (self.allocator, *self.leaders.values())]
        return min([self._look_at_s, *(at_s for at_s in due_s if at_s is not None)])

    # --- membership, as an oracle with delays ---------------------------------------------

    def _look(self, name: str, seen: _Seen, now_s: float) -> None:
        world = self.host.world
        worker = world.hosts[name]
        cut = world.network.is_cut(self.host.address, name) or world.network.is_cut(
            name, self.host.address
        )
        if cut or not worker.powered or worker.paused:
            if seen.silent_since_s is None:
                seen.silent_since_s = now_s
                seen.patience_s = world.rng.uniform(*_SILENT_S)
            if seen.is_up and now_s >= seen.silent_since_s + seen.patience_s:
                self._down(name, seen, now_s, is_certain=False)
            return
        seen.silent_since_s = None
        if worker.program is None:
            if seen.refused_at_s is None:
                seen.closed_s = now_s
                seen.refused_at_s = now_s + 2.0 * world.rng.random()
            if seen.life and now_s >= seen.refused_at_s:
                self._down(name, seen, now_s, is_certain=True, ended_s=seen.closed_s)
                seen.life = 0
            return
        seen.refused_at_s = None
        if worker.life != seen.life:
            if seen.life:
                self._down(name, seen, now_s, is_certain=True)
            seen.life = worker.life
            self._up(name, seen, now_s)
        elif not seen.is_up:
            self._up(name, seen, now_s)

    def _down(
        self,
        name: str,
        seen: _Seen,
        now_s: float,
        *,
        is_certain: bool,
        ended_s: float | None = None,
    ) -> None:
        seen.is_up = False
        self.host.note("worker down", (name, "certain" if is_certain else "silent"))
        down = WorkerDown(name, is_certain, ended_s)
        for group in sorted(self.leaders):
            self._lead(group, down, now_s)
        self._allocate(down, now_s)

    def _up(self, name: str, seen: _Seen, now_s: float) -> None:
        seen.is_up = True
        self._allocate(WorkerUp(name), now_s)
        for group in sorted(self.leaders):
            self._lead(group, WorkerUp(name), now_s)

    # --- effects --------------------------------------------------------------------------

    def _lead(self, group: int, event: ev.LeaderEvent, now_s: float) -> None:
        leader = self.leaders.get(group)
        for effect in [] if leader is None else leader.handle(event, now_s=now_s):
            match effect:
                case ev.Propose(event=event):
                    self._propose(group, event)
                case ev.SendCommand(worker=worker, command=AcknowledgeResult() as command):
                    self.host.send(worker, command)
                case ev.SendCommand(worker=worker, command=command):
                    token = ("send", group, self.terms[group], command, self.host.world.now_s)
                    self.host.ask(worker, command, token, within_s=5.0)
                case ev.SendCoreRequest(request=request):
                    allocator = self.ledger.groups[ALLOCATION].leader
                    if allocator is not None:
                        self.host.ask(allocator, request, ("ask", group), within_s=1.0)
                case ev.SendRelease(release=release):
                    allocator = self.ledger.groups[ALLOCATION].leader
                    if allocator is not None:
                        self.host.send(allocator, release)
                case ev.AnswerProgress(token=handle, reply=reply):
                    self.host.answer(handle, reply)
                case ev.LogJobError(job=job, error=error):
                    self.host.world.fail(f"{job} failed in the leader: {error!r}")
                case ev.ConfirmLeadership(question=question):
                    self.ledger.confirm(self.host, group, self.terms[group], question)

    def _propose(self, group: int, event: Any) -> None:
        def failed() -> None:
            self._lead(group, ev.ProposalFailed(event), self.host.world.now_s)

        self.ledger.propose(self.host, group, self.terms[group], event, failed)

    def _allocate(self, event: AllocatorEvent, now_s: float) -> None:
        for effect in self.allocator.handle(event, now_s=now_s):
            match effect:
                case AnswerRequest(token=handle, reply=reply):
                    self.host.answer(handle, reply)
                case SendGrant(leader=leader, reply=reply):
                    self.host.send(leader, (self.setup.group_of(reply.request_id), reply))
