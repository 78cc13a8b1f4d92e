"""The job leaders of one manager, each from its election to its end, and what jobs have printed."""

import time
from collections import deque
from collections.abc import Callable
from itertools import islice

from hyperscale.health.correlation import CorrelationGuard
from hyperscale.jobs.allocator.core import Allocator
from hyperscale.jobs.allocator.events import BecameAllocator, LostAllocator
from hyperscale.jobs.committed.events import Event, Reply
from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.jobs.leader.core import JobLeader
from hyperscale.jobs.leader.events import (
    BecameLeader,
    CoresAnswered,
    EventApplied,
    LeaderEvent,
    ProgressReported,
    WorkerAnnounced,
    WorkerAnnouncement,
    WorkersHeld,
)
from hyperscale.jobs.leader.retries import RetryLimits
from hyperscale.jobs.messages import (
    Backpressure,
    ForwardOutput,
    ReportProgress,
    ReportProgressReply,
    RequestCoresReply,
)
from hyperscale.jobs.worker_events import WorkerDown, WorkerUp
from hyperscale.ledger.core import MANAGEMENT
from hyperscale.ledger.replica import AppliedEntry
from hyperscale.ledger.server.ledger import Ledger
from hyperscale.ledger.server.tier_peers import TierPeers
from hyperscale.membership.events import LIVING, MemberChanged, MemberDied, MemberState
from hyperscale.membership.messages import ClaimedState
from hyperscale.nodes.jobs.allocator_driver import AllocatorDriver
from hyperscale.nodes.jobs.leader_driver import LeaderDriver
from hyperscale.nodes.member import MemberNode
from hyperscale.wire.admission import OverloadLevel
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.roles import Role

_HELD_S = 0.25
_FORGET_S = 5.0
LINES_MAX = 1_000
CHARACTERS_MAX = 64 * 1024 * 1024

_BACKPRESSURE = {
    OverloadLevel.HEALTHY: Backpressure.NONE,
    OverloadLevel.BUSY: Backpressure.THROTTLE,
    OverloadLevel.STRESSED: Backpressure.BATCH,
    OverloadLevel.OVERLOADED: Backpressure.REJECT,
}


class Output:
    """The last lines that user code of one job printed, and how many it printed in all."""

    def __init__(self) -> None:
        self.lines: deque[ForwardOutput] = deque()
        self.total = 0

    def since(self, seen: int) -> tuple[list[ForwardOutput], int]:
        """Return the kept lines after the first `seen`, and how many lines precede them."""
        first = max(seen, self.total - len(self.lines))
        return list(islice(self.lines, len(self.lines) - (self.total - first), None)), first


class Outputs:
    """The output of all jobs, in memory: bounded per job and in all, the oldest is dropped."""

    def __init__(self) -> None:
        self._by_job: dict[str, Output] = {}  # the job that printed last is last
        self._characters = 0

    def get(self, job: str) -> Output | None:
        return self._by_job.get(job)

    def add(self, line: ForwardOutput) -> None:
        output = self._by_job.pop(line.attempt_id.job, None) or Output()
        self._by_job[line.attempt_id.job] = output
        output.lines.append(line)
        output.total += 1
        self._characters += len(line.text)
        if len(output.lines) > LINES_MAX:
            self._drop_line(output)
        for other in self._by_job.values():
            while other.lines and self._characters > CHARACTERS_MAX:
                self._drop_line(other)
            if self._characters <= CHARACTERS_MAX:
                break

    def keep(self, is_known: Callable[[str], bool]) -> None:
        """Drop the output of every job that is not known any more."""
        for job in [job for job in self._by_job if not is_known(job)]:
            output = self._by_job.pop(job)
            while output.lines:
                self._drop_line(output)

    def _drop_line(self, output: Output) -> None:
        self._characters -= len(output.lines.popleft().text)


class JobLeaders:
    """The leaders of all groups that this node leads. It exists once the node has a ledger."""

    def __init__(
        self, member: MemberNode, ledger: Ledger, peers: TierPeers, allocator: Allocator
    ) -> None:
        self.ledger = ledger
        self.output = Outputs()
        self._member = member
        self._peers = peers
        self._drivers: dict[int, LeaderDriver] = {}
        self._guard = CorrelationGuard()
        self._held: frozenset[str] = frozenset()
        limits = member.config.retries
        self._retries = RetryLimits(max=limits.max, window_s=limits.window_s)
        self.allocator = AllocatorDriver(
            allocator,
            node=member.node_id,
            ledger=ledger,
            peers=peers,
            tasks=member.tasks,
            on_grant=self._granted,
        )
        ledger.hooks.leading.append(self._became_leader)
        ledger.hooks.following.append(self._lost_leadership)
        ledger.hooks.applied.append(self._applied)
        member.tasks.spawn_every(_HELD_S, self.update_held, "jobs:silence")
        member.tasks.spawn_every(_FORGET_S, self.forget_ended, "jobs:forget")

    def stop(self) -> None:
        self.allocator.stop()
        for driver in self._drivers.values():
            driver.stop()

    def leader(self, group: int) -> JobLeader | None:
        """Return the leader of a group, if this node leads it."""
        driver = self._drivers.get(group)
        return None if driver is None else driver.leader

    def led(self) -> list[int]:
        """Return the groups of jobs that this node leads."""
        return list(self._drivers)

    def led_jobs(self) -> list[tuple[JobMachine, JobLeader]]:
        """Return the state and the leader of every group of jobs that this node leads."""
        led = [(self.led_machine(group), driver.leader) for group, driver in self._drivers.items()]
        return [(machine, leader) for machine, leader in led if machine is not None]

    def led_machine(self, group: int) -> JobMachine | None:
        """Return the state of a group's jobs, if this node leads the group."""
        machine = self.ledger.machine(group) if group in self._drivers else None
        return machine if isinstance(machine, JobMachine) else None

    def bundles(self) -> set[str]:
        """Return the bundles of the jobs this node has a replica of."""
        return {job.bundle for machine in self._machines() for job in machine.jobs()}

    def secrets(self) -> set[str]:
        """Return the ids of secret parameters of the jobs here that have not ended."""
        jobs = (job for machine in self._machines() for job in machine.jobs())
        return {job.options.secrets for job in jobs if job.options.secrets}

    def _machines(self) -> list[JobMachine]:
        found = [self.ledger.machine(group) for group in self.ledger.topology.groups]
        return [machine for machine in found if isinstance(machine, JobMachine)]

    # -- leadership -------------------------------------------------------------------------

    def _workers(self) -> tuple[str, ...]:
        return tuple(
            member.node
            for member in self._member.members()
            if member.role is Role.WORKER and member.state in LIVING
        )

    def _became_leader(self, group: int, term: int) -> None:
        if group == MANAGEMENT:
            self.allocator.feed(BecameAllocator(self._workers()))
            return
        machine = self.ledger.machine(group)
        assert isinstance(machine, JobMachine)
        self._lost_leadership(group)  # of an earlier term
        driver = self._drivers[group] = LeaderDriver(
            group,
            JobLeader(group, self._member.node_id, machine, retries=self._retries),
            ledger=self.ledger,
            peers=self._peers,
            allocator=self.allocator,
            tasks=self._member.tasks,
        )
        time_ms, is_estimate = self.ledger.time_ms(group), self.ledger.is_time_estimate(group)
        driver.feed(BecameLeader(term, self._workers(), time_ms, is_estimate))
        driver.feed(WorkersHeld(self._held))

    def _lost_leadership(self, group: int) -> None:
        if group == MANAGEMENT:
            self.allocator.feed(LostAllocator())
        elif (driver := self._drivers.pop(group, None)) is not None:
            driver.stop()

    def _applied(self, entry: AppliedEntry) -> None:
        driver = self._drivers.get(entry.group)
        event, reply = entry.event, entry.reply
        if driver is not None and isinstance(event, Event) and isinstance(reply, Reply):
            driver.feed(EventApplied(event, reply))

    def _granted(self, reply: RequestCoresReply) -> None:
        driver = self._drivers.get(reply.group)
        if driver is not None:
            driver.feed(CoresAnswered(reply))

    # -- messages of workers ----------------------------------------------------------------

    def announced(self, _call: InboundCall, message: WorkerAnnouncement) -> None:
        driver = self._drivers.get(self._answering_group(message.group))
        if driver is not None:
            driver.feed(WorkerAnnounced(message))

    def progress(self, call: InboundCall, progress: ReportProgress) -> ReportProgressReply | None:
        group = self._answering_group(progress.group)
        driver = self._drivers.get(group)
        if driver is None:
            return ReportProgressReply(leader=self.ledger.leader_of(group))
        # A busy CPU that keeps up with its messages is no reason to get fewer of them.
        backpressure = _BACKPRESSURE[self._member.load_monitor.detector.backlog]
        driver.feed(ProgressReported(progress, call, backpressure))
        return None

    def _answering_group(self, group: int) -> int:
        """Return the group, or its heir if it was destroyed after its jobs had ended."""
        return group if group in self._drivers else self.ledger.topology.heir_of(group)

    # -- membership -------------------------------------------------------------------------

    def member_changed(self, change: MemberChanged | MemberDied) -> None:
        member = change.member
        if member.role is not Role.WORKER:
            return
        worker = member.node
        if isinstance(change, MemberDied):
            is_certain = change.evidence is ClaimedState.REFUSED
            self._guard.failed(worker, is_certain=is_certain, now_s=time.monotonic())
            self._feed_all(self._down(worker, is_certain=is_certain))
        elif member.state is MemberState.LEFT:
            self._guard.recovered(worker)  # leaving is no failure
            self._feed_all(self._down(worker, is_certain=True))
        elif member.state is MemberState.ALIVE and change.before not in LIVING:
            self._guard.recovered(worker)
            if (link := self._peers.link(worker)) is not None:
                link.dial_now()
            self._feed_all(WorkerUp(worker))
        self.update_held()

    def _down(self, worker: str, *, is_certain: bool) -> WorkerDown:
        link = self._peers.link(worker)
        return WorkerDown(worker, is_certain, None if link is None else link.refused_s)

    def _feed_all(self, event: WorkerUp | WorkerDown) -> None:
        self.allocator.feed(event)
        self._feed_leaders(event)

    def _feed_leaders(self, event: LeaderEvent) -> None:
        for driver in list(self._drivers.values()):
            driver.feed(event)

    # -- time -------------------------------------------------------------------------------

    def update_held(self) -> frozenset[str]:
        """Feed the leaders which silent workers are held: the network may be the cause."""
        now_s = time.monotonic()
        suspects = self._guard.suspects(now_s=now_s)
        nodes = len({*self._workers(), *suspects}) if suspects else 0  # the dead were there too
        held = frozenset(
            worker for worker in suspects if self._guard.is_held(worker, nodes=nodes, now_s=now_s)
        )
        if held != self._held:
            self._held = held
            self._feed_leaders(WorkersHeld(held))
        return held

    def forget_ended(self) -> None:
        """Drop the output of jobs that no replica of this node has any more."""
        machines = self._machines()
        self.output.keep(lambda job: any(machine.job(job) is not None for machine in machines))
