"""Decides what one open attempt needs: whether it is lost, stuck or over, what its result means."""

from msgspec.structs import asdict

from hyperscale.jobs.committed.context import context_for
from hyperscale.jobs.committed.events import (
    AttemptFault,
    JobStatus,
    PartEnded,
    WorkflowEnded,
    WorkflowSetUp,
)
from hyperscale.jobs.committed.state import Job
from hyperscale.jobs.leader.attempts import Attempt, AttemptPhase
from hyperscale.jobs.leader.lifecycle import AttemptLifecycle
from hyperscale.jobs.leader.rows import bounds_of
from hyperscale.jobs.leader.state import LeaderState
from hyperscale.jobs.leader.statistics import final_report
from hyperscale.jobs.leader.worker_liveness import WorkerState
from hyperscale.jobs.messages import (
    AnnouncePrepareFailed,
    ChangePart,
    DeliverResult,
    Isolation,
    PreparePart,
    ShareSetUpContext,
)
from hyperscale.plan import Priority
from hyperscale.plan.changes import AppliedChange, shifted
from hyperscale.plan.status import PartStatus

_TEARDOWN_S = 30.0


class AttemptRules:
    def __init__(self, state: LeaderState, lifecycle: AttemptLifecycle) -> None:
        self._state = state
        self._lifecycle = lifecycle
        self._timeouts = state.timeouts

    def is_calm(self, attempt: Attempt) -> bool:
        """Return True if the attempt runs and needs nothing, as most do most of the time."""
        if attempt.phase is not AttemptPhase.RUNNING or attempt.result is not None:
            return False
        worker, now_s = self._state.workers[attempt.worker], self._state.now_s
        is_heard = now_s < worker.heard_s + self._timeouts.lease_s / 2
        return is_heard and now_s < attempt.activity.check_at_s and not worker.is_gone

    def advance(self, job: Job, attempt: Attempt) -> None:
        """Do the next step of an attempt whose workflow is to run. Attempts are started elsewhere:
        all parts of a workflow start together (`reconcile`)."""
        if self._is_decided(job, attempt, is_stopping=False):
            return
        loss = self._loss(job, attempt)
        if loss is not None:
            self._lose(job, attempt, loss)
            return
        now_s = self._state.now_s
        match attempt.phase:
            case AttemptPhase.DISPATCHED if not attempt.is_inherited and self.is_due(attempt):
                attempt.command_sent_s = now_s
                self._prepare(job, attempt)
            case AttemptPhase.PREPARING if now_s >= attempt.accepted_s + self._timeouts.prepare_s:
                # The worker is alive and reports this phase: the code would be as slow elsewhere.
                limit_s = self._timeouts.prepare_s
                reason = f"not prepared within {limit_s:g} s: its setup hooks or imports"
                self._time_out(job, attempt, reason)
            case AttemptPhase.SETTING_UP:
                self._set_up(job, attempt)
            case AttemptPhase.RUNNING:
                self._watch(job, attempt)

    def stop(self, job: Job, attempt: Attempt, reason: str) -> None:
        """Stop an attempt whose workflow is to end; repeat the command until the end is certain."""
        if self._is_decided(job, attempt, is_stopping=True):
            return
        if self._has_ended(job, attempt):
            over_s = self._load_over_s(job, attempt)
            self._lifecycle.lose(attempt, reason, fault=AttemptFault.NONE, over_s=over_s)
            return
        is_told = attempt.phase in (AttemptPhase.STOPPING, AttemptPhase.ENDED)
        if not is_told or self.is_due(attempt):
            attempt.command_sent_s = self._state.now_s
            if attempt.phase is not AttemptPhase.ENDED:
                attempt.become(AttemptPhase.STOPPING)
            self._state.stop(attempt.worker, attempt.id, reason)

    def is_due(self, attempt: Attempt) -> bool:
        """Return True if the command for the attempt's phase was not sent, or is to be repeated."""
        sent_s = attempt.command_sent_s
        return sent_s is None or self._state.now_s >= sent_s + self._timeouts.repeat_s

    def _is_decided(self, job: Job, attempt: Attempt, *, is_stopping: bool) -> bool:
        """Return True if the attempt has a result or is lost; propose to commit which."""
        if attempt.result is not None:
            self._commit_result(job, attempt, attempt.result, is_stopping)
        elif attempt.phase is AttemptPhase.LOST:
            self._lifecycle.propose_revocation(attempt)
        else:
            return False
        return True

    # --- losses -----------------------------------------------------------------------------

    def _loss(self, job: Job, attempt: Attempt) -> str | None:
        """Return why the attempt cannot be running any more; None if it may be."""
        worker, now_s = self._state.workers[attempt.worker], self._state.now_s
        if worker.is_gone:
            return f"worker {attempt.worker} died"
        # If only this worker is silent, its attempt is lost as soon as the lease has expired: the
        # next attempt is prepared during the margin. Otherwise the network may be at fault.
        over_s = self._stopped_at_s(attempt)
        if now_s < over_s - self._timeouts.silence_margin_s or worker.is_held:
            return None
        if now_s < over_s and not self._is_only_silent_worker(attempt):
            return None
        if self._may_go_on(job, attempt):
            return None
        return f"worker {attempt.worker} has been silent for too long"

    def _lose(self, job: Job, attempt: Attempt, reason: str) -> None:
        over_s = self._load_over_s(job, attempt)
        if not self._state.workers[attempt.worker].is_gone:
            attempt.fenced_until_s = self._stopped_at_s(attempt)
            # The worker is excluded again, even if it had come back before: membership may still
            # see it.
            self._state.returned.discard(attempt.worker)
        self._lifecycle.lose(attempt, reason, fault=attempt.fault_of_loss, over_s=over_s)

    def _is_only_silent_worker(self, attempt: Attempt) -> bool:
        """Return True if membership does not see its worker and every other worker was heard. If
        many are silent, the network may be at fault, which takes a moment longer to find out."""
        workers = self._state.workers
        if workers[attempt.worker].state is WorkerState.UP:
            return False
        since_s = self._state.now_s - 2 * self._timeouts.renew_s
        return all(
            workers[name].heard_s >= since_s
            for name in self._state.attempts.workers()
            if name != attempt.worker
        )

    def _has_ended(self, job: Job, attempt: Attempt) -> bool:
        """Return True if its load has ended: its worker is gone, or its lease is over."""
        if self._state.workers[attempt.worker].is_gone:
            return True
        is_over = self._state.now_s >= self._stopped_at_s(attempt)
        return is_over and not self._may_go_on(job, attempt)

    def _stopped_at_s(self, attempt: Attempt) -> float:
        """Return when the load of the attempt has certainly ended, if its worker stays silent."""
        return self._state.workers.stopped_at_s(attempt.worker, since_s=attempt.accepted_s)

    def _load_over_s(self, job: Job, attempt: Attempt) -> float:
        """Return when the load of the attempt ended at the latest."""
        worker, now_s = self._state.workers[attempt.worker], self._state.now_s
        if worker.is_gone:
            return now_s if worker.ended_s is None else worker.ended_s
        if job.options.on_isolation is Isolation.CONTINUE:
            own_end_s = _own_end_s(job, attempt)
            return now_s if own_end_s is None else min(now_s, own_end_s)
        return min(now_s, self._stopped_at_s(attempt) - self._timeouts.silence_margin_s)

    def _may_go_on(self, job: Job, attempt: Attempt) -> bool:
        """Return True if the attempt may have load without a lease (`on_isolation="continue"`)."""
        own_end_s = _own_end_s(job, attempt)
        return (
            job.options.on_isolation is Isolation.CONTINUE
            and attempt.timeline.may_run_since_s is not None
            and (own_end_s is None or self._state.now_s < own_end_s)
        )

    # --- steps ------------------------------------------------------------------------------

    def _prepare(self, job: Job, attempt: Attempt) -> None:
        workflow, plan = job.workflows[attempt.id.workflow], job.plan_of(attempt.id.workflow)
        assignment, options = attempt.assignment, job.options
        is_teardown = attempt.id.part == workflow.teardown_part
        command = PreparePart(
            attempt_id=attempt.id,
            group=self._state.group,
            term=self._state.term,
            leader=self._state.node,
            first_slot=assignment.first_slot,
            slots=workflow.slots,
            cores=assignment.cores,
            plan=plan,
            file=job.plan.file,
            bundle=job.bundle,
            context=context_for(job, attempt.id.workflow),
            elapsed_s=assignment.began_s,
            iterations_done=assignment.iterations_done,
            lease_ms=self._state.lease_ms,
            on_isolation=options.on_isolation,
            log_level=options.log_level,
            shared=assignment.shared,
            within_job=assignment.within_job,
            static=options.static,
            exclusive=plan.is_test and plan.priority is Priority.EXCLUSIVE and not is_teardown,
            set_up=workflow.set_up,
            tears_down=is_teardown,
            parameters=job.plan.open_parameters,
            secrets=options.secrets,
            changes=[] if is_teardown else self._changes(job, attempt),
            rows=bounds_of(plan, workflow.parts[attempt.id.part]),
        )
        self._state.send(attempt.worker, command)
        attempt.copy.changes_known = len(command.changes)

    def change(self, job: Job, attempt: Attempt) -> None:
        """Send an attempt that is ready or runs the changes of the load that its worker does not
        know; repeat them until the worker confirms."""
        changes, copy = job.workflows[attempt.id.workflow].changes, attempt.copy
        is_told = copy.changes_known is not None and copy.changes_known >= len(changes)
        if is_told or attempt.phase not in (AttemptPhase.READY, AttemptPhase.RUNNING):
            return
        sent_s, now_s = copy.change_sent_s, self._state.now_s
        if sent_s is not None and now_s < sent_s + self._timeouts.repeat_s:
            return
        copy.change_sent_s = now_s
        command = ChangePart(
            attempt_id=attempt.id,
            group=self._state.group,
            term=self._state.term,
            changes=self._changes(job, attempt),
        )
        self._state.send(attempt.worker, command)

    def _changes(self, job: Job, attempt: Attempt) -> list[AppliedChange]:
        changes = job.workflows[attempt.id.workflow].changes
        return shifted(changes, self._lifecycle.behind_s(attempt, job)) if changes else []

    def _set_up(self, job: Job, attempt: Attempt) -> None:
        """Commit what setup left, and then let every attempt that waits for it go on."""
        context, shared_s = job.workflows[attempt.id.workflow].set_up, attempt.setup.shared_s
        if not context and attempt.setup.context:
            event = WorkflowSetUp(**asdict(attempt.id), context=attempt.setup.context)
            self._state.propose(event)
        elif context and shared_s is None and self.is_due(attempt):
            attempt.command_sent_s = self._state.now_s
            command = ShareSetUpContext(
                attempt_id=attempt.id,
                group=self._state.group,
                term=self._state.term,
                context=context,
            )
            self._state.send(attempt.worker, command)
        elif shared_s is not None and self._state.now_s >= shared_s + self._timeouts.prepare_s:
            limit_s = self._timeouts.prepare_s
            reason = f"not prepared within {limit_s:g} s: its setup hooks"
            self._time_out(job, attempt, reason)

    def _watch(self, job: Job, attempt: Attempt) -> None:
        """Time a running attempt out if it takes too long or makes no progress."""
        plan, activity = job.plan_of(attempt.id.workflow), attempt.activity
        now_s, deadline_s = self._state.now_s, activity.deadline_s
        patience_s = max(self._timeouts.stuck_s, 2 * plan.timeout_s + plan.quiet_s)
        if job.control.paused_ms:
            activity.moved_s = now_s
        elif job.workflows[attempt.id.workflow].changes:  # there may be no user for long
            patience_s += plan.duration_s
        stuck_at_s = activity.moved_s + patience_s
        if deadline_s is not None and now_s >= deadline_s:
            reason = f"still running {now_s - deadline_s:.0f} s after it had to be over"
            self._time_out(job, attempt, reason)
        elif attempt.timeline.reported_s is not None and now_s >= stuck_at_s:
            reason = f"stuck: no action finished for {now_s - activity.moved_s:.0f} s"
            self._time_out(job, attempt, reason)
        else:
            activity.check_at_s = stuck_at_s if deadline_s is None else min(deadline_s, stuck_at_s)

    def _time_out(self, job: Job, attempt: Attempt, reason: str) -> None:
        if job.workflows[attempt.id.workflow].is_tearing_down:
            now_s = self._state.now_s
            self._lifecycle.lose(attempt, reason, fault=AttemptFault.TOO_LONG, over_s=now_s)
            return
        end = WorkflowEnded(
            job=attempt.id.job,
            workflow=attempt.id.workflow,
            reason=f"{reason} (part {attempt.id.part} on {attempt.worker})",
            status=JobStatus.TIMEOUT,
        )
        self._state.propose(end)

    # --- results ----------------------------------------------------------------------------

    def _commit_result(
        self,
        job: Job,
        attempt: Attempt,
        result: DeliverResult | AnnouncePrepareFailed,
        is_stopping: bool,
    ) -> None:
        """Propose how an attempt ended: its result counts, or it is revoked for another attempt."""
        over_s, fault = None, AttemptFault.NOT_PREPARED
        if isinstance(result, AnnouncePrepareFailed):
            status = PartStatus.STOPPED if is_stopping else PartStatus.FAILED
            error = f"{result.error} (hint: {result.hint})" if result.hint else result.error
            end = PartEnded(**asdict(attempt.id), status=status, error=error)
            reason = f"worker {attempt.worker} could not prepare it: {result.error}"
        else:
            known_s = attempt.timeline.known_until_s()
            over_s = None if known_s is None else known_s + result.unheard_s
            end = self._end_of(job, attempt, result, over_s)
            # An executor that died counts against its worker; a lease that expired does not.
            has_failed = result.status is PartStatus.FAILED
            fault = AttemptFault.EXECUTOR_DIED if has_failed else AttemptFault.NONE
            reason = result.error or f"it ended early on {attempt.worker}"
        if is_stopping or not result.is_retryable or end.status is PartStatus.COMPLETED:
            self._state.propose(end)
        elif end.set_up and not job.workflows[attempt.id.workflow].set_up:
            # First: the next attempt goes on with it, and teardown is owed.
            self._state.propose(WorkflowSetUp(**asdict(attempt.id), context=end.set_up))
        else:
            self._state.propose(self._lifecycle.revocation(attempt, reason, fault, over_s))

    def _end_of(
        self, job: Job, attempt: Attempt, result: DeliverResult, over_s: float | None
    ) -> PartEnded:
        unreported = self._lifecycle.unreported(attempt, over_s)
        return PartEnded(
            **asdict(attempt.id),
            status=result.status,
            error=result.error,
            report=final_report(result.report, parts=len(job.workflows[attempt.id.workflow].parts)),
            provided=result.provided,
            elapsed_s=result.elapsed_s,
            was_saturated=result.was_saturated,
            gap_s=unreported.seconds,
            requests_max=unreported.requests_max,
            set_up=result.set_up,
            rows_used=attempt.rows.used,
        )


def _own_end_s(job: Job, attempt: Attempt) -> float | None:
    """Return when an attempt that has begun ends by itself, without a leader; None if it is paused,
    so that only a leader can end it."""
    plan, began_s = job.plan_of(attempt.id.workflow), attempt.timeline.may_run_since_s
    if began_s is None:
        began_s = attempt.accepted_s
    lasts_s = job.schedule_of(plan.name).at_s(plan.duration_s)
    if lasts_s is None:
        return None
    return began_s + lasts_s + plan.timeout_s + _TEARDOWN_S
