"""What becomes of one open attempt: is it lost, stuck or over, and what does its result mean?"""

from hyperscale.jobs.committed.context import context_for
from hyperscale.jobs.committed.events import JobStatus, PartEnded, WorkflowEnded
from hyperscale.jobs.committed.state import Job
from hyperscale.jobs.leader.attempts import Attempt, AttemptPhase
from hyperscale.jobs.leader.events import LeaderEffect, SendCommand
from hyperscale.jobs.leader.lifecycle import AttemptLifecycle
from hyperscale.jobs.leader.statistics import final_report
from hyperscale.jobs.leader.tables import LeaderTables
from hyperscale.jobs.leader.worker_liveness import WorkerState
from hyperscale.jobs.messages import (
    AnnouncePrepareFailed,
    DeliverResult,
    Isolation,
    PreparePart,
)
from hyperscale.plan import Priority
from hyperscale.plan.status import PartStatus

_TEARDOWN_S = 30.0


class AttemptRules:
    def __init__(self, tables: LeaderTables, lifecycle: AttemptLifecycle) -> None:
        self._tables = tables
        self._lifecycle = lifecycle
        self._timeouts = tables.timeouts

    def is_calm(self, attempt: Attempt, *, now_s: float) -> bool:
        """Whether a running attempt needs nothing: most of them, most of the time."""
        if attempt.phase is not AttemptPhase.RUNNING or attempt.result is not None:
            return False
        worker = self._tables.workers.get(attempt.worker, now_s=now_s)
        is_heard = now_s < worker.heard_s + self._timeouts.lease_s / 2
        return is_heard and now_s < attempt.activity.check_at_s and not worker.is_gone

    def advance(self, job: Job, attempt: Attempt, *, now_s: float) -> list[LeaderEffect]:
        """Bring an attempt of a workflow that should run one step on. Starting is not among the
        steps: all parts of a workflow start together (`reconcile`)."""
        if attempt.result is not None:
            return self.commit_result(job, attempt, is_stopping=False, now_s=now_s)
        if attempt.phase is AttemptPhase.LOST:
            return self._lifecycle.propose_revocation(attempt, now_s=now_s)
        loss = self._loss(job, attempt, now_s)
        if loss is not None:
            return self._lose(job, attempt, loss, now_s)
        return self._next_step(job, attempt, now_s)

    def _next_step(self, job: Job, attempt: Attempt, now_s: float) -> list[LeaderEffect]:
        match attempt.phase:
            case AttemptPhase.DISPATCHED if not attempt.is_inherited:
                if self.is_due(attempt, now_s=now_s):
                    attempt.command_sent_s = now_s
                    return [self._prepare(job, attempt)]
            case AttemptPhase.PREPARING if now_s >= attempt.accepted_s + self._timeouts.prepare_s:
                # The worker is alive and says so: the code would not do better elsewhere.
                limit_s = self._timeouts.prepare_s
                reason = f"not prepared within {limit_s:g} s: its setup hooks or imports"
                return self._time_out(attempt, reason, now_s)
            case AttemptPhase.RUNNING:
                return self._watch(job, attempt, now_s)
        return []

    def stop(self, job: Job, attempt: Attempt, reason: str, *, now_s: float) -> list[LeaderEffect]:
        """Stop an attempt of a workflow that is to end, until its end is certain."""
        if attempt.result is not None:
            return self.commit_result(job, attempt, is_stopping=True, now_s=now_s)
        if attempt.phase is AttemptPhase.LOST:
            return self._lifecycle.propose_revocation(attempt, now_s=now_s)
        if self._has_ended(job, attempt, now_s):
            over_s = self._load_over_s(job, attempt, now_s)
            return self._lifecycle.lose(
                attempt, reason, costs_retry=False, over_s=over_s, now_s=now_s
            )
        is_told = attempt.phase in (AttemptPhase.STOPPING, AttemptPhase.ENDED)
        if is_told and not self.is_due(attempt, now_s=now_s):
            return []
        attempt.command_sent_s = now_s
        if attempt.phase is not AttemptPhase.ENDED:
            attempt.become(AttemptPhase.STOPPING)
        return [self._tables.stop(attempt.worker, attempt.id, reason)]

    def is_due(self, attempt: Attempt, *, now_s: float) -> bool:
        """Whether a command about the attempt's phase is to be sent (again)."""
        sent_s = attempt.command_sent_s
        return sent_s is None or now_s >= sent_s + self._timeouts.repeat_s

    # --- losses -----------------------------------------------------------------------------

    def _loss(self, job: Job, attempt: Attempt, now_s: float) -> str | None:
        """Return why the attempt cannot be running any more, if it cannot."""
        worker = self._tables.workers.get(attempt.worker, now_s=now_s)
        if worker.is_gone:
            return f"worker {attempt.worker} died"
        # As soon as its lease has expired, if its silence is not going to be attributed to the
        # network: then the next attempt is prepared while the margin lasts.
        over_s = self._stopped_at_s(attempt, now_s)
        if now_s < over_s - self._timeouts.silence_margin_s or worker.is_held:
            return None
        if now_s < over_s and not self._is_only_silent_worker(attempt, now_s):
            return None
        if _may_go_on(job, attempt, now_s):
            return None
        return f"worker {attempt.worker} has been silent for too long"

    def _lose(self, job: Job, attempt: Attempt, reason: str, now_s: float) -> list[LeaderEffect]:
        over_s = self._load_over_s(job, attempt, now_s)
        if not self._tables.workers.get(attempt.worker, now_s=now_s).is_gone:
            attempt.fenced_until_s = self._stopped_at_s(attempt, now_s)
            # Membership may see the silent worker a little longer: that it came back once is no
            # reason to give it the next attempt.
            self._tables.returned.discard(attempt.worker)
        return self._lifecycle.lose(
            attempt, reason, costs_retry=attempt.was_accepted, over_s=over_s, now_s=now_s
        )

    def _is_only_silent_worker(self, attempt: Attempt, now_s: float) -> bool:
        """Whether its worker is dead to membership and every other worker is heard. If many are
        silent, it may take a moment longer to find out that the network is to blame."""
        workers = self._tables.workers
        if workers.get(attempt.worker, now_s=now_s).state is WorkerState.UP:
            return False
        since_s = now_s - 2 * self._timeouts.renew_s
        return all(
            workers.get(worker, now_s=now_s).heard_s >= since_s
            for worker in self._tables.attempts.workers()
            if worker != attempt.worker
        )

    def _has_ended(self, job: Job, attempt: Attempt, now_s: float) -> bool:
        """Whether it has no load any more: its worker is gone, or its lease was not renewed."""
        if self._tables.workers.get(attempt.worker, now_s=now_s).is_gone:
            return True
        is_over = now_s >= self._stopped_at_s(attempt, now_s)
        return is_over and not _may_go_on(job, attempt, now_s)

    def _stopped_at_s(self, attempt: Attempt, now_s: float) -> float:
        """From when on it has certainly no load, if its worker stays silent."""
        # An idle worker has not been heard for long, and need not have been.
        return self._tables.workers.stopped_at_s(
            attempt.worker, since_s=attempt.accepted_s, now_s=now_s
        )

    def _load_over_s(self, job: Job, attempt: Attempt, now_s: float) -> float:
        """When its load was over at the latest."""
        worker = self._tables.workers.get(attempt.worker, now_s=now_s)
        if worker.is_gone:
            return now_s if worker.ended_s is None else worker.ended_s
        if job.options.on_isolation is Isolation.CONTINUE:
            return min(now_s, _own_end_s(job, attempt))
        return min(now_s, self._stopped_at_s(attempt, now_s) - self._timeouts.silence_margin_s)

    # --- steps ------------------------------------------------------------------------------

    def _prepare(self, job: Job, attempt: Attempt) -> SendCommand:
        workflow, plan = job.workflows[attempt.id.workflow], job.plan_of(attempt.id.workflow)
        assignment, options = attempt.assignment, job.options
        command = PreparePart(
            attempt_id=attempt.id,
            group=self._tables.group,
            term=self._tables.term,
            leader=self._tables.node,
            parts=len(workflow.parts),
            first_slot=assignment.first_slot,
            slots=workflow.slots,
            cores=assignment.cores,
            plan=plan,
            file=job.plan.file,
            bundle=job.bundle,
            context=context_for(job, attempt.id.workflow),
            elapsed_s=assignment.began_s,
            iterations_done=assignment.iterations_done,
            lease_ms=self._tables.lease_ms,
            on_isolation=options.on_isolation,
            log_level=options.log_level,
            shared=assignment.shared,
            static=options.static,
            exclusive=plan.is_test and plan.priority is Priority.EXCLUSIVE,
        )
        return SendCommand(attempt.worker, command)

    def _watch(self, job: Job, attempt: Attempt, now_s: float) -> list[LeaderEffect]:
        """Time a running attempt out if it takes too long or makes no progress."""
        plan, activity = job.plan_of(attempt.id.workflow), attempt.activity
        stuck_s = max(self._timeouts.stuck_s, 2 * plan.timeout_s + (plan.interval_s or 0.0))
        if activity.deadline_s is not None and now_s >= activity.deadline_s:
            late_s = now_s - activity.deadline_s
            reason = f"still running {late_s:.0f} s after it had to be over"
        elif attempt.timeline.reported_s is not None and now_s >= activity.moved_s + stuck_s:
            reason = f"stuck: no action finished for {now_s - activity.moved_s:.0f} s"
        else:
            activity.check_at_s = activity.moved_s + stuck_s
            if activity.deadline_s is not None:
                activity.check_at_s = min(activity.deadline_s, activity.check_at_s)
            return []
        return self._time_out(attempt, reason, now_s)

    def _time_out(self, attempt: Attempt, reason: str, now_s: float) -> list[LeaderEffect]:
        end = WorkflowEnded(
            job=attempt.id.job,
            workflow=attempt.id.workflow,
            reason=f"{reason} (part {attempt.id.part} on {attempt.worker})",
            status=JobStatus.TIMEOUT,
        )
        return [*self._tables.proposals.propose(end, now_s=now_s)]

    # --- results ----------------------------------------------------------------------------

    def commit_result(
        self, job: Job, attempt: Attempt, *, is_stopping: bool, now_s: float
    ) -> list[LeaderEffect]:
        """Commit how an attempt ended: its result counts, or another attempt is worth it."""
        result = attempt.result
        if isinstance(result, AnnouncePrepareFailed):
            return self._commit_failed_preparation(attempt, result, is_stopping, now_s)
        assert result is not None
        known_s = attempt.timeline.known_until_s()
        over_s = None if known_s is None else known_s + result.unheard_s
        if result.status is PartStatus.COMPLETED or is_stopping or not result.is_retryable:
            end = self._end_of(job, attempt, result, over_s)
            return [*self._tables.proposals.propose(end, now_s=now_s)]
        # An executor that died counts against its worker; a lease that expired does not.
        reason = result.error or f"it ended early on {attempt.worker}"
        died = result.status is PartStatus.FAILED
        return self._lifecycle.retry_ended(
            attempt, reason, costs_retry=died, over_s=over_s, now_s=now_s
        )

    def _commit_failed_preparation(
        self, attempt: Attempt, result: AnnouncePrepareFailed, is_stopping: bool, now_s: float
    ) -> list[LeaderEffect]:
        if result.is_retryable and not is_stopping:
            reason = f"worker {attempt.worker} could not prepare it: {result.error}"
            return self._lifecycle.retry_ended(
                attempt, reason, costs_retry=True, over_s=None, now_s=now_s
            )
        error = f"{result.error} (hint: {result.hint})" if result.hint else result.error
        end = PartEnded(
            job=attempt.id.job,
            workflow=attempt.id.workflow,
            part=attempt.id.part,
            attempt=attempt.id.attempt,
            status=PartStatus.STOPPED if is_stopping else PartStatus.FAILED,
            error=error,
        )
        return [*self._tables.proposals.propose(end, now_s=now_s)]

    def _end_of(
        self, job: Job, attempt: Attempt, result: DeliverResult, over_s: float | None
    ) -> PartEnded:
        parts = len(job.workflows[attempt.id.workflow].parts)
        unreported = self._lifecycle.unreported(attempt, over_s)
        return PartEnded(
            job=attempt.id.job,
            workflow=attempt.id.workflow,
            part=attempt.id.part,
            attempt=attempt.id.attempt,
            status=result.status,
            error=result.error,
            report=final_report(result.report, parts=parts),
            provided=result.provided,
            elapsed_s=result.elapsed_s,
            was_saturated=result.was_saturated,
            gap_s=unreported.seconds,
            requests_max=unreported.requests_max,
        )


def _own_end_s(job: Job, attempt: Attempt) -> float:
    """When an attempt that has begun ends by itself, without a leader."""
    plan = job.plan_of(attempt.id.workflow)
    began_s = attempt.timeline.may_run_since_s
    if began_s is None:
        began_s = attempt.accepted_s
    return began_s + plan.duration_s + plan.timeout_s + _TEARDOWN_S


def _may_go_on(job: Job, attempt: Attempt, now_s: float) -> bool:
    """Whether it may have load without a leader: allowed to, begun, and not over by itself."""
    if job.options.on_isolation is not Isolation.CONTINUE:
        return False
    if attempt.timeline.may_run_since_s is None:
        return False
    return now_s < _own_end_s(job, attempt)
