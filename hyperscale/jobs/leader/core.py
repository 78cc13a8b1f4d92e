"""The leader of a group's jobs: a core that decides, from committed state and what workers say.

Nothing is sent to a worker before the event that justifies it is committed, and no lease is granted
or renewed before a majority has confirmed that this node leads (`leases`). A leader that takes over
knows the machine's state and nothing else: it asks every worker what it runs, renews the leases of
what belongs there, has the rest stopped, and gives up attempts that their workers do not know.
"""

from collections.abc import Callable
from typing import Any

from hyperscale.jobs.committed.events import (
    AttemptRevoked,
    Checkpointed,
    JobFinished,
    JobStatus,
    JobSubmitted,
    LoadChanged,
    PartEnded,
    PartRedispatched,
    SubmissionRevoked,
    TimePassed,
    WorkflowDispatched,
)
from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.jobs.committed.state import Job, JobView
from hyperscale.jobs.leader.attempts import AttemptPhase
from hyperscale.jobs.leader.core_requests import request_for_attempt, request_for_workflow
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
    ProgressReported,
    ProposalFailed,
    WorkerAnnounced,
    WorkersHeld,
)
from hyperscale.jobs.leader.leases import LeaseRenewal
from hyperscale.jobs.leader.lifecycle import AttemptLifecycle
from hyperscale.jobs.leader.reconcile import Reconciler
from hyperscale.jobs.leader.replies import WorkerReplies
from hyperscale.jobs.leader.retries import RetryLimits
from hyperscale.jobs.leader.rows import RowGrants
from hyperscale.jobs.leader.state import LeaderState
from hyperscale.jobs.leader.timeouts import LeaderTimeouts
from hyperscale.jobs.leader.views import job_row, live_view
from hyperscale.jobs.leader.worker_liveness import WorkerState
from hyperscale.jobs.messages import (
    AnnounceReady,
    AnnounceRows,
    AnnounceSetUp,
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
    """Leads all jobs of one group from one election to the next.

    The first event is `BecameLeader`. When another node is elected, this object is dropped.
    """

    def __init__(
        self,
        group: int,
        node: str,
        machine: JobMachine,
        *,
        timeouts: LeaderTimeouts | None = None,
        retries: RetryLimits | None = None,
    ) -> None:
        timeouts, retries = timeouts or LeaderTimeouts(), retries or RetryLimits()
        self.state = LeaderState(group, node, timeouts, retries)
        self._machine = machine
        self._lifecycle = AttemptLifecycle(self.state)
        self._leases = LeaseRenewal(self.state)
        self._replies = WorkerReplies(self.state, machine, self._lifecycle, self._leases)
        self._rows = RowGrants(self.state)
        self._reconciler = Reconciler(self.state, self._lifecycle, self._rows)
        self._reconcile_all_at_s: float | None = None
        self._contact_at_s: float | None = None
        self._soon_at_s: float | None = None  # when touched jobs are reconciled
        self._failed_jobs: set[str] = set()  # jobs that ran into a bug, which was logged
        self._handlers: dict[type, Callable[[Any], None]] = {
            BecameLeader: self._became_leader,
            EventApplied: self._event_applied,
            ProposalFailed: lambda failed: self.state.proposal_failed(failed.event),
            WorkerUp: self._worker_up,
            WorkerDown: self._worker_down,
            WorkersHeld: self._workers_held,
            CommandAnswered: self._command_answered,
            WorkerAnnounced: self._worker_announced,
            ProgressReported: self._progress_reported,
            CoresAnswered: self._cores_answered,
            LeadershipConfirmed: self._leases.confirmed,
            Tick: self._tick,
        }

    def handle(self, event: LeaderEvent, *, now_s: float) -> list[LeaderEffect]:
        self.state.begin_event(now_s)
        self._handlers[type(event)](event)
        if self.state.touched:
            self._reconcile_touched()
        if isinstance(event, LeadershipConfirmed):
            self._leases.ask_again()
        return self.state.effects

    def wake_at_s(self) -> float | None:
        wake_at_s = self._reconcile_all_at_s
        # Written out: this is asked for after every message.
        for at_s in (self._contact_at_s, self._soon_at_s):
            if at_s is not None and (wake_at_s is None or at_s < wake_at_s):
                wake_at_s = at_s
        return wake_at_s

    # --- the ledger -------------------------------------------------------------------------

    def _became_leader(self, event: BecameLeader) -> None:
        state = self.state
        state.term = event.term
        state.time.begin(event, state.timeouts, now_s=state.now_s)
        state.workers.begin(event.workers)
        self._look_now()
        for job in list(self._machine.jobs()):
            self._guard(job, self._lifecycle.adopt)
        if state.attempts:
            leases_s = state.timeouts.lease_s + state.timeouts.silence_margin_s
            state.time.statistics_from_s = state.now_s + leases_s
        self._leases.contact()
        self._reconcile_all()

    def _event_applied(self, applied: EventApplied) -> None:
        event, reply = applied.event, applied.reply
        self.state.proposal_applied(event)
        if isinstance(event, TimePassed):
            return
        job = self._machine.job(
            reply.job if isinstance(event, JobSubmitted | SubmissionRevoked) else event.job
        )
        if job is None:
            return
        match event:
            case JobSubmitted() if reply.ok and not reply.was_duplicate:
                self.state.job(job)
            case WorkflowDispatched() if reply.ok:
                for part in range(len(event.parts)):
                    self._lifecycle.open(AttemptId(job.id, event.workflow, part, 1), job)
                self.state.requests.pop(request_for_workflow(job.id, event.workflow), None)
            case PartRedispatched() if reply.ok:
                attempt_id = AttemptId(job.id, event.workflow, event.part, event.attempt)
                self._lifecycle.open(attempt_id, job)
            case LoadChanged() if reply.ok:
                self._lifecycle.change(job)
            case AttemptRevoked() | PartEnded():
                attempt_id = AttemptId(event.job, event.workflow, event.part, event.attempt)
                self._lifecycle.close(attempt_id, job, event)
            case Checkpointed():
                return  # a checkpoint changes nothing that a job needs
        if job.has_ended:
            self._guard(job, self._reconciler.reconcile)
        else:
            self.state.touched.add(job.id)

    # --- workers ----------------------------------------------------------------------------

    def _worker_up(self, up: WorkerUp) -> None:
        workers = self.state.workers
        if workers[up.worker].is_gone:
            workers.add(up.worker, WorkerState.UP)
        else:
            workers[up.worker].become(WorkerState.UP)
        self.state.returned.add(up.worker)
        self._leases.contact()

    def _worker_down(self, down: WorkerDown) -> None:
        state = self.state
        worker = state.workers[down.worker]
        state.returned.discard(down.worker)
        if not down.is_certain:
            if worker.state is WorkerState.UP:
                worker.become(WorkerState.SILENT)
            return
        attempts = state.attempts.of_worker(down.worker)
        # An attempt that was accepted just now may run in the process that replaced the dead one.
        # It is not lost before that process has listed its attempts.
        recent_s = state.now_s - state.timeouts.evidence_s
        recent = {
            attempt.id
            for attempt in attempts
            if not attempt.was_accepted or attempt.taken_by_worker_s() > recent_s
        }
        if not worker.is_gone:
            worker.failed(is_doubtful=bool(recent), ended_s=down.ended_s, now_s=state.now_s)
        for attempt in attempts:
            if attempt.id in recent:
                is_known = attempt.phase is not AttemptPhase.DISPATCHED
                attempt.is_inherited = attempt.is_inherited or is_known
            else:
                reason, fault = f"worker {down.worker} died", attempt.fault_of_loss
                over_s = worker.ended_s
                self._lifecycle.lose(attempt, reason, fault=fault, over_s=over_s)
        self._leases.contact()

    def _workers_held(self, held: WorkersHeld) -> None:
        for name, worker in self.state.workers.items():
            worker.is_held = name in held.workers

    def _command_answered(self, event: CommandAnswered) -> None:
        state = self.state
        if event.reply is None:
            if state.workers.unanswered(event.worker, refused_s=event.refused_s):
                self._look_now()
            return
        if event.rtt_s is not None:
            state.workers.measured(event.worker, event.rtt_s)
        worker = state.workers[event.worker]
        silent_s = state.now_s - worker.heard_s
        state.workers.heard(event.worker, event.reply.stamp_ms)
        if silent_s > 2 * state.timeouts.renew_s:
            # Renewals sent meanwhile echoed an old stamp, so its leases are short: renew them now.
            worker.renewed_s = None
            self._look_now()
        self._replies.take(event)

    def _worker_announced(self, event: WorkerAnnounced) -> None:
        """Take a message that a worker repeats until it is acknowledged, started or stopped."""
        state, message = self.state, event.message
        attempt = state.attempts.on(message.worker, message.attempt_id)
        if attempt is None:
            if isinstance(message, AnnounceReady | AnnounceSetUp | AnnounceRows):
                state.stop(message.worker, message.attempt_id)
            else:
                state.acknowledge(message.worker, message.attempt_id)
            return
        state.touched.add(message.attempt_id.job)
        if isinstance(message, AnnounceRows):
            self._rows.announced(attempt, message)
            return
        if isinstance(message, AnnounceReady | AnnounceSetUp):
            state.workers.heard(message.worker, message.stamp_ms)
            self._lifecycle.announced(attempt, message)
            if not state.workers.has_lease_time(message.worker):
                self._leases.confirm([])
            return
        job = self._machine.job(message.attempt_id.job)
        if isinstance(message, DeliverResult) and message.report is not None and job is not None:
            final = PartProgress(
                attempt_id=attempt.id, report=message.report, elapsed_s=message.elapsed_s
            )
            self._lifecycle.report(attempt, job, final)
            attempt.rows.use(message.rows_used, now_s=self.state.now_s)
        attempt.result = attempt.result or message
        attempt.become(AttemptPhase.ENDED)

    def _progress_reported(self, event: ProgressReported) -> None:
        state, progress = self.state, event.progress
        worker = state.workers[progress.worker]
        worker.cpu, worker.memory = progress.cpu, progress.memory
        for part in progress.parts:
            attempt = state.attempts.on(progress.worker, part.attempt_id)
            job = self._machine.job(part.attempt_id.job)
            if attempt is None or job is None:
                state.stop(progress.worker, part.attempt_id)
                continue
            if attempt.phase is AttemptPhase.LOST:
                continue  # the attempt is stopped once its revocation is committed
            self._lifecycle.report(attempt, job, part)
            attempt.is_saturated = part.attempt_id in progress.saturated
            if part.wants_extension:
                attempt.activity.extend(now_s=state.now_s)
        reply = ReportProgressReply(backpressure=event.backpressure)
        state.effects.append(AnswerProgress(event.token, reply))

    # --- the allocator ----------------------------------------------------------------------

    def _cores_answered(self, event: CoresAnswered) -> None:
        state, reply = self.state, event.reply
        request = state.requests.get(reply.request_id)
        if request is not None:
            request.take(reply, now_s=state.now_s)
            state.touched.add(request.job)
        elif reply.state is RequestState.GRANTED and not self._is_used(reply.request_id):
            state.release(reply.request_id)

    def _is_used(self, request: str) -> bool:
        """Return True if an open attempt runs on the cores that this request was granted."""
        return any(
            request == request_for_attempt(attempt.id)
            or request == request_for_workflow(attempt.id.job, attempt.id.workflow)
            for attempt in self.state.attempts
        )

    # --- time -------------------------------------------------------------------------------

    def _tick(self, _tick: Tick) -> None:
        state = self.state
        state.workers.awake()
        often_s = state.timeouts.renew_s / 4
        if self._contact_at_s is not None and state.now_s >= self._contact_at_s:
            self._contact_at_s = state.now_s + often_s
            self._leases.contact()
        if self._reconcile_all_at_s is not None and state.now_s >= self._reconcile_all_at_s:
            is_large = len(state.attempts) > _ATTEMPTS_MANY
            self._reconcile_all_at_s = state.now_s + often_s * (4 if is_large else 1)
            self._soon_at_s = None
            state.touched.clear()
            self._reconcile_all()
        elif self._soon_at_s is not None and state.now_s >= self._soon_at_s:
            self._reconcile_all_touched()

    def _look_now(self) -> None:
        """Reconcile every job and contact every worker at the next tick, which is due now."""
        self._reconcile_all_at_s = self._contact_at_s = self.state.now_s

    def _reconcile_touched(self) -> None:
        """Reconcile the touched jobs: now, or a moment later if there are many attempts."""
        if len(self.state.attempts) <= _ATTEMPTS_FEW:
            self.state.workers.awake()
            self._reconcile_all_touched()
        elif self._soon_at_s is None:
            self._soon_at_s = self.state.now_s + _SOON_S

    def _reconcile_all_touched(self) -> None:
        self._soon_at_s = None
        touched, self.state.touched = self.state.touched, set()
        for job_id in sorted(touched):
            job = self._machine.job(job_id)
            if job is not None:
                self._guard(job, self._reconciler.reconcile)

    def _reconcile_all(self) -> None:
        for job in list(self._machine.jobs()):
            self._guard(job, self._reconciler.reconcile)
        if self.state.jobs:
            self.state.commit_time()

    def _guard(self, job: Job, step: Callable[[Job], None]) -> None:
        """Do a step for a job. If the step raises, which is a bug, only this job fails."""
        state = self.state
        before = len(state.effects)
        try:
            step(job)
        except Exception as error:  # noqa: BLE001  see above
            del state.effects[before:]
            if job.id not in self._failed_jobs:
                self._failed_jobs.add(job.id)
                state.effects.append(LogJobError(job.id, error))
            if not job.has_ended:
                reason = f"internal error: {type(error).__name__}: {error}"
                state.propose(JobFinished(job=job.id, status=JobStatus.FAILED, reason=reason))

    # --- reads ------------------------------------------------------------------------------

    def row(self, job: Job, *, now_s: float) -> JobView:
        """Return a job as lists show it, with its position in the queue for cores."""
        return job_row(self.state, job, now_s=now_s)

    def view(self, job_id: str, *, now_s: float) -> RunView | None:
        """Return the live statistics of a job; None if it is unknown or has ended."""
        job = self._machine.job(job_id)
        if job is None or job.has_ended:
            return None
        return live_view(self.state, job, now_s=now_s)
