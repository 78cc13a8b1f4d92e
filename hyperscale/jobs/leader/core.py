"""The leader of a group's jobs: a core that decides, from committed state and what workers say.

Nothing is sent to a worker before the event that justifies it is committed, and no lease is granted
or renewed before a majority has confirmed that this node leads (`leases`). A leader that takes over
knows the machine's state and nothing else: it asks every worker what it runs, renews the leases of
what belongs there, has the rest stopped, and gives up attempts that their workers do not know.
"""

from collections.abc import Callable
from typing import Any, ClassVar

from hyperscale.jobs.committed.events import (
    AttemptRevoked,
    Checkpointed,
    JobFinished,
    JobStatus,
    JobSubmitted,
    PartEnded,
    PartRedispatched,
    WorkflowDispatched,
)
from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.jobs.committed.state import Job, JobView, view_of
from hyperscale.jobs.leader.attempts import AttemptPhase
from hyperscale.jobs.leader.core_requests import (
    request_for_attempt,
    request_for_workflow,
)
from hyperscale.jobs.leader.events import (
    AnswerProgress,
    BecameLeader,
    CommandAnswered,
    CoresAnswered,
    EventApplied,
    LeaderEffect,
    LeaderEvent,
    LeadershipConfirmed,
    LogJobError,
    LostLeadership,
    ProgressReported,
    ProposalFailed,
    WorkerAnnounced,
    WorkersHeld,
)
from hyperscale.jobs.leader.leases import LeaseRenewal
from hyperscale.jobs.leader.lifecycle import AttemptLifecycle
from hyperscale.jobs.leader.reconcile import Reconciler
from hyperscale.jobs.leader.replies import WorkerReplies
from hyperscale.jobs.leader.tables import LeaderTables
from hyperscale.jobs.leader.timeouts import LeaderTimeouts
from hyperscale.jobs.leader.views import job_row, live_view
from hyperscale.jobs.leader.worker_liveness import WorkerState
from hyperscale.jobs.messages import (
    AnnounceReady,
    AttemptId,
    DeliverResult,
    PartProgress,
    ReportProgressReply,
    RequestState,
)
from hyperscale.jobs.worker_events import WorkerDown, WorkerUp
from hyperscale.sansio.core import Tick
from hyperscale.stats.view import RunView

_ATTEMPTS_FEW = 64
"""With more attempts, jobs are not reconciled for each message but a moment later, together."""
_ATTEMPTS_MANY = 1_000
_SOON_S = 0.02


class JobLeader:
    """All jobs of one group, while this node leads it."""

    make_tables: ClassVar[type[LeaderTables]] = LeaderTables
    make_leases: ClassVar[type[LeaseRenewal]] = LeaseRenewal

    def __init__(
        self,
        group: int,
        node: str,
        machine: JobMachine,
        *,
        timeouts: LeaderTimeouts | None = None,
    ) -> None:
        self.tables = self.make_tables(group, node, timeouts or LeaderTimeouts())
        self._machine = machine
        self._lifecycle = AttemptLifecycle(self.tables)
        self._leases = self.make_leases(self.tables)
        self._replies = WorkerReplies(self.tables, machine, self._lifecycle, self._leases)
        self._reconciler = Reconciler(self.tables, self._lifecycle)
        self._is_leading = False
        self._reconcile_all_at_s: float | None = None
        self._contact_at_s: float | None = None
        self._soon_at_s: float | None = None  # when touched jobs are reconciled
        self._failed_jobs: set[str] = set()  # jobs that ran into a bug, which was logged
        self._handlers: dict[type, Callable[[Any, float], list[LeaderEffect]]] = {
            EventApplied: self._event_applied,
            ProposalFailed: self._proposal_failed,
            WorkerUp: self._worker_up,
            WorkerDown: self._worker_down,
            WorkersHeld: self._workers_held,
            CommandAnswered: self._command_answered,
            WorkerAnnounced: self._worker_announced,
            ProgressReported: self._progress_reported,
            CoresAnswered: self._cores_answered,
            LeadershipConfirmed: self._leadership_confirmed,
            Tick: self._tick,
        }

    def handle(self, event: LeaderEvent, *, now_s: float) -> list[LeaderEffect]:
        if isinstance(event, BecameLeader):
            return self._begin(event, now_s)
        if not self._is_leading:
            return []
        if isinstance(event, LostLeadership):
            self._end()
            return []
        effects = self._handlers[type(event)](event, now_s)
        if self.tables.touched:
            effects += self._reconcile_touched(now_s)
        if isinstance(event, LeadershipConfirmed):
            effects += self._leases.ask_again(now_s=now_s)
        return effects

    def wake_at_s(self) -> float | None:
        wake_at_s = self._reconcile_all_at_s
        # Written out: this is asked for after every message.
        for at_s in (self._contact_at_s, self._soon_at_s):
            if at_s is not None and (wake_at_s is None or at_s < wake_at_s):
                wake_at_s = at_s
        return wake_at_s

    # --- leadership -------------------------------------------------------------------------

    @property
    def is_leading(self) -> bool:
        return self._is_leading

    @property
    def term(self) -> int:
        return self.tables.term

    def _begin(self, event: BecameLeader, now_s: float) -> list[LeaderEffect]:
        self._is_leading = True
        self.tables.begin(event, now_s=now_s)
        self._leases.clear()
        self._failed_jobs.clear()
        self._soon_at_s = None
        self._look_now(now_s)
        effects: list[LeaderEffect] = []
        for job in list(self._machine.jobs()):
            effects += self._adopt(job, now_s)
        effects += self._leases.contact(now_s=now_s)
        for job in list(self._machine.jobs()):
            effects += self._reconcile(job, now_s)
        return effects

    def _end(self) -> None:
        self._is_leading = False
        self._reconcile_all_at_s = self._contact_at_s = self._soon_at_s = None
        self.tables.clear()
        self._leases.clear()

    # --- the ledger -------------------------------------------------------------------------

    def _event_applied(self, applied: EventApplied, now_s: float) -> list[LeaderEffect]:
        event, reply = applied.event, applied.reply
        self.tables.proposals.applied(event)
        job = self._machine.job(reply.job if isinstance(event, JobSubmitted) else event.job)
        if job is None:
            return []
        effects: list[LeaderEffect] = []
        match event:
            case JobSubmitted() if reply.ok and not reply.was_duplicate:
                self.tables.job(job, now_s=now_s)
            case WorkflowDispatched() if reply.ok:
                for part in range(len(event.parts)):
                    self._lifecycle.open(
                        AttemptId(job.id, event.workflow, part, 1), job, now_s=now_s
                    )
                self.tables.requests.drop(request_for_workflow(job.id, event.workflow))
            case PartRedispatched() if reply.ok:
                attempt_id = AttemptId(job.id, event.workflow, event.part, event.attempt)
                self._lifecycle.open(attempt_id, job, now_s=now_s)
            case AttemptRevoked() | PartEnded():
                attempt_id = AttemptId(event.job, event.workflow, event.part, event.attempt)
                effects += self._lifecycle.close(attempt_id, job, event, now_s=now_s)
            case Checkpointed():
                return []  # it changes nothing that a job needs
        if job.has_ended:
            return effects + self._reconcile(job, now_s)
        self.tables.touched.add(job.id)
        return effects

    def _proposal_failed(self, failed: ProposalFailed, now_s: float) -> list[LeaderEffect]:
        self.tables.proposals.failed(failed.event, now_s=now_s)
        return []

    # --- workers ----------------------------------------------------------------------------

    def _worker_up(self, up: WorkerUp, now_s: float) -> list[LeaderEffect]:
        workers = self.tables.workers
        if workers.get(up.worker, now_s=now_s).is_gone:
            workers.replace(up.worker, WorkerState.UP, now_s=now_s)
        else:
            workers.get(up.worker, now_s=now_s).become(WorkerState.UP)
        self.tables.returned.add(up.worker)
        return self._leases.contact(now_s=now_s)

    def _worker_down(self, down: WorkerDown, now_s: float) -> list[LeaderEffect]:
        tables = self.tables
        worker = tables.workers.get(down.worker, now_s=now_s)
        tables.returned.discard(down.worker)
        if not down.is_certain:
            if worker.state is WorkerState.UP:
                worker.become(WorkerState.SILENT)
            return []
        attempts = tables.attempts.of_worker(down.worker)
        # An attempt that was accepted just now may run in the process that replaced this one: the
        # worker is asked.
        recent_s = now_s - tables.timeouts.evidence_s
        recent = {
            attempt.id
            for attempt in attempts
            if not attempt.was_accepted or attempt.taken_by_worker_s() > recent_s
        }
        if not worker.is_gone:
            worker.failed(is_doubtful=bool(recent), ended_s=down.ended_s, now_s=now_s)
        effects: list[LeaderEffect] = []
        for attempt in attempts:
            if attempt.id in recent:
                is_known = attempt.phase is not AttemptPhase.DISPATCHED
                attempt.is_inherited = attempt.is_inherited or is_known
                continue
            effects += self._lifecycle.lose(
                attempt,
                f"worker {down.worker} died",
                costs_retry=attempt.was_accepted,
                over_s=worker.ended_s,
                now_s=now_s,
            )
        return effects + self._leases.contact(now_s=now_s)

    def _workers_held(self, held: WorkersHeld, _now_s: float) -> list[LeaderEffect]:
        for name, worker in self.tables.workers.all().items():
            worker.is_held = name in held.workers
        return []

    def _command_answered(self, event: CommandAnswered, now_s: float) -> list[LeaderEffect]:
        workers = self.tables.workers
        if event.reply is None:
            if workers.unanswered(event.worker, refused_s=event.refused_s, now_s=now_s):
                self._look_now(now_s)
            return []
        if event.rtt_s is not None:
            workers.measured(event.worker, event.rtt_s, now_s=now_s)
        worker = workers.get(event.worker, now_s=now_s)
        silent_s = now_s - worker.heard_s
        workers.heard(event.worker, event.reply.stamp_ms, now_s=now_s)
        if silent_s > 2 * self.tables.timeouts.renew_s:
            # What it was sent meanwhile has echoed an old stamp: its leases are short.
            worker.renewed_s = None
            self._look_now(now_s)
        return self._replies.take(event, now_s=now_s)

    def _worker_announced(self, event: WorkerAnnounced, now_s: float) -> list[LeaderEffect]:
        """Take news that a worker sent by itself. It stops repeating what is acknowledged."""
        tables, message = self.tables, event.message
        attempt = tables.attempts.on(message.worker, message.attempt_id)
        if attempt is None:
            if isinstance(message, AnnounceReady):
                return [tables.stop(message.worker, message.attempt_id)]
            return [tables.acknowledge(message.worker, message.attempt_id)]
        tables.touched.add(message.attempt_id.job)
        if isinstance(message, AnnounceReady):
            tables.workers.heard(message.worker, message.stamp_ms, now_s=now_s)
            if attempt.phase in (AttemptPhase.DISPATCHED, AttemptPhase.PREPARING):
                self._lifecycle.accept(attempt, AttemptPhase.READY, now_s=now_s)
            if tables.workers.has_lease_time(message.worker, now_s=now_s):
                return []
            return self._leases.confirm([], now_s=now_s)
        job = self._machine.job(message.attempt_id.job)
        if isinstance(message, DeliverResult) and message.report is not None and job is not None:
            final = PartProgress(
                attempt_id=attempt.id, report=message.report, elapsed_s=message.elapsed_s
            )
            self._lifecycle.report(attempt, job, final, now_s=now_s)
        attempt.end(message)
        return []

    def _progress_reported(self, event: ProgressReported, now_s: float) -> list[LeaderEffect]:
        tables, progress = self.tables, event.progress
        worker = tables.workers.get(progress.worker, now_s=now_s)
        worker.cpu, worker.memory = progress.cpu, progress.memory
        effects: list[LeaderEffect] = []
        extended_s: dict[str, float] = {}
        for part in progress.parts:
            attempt = tables.attempts.on(progress.worker, part.attempt_id)
            job = self._machine.job(part.attempt_id.job)
            if attempt is None or job is None:
                effects.append(tables.stop(progress.worker, part.attempt_id))
                continue
            if attempt.phase is AttemptPhase.LOST:
                continue  # it is stopped once its revocation is committed
            self._lifecycle.report(attempt, job, part, now_s=now_s)
            attempt.is_saturated = part.attempt_id in progress.saturated
            if part.extension:
                granted_s = attempt.activity.extend(now_s=now_s)
                if granted_s:
                    extended_s[f"{part.attempt_id.workflow}/{part.attempt_id.part}"] = granted_s
        reply = ReportProgressReply(backpressure=event.backpressure, extended_s=extended_s)
        return [*effects, AnswerProgress(event.token, reply)]

    # --- the allocator ----------------------------------------------------------------------

    def _cores_answered(self, event: CoresAnswered, now_s: float) -> list[LeaderEffect]:
        reply = event.reply
        request = self.tables.requests.get(reply.request_id)
        if request is not None:
            request.take(reply, now_s=now_s)
            self.tables.touched.add(request.job)
        elif reply.state is RequestState.GRANTED and not self._is_used(reply.request_id):
            return [self.tables.release(reply.request_id)]
        return []

    def _is_used(self, request: str) -> bool:
        """Whether an open attempt runs on the cores of this request's grant."""
        return any(
            request
            in (
                request_for_attempt(attempt.id),
                request_for_workflow(attempt.id.job, attempt.id.workflow),
            )
            for attempt in self.tables.attempts
        )

    # --- time -------------------------------------------------------------------------------

    def _leadership_confirmed(self, event: LeadershipConfirmed, now_s: float) -> list[LeaderEffect]:
        return self._leases.confirmed(event.question, now_s=now_s)

    def _tick(self, _tick: Tick, now_s: float) -> list[LeaderEffect]:
        self.tables.workers.awake(now_s=now_s)
        effects: list[LeaderEffect] = []
        often_s = self.tables.timeouts.renew_s / 4
        if self._contact_at_s is not None and now_s >= self._contact_at_s:
            self._contact_at_s = now_s + often_s
            effects += self._leases.contact(now_s=now_s)
        if self._reconcile_all_at_s is not None and now_s >= self._reconcile_all_at_s:
            is_large = len(self.tables.attempts) > _ATTEMPTS_MANY
            self._reconcile_all_at_s = now_s + often_s * (4 if is_large else 1)
            self._soon_at_s = None
            self.tables.touched.clear()
            for job in list(self._machine.jobs()):
                effects += self._reconcile(job, now_s)
        elif self._soon_at_s is not None and now_s >= self._soon_at_s:
            effects += self._reconcile_all_touched(now_s)
        return effects

    def _look_now(self, now_s: float) -> None:
        """Have every job reconciled and every worker contacted at the next tick, which is due."""
        self._reconcile_all_at_s = self._contact_at_s = now_s

    def _reconcile_touched(self, now_s: float) -> list[LeaderEffect]:
        """Reconcile jobs that something happened to: now, or soon where that would take long."""
        if len(self.tables.attempts) > _ATTEMPTS_FEW:
            if self._soon_at_s is None:
                self._soon_at_s = now_s + _SOON_S
            return []
        self.tables.workers.awake(now_s=now_s)
        return self._reconcile_all_touched(now_s)

    def _reconcile_all_touched(self, now_s: float) -> list[LeaderEffect]:
        self._soon_at_s = None
        touched, self.tables.touched = self.tables.touched, set()
        effects: list[LeaderEffect] = []
        for job_id in sorted(touched):
            job = self._machine.job(job_id)
            if job is not None:
                effects += self._reconcile(job, now_s)
        return effects

    # A job that runs into a bug of ours ends; the other jobs have no part in it.

    def _adopt(self, job: Job, now_s: float) -> list[LeaderEffect]:
        try:
            self._lifecycle.adopt(job, now_s=now_s)
        except Exception as error:  # noqa: BLE001  see above
            return self._end_failed_job(job, error, now_s)
        return []

    def _reconcile(self, job: Job, now_s: float) -> list[LeaderEffect]:
        try:
            return self._reconciler.reconcile(job, now_s=now_s)
        except Exception as error:  # noqa: BLE001  see above
            return self._end_failed_job(job, error, now_s)

    def _end_failed_job(self, job: Job, error: Exception, now_s: float) -> list[LeaderEffect]:
        effects: list[LeaderEffect] = []
        if job.id not in self._failed_jobs:
            self._failed_jobs.add(job.id)
            effects.append(LogJobError(job.id, error))
        if not job.has_ended:
            reason = f"internal error: {type(error).__name__}: {error}"
            end = JobFinished(job=job.id, status=JobStatus.FAILED, reason=reason)
            effects += self.tables.proposals.propose(end, now_s=now_s)
        return effects

    # --- reads ------------------------------------------------------------------------------

    def row(self, job: Job) -> JobView:
        """A job in a list, also whether it waits for cores."""
        return job_row(self.tables, job) if self._is_leading else view_of(job)

    def view(self, job_id: str, *, now_s: float) -> RunView | None:
        """The live statistics of a job; None if it is not led here, or over."""
        job = self._machine.job(job_id)
        if job is None or job.has_ended or not self._is_leading:
            return None
        return live_view(self.tables, job, now_s=now_s)
