"""Reconciles jobs: compares committed state with what the leader knows, and does what is missing.

`Reconciler.reconcile` may be called at any time and any number of times: commands, requests and
proposals under way are not repeated before their time. So a lost or repeated message or a change of
leader costs only time.
"""

from msgspec.structs import asdict, replace

from hyperscale.errors import RunError
from hyperscale.jobs.committed.context import context_for
from hyperscale.jobs.committed.events import (
    AttemptFault,
    CancelRequested,
    JobFinished,
    JobStatus,
    PartDispatch,
    PartRedispatched,
    TeardownDispatched,
    TeardownStarted,
    WorkflowDispatched,
    WorkflowEnded,
)
from hyperscale.jobs.committed.state import Job, Teardown, WorkflowState, WorkflowStatus
from hyperscale.jobs.leader.attempt_rules import AttemptRules
from hyperscale.jobs.leader.attempts import BEGUN, Attempt, AttemptPhase
from hyperscale.jobs.leader.checkpoints import save_checkpoints
from hyperscale.jobs.leader.core_requests import (
    CoreRequest,
    request_for_attempt,
    request_for_workflow,
)
from hyperscale.jobs.leader.events import LeaderEffect, SendCoreRequest
from hyperscale.jobs.leader.lifecycle import AttemptLifecycle
from hyperscale.jobs.leader.rows import RowGrants, first_rows
from hyperscale.jobs.leader.state import JobProgress, LeaderState
from hyperscale.jobs.messages import AttemptId, RequestCores, RequestCoresReply, StartPart
from hyperscale.plan import Priority, WorkflowPlan
from hyperscale.stats.thresholds import abort_verdict

_START_AHEAD_S = 0.5
"""Parts that are fenced are sent their start this long before: a few rounds of reconciling."""
_YIELD_S = 10.0
_JOINS_LATE = "its datacenter joins late, for the remaining time"
_YIELDED = "another part of the workflow found no cores, and other jobs may need these"


class Reconciler:
    """Does the next step of jobs."""

    def __init__(self, state: LeaderState, lifecycle: AttemptLifecycle, rows: RowGrants) -> None:
        self._state = state
        self._lifecycle = lifecycle
        self._rows = rows
        self._rules = AttemptRules(state, lifecycle)
        self._timeouts = state.timeouts

    def reconcile(self, job: Job) -> None:
        """Do what a job needs next."""
        state = self._state
        if job.has_ended:
            self._lifecycle.forget(job)
            return
        progress = state.job(job)
        if all(workflow.has_ended for workflow in job.workflows.values()):
            state.propose(
                JobFinished(job=job.id, status=job.final_status(), reason=job.final_reason())
            )
            return
        before = len(state.effects)
        is_late = self._is_late(job, progress)
        if is_late and job.stop is None:
            reason = f"the job's timeout of {job.options.timeout_s:g} s was over"
            state.propose(CancelRequested(job=job.id, reason=reason, status=JobStatus.TIMEOUT))
        for name, workflow in job.workflows.items():
            if workflow.has_ended:
                continue
            stop = workflow.stop or job.stop
            if workflow.is_tearing_down:
                self._tear_down(job, progress, name, workflow)
            elif stop is not None:
                self._stop_workflow(job, name, workflow, stop.reason)
            elif not workflow.parts:
                self._dispatch(job, progress, name)
            else:
                self._run(job, progress, name, workflow)
        self._rows.advance(job, progress)
        save_checkpoints(state, job, progress)
        if job.stop is None and state.now_s >= progress.thresholds_at_s:
            progress.thresholds_at_s = state.now_s + self._timeouts.thresholds_s
            self._abort_on_threshold(job, progress)
        state.effects[before:] = _count_together(state.effects[before:])

    def _is_late(self, job: Job, progress: JobProgress) -> bool:
        """Return True if the timeout of a job is over. Of a part of a global job it is the deadline
        that the gates allow it without them, which does not count pauses."""
        state, deadline_s = self._state, progress.deadline_s
        if deadline_s is None or state.now_s < deadline_s:
            return False
        is_part = job.options.part_of is not None
        paused_s = job.control.paused_s(state.time.read_ms(state.now_s)) if is_part else 0.0
        return state.now_s >= deadline_s + paused_s

    def _stop_workflow(self, job: Job, name: str, workflow: WorkflowState, reason: str) -> None:
        for index, part in enumerate(workflow.parts):
            if part.is_open:
                self._rules.stop(job, self._lifecycle.attempt_of(job, name, index), reason)
        self._lifecycle.withdraw(self._state.requests.of_job(job.id, name))

    def _tear_down(
        self, job: Job, progress: JobProgress, name: str, workflow: WorkflowState
    ) -> None:
        """Run the teardown on one worker. That it is started is committed first: from then on it is
        never given to another worker, so that it runs once, whichever node dies."""
        index = workflow.teardown_part
        if index is None:
            index = len(workflow.parts)
            request = request_for_attempt(AttemptId(job.id, name, index, 1))
            wanted = self._wanted(request, job, job.plan_of(name))
            grant = self._request(_for_teardown(wanted, index), progress, job)
            if grant is not None:
                worker = grant.shares[0].worker
                self._state.propose(TeardownDispatched(job=job.id, workflow=name, worker=worker))
            return
        if not workflow.parts[index].is_open:
            self._redispatch(job, progress, name, index)
            return
        attempt = self._lifecycle.attempt_of(job, name, index)
        self._rules.advance(job, attempt)
        if attempt.phase is AttemptPhase.READY:
            if workflow.teardown is Teardown.OWED:
                self._state.propose(TeardownStarted(**asdict(attempt.id)))
            elif self._rules.is_due(attempt):
                progress.start_at_s.pop(name, None)
                fences = [at_s for key, at_s in progress.fenced_until_s.items() if key[0] == name]
                progress.fenced_until_s[name, index] = max(fences, default=0.0)
                self._start_together(job, progress, [attempt])

    def _abort_on_threshold(self, job: Job, progress: JobProgress) -> None:
        for name, statistics in progress.statistics.items():
            if not statistics.has_abort or job.workflows[name].has_ended:
                continue
            verdict = abort_verdict(statistics.thresholds, statistics.stats)
            if verdict is not None:
                what = verdict.describe()
                cancel = CancelRequested(
                    job=job.id,
                    reason=f"stopped by the threshold of {name}: {what}",
                    status=JobStatus.FAILED,
                    aborted_by=name,
                    workflow_reason=f"stopped by its threshold {what}",
                )
                self._state.propose(cancel)
                return

    # --- dispatch ---------------------------------------------------------------------------

    def _dispatch(self, job: Job, progress: JobProgress, name: str) -> None:
        """Get cores for a workflow whose dependencies have completed, and dispatch its parts."""
        plan = job.plan_of(name)
        progress.statistics_of(job, name)  # a plan that cannot be judged fails before it starts
        if any(job.workflows[each].ended_as is not JobStatus.COMPLETED for each in plan.depends):
            return
        request = request_for_workflow(job.id, name)
        if request not in self._state.requests:
            try:
                context_for(job, name)
            except RunError as error:
                end = WorkflowEnded(job=job.id, workflow=name, reason=str(error))
                self._state.propose(end)
                return
        grant = self._request(self._wanted(request, job, plan), progress, job)
        if grant is None:
            return
        slot, parts = 0, []
        for share in grant.shares:
            parts.append(PartDispatch(slot, share.cores, share.worker))
            slot += share.cores
        event = WorkflowDispatched(
            job=job.id,
            workflow=name,
            parts=parts,
            within_job=grant.within_job,
            rows=first_rows(plan, slot),
        )
        self._state.propose(event)

    def _redispatch(self, job: Job, progress: JobProgress, name: str, index: int) -> None:
        """Get cores for the next attempt of a part, which runs for the rest of its duration."""
        workflow = job.workflows[name]
        part = workflow.parts[index]
        retries = self._state.retries
        if retries.is_used_up(part):
            end = WorkflowEnded(job=job.id, workflow=name, reason=retries.describe(part))
            self._state.propose(end)
            return
        request = request_for_attempt(AttemptId(job.id, name, index, part.attempt + 1))
        wanted = replace(
            _for_teardown(self._wanted(request, job, job.plan_of(name)), index)
            if index == workflow.teardown_part
            else self._wanted(request, job, job.plan_of(name)),
            part=index,
            cores=part.cores,
            exclude=retries.excluded(
                part,
                time_ms=self._state.time.read_ms(self._state.now_s),
                returned=self._state.returned,
            ),
            is_recovery=True,
            # Load that was there, or other parts that hold cores and wait for this one.
            may_share=workflow.status is WorkflowStatus.RUNNING
            or workflow.has_open_parts()
            or index == workflow.teardown_part,
            within_job=workflow.within_job and index != workflow.teardown_part,
        )
        grant = self._request(wanted, progress, job)
        if grant is not None:
            event = PartRedispatched(
                job=job.id,
                workflow=name,
                part=index,
                attempt=part.attempt + 1,
                worker=grant.shares[0].worker,
                within_job=grant.within_job,
                rows=first_rows(job.plan_of(name), workflow.slots),
            )
            self._state.propose(event)

    def _wanted(self, request: str, job: Job, plan: WorkflowPlan) -> RequestCores:
        return RequestCores(
            request_id=request,
            job=job.id,
            workflow=plan.name,
            group=self._state.group,
            term=self._state.term,
            leader=self._state.node,
            priority=plan.priority,
            is_test=plan.is_test,
            vus=min(plan.vus, _cores_left(job) or plan.vus),
            placement=plan.placement,
        )

    def _request(
        self, wanted: RequestCores, progress: JobProgress, job: Job
    ) -> RequestCoresReply | None:
        """Return the grant if there is one; else send the request, repeat it, or end a workflow
        that has waited too long."""
        state, key = self._state, (wanted.workflow, wanted.part)
        request = state.requests.setdefault(
            wanted.request_id, CoreRequest(wanted.job, wanted.workflow)
        )
        grant = request.grant(now_s=state.now_s)
        if grant is not None:
            return grant
        waited_s = state.now_s - progress.waiting_since_s.setdefault(key, state.now_s)
        end = self._waited_too_long(wanted, request, waited_s, job)
        if end is not None:
            state.propose(end)
        elif request.may_send(now_s=state.now_s, repeat_s=self._timeouts.repeat_s):
            request.sent_s = state.now_s
            state.effects.append(SendCoreRequest(replace(wanted, waited_s=waited_s)))
        return None

    def _waited_too_long(
        self, wanted: RequestCores, request: CoreRequest, waited_s: float, job: Job
    ) -> WorkflowEnded | None:
        limit_s, impossible_s = job.options.dispatch_timeout_s, request.impossible_since_s
        reason = "" if request.reply is None else request.reply.reason
        if waited_s >= limit_s:
            detail = f": {reason}" if reason else ""
            status, why = JobStatus.TIMEOUT, f"no cores within {limit_s:g} s{detail}"
        elif (
            impossible_s is not None
            and self._state.now_s >= impossible_s + self._timeouts.no_workers_s
        ):
            status, why = JobStatus.FAILED, f"no worker can run it: {reason}"
        else:
            return None
        parts = job.workflows[wanted.workflow].parts
        if 0 <= wanted.part < len(parts):
            why = f"{self._state.retries.describe(parts[wanted.part])}; {why}"
        return WorkflowEnded(job=wanted.job, workflow=wanted.workflow, reason=why, status=status)

    # --- running parts ----------------------------------------------------------------------

    def _run(self, job: Job, progress: JobProgress, name: str, workflow: WorkflowState) -> None:
        """Do the next step of every part that has not ended, and start those that are ready."""
        attempts: list[Attempt] = []
        for index, part in enumerate(workflow.parts):
            if part.has_ended:
                continue
            if part.is_open:
                attempt = self._lifecycle.attempt_of(job, name, index)
                attempts.append(attempt)
                if not self._rules.is_calm(attempt):
                    self._rules.advance(job, attempt)
                if workflow.changes:
                    self._rules.change(job, attempt)
            else:
                self._redispatch(job, progress, name, index)
        if job.joined_s:
            attempts = [each for each in attempts if not self._joins_late(workflow, each)]
        if job.may_begin and any(attempt.phase is AttemptPhase.READY for attempt in attempts):
            self._start(job, progress, workflow, attempts)
        if self._blocks_other_jobs(job, progress, name):
            for attempt in attempts:
                now_s = self._state.now_s
                self._lifecycle.lose(attempt, _YIELDED, fault=AttemptFault.NONE, over_s=now_s)

    def _joins_late(self, workflow: WorkflowState, attempt: Attempt) -> bool:
        """Prepare an attempt anew whose datacenter joins others that have run for a while: it was
        prepared for the whole duration. Return True if it was given up for that."""
        part = workflow.parts[attempt.id.part]
        if attempt.phase in BEGUN or attempt.assignment.began_s >= part.began_s:
            return False
        now_s = self._state.now_s
        self._lifecycle.lose(attempt, _JOINS_LATE, fault=AttemptFault.NONE, over_s=now_s)
        return True

    def _blocks_other_jobs(self, job: Job, progress: JobProgress, name: str) -> bool:
        """Return True if an EXCLUSIVE workflow that has not begun holds cores and waits for more.

        Another workflow may hold those and wait for these, if two allocators in a row have granted
        cores to both. This one then begins again, and they are served one after the other.
        """
        workflow = job.workflows[name]
        if (
            job.plan_of(name).priority is not Priority.EXCLUSIVE
            or workflow.status is WorkflowStatus.RUNNING
        ):
            return False
        waits = [
            self._state.now_s - since_s
            for (waiting, part), since_s in progress.waiting_since_s.items()
            if waiting == name and part >= 0 and not workflow.parts[part].is_open
        ]
        return max(waits, default=0.0) >= _YIELD_S

    def _start(
        self,
        job: Job,
        progress: JobProgress,
        workflow: WorkflowState,
        attempts: list[Attempt],
    ) -> None:
        """Start all first attempts together, and later attempts as soon as they are ready."""
        ready = [attempt for attempt in attempts if attempt.phase is AttemptPhase.READY]
        due = [attempt for attempt in ready if self._rules.is_due(attempt)]
        if workflow.status is WorkflowStatus.RUNNING or any(a.phase in BEGUN for a in attempts):
            for attempt in due:
                self._start_together(job, progress, [attempt])
        elif due and len(ready) == sum(not part.has_ended for part in workflow.parts):
            self._start_together(job, progress, ready)

    def _start_together(self, job: Job, progress: JobProgress, together: list[Attempt]) -> None:
        """Start attempts once the load of the attempts before them has certainly ended."""
        state, name, now_s = self._state, together[0].id.workflow, self._state.now_s
        fences = [progress.fenced_until_s.get((name, each.id.part), now_s) for each in together]
        fenced_until_s = max(now_s, *fences)
        if fenced_until_s > now_s + _START_AHEAD_S:
            return
        if not all(state.workers.has_lease_time(each.worker) for each in together):
            return
        farthest_s = max(state.workers[each.worker].rtt_s for each in together) / 2
        start_at_s = progress.start_at_s.setdefault(
            name, now_s + self._timeouts.start_in_s + farthest_s
        )
        for attempt in together:
            worker = state.workers[attempt.worker]
            start_in_s = max(start_at_s - now_s - worker.rtt_s / 2, fenced_until_s - now_s)
            attempt.command_sent_s = now_s
            attempt.timeline.start_sent(fenced_until_s)
            command = StartPart(
                attempt_id=attempt.id,
                group=state.group,
                term=state.term,
                start_in_ms=start_in_s * 1000,
                lease_ms=state.lease_ms,
                stamp_ms=worker.confirmed_ms,
                since_s=self._since_s(job, name, now_s + start_in_s + worker.rtt_s / 2),
            )
            state.send(attempt.worker, command)

    def _since_s(self, job: Job, name: str, start_at_s: float) -> float | None:
        """Return where in its shape a workflow that runs will be at an instant; None if it has no
        shape, or begins only then."""
        began_ms = job.workflows[name].began_ms
        if not began_ms or not job.plan_of(name).stages:
            return None
        return max(0.0, (self._state.time.read_ms(start_at_s) - began_ms) / 1000)


def _for_teardown(wanted: RequestCores, part: int) -> RequestCores:
    """Ask for one core, or for a place beside others: what was set up must not wait."""
    return replace(
        wanted,
        part=part,
        cores=1,
        is_recovery=True,
        may_share=True,
        priority=Priority.AUTO,
        is_test=False,
        vus=1,
    )


def _count_together(effects: list[LeaderEffect]) -> list[LeaderEffect]:
    """Add to the requests of a job how many belong together: the allocator serves them as one."""
    requests = [each.request for each in effects if isinstance(each, SendCoreRequest)]
    together = sum(not request.is_recovery for request in requests)
    if together < 2:
        return effects
    return [
        SendCoreRequest(replace(each.request, together=together))
        if isinstance(each, SendCoreRequest) and not each.request.is_recovery
        else each
        for each in effects
    ]


def _cores_left(job: Job) -> int:
    """Return how many cores one more workflow of a job may get, at least 1; 0: any number."""
    if not job.options.cores_max:
        return 0
    left = job.options.cores_max - sum(part.cores for _, part in job.attempts())
    ready = [
        name
        for name, workflow in job.workflows.items()
        if not workflow.parts and not workflow.has_ended
        if all(job.workflows[each].has_ended for each in job.plan_of(name).depends)
    ]
    return max(1, left // max(1, len(ready)))
