"""Reconcile jobs: compare committed state with what the leader knows, ask for what is missing.

`Reconciler.reconcile` may be called at any time and any number of times: what is under way is not
asked for again before its time. So a lost message, a repeated one or a change of leader costs only
time.
"""

from msgspec.structs import replace

from hyperscale.errors import RunError
from hyperscale.jobs.committed.context import context_for
from hyperscale.jobs.committed.events import (
    CancelRequested,
    JobFinished,
    JobStatus,
    PartDispatch,
    PartRedispatched,
    WorkflowDispatched,
    WorkflowEnded,
)
from hyperscale.jobs.committed.state import Job, Part, WorkflowState, WorkflowStatus
from hyperscale.jobs.leader.attempt_rules import AttemptRules
from hyperscale.jobs.leader.attempts import BEGUN, Attempt, AttemptPhase
from hyperscale.jobs.leader.checkpoints import Checkpoints
from hyperscale.jobs.leader.core_requests import (
    CoreRequest,
    request_for_attempt,
    request_for_workflow,
)
from hyperscale.jobs.leader.events import LeaderEffect, SendCommand, SendCoreRequest
from hyperscale.jobs.leader.lifecycle import AttemptLifecycle
from hyperscale.jobs.leader.tables import JobProgress, LeaderTables
from hyperscale.jobs.messages import AttemptId, RequestCores, RequestCoresReply, StartPart
from hyperscale.plan import Priority, WorkflowPlan

RETRIES_MAX = 3
_START_AHEAD_S = 0.5
"""Parts that are fenced are sent their start this long before: a few rounds of reconciling."""
_YIELD_S = 10.0
_YIELDED = "another part of the workflow found no cores, and other jobs may need these"


class Reconciler:
    """Brings jobs one step on."""

    def __init__(self, tables: LeaderTables, lifecycle: AttemptLifecycle) -> None:
        self._tables = tables
        self._lifecycle = lifecycle
        self._rules = AttemptRules(tables, lifecycle)
        self._checkpoints = Checkpoints(tables)
        self._timeouts = tables.timeouts

    def reconcile(self, job: Job, *, now_s: float) -> list[LeaderEffect]:
        """Return what has to happen next for a job."""
        if job.has_ended:
            return self._lifecycle.forget(job)
        progress = self._tables.job(job, now_s=now_s)
        if all(workflow.has_ended for workflow in job.workflows.values()):
            end = JobFinished(job=job.id, status=job.final_status(), reason=job.final_reason())
            return [*self._tables.proposals.propose(end, now_s=now_s)]
        effects: list[LeaderEffect] = []
        is_late = progress.deadline_s is not None and now_s >= progress.deadline_s
        if is_late and job.stop is None:
            reason = f"the job's timeout of {job.options.timeout_s:g} s was over"
            cancel = CancelRequested(job=job.id, reason=reason, status=JobStatus.TIMEOUT)
            effects += self._tables.proposals.propose(cancel, now_s=now_s)
        for name, workflow in job.workflows.items():
            if workflow.has_ended:
                continue
            stop = workflow.stop or job.stop
            if stop is not None:
                effects += self._stop_workflow(job, name, workflow, stop.reason, now_s)
            elif not workflow.parts:
                effects += self._dispatch(job, progress, name, now_s)
            else:
                effects += self._run(job, progress, name, workflow, now_s)
        effects += self._checkpoints.save_and_judge(job, progress, now_s=now_s)
        return _count_together(effects)

    def _stop_workflow(
        self, job: Job, name: str, workflow: WorkflowState, reason: str, now_s: float
    ) -> list[LeaderEffect]:
        effects: list[LeaderEffect] = []
        for index, part in enumerate(workflow.parts):
            if part.is_open:
                attempt = self._lifecycle.attempt_of(job, name, index, now_s=now_s)
                effects += self._rules.stop(job, attempt, reason, now_s=now_s)
        return effects + self._lifecycle.withdraw(self._tables.requests.of_job(job.id, name))

    # --- dispatch ---------------------------------------------------------------------------

    def _dispatch(
        self, job: Job, progress: JobProgress, name: str, now_s: float
    ) -> list[LeaderEffect]:
        """Get cores for a workflow whose dependencies have completed, and dispatch its parts."""
        plan = job.plan_of(name)
        progress.statistics_of(job, name)  # a plan that cannot be judged fails before it starts
        if any(job.workflows[each].ended_as is not JobStatus.COMPLETED for each in plan.depends):
            return []
        request = request_for_workflow(job.id, name)
        if self._tables.requests.get(request) is None:
            try:
                context_for(job, name)
            except RunError as error:
                end = WorkflowEnded(job=job.id, workflow=name, reason=str(error))
                return [*self._tables.proposals.propose(end, now_s=now_s)]
        grant, effects = self._request(self._wanted(request, job, plan), progress, job, now_s)
        if grant is None:
            return effects
        slot, parts = 0, []
        for share in grant.shares:
            parts.append(PartDispatch(slot, share.cores, share.worker))
            slot += share.cores
        event = WorkflowDispatched(job=job.id, workflow=name, parts=parts)
        return [*effects, *self._tables.proposals.propose(event, now_s=now_s)]

    def _redispatch(
        self, job: Job, progress: JobProgress, name: str, index: int, now_s: float
    ) -> list[LeaderEffect]:
        """Get cores for the next attempt of a part, for what remains of its duration."""
        workflow = job.workflows[name]
        part = workflow.parts[index]
        if part.retries > RETRIES_MAX:
            end = WorkflowEnded(job=job.id, workflow=name, reason=_given_up(part))
            return [*self._tables.proposals.propose(end, now_s=now_s)]
        request = request_for_attempt(AttemptId(job.id, name, index, part.attempt + 1))
        returned = self._tables.returned
        wanted = replace(
            self._wanted(request, job, job.plan_of(name)),
            part=index,
            cores=part.cores,
            exclude=[worker for worker in part.failed_workers if worker not in returned],
            is_recovery=True,
            # Load that was there, or other parts that hold cores and wait for this one.
            may_share=workflow.status is WorkflowStatus.RUNNING
            or any(other.is_open for other in workflow.parts),
        )
        grant, effects = self._request(wanted, progress, job, now_s)
        if grant is None:
            return effects
        event = PartRedispatched(
            job=job.id,
            workflow=name,
            part=index,
            attempt=part.attempt + 1,
            worker=grant.shares[0].worker,
        )
        return [*effects, *self._tables.proposals.propose(event, now_s=now_s)]

    def _wanted(self, request: str, job: Job, plan: WorkflowPlan) -> RequestCores:
        return RequestCores(
            request_id=request,
            job=job.id,
            workflow=plan.name,
            group=self._tables.group,
            term=self._tables.term,
            leader=self._tables.node,
            priority=plan.priority,
            is_test=plan.is_test,
            vus=plan.vus,
        )

    def _request(
        self, wanted: RequestCores, progress: JobProgress, job: Job, now_s: float
    ) -> tuple[RequestCoresReply | None, list[LeaderEffect]]:
        """Return the grant if there is one; else send the request, repeat it, or end a workflow
        that has waited too long."""
        request = self._tables.requests.open(wanted.request_id, wanted.job, wanted.workflow)
        grant = request.grant(now_s=now_s)
        if grant is not None:
            return grant, []
        since_s = progress.waiting_since_s.setdefault((wanted.workflow, wanted.part), now_s)
        waited_s = now_s - since_s
        end = self._waited_too_long(wanted, request, waited_s, job, now_s)
        if end is not None:
            return None, [*self._tables.proposals.propose(end, now_s=now_s)]
        if not request.may_send(now_s=now_s, repeat_s=self._timeouts.repeat_s):
            return None, []
        request.sent_s = now_s
        return None, [SendCoreRequest(replace(wanted, waited_s=waited_s))]

    def _waited_too_long(
        self, wanted: RequestCores, request: CoreRequest, waited_s: float, job: Job, now_s: float
    ) -> WorkflowEnded | None:
        reply, limit_s = request.reply, job.options.dispatch_timeout_s
        impossible_s = request.impossible_since_s
        if waited_s >= limit_s:
            detail = f": {reply.reason}" if reply is not None and reply.reason else ""
            status, why = JobStatus.TIMEOUT, f"no cores within {limit_s:g} s{detail}"
        elif (
            reply is not None
            and impossible_s is not None
            and now_s >= impossible_s + self._timeouts.no_workers_s
        ):
            status, why = JobStatus.FAILED, f"no worker can run it: {reply.reason}"
        else:
            return None
        if wanted.is_recovery:
            why = f"{_given_up(job.workflows[wanted.workflow].parts[wanted.part])}; {why}"
        return WorkflowEnded(job=wanted.job, workflow=wanted.workflow, reason=why, status=status)

    # --- running parts ----------------------------------------------------------------------

    def _run(
        self, job: Job, progress: JobProgress, name: str, workflow: WorkflowState, now_s: float
    ) -> list[LeaderEffect]:
        """Bring every part that has not ended one step on, and start those that are ready."""
        effects: list[LeaderEffect] = []
        attempts: list[Attempt] = []
        for index, part in enumerate(workflow.parts):
            if part.has_ended:
                continue
            if part.is_open:
                attempt = self._lifecycle.attempt_of(job, name, index, now_s=now_s)
                attempts.append(attempt)
                if not self._rules.is_calm(attempt, now_s=now_s):
                    effects += self._rules.advance(job, attempt, now_s=now_s)
            else:
                effects += self._redispatch(job, progress, name, index, now_s)
        if any(attempt.phase is AttemptPhase.READY for attempt in attempts):
            effects += self._start(progress, workflow, attempts, now_s)
        if self._blocks_other_jobs(job, progress, name, now_s):
            for attempt in attempts:
                effects += self._lifecycle.lose(
                    attempt, _YIELDED, costs_retry=False, over_s=now_s, now_s=now_s
                )
        return effects

    def _blocks_other_jobs(self, job: Job, progress: JobProgress, name: str, now_s: float) -> bool:
        """Whether an EXCLUSIVE workflow that has not begun holds cores while it waits for more.

        What it waits for may be held by another that waits for these: two allocators in a row may
        have granted to both. It begins anew, and they are served one after the other.
        """
        if job.plan_of(name).priority is not Priority.EXCLUSIVE:
            return False
        workflow = job.workflows[name]
        waits = [
            now_s - since_s
            for (waiting, part), since_s in progress.waiting_since_s.items()
            if waiting == name and part >= 0 and not workflow.parts[part].is_open
        ]
        has_begun = workflow.status is WorkflowStatus.RUNNING
        return not has_begun and max(waits, default=0.0) >= _YIELD_S

    def _start(
        self, progress: JobProgress, workflow: WorkflowState, attempts: list[Attempt], now_s: float
    ) -> list[LeaderEffect]:
        """Start all parts together the first time; later ones as soon as they are ready."""
        ready = [
            attempt
            for attempt in attempts
            if attempt.phase is AttemptPhase.READY and self._rules.is_due(attempt, now_s=now_s)
        ]
        has_begun = workflow.status is WorkflowStatus.RUNNING or any(
            attempt.phase in BEGUN for attempt in attempts
        )
        if has_begun:
            return [
                effect
                for attempt in ready
                for effect in self._start_together(progress, [attempt], now_s)
            ]
        awaited = sum(not part.has_ended for part in workflow.parts)
        are_ready = all(attempt.phase is AttemptPhase.READY for attempt in attempts)
        if ready and len(attempts) == awaited and are_ready:
            return self._start_together(progress, attempts, now_s)
        return []

    def _start_together(
        self, progress: JobProgress, together: list[Attempt], now_s: float
    ) -> list[LeaderEffect]:
        """Start attempts once the ones before them have certainly ended."""
        name, workers = together[0].id.workflow, self._tables.workers
        fences = [progress.fenced_until_s.get((name, each.id.part), now_s) for each in together]
        fenced_until_s = max(now_s, *fences)
        if fenced_until_s > now_s + _START_AHEAD_S:
            return []
        if not all(workers.has_lease_time(each.worker, now_s=now_s) for each in together):
            return []
        liveness = {each.worker: workers.get(each.worker, now_s=now_s) for each in together}
        farthest_s = max(worker.rtt_s for worker in liveness.values()) / 2
        start_at_s = progress.start_at_s.setdefault(
            name, now_s + self._timeouts.start_in_s + farthest_s
        )
        effects: list[LeaderEffect] = []
        for attempt in together:
            worker = liveness[attempt.worker]
            start_in_s = max(start_at_s - now_s - worker.rtt_s / 2, fenced_until_s - now_s)
            attempt.command_sent_s = now_s
            attempt.timeline.start_sent(fenced_until_s)
            command = StartPart(
                attempt_id=attempt.id,
                group=self._tables.group,
                term=self._tables.term,
                start_in_ms=start_in_s * 1000,
                lease_ms=self._tables.lease_ms,
                stamp_ms=worker.confirmed_ms,
            )
            effects.append(SendCommand(attempt.worker, command))
        return effects


def _given_up(part: Part) -> str:
    """How often a part was tried, and why its last attempt ended."""
    last = part.segments[-1].reason if part.segments else "it never ran"
    if not part.retries:
        return f"it could not begin: {last}"
    return f"given up after {part.retries} attempt{'' if part.retries == 1 else 's'}: {last}"


def _count_together(effects: list[LeaderEffect]) -> list[LeaderEffect]:
    """Tell the allocator how many requests of the job belong together: it serves them as one."""
    new = [
        effect
        for effect in effects
        if isinstance(effect, SendCoreRequest) and not effect.request.is_recovery
    ]
    if len(new) < 2:
        return effects
    counted = {
        each.request.request_id: SendCoreRequest(replace(each.request, together=len(new)))
        for each in new
    }
    return [
        counted.get(each.request.request_id, each) if isinstance(each, SendCoreRequest) else each
        for each in effects
    ]
