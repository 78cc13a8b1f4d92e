"""A datacenter as the gates see it: one address, behind it committed state and running load.

What it committed survives a crash of the process that answers, and its load goes on meanwhile: that
is what the ledger and the leases of a datacenter are for, and they are tested elsewhere.
"""

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hyperscale.gates.datacenters.health import DatacenterFigures
from hyperscale.gates.messages import (
    AssignJob,
    AssignmentAnswer,
    AssignmentCommand,
    AssignmentReply,
    CancelAssignment,
    ChangeAssignment,
    DeliverAssignmentResult,
    ReportAssignment,
    StartAssignment,
)
from hyperscale.gates.reporter import (
    AssignmentEnded,
    AssignmentUpdated,
    GateAnswered,
    GateReporter,
    GatesKnown,
    ReporterEvent,
    ResultSettled,
    SendToGate,
    StopAssignment,
)
from hyperscale.jobs.committed.events import JobStatus, payload_digest
from hyperscale.plan.changes import ChangeKind, LoadChange
from hyperscale.sansio.core import Tick
from tests.simulation import network

if TYPE_CHECKING:
    from tests.simulation.gates.schedules import Setup
    from tests.simulation.kernel import Host

RATE = 10  # requests of a user in a second
_COMMIT_S = 0.05


def encode_requests(requests: int) -> bytes:
    return struct.pack(">q", requests)


def decode_requests(result: bytes) -> int:
    """Return the requests of a result; of several, if a fault of the gates kept several."""
    return sum(each[0] for each in struct.iter_unpack(">q", result))


def digest_of(command: AssignJob) -> str:
    """Return what a datacenter compares the assignments of one job by."""
    return payload_digest(command.plan, command.bundle, command.options)


@dataclass
class LocalJob:
    """A datacenter's part of a global job, as committed there."""

    command: AssignJob
    queued_until_s: float
    ready_s: float
    deadline_s: float
    will_fail: bool
    vus: int
    started_s: float | None = None  # when the load begins
    ended_s: float = 0.0
    cancel: CancelAssignment | None = None
    ended_as: JobStatus | None = None
    reason: str = ""
    requests: int = 0
    is_settled: bool = False  # the gates have the result
    changes: list[LoadChange] = field(default_factory=list)
    is_paused: bool = False
    place_s: float = 0.0  # how much of its duration is over
    user_s: float = 0.0
    _until_s: float = 0.0  # up to when the load is accounted for

    @property
    def job(self) -> str:
        return self.command.job

    @property
    def duration_s(self) -> float:
        return sum(each.duration_s for each in self.command.plan.workflows)

    @property
    def ends_s(self) -> float | None:
        """When its load is over, as things are."""
        if self.started_s is None or self.is_paused:
            return None
        return max(self._until_s, self.started_s) + self.duration_s - self.place_s

    def advance(self, now_s: float) -> None:
        """Account for the load up to now."""
        elapsed_s = now_s - self._until_s
        if self.is_paused:
            self.deadline_s += elapsed_s
        elif self.started_s is not None:
            ran_s = max(0.0, now_s - max(self._until_s, self.started_s))
            ran_s = min(ran_s, self.duration_s - self.place_s)
            self.place_s += ran_s
            self.user_s += ran_s * self.vus
        self._until_s = now_s

    def change(self, change: LoadChange, now_s: float) -> None:
        """Take a change, unless it is known."""
        if any(each.id == change.id for each in self.changes):
            return
        self.advance(now_s)
        self.changes.append(change)
        if change.kind is ChangeKind.SCALE:
            self.vus = change.vus or 0
        else:
            self.is_paused = change.kind is ChangeKind.PAUSE


@dataclass
class Datacenter:
    """What a datacenter has committed."""

    name: str
    jobs: dict[str, LocalJob] = field(default_factory=dict)
    never: dict[str, AssignmentAnswer] = field(default_factory=dict)  # refused or cancelled keys


class DatacenterProgram:
    def __init__(self, host: "Host", setup: "Setup") -> None:
        self.host = host
        self.setup = setup
        self.committed = setup.datacenters[host.address]
        self.reporter = GateReporter()

    def start(self, now_s: float) -> None:
        self._report(GatesKnown(tuple(self.setup.plan.gates)), now_s)
        for job in self.committed.jobs.values():
            self._update(job, now_s)

    def datagram(self, source: str, payload: Any, now_s: float) -> None:
        busy = sum(job.ended_as is None for job in self.committed.jobs.values())
        cores = self.setup.plan.datacenters[self.host.address]
        figures = DatacenterFigures(
            managers=3,
            healthy_managers=3,
            workers=2,
            healthy_workers=2,
            total_cores=cores,
            available_cores=max(0, cores - busy),
        )
        self.host.send(source, (payload, figures))

    def stream(self, event: Any, now_s: float) -> None:
        match event:
            case network.Asked(message=message, handle=handle):
                self._command(message, handle)
            case network.Answered(token=("report", report), source=gate, message=reply):
                is_result = isinstance(report, DeliverAssignmentResult)
                if is_result and self.host.world.rng.random() < self.setup.plan.lost_acks:
                    reply = None
                self._report(GateAnswered(gate, report, reply), now_s)
            case network.Failed(token=("report", report), source=gate):
                self._report(GateAnswered(gate, report, None), now_s)

    def disk(self, token: Any, now_s: float) -> None: ...

    def wake(self, now_s: float) -> None:
        for job in self.committed.jobs.values():
            self._run(job, now_s)
        self._report(Tick(), now_s)

    def wake_at_s(self) -> float | None:
        times = [self.reporter.wake_at_s()]
        for job in self.committed.jobs.values():
            if job.ended_as is None:
                times += [self._next_s(job), job.deadline_s]
        return min((at_s for at_s in times if at_s is not None), default=None)

    # --- commands -------------------------------------------------------------------------

    def _command(self, command: AssignmentCommand, handle: Any) -> None:
        """Answer a command once it is committed, if the process lives so long."""
        host, rng = self.host, self.host.world.rng
        life = host.life
        is_late = rng.random() < self.setup.plan.slow

        def committed() -> None:
            if host.program is self and host.life == life:
                reply = self._commit(command, host.world.now_s)
                host.note("COMMIT", f"{type(command).__name__} {command.job} {reply.answer.value}")
                host.answer(handle, reply)
                host.settle()

        host.world.after(_COMMIT_S * rng.random() + (8.0 if is_late else 0.0), committed)

    def _commit(self, command: AssignmentCommand, now_s: float) -> AssignmentReply:
        known = self.committed.jobs.get(command.job)
        if known is None:
            return self._commit_new(command, now_s)
        digest = self.setup.digest
        if isinstance(command, AssignJob) and digest(command) != digest(known.command):
            reason = "its key was used for another submission"
            return AssignmentReply(answer=AssignmentAnswer.REFUSED, reason=reason)
        if isinstance(command, StartAssignment) and known.started_s is None:
            known.advance(now_s)
            known.started_s = now_s + command.start_in_ms / 1000
            known.place_s = min(command.elapsed_s, known.duration_s)
            if known.ended_as is None and known.cancel is None:
                self.setup.target.begin(self.host.address, known)
        elif isinstance(command, CancelAssignment) and known.cancel is None:
            known.cancel = command
        elif isinstance(command, ChangeAssignment) and known.ended_as is None:
            for change in command.changes:
                known.change(change, now_s)
        self._run(known, now_s)
        self._update(known, now_s)
        return AssignmentReply(answer=AssignmentAnswer.OK, local_job=f"local-{command.job}")

    def _commit_new(self, command: AssignmentCommand, now_s: float) -> AssignmentReply:
        never = self.committed.never
        rng, plan = self.host.world.rng, self.setup.plan
        if isinstance(command, CancelAssignment):
            never.setdefault(command.job, AssignmentAnswer.NEVER_RAN)
        if command.job in never:
            return AssignmentReply(answer=never[command.job], reason="it will never run here")
        if not isinstance(command, AssignJob) or rng.random() < plan.retries:
            return AssignmentReply(answer=AssignmentAnswer.RETRY, reason="not now")
        if rng.random() < plan.refusals:
            # Committed: the same command may still be on its way, and must not run it after all.
            never[command.job] = AssignmentAnswer.REFUSED
            return AssignmentReply(answer=AssignmentAnswer.REFUSED, reason="no room")
        waits_s = rng.choice((4.0, 15.0, 40.0)) if rng.random() < plan.queues else 0.0
        prepares_s = 2.0 * rng.random() + (8.0 if rng.random() < plan.unready else 0.0)
        job = LocalJob(
            command,
            queued_until_s=now_s + waits_s,
            ready_s=now_s + waits_s + prepares_s,
            deadline_s=now_s + (command.options.timeout_s or 0.0),
            will_fail=rng.random() < plan.failures,
            vus=sum(each.vus for each in command.plan.workflows),
            _until_s=now_s,
        )
        self.committed.jobs[command.job] = job
        self.setup.target.accepted(self.host.address, job)
        self._update(job, now_s)
        return AssignmentReply(answer=AssignmentAnswer.OK, local_job=f"local-{command.job}")

    # --- the load -------------------------------------------------------------------------

    def _next_s(self, job: LocalJob) -> float | None:
        if job.started_s is not None:
            return job.ends_s
        times = (job.queued_until_s, job.ready_s)
        return min((at_s for at_s in times if at_s > self.host.world.now_s), default=None)

    def _run(self, job: LocalJob, now_s: float) -> None:
        if job.ended_as is not None:
            return
        ends_s = job.ends_s
        job.advance(now_s)
        if ends_s is not None and now_s >= ends_s:
            status = JobStatus.FAILED if job.will_fail else JobStatus.COMPLETED
            self._end(job, status, now_s)
        elif job.cancel is not None:
            self._end(job, job.cancel.status, now_s)
        elif now_s >= job.deadline_s:
            self._end(job, JobStatus.TIMEOUT, now_s)
        elif now_s >= job.queued_until_s:
            self._update(job, now_s)

    def _end(self, job: LocalJob, status: JobStatus, now_s: float) -> None:
        job.ended_as, job.ended_s, job.requests = status, now_s, int(job.user_s * RATE)
        job.reason = "" if status is JobStatus.COMPLETED else status.value
        self._update(job, now_s)

    # --- reports --------------------------------------------------------------------------

    def _update(self, job: LocalJob, now_s: float) -> None:
        if job.is_settled:
            return
        name = self.host.address
        if job.ended_as is not None:
            result = DeliverAssignmentResult(
                job=job.job,
                datacenter=name,
                status=job.ended_as,
                reason=job.reason,
                result=encode_requests(job.requests),
            )
            self._report(AssignmentEnded(result), now_s)
            return
        status = JobStatus.DISPATCHING if job.started_s is None else JobStatus.RUNNING
        report = ReportAssignment(
            job=job.job,
            datacenter=name,
            status=status,
            is_ready=now_s >= job.ready_s,
            is_queued=now_s < job.queued_until_s,
            running_s=0.0 if job.started_s is None else max(0.0, now_s - job.started_s),
        )
        self._report(AssignmentUpdated(report), now_s)

    def _report(self, event: ReporterEvent, now_s: float) -> None:
        for effect in self.reporter.handle(event, now_s=now_s):
            match effect:
                case SendToGate(gate=gate, report=report):
                    self.host.ask(gate, report, ("report", report), within_s=5.0)
                case ResultSettled(job=job):
                    self.committed.jobs[job].is_settled = True
                case StopAssignment(job=job):
                    self._stop(self.committed.jobs[job], now_s)

    def _stop(self, job: LocalJob, now_s: float) -> None:
        if job.cancel is None:
            reason = "the gates go on without this datacenter"
            job.cancel = CancelAssignment(job=job.job, group=0, term=0, reason=reason)
            self._run(job, now_s)
