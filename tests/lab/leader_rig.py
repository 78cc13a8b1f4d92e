"""A leader, an allocator and a ledger that commits at once, on a clock the test moves.

Workers are simulated: each obeys its leader, and a test can make it refuse, fall silent or die.
Commands are kept by worker, so that tests can check them.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from hyperscale.jobs.allocator.core import Allocator
from hyperscale.jobs.allocator.events import (
    AllocatorEvent,
    BecameAllocator,
    CoresRequested,
)
from hyperscale.jobs.committed.events import Event, JobOptions, encode
from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.jobs.committed.state import Job, decode_job
from hyperscale.jobs.leader import events as ev
from hyperscale.jobs.leader.core import JobLeader
from hyperscale.jobs.leader.retries import RetryLimits
from hyperscale.jobs.leader.timeouts import LeaderTimeouts
from hyperscale.jobs.messages import (
    AcknowledgeResult,
    AnnounceCores,
    AnnounceReady,
    AttemptId,
    DeliverResult,
    GrantRows,
    HeldCores,
    ListAttempts,
    ListAttemptsReply,
    PartCommandReply,
    PartPhase,
    PartProgress,
    PartView,
    PreparePart,
    Refusal,
    RenewLeases,
    RenewLeasesReply,
    ReportProgress,
    ReportProgressReply,
    StartPart,
    StopPart,
)
from hyperscale.jobs.worker_events import WorkerDown, WorkerUp
from hyperscale.plan import WorkflowPlan
from hyperscale.plan.status import PartStatus
from hyperscale.sansio.core import Tick
from tests.lab.allocator_world import pass_cores_on
from tests.lab.job_builders import plan, report, submission


@dataclass
class Worker:
    """An obedient worker, as far as a leader sees it."""

    name: str
    total: int = 2
    is_up: bool = True
    is_silent: bool = False
    refusal: Refusal = Refusal.NONE
    readies: bool = True  # sends AnnounceReady as soon as it has prepared
    commands: dict[AttemptId, PreparePart] = field(default_factory=dict)
    phases: dict[AttemptId, PartPhase] = field(default_factory=dict)
    starts: dict[AttemptId, float] = field(default_factory=dict)
    stops: list[AttemptId] = field(default_factory=list)
    acks: list[AttemptId] = field(default_factory=list)
    renewals: int = 0
    renewed: list[AttemptId] = field(default_factory=list)  # attempts of the last renewal
    echoed: list[int] = field(default_factory=list)  # stamps of renewals and starts
    limits: list[int] = field(default_factory=list)  # of rows, as granted
    version: int = 0
    incarnation: int = 1

    def cores(self) -> AnnounceCores:
        self.version += 1
        held = [
            HeldCores(
                attempt_id=attempt_id,
                cores=c.cores,
                shared=c.shared,
                exclusive=c.exclusive,
                within_job=c.within_job,
            )
            for attempt_id, c in self.commands.items()
            if self.phases[attempt_id] is not PartPhase.FINISHED
        ]
        return AnnounceCores(
            worker=self.name,
            incarnation=self.incarnation,
            version=self.version,
            total=self.total,
            held=pass_cores_on(held),
        )

    def running(self) -> list[AttemptId]:
        return [each for each, phase in self.phases.items() if phase is PartPhase.RUNNING]

    def restart(self) -> None:
        self.incarnation += 1
        for kept in (self.commands, self.phases, self.starts):
            kept.clear()
        self.is_up = True


class Rig:
    def __init__(
        self,
        *,
        workers: int = 2,
        cores: int = 2,
        timeouts: LeaderTimeouts | None = None,
        retries: RetryLimits | None = None,
    ) -> None:
        self.now_s = 1000.0
        self.machine = JobMachine("dc1", 1)
        self.timeouts = timeouts
        self.retries = retries
        self.allocator = Allocator()
        self.workers = {f"w{i}": Worker(f"w{i}", cores) for i in range(workers)}
        self.term = 0
        self.index = 0
        self.events: list[Event] = []
        self.records: dict[str, Job] = {}
        self.commits = True
        self.silences: type | None = None  # kind of events or commands that get lost
        self.confirms = True
        self.ask_takes_s = 0.0  # how long each request for cores takes
        self.question = 0  # number of the last ConfirmLeadership
        self.expects_job_errors = False
        self.failed_jobs: list[str] = []  # jobs of LogJobError effects
        self.answered: ReportProgressReply | None = None
        self._work: deque[Any] = deque()
        self.allocate(BecameAllocator(tuple(self.workers)))
        for worker in self.workers.values():
            self.announce_cores(worker)
        self.now_s += 20.0  # the allocator has led for a while
        self.take_over()

    # --- actions of tests ---------------------------------------------------------------------

    def take_over(self) -> None:
        """Elect a new leader, which knows only committed state."""
        self.term += 1
        alive = [name for name, worker in self.workers.items() if worker.is_up]
        self.leader = JobLeader(
            1, f"m{self.term}", self.machine, timeouts=self.timeouts, retries=self.retries
        )
        self.feed(ev.BecameLeader(self.term, tuple(alive), self.now_ms))

    @property
    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def submit(
        self, *workflows: WorkflowPlan, key: str = "k", options: JobOptions | None = None
    ) -> str:
        job = self.commit(submission(key, plan(*workflows), options))
        self.run(0.5)
        return job

    def commit(self, event: Event) -> str:
        self._work.append(ev.Propose(event))
        return self._drain()

    def run(self, seconds: float, *, reports: bool = False) -> None:
        """Let time pass in steps; with `reports`, running parts report each half second."""
        until_s = self.now_s + seconds
        next_report_s = self.now_s + 0.5
        while self.now_s < until_s - 1e-9:
            self.now_s = min(until_s, self.now_s + 0.05)
            if reports and self.now_s >= next_report_s:
                next_report_s = self.now_s + 0.5
                for worker in self.workers.values():
                    self.report(worker.name)
            wake_at_s = self.leader.wake_at_s()
            if wake_at_s is not None and wake_at_s <= self.now_s:
                self.feed(Tick())
            wake_at_s = self.allocator.wake_at_s()
            if wake_at_s is not None and wake_at_s <= self.now_s:
                self.allocate(Tick())

    def job(self, job: str) -> Job:
        found = self.machine.job(job)
        assert found is not None
        return found

    def report(self, name: str, *, rate: int = 100) -> ReportProgressReply | None:
        worker = self.workers[name]
        running = worker.running()
        if not running or not worker.is_up or worker.is_silent:
            return None
        parts = []
        for attempt_id in running:
            elapsed_s = self.now_s - worker.starts[attempt_id]
            made = report(
                attempt_id.workflow,
                slot=worker.commands[attempt_id].first_slot,
                sequence=int(elapsed_s * 1000) + 1,
                elapsed_s=elapsed_s,
                total=int(rate * elapsed_s),
            )
            parts.append(PartProgress(attempt_id=attempt_id, report=made, elapsed_s=elapsed_s))
        self.answered = None
        self.feed(ev.ProgressReported(ReportProgress(worker=name, group=1, parts=parts)))
        return self.answered

    def finish(
        self,
        name: str,
        status: PartStatus = PartStatus.COMPLETED,
        *,
        total: int = 10,
        error: str | None = None,
        is_retryable: bool = False,
        unheard_s: float = 0.0,
        told_s: float = 0.0,
        provided: list[bytes] | None = None,
        workflow: str = "",
        set_up: bytes = b"",
    ) -> list[DeliverResult]:
        """End the attempts of a worker and deliver their results."""
        worker = self.workers[name]
        results = []
        for attempt_id, phase in list(worker.phases.items()):
            if phase is PartPhase.FINISHED or (workflow and attempt_id.workflow != workflow):
                continue
            worker.phases[attempt_id] = PartPhase.FINISHED
            elapsed_s = self.now_s - worker.starts.get(attempt_id, self.now_s) - unheard_s + told_s
            results.append(
                DeliverResult(
                    worker=name,
                    group=1,
                    attempt_id=attempt_id,
                    status=status,
                    report=report(
                        attempt_id.workflow,
                        slot=worker.commands[attempt_id].first_slot,
                        sequence=10**9,
                        elapsed_s=elapsed_s,
                        total=total,
                    ),
                    elapsed_s=elapsed_s,
                    error=error,
                    is_retryable=is_retryable,
                    unheard_s=unheard_s,
                    provided=provided or [],
                    set_up=set_up,
                )
            )
        for message in results:
            self.feed(ev.WorkerAnnounced(message))
        self.announce_cores(worker)
        return results

    def kill(self, name: str) -> None:
        self.workers[name].is_up = False
        self.feed(ev.WorkerDown(name, is_certain=True))
        self.allocate(WorkerDown(name))

    def revive(self, name: str) -> None:
        self.workers[name].restart()
        self.allocate(WorkerUp(name))
        self.announce_cores(self.workers[name])
        self.feed(ev.WorkerUp(name))

    def announce_cores(self, worker: Worker) -> None:
        self.allocate(worker.cores())

    def running(self) -> dict[str, list[AttemptId]]:
        return {name: worker.running() for name, worker in self.workers.items()}

    # --- events and effects -------------------------------------------------------------------

    def prepared(self) -> list[PreparePart]:
        """Return the PreparePart commands of all attempts on workers."""
        return [command for worker in self.workers.values() for command in worker.commands.values()]

    def kinds(self) -> list[str]:
        """Return the names of the committed events."""
        return [type(event).__name__ for event in self.events]

    def feed(self, event: ev.LeaderEvent) -> None:
        """Hand an event to the leader and perform what follows."""
        self.later(event)
        self._drain()

    def later(self, event: ev.LeaderEvent) -> None:
        """Hand an event to the leader; what follows is performed after what waits already."""
        self._work.extend(self.leader.handle(event, now_s=self.now_s))

    def allocate(self, event: AllocatorEvent) -> None:
        self._allocate(event)
        self._drain()

    def _allocate(self, event: AllocatorEvent) -> None:
        for effect in self.allocator.handle(event, now_s=self.now_s):
            self.later(ev.CoresAnswered(effect.reply))

    def _drain(self) -> str:
        last = ""
        while self._work:
            effect = self._work.popleft()
            if self.silences is not None and self.silences in map(type, _said(effect)):
                continue
            match effect:
                case ev.Propose(event=event):
                    last = self._propose(event) or last
                case ev.SendCommand(worker=name, command=command):
                    self._send(name, command)
                case ev.SendCoreRequest(request=request):
                    self.now_s += self.ask_takes_s
                    if self.ask_takes_s:
                        self._allocate(Tick())
                    self._allocate(CoresRequested(request))
                case ev.SendRelease(release=release):
                    self._allocate(release)
                case ev.AnswerProgress(reply=reply):
                    self.answered = reply
                case ev.LogJobError(job=job, error=error):
                    if not self.expects_job_errors:
                        raise error
                    self.failed_jobs.append(job)
                case ev.ConfirmLeadership(question=question):
                    self.question = question
                    if self.confirms:
                        self.later(ev.LeadershipConfirmed(question))
        return last

    def _propose(self, event: Event) -> str:
        if not self.commits:
            self.later(ev.ProposalFailed(event))
            return ""
        self.index += 1
        self.events.append(event)
        applied = self.machine.apply(self.index, self.now_ms, encode(event), unix_ms=self.now_ms)
        for job, kind, data in applied.history:
            if kind == "finished":
                self.records[job] = decode_job(data)
        reply = applied.reply
        self.later(ev.EventApplied(event, reply))
        return reply.job

    def _send(self, name: str, command: Any) -> None:
        worker = self.workers[name]
        if not worker.is_up or worker.is_silent:
            refused_s = None if worker.is_up else self.now_s
            self.later(ev.CommandAnswered(name, command, None, refused_s=refused_s))
            return
        answer = self._obey(worker, command)
        if answer is not None:
            self.later(ev.CommandAnswered(name, command, answer, rtt_s=0.002))
            self.announce_cores(worker)

    def _obey(self, worker: Worker, command: Any) -> Any:
        match command:
            case PreparePart(attempt_id=attempt_id):
                if worker.refusal is not Refusal.NONE:
                    return PartCommandReply(
                        attempt_id=attempt_id, accepted=False, refusal=worker.refusal, reason="no"
                    )
                worker.commands[attempt_id] = command
                worker.phases.setdefault(attempt_id, PartPhase.PREPARING)
                if worker.readies:
                    self.ready(worker.name)
                return self._answer(attempt_id, worker)
            case StartPart(attempt_id=attempt_id):
                if attempt_id not in worker.commands:
                    return PartCommandReply(
                        attempt_id=attempt_id,
                        accepted=False,
                        refusal=Refusal.UNKNOWN_ATTEMPT,
                        reason="unknown",
                    )
                worker.phases[attempt_id] = PartPhase.RUNNING
                worker.echoed.append(command.stamp_ms)
                worker.starts.setdefault(attempt_id, self.now_s + command.start_in_ms / 1000)
                return self._answer(attempt_id, worker)
            case GrantRows(attempt_id=attempt_id):
                worker.limits.append(command.limit)
                return self._answer(attempt_id, worker)
            case StopPart(attempt_id=attempt_id):
                worker.stops.append(attempt_id)
                if worker.phases.get(attempt_id) not in (None, PartPhase.FINISHED):
                    self._end(worker, attempt_id, command.reason)
                return self._answer(attempt_id, worker)
            case RenewLeases():
                worker.renewals += 1
                worker.renewed = command.attempts
                worker.echoed.append(command.stamp_ms)
                open_ = {r for r, p in worker.phases.items() if p is not PartPhase.FINISHED}
                return RenewLeasesReply(
                    accepted=True,
                    unknown=[each for each in command.attempts if each not in worker.commands],
                    unlisted=sorted(open_ - set(command.attempts), key=str),
                    stamp_ms=self.now_ms,
                )
            case ListAttempts():
                phases = worker.phases
                views = [PartView(attempt_id=each, phase=phases[each]) for each in worker.commands]
                return ListAttemptsReply(parts=views, stamp_ms=self.now_ms)
            case AcknowledgeResult(attempt_id=attempt_id):
                worker.acks.append(attempt_id)
                worker.commands.pop(attempt_id, None)
                worker.phases.pop(attempt_id, None)
                return None
        raise AssertionError(command)

    def _answer(self, attempt_id: AttemptId, worker: Worker) -> PartCommandReply:
        phase = worker.phases.get(attempt_id, PartPhase.UNKNOWN)
        return PartCommandReply(
            attempt_id=attempt_id, accepted=True, phase=phase, stamp_ms=self.now_ms
        )

    def _end(self, worker: Worker, attempt_id: AttemptId, reason: str) -> None:
        worker.phases[attempt_id] = PartPhase.FINISHED
        finished = DeliverResult(
            worker=worker.name,
            group=1,
            attempt_id=attempt_id,
            status=PartStatus.STOPPED,
            report=report(
                attempt_id.workflow, slot=worker.commands[attempt_id].first_slot, sequence=10**9
            ),
            error=reason,
        )
        self.later(ev.WorkerAnnounced(finished))

    def ready(self, name: str) -> None:
        """Announce the prepared attempts of a worker as ready."""
        worker = self.workers[name]
        for attempt_id, phase in list(worker.phases.items()):
            if phase is PartPhase.PREPARING:
                worker.phases[attempt_id] = PartPhase.READY
                message = AnnounceReady(
                    worker=name, group=1, attempt_id=attempt_id, stamp_ms=self.now_ms
                )
                self.later(ev.WorkerAnnounced(message))


def _said(effect: Any) -> tuple[Any, Any]:
    return getattr(effect, "event", None), getattr(effect, "command", None)
