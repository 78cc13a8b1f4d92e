"""Changes of attempts under one leader: opened, accepted, started, reported, lost, closed.

Every change of an attempt's phase is made here or in `Attempt`; what should happen to it is decided
in `attempt_rules` and `reconcile`.
"""

import dataclasses

from msgspec.structs import asdict

from hyperscale.jobs.committed.events import AttemptFault, AttemptRevoked, PartEnded
from hyperscale.jobs.committed.state import Job, Part, WorkflowStatus
from hyperscale.jobs.leader.attempts import NOT_READY, Assignment, Attempt, AttemptPhase, RowUse
from hyperscale.jobs.leader.core_requests import request_for_attempt, request_for_workflow
from hyperscale.jobs.leader.gaps import UnreportedLoad, UserPace
from hyperscale.jobs.leader.state import LeaderState
from hyperscale.jobs.leader.statistics import WorkflowStatistics
from hyperscale.jobs.leader.worker_liveness import WorkerState
from hyperscale.jobs.messages import (
    AnnounceReady,
    AnnounceSetUp,
    AttemptId,
    PartPhase,
    PartProgress,
)
from hyperscale.plan.share import share

NEWS_S = 0.1
"""Delay of the checkpoint after parts have begun, so that it covers parts that begin together."""
_A = AttemptPhase
_REPORTING = NOT_READY | {_A.READY, _A.RUNNING}


class AttemptLifecycle:
    def __init__(self, state: LeaderState) -> None:
        self._state = state

    # --- beginning --------------------------------------------------------------------------

    def adopt(self, job: Job) -> None:
        """Take over a job of an earlier leader, from what is committed."""
        state = self._state
        progress = state.job(job)
        if progress.deadline_s is not None:
            progress.deadline_s -= state.now_s - state.time.instant_s(
                job.times.submitted_ms, now_s=state.now_s
            )
        for name, workflow in job.workflows.items():
            if workflow.parts:
                progress.statistics_of(job, name).remember(workflow.parts)
            for index, part in enumerate(workflow.parts):
                if part.segments:
                    # An attempt was lost under an earlier leader, perhaps only a moment ago.
                    fenced_until_s = state.now_s + state.timeouts.silence_margin_s
                    progress.fenced_until_s[name, index] = fenced_until_s
        for attempt_id, _ in job.attempts():
            self.open(attempt_id, job, is_inherited=True)

    def open(self, attempt_id: AttemptId, job: Job, *, is_inherited: bool = False) -> None:
        """Add an attempt that was dispatched. A known attempt stays as it is: an entry may be
        applied that was part of the state this leader began with."""
        state = self._state
        if state.attempts.get(attempt_id) is not None:
            return
        workflow = job.workflows[attempt_id.workflow]
        part = workflow.parts[attempt_id.part]
        is_teardown = attempt_id.part == workflow.teardown_part
        within_job = workflow.within_job and not is_teardown
        attempt = Attempt(
            id=attempt_id,
            assignment=Assignment(
                worker=part.worker,
                first_slot=part.first_slot,
                cores=part.cores,
                vus=_vus_of(job, attempt_id),
                began_s=part.began_s,
                iterations_done=part.iterations_done,
                shared=state.requests.use(attempt_id) or within_job,
                within_job=within_job,
            ),
            is_inherited=is_inherited,
            accepted_s=state.now_s,
            rows=RowUse() if part.rows is None else RowUse(used=list(part.rows.used)),
        )
        state.attempts.add(attempt)
        worker = state.workers[part.worker]
        if is_inherited:
            self._inherit(attempt, job, part)
        elif worker.is_gone:
            # The allocator knows of a new process of this worker before this leader does.
            state.workers.add(part.worker, WorkerState.DOUBTFUL)

    def _inherit(self, attempt: Attempt, job: Job, part: Part) -> None:
        state = self._state
        since_s = state.time.instant_s(part.seen_ms, now_s=state.now_s)
        attempt.timeline.inherit(since_s=since_s, doubt_s=state.time.doubt_s)
        statistics = state.job(job).statistics_of(job, attempt.id.workflow)
        report = statistics.stats.latest(part.first_slot, part.attempt)
        if report is not None:
            attempt.timeline.inherit_report(
                sent=report.sent,
                iterations=part.iterations,
                elapsed_s=part.elapsed_s,
                reported_s=since_s,
                doubt_s=state.time.doubt_s,
            )
            attempt.activity.report(report.finished, now_s=state.now_s)

    def attempt_of(self, job: Job, workflow: str, part: int) -> Attempt:
        """Return the open attempt of a part; add it if this leader dispatched it and the event of
        its dispatch has not arrived yet. Attempts of earlier leaders were adopted."""
        number = job.workflows[workflow].parts[part].attempt
        attempt = self._state.attempts.of_part(job.id, workflow, part)
        if attempt is None or attempt.id.attempt != number:
            self.open(AttemptId(job.id, workflow, part, number), job)
            attempt = self._state.attempts.of_part(job.id, workflow, part)
            assert attempt is not None
        return attempt

    def accept(self, attempt: Attempt, phase: AttemptPhase) -> None:
        """Note that the worker has the attempt, in this phase."""
        attempt.become(phase)
        if phase in NOT_READY or phase is AttemptPhase.READY:
            attempt.timeline.not_begun()
        attempt.accepted_s = self._state.now_s
        attempt.command_sent_s = None  # the next command is due at once
        progress = self._state.jobs.get(attempt.id.job)
        if progress is not None:
            key = (attempt.id.workflow, attempt.id.part)
            progress.waiting_since_s.pop((attempt.id.workflow, -1), None)
            progress.waiting_since_s.pop(key, None)
            progress.refusals.pop(key, None)

    def announced(self, attempt: Attempt, message: AnnounceReady | AnnounceSetUp) -> None:
        """Note that the executors of an attempt are ready, or wait for the context of setup."""
        phase = AttemptPhase.READY
        if isinstance(message, AnnounceSetUp):
            phase = AttemptPhase.SETTING_UP
            attempt.setup.context = attempt.setup.context or message.context
        if attempt.phase in NOT_READY and attempt.phase is not phase:
            self.accept(attempt, phase)

    def start(self, attempt: Attempt, job: Job) -> None:
        """Note that the worker counts down to the start of the attempt, or has started it."""
        now_s, progress = self._state.now_s, self._state.job(job)
        attempt.become(AttemptPhase.RUNNING)
        started_s = max(now_s, progress.start_at_s.get(attempt.id.workflow, now_s))
        attempt.timeline.started_s = attempt.activity.moved_s = started_s
        self._set_deadline(attempt, job)
        progress.checkpoint_at_s = min(progress.checkpoint_at_s, now_s + NEWS_S)

    def change(self, job: Job) -> None:
        """Note that the load of a job was changed: deadlines move, and nothing is stuck."""
        for name, statistics in self._state.job(job).statistics.items():
            statistics.stats.schedule = job.schedule_of(name)
        for attempt in self._state.attempts.of_job(job.id):
            vus = _vus_of(job, attempt.id)
            attempt.assignment = dataclasses.replace(attempt.assignment, vus=vus)
            attempt.activity.moved_s = max(attempt.activity.moved_s, self._state.now_s)
            if attempt.timeline.started_s is not None:
                self._set_deadline(attempt, job)

    def behind_s(self, attempt: Attempt, job: Job) -> float:
        """Return how far an attempt runs behind its workflow: attempts without a shape to keep up
        with run for the rest of their duration, however long their part had no load."""
        plan, workflow = job.plan_of(attempt.id.workflow), job.workflows[attempt.id.workflow]
        if attempt.id.attempt == 1 or plan.stages or not workflow.began_ms:
            return 0.0
        started_s = attempt.timeline.started_s
        started_ms = self._state.time.read_ms(self._state.now_s if started_s is None else started_s)
        return max(0.0, (started_ms - workflow.began_ms) / 1000 - attempt.began_s)

    def _set_deadline(self, attempt: Attempt, job: Job) -> None:
        name = attempt.id.workflow
        plan, started_s = job.plan_of(name), attempt.timeline.started_s or 0.0
        remaining_s: float | None = 0.0
        if attempt.assignment.vus > 0:
            schedule = job.schedule_of(name, behind_s=self.behind_s(attempt, job))
            remaining_s = schedule.remaining_s(plan.offset_s(attempt.began_s))
        activity, grace_s = attempt.activity, plan.timeout_s + self._state.timeouts.overrun_s
        # While it is paused, it has no deadline; the end of the pause sets one.
        activity.deadline_s = None if remaining_s is None else started_s + remaining_s + grace_s
        activity.check_at_s = started_s

    # --- reports ----------------------------------------------------------------------------

    def report(self, attempt: Attempt, job: Job, reported: PartProgress) -> None:
        """Take a report into the attempt and into the statistics of its workflow."""
        now_s, progress = self._state.now_s, self._state.job(job)
        statistics = progress.statistics_of(job, attempt.id.workflow)
        report = statistics.take(
            reported.report,
            slot=attempt.assignment.first_slot,
            attempt=attempt.id.attempt,
            parts=len(job.workflows[attempt.id.workflow].parts),
        )
        if report is None:
            return
        is_first = attempt.timeline.reported_s is None
        attempt.timeline.since_s = max(0.0, report.elapsed_s - reported.elapsed_s)
        attempt.timeline.report(
            sent=report.sent,
            iterations=report.iterations,
            elapsed_s=reported.elapsed_s,
            now_s=now_s,
        )
        attempt.activity.report(report.finished, now_s=now_s)
        statistics.measured(attempt.timeline.rate / attempt.assignment.cores)
        is_stopping = reported.phase is PartPhase.STOPPING
        is_news = is_stopping or attempt.phase is not AttemptPhase.RUNNING
        if is_news and attempt.phase in _REPORTING:
            attempt.become(AttemptPhase.STOPPING if is_stopping else AttemptPhase.RUNNING)
        if attempt.activity.deadline_s is None:
            self._set_deadline(attempt, job)
        if is_first:
            # The next leader should know that the attempt has begun, even if it is elected soon.
            progress.checkpoint_at_s = min(progress.checkpoint_at_s, now_s + NEWS_S)

    # --- the end ----------------------------------------------------------------------------

    def lose(
        self, attempt: Attempt, reason: str, *, fault: AttemptFault, over_s: float | None
    ) -> None:
        """Give an attempt up and propose its revocation, unless it has a result. `over_s`: when its
        load ended at the latest; None: it never began."""
        if attempt.result is None:
            if attempt.phase is not AttemptPhase.LOST:
                attempt.revocation = self.revocation(attempt, reason, fault, over_s)
                attempt.become(AttemptPhase.LOST)
            self.propose_revocation(attempt)

    def propose_revocation(self, attempt: Attempt) -> None:
        assert attempt.revocation is not None
        self._state.propose(attempt.revocation)

    def revocation(
        self, attempt: Attempt, reason: str, fault: AttemptFault, over_s: float | None
    ) -> AttemptRevoked:
        """Return the event that revokes an attempt, with its last report and its gap."""
        statistics, slot = self._statistics(attempt), attempt.assignment.first_slot
        report = b""
        if statistics is not None:
            report = statistics.stats.last_report(slot, attempt.id.attempt)
        unreported = self.unreported(attempt, over_s)
        return AttemptRevoked(
            **asdict(attempt.id),
            reason=reason,
            report=report,
            elapsed_s=attempt.timeline.elapsed_s,
            iterations=attempt.timeline.iterations,
            gap_s=unreported.seconds,
            requests_max=unreported.requests_max,
            since_s=attempt.began_s,
            fault=fault,
            rows_used=attempt.rows.used,
            has_begun=over_s is not None and attempt.timeline.known_until_s() is not None,
        )

    def unreported(self, attempt: Attempt, over_s: float | None) -> UnreportedLoad:
        statistics = self._statistics(attempt)
        return attempt.timeline.unreported(
            over_s,
            cores=attempt.assignment.cores,
            vus=attempt.assignment.vus,
            others_rate=0.0 if statistics is None else statistics.rate_per_core,
            pace=UserPace() if statistics is None else statistics.pace(),
        )

    def _statistics(self, attempt: Attempt) -> WorkflowStatistics | None:
        progress = self._state.jobs.get(attempt.id.job)
        return None if progress is None else progress.statistics.get(attempt.id.workflow)

    def close(self, attempt_id: AttemptId, job: Job, event: AttemptRevoked | PartEnded) -> None:
        """Remove an attempt whose end was applied, or was refused because it came too late."""
        state = self._state
        attempt = state.attempts.get(attempt_id)
        if attempt is None:
            return
        part = job.workflows[attempt_id.workflow].parts[attempt_id.part]
        if part.is_open and part.attempt == attempt_id.attempt:
            return  # refused, and the attempt is still open: it is decided again
        state.attempts.remove(attempt)
        statistics = self._statistics(attempt)
        if statistics is not None:
            statistics.stats.end_attempt(attempt.assignment.first_slot, attempt_id.attempt)
        if isinstance(event, AttemptRevoked):
            self._after_revocation(attempt, job, event)
        if attempt.result is not None:
            state.acknowledge(attempt.worker, attempt_id)
        elif isinstance(event, AttemptRevoked):
            # Best effort: the worker may be back, and a lease with `on_isolation=continue` is long.
            state.stop(attempt.worker, attempt_id, event.reason)
            if attempt.copy.is_absent:
                state.release(request_for_attempt(attempt_id), part=attempt_id.part)
                request = request_for_workflow(attempt_id.job, attempt_id.workflow)
                state.release(request, part=attempt_id.part)

    def _after_revocation(self, attempt: Attempt, job: Job, event: AttemptRevoked) -> None:
        """Fence the part until the lost load has ended; back off if workers refused it in a row."""
        progress = self._state.jobs.get(attempt.id.job)
        if progress is None:
            return
        workflow, key = attempt.id.workflow, (attempt.id.workflow, attempt.id.part)
        if job.workflows[workflow].status is not WorkflowStatus.RUNNING:
            progress.start_at_s.pop(workflow, None)  # all parts start together once more
        if attempt.fenced_until_s is not None:
            known_s = progress.fenced_until_s.get(key, attempt.fenced_until_s)
            progress.fenced_until_s[key] = max(known_s, attempt.fenced_until_s)
        refusals = 0 if event.fault is not AttemptFault.NONE else progress.refusals.get(key, 0) + 1
        progress.refusals[key] = refusals
        if refusals:
            next_id = AttemptId(attempt.id.job, workflow, attempt.id.part, attempt.id.attempt + 1)
            self._state.requests.back_off(next_id, refusals, now_s=self._state.now_s)

    def forget(self, job: Job) -> None:
        """Acknowledge or stop the attempts of a job that has ended, and withdraw its requests."""
        state = self._state
        for attempt in state.attempts.of_job(job.id):
            state.attempts.remove(attempt)
            if attempt.result is not None:
                state.acknowledge(attempt.worker, attempt.id)
            else:
                state.stop(attempt.worker, attempt.id, job.reason or "the job is over")
        self.withdraw(state.requests.of_job(job.id))
        state.jobs.pop(job.id, None)

    def withdraw(self, requests: list[str]) -> None:
        """Withdraw requests and release their grants."""
        for request in requests:
            self._state.requests.pop(request, None)
            self._state.release(request)


def _vus_of(job: Job, attempt_id: AttemptId) -> int:
    """Return the most users that an attempt has at once, by the changes so far."""
    workflow = job.workflows[attempt_id.workflow]
    if attempt_id.part == workflow.teardown_part:
        return 0
    part, vus = workflow.parts[attempt_id.part], job.schedule_of(attempt_id.workflow).vus
    own = range(part.first_slot, part.first_slot + part.cores)
    return sum(share(vus, workflow.slots, slot) for slot in own)
