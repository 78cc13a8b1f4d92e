"""Bringing jobs on, one step at a time: the decisions of a job leader.

`Steering.steer` compares what is committed of a job with what lies on the desk and returns what
has to happen next. It may be called at any time and as often as one likes: what is under way
is not asked for again before its time.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from hyperscale.errors import RunError
from hyperscale.jobs.committed.context import context_for
from hyperscale.jobs.committed.events import (
    CancelRequested,
    Checkpoint,
    Checkpointed,
    Dispatch,
    Dispatched,
    JobFinished,
    JobStatus,
    PartPlan,
    WorkflowEnded,
    WorkflowsPlanned,
)
from hyperscale.jobs.committed.state import Job, Part, Workflow, WorkflowStatus
from hyperscale.jobs.leader.attempts import LiveRun
from hyperscale.jobs.leader.effects import Ask, Effect, Send
from hyperscale.jobs.leader.timeouts import RETRIES_MAX
from hyperscale.jobs.leader.working_state import Desk, LiveAsk, LiveJob, ask_of_run, ask_of_workflow
from hyperscale.jobs.messages import (
    AnnouncePrepareFailed,
    AskState,
    AttemptId,
    DeliverResult,
    Isolation,
    PartPhase,
    PreparePart,
    RequestCores,
    RequestCoresReply,
    StartPart,
)
from hyperscale.plan import Priority, WorkflowPlan
from hyperscale.plan.status import PartStatus
from hyperscale.stats.thresholds import abort_verdict

_AHEAD_S = 0.5
"""Parts that have to wait for a moment are told to start so long before: a few looks at them."""
_RUNNING = (PartPhase.RUNNING, PartPhase.STOPPING, PartPhase.FINISHED)
CHECKPOINT_BYTES = 512 * 1024
CHECKPOINTS_AT_ONCE = 64
CHECKPOINT_ROUNDS = 8
"""Jobs of many parts are saved in so many rounds, one in each look at all of them: with two a
second that is less than the time between two checkpoints."""
_YIELD_S = 10.0
_YIELDED = "another part of it found no cores, and others may need these"
GRANT_S = 10.0
"""A grant is good for so long; the allocator holds it a little longer."""
_TEARDOWN_S = 30.0


class Steering:
    """Where jobs go."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._timing = desk.timing

    def steer(self, job: Job, *, now_s: float) -> list[Effect]:
        """What has to happen next for a job."""
        if job.has_ended:
            return self._desk.forget(job)
        live = self._desk.admit(job, now_s=now_s)
        if all(workflow.has_ended for workflow in job.workflows.values()):
            end = JobFinished(job=job.id, status=job.final_status(), reason=job.final_reason())
            return self._desk.propose(end, now_s=now_s)
        effects: list[Effect] = []
        if job.stop is None and now_s >= live.deadline_s:
            reason = f"the job's timeout of {job.options.timeout_s:g} s was over"
            effects += self._desk.propose(
                CancelRequested(job=job.id, reason=reason, status=JobStatus.TIMEOUT),
                now_s=now_s,
            )
        for name, workflow in job.workflows.items():
            if workflow.has_ended:
                continue
            stop = workflow.stop or job.stop
            if stop is not None:
                effects += self._end_parts(job, name, workflow, stop.reason, now_s)
            elif not workflow.parts:
                effects += self._begin(job, live, name, now_s)
            else:
                effects += self._carry_on(job, live, name, workflow, now_s)
        effects += self._look_at_statistics(job, live, now_s)
        return _asked_together(effects)

    def _end_parts(
        self, job: Job, name: str, workflow: Workflow, reason: str, now_s: float
    ) -> list[Effect]:
        """Stops what is open, until each is known to have ended."""
        effects: list[Effect] = []
        for index, part in enumerate(workflow.parts):
            if not part.is_open:
                continue
            run = self._desk.run_of(job, name, index, now_s=now_s)
            if run.result is not None:
                effects += self._commit_result(run, is_stopping=True, now_s=now_s)
            elif self._has_ended(job, run, now_s):
                effects += self._desk.give_up(
                    run,
                    reason,
                    costs_retry=False,
                    now_s=now_s,
                    until_s=self._lease_over_s(job, run, now_s),
                )
            elif now_s >= run.sent_s + self._timing.repeat_s or run.phase is not PartPhase.STOPPING:
                run.sent_s = now_s
                run.phase = PartPhase.STOPPING
                effects.append(self._desk.stop(run.worker, run.id, reason))
        for ask in [
            key for key, a in self._desk.asks.items() if (a.job, a.workflow) == (job.id, name)
        ]:
            effects += self._desk.drop(ask)
        return effects

    # --- asking for cores -----------------------------------------------------------------

    def _begin(self, job: Job, live: LiveJob, name: str, now_s: float) -> list[Effect]:
        """A workflow without parts: cores, once all it depends on has completed."""
        plan = job.plan_of(name)
        if any(job.workflows[each].ended_as is not JobStatus.COMPLETED for each in plan.depends):
            return []
        ask = ask_of_workflow(job.id, name)
        if ask not in self._desk.asks:
            try:
                context_for(job, name)
            except RunError as error:
                end = WorkflowEnded(job=job.id, workflow=name, reason=str(error))
                return self._desk.propose(end, now_s=now_s)
        answer, effects = self._ask(self._wish(ask, job, plan), live, job, now_s)
        if answer is None:
            return effects
        slot, parts = 0, []
        for share in answer.shares:
            parts.append(PartPlan(slot, share.cores))
            slot += share.cores
        return effects + self._desk.propose(
            WorkflowsPlanned(job=job.id, parts={name: parts}), now_s=now_s
        )

    def _wish(self, ask: str, job: Job, plan: WorkflowPlan) -> RequestCores:
        return RequestCores(
            ask=ask,
            job=job.id,
            workflow=plan.name,
            group=self._desk.group,
            term=self._desk.term,
            leader=self._desk.node,
            priority=plan.priority,
            is_test=plan.is_test,
            vus=plan.vus,
        )

    def _ask(
        self, wish: RequestCores, live: LiveJob, job: Job, now_s: float
    ) -> tuple[RequestCoresReply | None, list[Effect]]:
        """The grant if there is one; else asks, repeats the ask, or ends what waited too long."""
        ask = self._desk.asks.get(wish.ask)
        if ask is None:
            ask = self._desk.asks[wish.ask] = LiveAsk(wish.job, wish.workflow, now_s)
        if ask.answer is not None and ask.answer.state is AskState.GRANTED:
            if now_s < ask.granted_s + GRANT_S:
                return ask.answer, []
            ask.answer = None  # it could not be used in time: it may be somebody else's now
        waited_s = now_s - live.waiting_s.setdefault((wish.workflow, wish.part), now_s)
        end = self._waited_too_long(wish, ask, waited_s, job, now_s)
        if end is not None:
            return None, self._desk.propose(end, now_s=now_s)
        if now_s < max(ask.sent_s + self._timing.repeat_s, ask.wait_until_s):
            return None, []
        ask.sent_s = now_s
        return None, [Ask(replace(wish, waited_s=waited_s))]

    def _waited_too_long(
        self, wish: RequestCores, ask: LiveAsk, waited_s: float, job: Job, now_s: float
    ) -> WorkflowEnded | None:
        answer, why = ask.answer, ""
        impossible_s = float("inf") if ask.impossible_since_s is None else ask.impossible_since_s
        limit_s = job.options.dispatch_timeout_s
        if waited_s >= limit_s:
            detail = f": {answer.reason}" if answer is not None and answer.reason else ""
            status, why = JobStatus.TIMEOUT, f"no cores within {limit_s:g} s{detail}"
        elif answer is not None and now_s >= impossible_s + self._timing.no_workers_s:
            status, why = JobStatus.FAILED, f"nobody can run it: {answer.reason}"
        if not why:
            return None
        if wish.is_recovery:
            why = f"{_given_up(job.workflows[wish.workflow].parts[wish.part])}; {why}"
        return WorkflowEnded(job=wish.job, workflow=wish.workflow, reason=why, status=status)

    # --- parts ----------------------------------------------------------------------------

    def _carry_on(
        self, job: Job, live: LiveJob, name: str, workflow: Workflow, now_s: float
    ) -> list[Effect]:
        self._desk.workflow(live, job, name)
        effects: list[Effect] = []
        fresh: list[Dispatch] = []
        runs: list[LiveRun] = []
        ready: list[LiveRun] = []
        ask = ask_of_workflow(job.id, name)
        grant = self._desk.asks.get(ask)
        if grant is not None and not _fits(grant, workflow, now_s):
            del self._desk.asks[ask]
            grant = None
        for index, part in enumerate(workflow.parts):
            if part.has_ended:
                continue
            if part.is_open:
                run = self._desk.run_of(job, name, index, now_s=now_s)
                runs.append(run)
                effects += self._carry_run(job, live, run, ready, now_s)
            elif part.attempt == 0 and grant is not None and grant.answer is not None:
                fresh.append(Dispatch(index, 1, grant.answer.shares[index].worker))
            else:
                effects += self._try_again(job, live, name, index, now_s)
        if fresh:
            effects += self._desk.propose(
                Dispatched(job=job.id, workflow=name, dispatches=fresh), now_s=now_s
            )
        elif grant is not None:
            del self._desk.asks[ask]  # used up
        if ready:
            effects += self._start(live, workflow, runs, ready, now_s)
        if self._stands_in_the_way(job, live, name, now_s):
            for run in runs:
                effects += self._desk.give_up(run, _YIELDED, costs_retry=False, now_s=now_s)
        return effects

    def _stands_in_the_way(self, job: Job, live: LiveJob, name: str, now_s: float) -> bool:
        """Whether a workflow that must be alone and has not begun waits for cores and holds
        others. What it waits for may be held by one that waits for these: allocators that follow
        each other may have granted to both. It begins anew, and they are served in turn."""
        if job.plan_of(name).priority is not Priority.EXCLUSIVE:
            return False
        workflow = job.workflows[name]
        waits = [
            now_s - since_s
            for (waiting, part), since_s in live.waiting_s.items()
            if waiting == name and part >= 0 and not workflow.parts[part].is_open
        ]
        has_begun = workflow.status is WorkflowStatus.RUNNING
        return not has_begun and max(waits, default=0.0) >= _YIELD_S

    def _try_again(
        self, job: Job, live: LiveJob, name: str, index: int, now_s: float
    ) -> list[Effect]:
        """A part without an open attempt: another worker, for what is left of it."""
        workflow = job.workflows[name]
        part = workflow.parts[index]
        if part.retries > RETRIES_MAX:
            end = WorkflowEnded(job=job.id, workflow=name, reason=_given_up(part))
            return self._desk.propose(end, now_s=now_s)
        ask = ask_of_run(AttemptId(job.id, name, index, part.attempt + 1))
        wish = replace(
            self._wish(ask, job, job.plan_of(name)),
            part=index,
            cores=part.cores,
            exclude=[each for each in part.failed_workers if each not in self._desk.returned],
            is_recovery=True,
            # Load that was there, or other parts that hold cores already and wait for this one.
            may_share=workflow.status is WorkflowStatus.RUNNING
            or any(other.is_open for other in workflow.parts),
        )
        answer, effects = self._ask(wish, live, job, now_s)
        if answer is None:
            return effects
        dispatch = Dispatch(index, part.attempt + 1, answer.shares[0].worker)
        event = Dispatched(job=job.id, workflow=name, dispatches=[dispatch])
        return effects + self._desk.propose(event, now_s=now_s)

    def _carry_run(
        self, job: Job, live: LiveJob, run: LiveRun, ready: list[LiveRun], now_s: float
    ) -> list[Effect]:
        """One open run: what it needs next; a start, if it is put with those that are `ready`."""
        if run.result is not None:
            return self._commit_result(run, is_stopping=False, now_s=now_s)
        loss = self._loss(job, run, now_s)
        if loss is not None:
            until_s = self._lease_over_s(job, run, now_s)
            run.quiet_s = self._quiet_s(run, now_s)
            if run.is_given_up:
                # Membership may see the silent worker for a little longer: that it came back
                # once is no reason to give it the next attempt.
                self._desk.returned.discard(run.worker)
            return self._desk.give_up(
                run, loss, costs_retry=run.was_accepted, now_s=now_s, until_s=until_s
            )
        is_due = now_s >= run.sent_s + self._timing.repeat_s
        effects: list[Effect] = []
        match run.phase:
            case None if is_due and not run.is_inherited:
                run.sent_s = now_s
                effects.append(self._prepare(job, run))
            case PartPhase.PREPARING if now_s >= run.opened_s + self._timing.prepare_s:
                # The worker is well and says so: it is the code that would not do better elsewhere.
                reason = f"not prepared within {self._timing.prepare_s:g} s"
                effects = self._time_out(run, f"{reason}: its setup hooks or imports", now_s)
            case PartPhase.READY if is_due:
                ready.append(run)
            case PartPhase.RUNNING:
                effects = self._watch(live, run, now_s)
        return effects

    def _loss(self, job: Job, run: LiveRun, now_s: float) -> str | None:
        """Why the run cannot be running any more, if it cannot."""
        link = self._desk.links.get(run.worker, now_s=now_s)
        if link.is_gone:
            return f"worker {run.worker} died"
        silent = f"worker {run.worker} has been silent for too long"
        if run.is_given_up:
            return silent  # whatever has been heard since
        # As soon as its lease is over, if nothing is going to hold it: then the next attempt is
        # prepared while the margin lasts.
        quiet_s = self._quiet_s(run, now_s)
        is_over = now_s >= quiet_s - self._timing.silence_margin_s
        is_over = is_over and (now_s >= quiet_s or self._is_alone(run, now_s))
        if is_over and not link.is_held and not _may_go_on(job, run, now_s):
            return silent
        return None

    def _is_alone(self, run: LiveRun, now_s: float) -> bool:
        """Whether its worker is dead to membership and the only one that is silent. If many are,
        it may take membership a moment longer to find out that the network is to blame."""
        links = self._desk.links
        if links.get(run.worker, now_s=now_s).is_up:
            return False
        since_s = now_s - 2 * self._timing.renew_s
        return all(
            links.get(each.worker, now_s=now_s).heard_s >= since_s
            for each in self._desk.runs.values()
            if each.worker != run.worker
        )

    def _prepare(self, job: Job, run: LiveRun) -> Send:
        workflow, plan = job.workflows[run.id.workflow], job.plan_of(run.id.workflow)
        command = PreparePart(
            run=run.id,
            group=self._desk.group,
            term=self._desk.term,
            leader=self._desk.node,
            parts=len(workflow.parts),
            first_slot=run.first_slot,
            slots=workflow.slots,
            cores=run.cores,
            plan=plan,
            file=job.plan.file,
            bundle=job.bundle,
            context=context_for(job, run.id.workflow),
            elapsed_s=run.began_s,
            iterations_done=run.iterations_done,
            lease_ms=round(self._timing.lease_s * 1000),
            on_isolation=job.options.on_isolation,
            log_level=job.options.log_level,
            shared=run.shared,
            static=job.options.static,
            exclusive=plan.is_test and plan.priority is Priority.EXCLUSIVE,
        )
        return Send(run.worker, command)

    def _start(
        self,
        live: LiveJob,
        workflow: Workflow,
        runs: list[LiveRun],
        ready: list[LiveRun],
        now_s: float,
    ) -> list[Effect]:
        """All parts together the first time; later ones as soon as they are ready."""
        has_begun = workflow.status is WorkflowStatus.RUNNING or any(
            run.phase in _RUNNING for run in runs
        )
        if has_begun:
            return [each for run in ready for each in self._start_together(live, [run], now_s)]
        awaited = sum(not part.has_ended for part in workflow.parts)
        if len(runs) == awaited and all(run.phase is PartPhase.READY for run in runs):
            return self._start_together(live, runs, now_s)
        return []

    def _start_together(self, live: LiveJob, together: list[LiveRun], now_s: float) -> list[Effect]:
        """Once the attempts before them have certainly ended."""
        name = together[0].id.workflow
        parts = [(name, each.id.part) for each in together]
        quiet_s = max([now_s, *(live.quiet_s[part] for part in parts if part in live.quiet_s)])
        can_start = all(
            self._desk.links.is_sure(each.worker, now_s=now_s) and not each.is_given_up
            for each in together
        )
        if quiet_s > now_s + _AHEAD_S or not can_start:
            return []
        links = {each.worker: self._desk.links.get(each.worker, now_s=now_s) for each in together}
        farthest_s = max(link.rtt_s for link in links.values()) / 2
        if name not in live.start_at_s:
            live.start_at_s[name] = now_s + self._timing.start_in_s + farthest_s
        effects: list[Effect] = []
        for each in together:
            link = links[each.worker]
            start_in_s = max(live.start_at_s[name] - now_s - link.rtt_s / 2, quiet_s - now_s)
            each.sent_s = now_s
            if each.maybe_s is None:
                each.maybe_s = each.origin_s = quiet_s
            command = StartPart(
                run=each.id,
                group=self._desk.group,
                term=self._desk.term,
                start_in_ms=start_in_s * 1000,
                lease_ms=round(self._timing.lease_s * 1000),
                stamp_ms=link.sure_ms,
            )
            effects.append(Send(each.worker, command))
        return effects

    def _watch(self, live: LiveJob, run: LiveRun, now_s: float) -> list[Effect]:
        """A running part: whether it takes too long, or gets nowhere."""
        plan = live.workflows[run.id.workflow].plan
        stuck_s = max(self._timing.stuck_s, 2 * plan.timeout_s + (plan.interval_s or 0.0))
        if now_s >= run.deadline_s:
            reason = f"still running {now_s - run.deadline_s:.0f} s after it had to be over"
        elif run.report_s is not None and now_s >= run.moved_s + stuck_s:
            reason = f"stuck: no action finished for {now_s - run.moved_s:.0f} s"
        else:
            return []
        return self._time_out(run, reason, now_s)

    def _time_out(self, run: LiveRun, reason: str, now_s: float) -> list[Effect]:
        end = WorkflowEnded(
            job=run.id.job,
            workflow=run.id.workflow,
            reason=f"{reason} (part {run.id.part} on {run.worker})",
            status=JobStatus.TIMEOUT,
        )
        return self._desk.propose(end, now_s=now_s)

    def _has_ended(self, job: Job, run: LiveRun, now_s: float) -> bool:
        """Whether it cannot have load any more: with its worker, or as nobody renewed its lease."""
        if self._desk.links.get(run.worker, now_s=now_s).is_gone:
            return True
        return now_s >= self._quiet_s(run, now_s) and not _may_go_on(job, run, now_s)

    def _quiet_s(self, run: LiveRun, now_s: float) -> float:
        """From when on it has certainly no load, if its worker stays silent."""
        if run.is_given_up:
            return run.quiet_s
        links = self._desk.links
        if links.get(run.worker, now_s=now_s).is_gone:
            return float("-inf")
        # An idle worker has not been heard for long, and need not have been.
        return links.stopped_at_s(run.worker, since_s=run.opened_s, now_s=now_s)

    def _lease_over_s(self, job: Job, run: LiveRun, now_s: float) -> float:
        """When its load was over at the latest."""
        link = self._desk.links.get(run.worker, now_s=now_s)
        if link.is_gone:
            return now_s if link.ended_s is None else link.ended_s
        if job.options.on_isolation is Isolation.CONTINUE:
            return min(now_s, _own_end_s(job, run))
        return min(now_s, self._quiet_s(run, now_s) - self._timing.silence_margin_s)

    # --- results --------------------------------------------------------------------------

    def _commit_result(self, run: LiveRun, *, is_stopping: bool, now_s: float) -> list[Effect]:
        """How a run ended: its result counts, or another attempt is worth it."""
        result = run.result
        if isinstance(result, AnnouncePrepareFailed):
            if result.is_retryable and not is_stopping:
                reason = f"worker {run.worker} could not prepare it: {result.error}"
                return self._desk.give_up(
                    run, reason, costs_retry=True, now_s=now_s, until_s=float("-inf")
                )
            error = f"{result.error} (hint: {result.hint})" if result.hint else result.error
            status = PartStatus.STOPPED if is_stopping else PartStatus.FAILED
            return self._desk.propose(run.ending(status, error), now_s=now_s)
        if not isinstance(result, DeliverResult):
            return []
        over_s = run.heard_until_s() + result.unheard_s
        is_whole = result.status is PartStatus.COMPLETED
        if is_whole or is_stopping or not result.is_retryable:
            end = run.ending(result.status, result.error, result)
            unheard = self._desk.unheard(run, over_s)
            end = replace(end, gap_s=unheard.seconds, requests_max=unheard.requests_max)
            return self._desk.propose(end, now_s=now_s)
        # An executor that died is held against its worker; a lease that ran out is not.
        died = result.status is PartStatus.FAILED
        reason = result.error or f"it ended early on {run.worker}"
        return self._desk.give_up(run, reason, costs_retry=died, now_s=now_s, until_s=over_s)

    # --- statistics -----------------------------------------------------------------------

    def _look_at_statistics(self, job: Job, live: LiveJob, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        if now_s >= live.checkpoint_s and not live.unsaved:
            live.checkpoint_s = now_s + self._timing.checkpoint_s
            live.unsaved = [run for run in self._desk.runs if run.job == job.id]
        if live.unsaved:
            effects += self._save_some(job, live, now_s)
        if job.stop is None and now_s >= live.thresholds_s:
            live.thresholds_s = now_s + self._timing.thresholds_s
            effects += self._abort_on_threshold(job, live, now_s)
        return effects

    def _save_some(self, job: Job, live: LiveJob, now_s: float) -> list[Effect]:
        """Checkpoints of those that are due. Thousands at once would hold everything else up."""
        count = max(CHECKPOINTS_AT_ONCE, len(self._desk.runs) // CHECKPOINT_ROUNDS)
        due, live.unsaved = live.unsaved[:count], live.unsaved[count:]
        points = [
            run.checkpoint(now_s=now_s)
            for run in map(self._desk.runs.get, due)
            if run is not None and run.phase in _RUNNING and run.result is None
        ]
        effects: list[Effect] = []
        for some in _bundles(points):
            effects += self._desk.propose(Checkpointed(job=job.id, parts=some), now_s=now_s)
        return effects

    def _abort_on_threshold(self, job: Job, live: LiveJob, now_s: float) -> list[Effect]:
        for name, workflow in live.workflows.items():
            if not workflow.has_abort or job.workflows[name].has_ended:
                continue
            verdict = abort_verdict(workflow.thresholds, workflow.stats)
            if verdict is not None:
                what = verdict.describe()
                event = CancelRequested(
                    job=job.id,
                    reason=f"stopped by the threshold of {name}: {what}",
                    status=JobStatus.FAILED,
                    workflow=name,
                    workflow_reason=f"stopped by its threshold {what}",
                )
                return self._desk.propose(event, now_s=now_s)
        return []


def _given_up(part: Part) -> str:
    """How often it was tried, and what came of it the last time."""
    last = part.segments[-1].reason if part.segments else "it never ran"
    if not part.retries:
        return f"it could not begin: {last}"
    return f"given up after {part.retries} attempt{'' if part.retries == 1 else 's'}: {last}"


def _own_end_s(job: Job, run: LiveRun) -> float:
    """When a run that has begun ends by itself, whoever hears of it."""
    plan = job.plan_of(run.id.workflow)
    began_s = run.opened_s if run.maybe_s is None else run.maybe_s
    return began_s + plan.duration_s + plan.timeout_s + _TEARDOWN_S


def _may_go_on(job: Job, run: LiveRun, now_s: float) -> bool:
    """Whether it may have load without a leader: told to, begun, and not at its own end."""
    if job.options.on_isolation is not Isolation.CONTINUE or run.maybe_s is None:
        return False
    return now_s < _own_end_s(job, run)


def _asked_together(effects: list[Effect]) -> list[Effect]:
    """The asks among them say of each other: the allocator is to serve them as one."""
    new = [each for each in effects if isinstance(each, Ask) and not each.wish.is_recovery]
    if len(new) < 2:
        return effects
    counted = {each.wish.ask: Ask(replace(each.wish, together=len(new))) for each in new}
    return [counted.get(each.wish.ask, each) if isinstance(each, Ask) else each for each in effects]


def _bundles(points: list[Checkpoint]) -> Iterator[list[Checkpoint]]:
    """Entries of the log stay small, however many parts a job has."""
    some: list[Checkpoint] = []
    size = 0
    for point in points:
        size += len(point.report)
        if some and size > CHECKPOINT_BYTES:
            yield some
            some, size = [], len(point.report)
        some.append(point)
    if some:
        yield some


def _fits(grant: LiveAsk, workflow: Workflow, now_s: float) -> bool:
    """Whether it is what the workflow was planned for, and still good."""
    answer = grant.answer
    if answer is None or answer.state is not AskState.GRANTED:
        return False
    is_same = [share.cores for share in answer.shares] == [part.cores for part in workflow.parts]
    return is_same and now_s < grant.granted_s + GRANT_S
