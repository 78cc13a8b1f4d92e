"""A job leader's working papers: open runs, asks for cores, proposals, statistics, deadlines.

All of it is void when its leadership ends, and none of it is needed to begin another: a new
leader fills its desk from committed state and from what workers say. Decides nothing about
where jobs go: that is `steering`.
"""

from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from hyperscale.jobs.committed.events import (
    AttemptRevoked,
    Checkpointed,
    Dispatched,
    Event,
    JobSubmitted,
    PartEnded,
    WorkflowEnded,
    WorkflowsPlanned,
)
from hyperscale.jobs.committed.state import Job, Part, WorkflowStatus
from hyperscale.jobs.leader.attempts import LiveRun, LiveWorkflow, Unheard
from hyperscale.jobs.leader.effects import Effect, Propose, Release, Send
from hyperscale.jobs.leader.timeouts import Timing
from hyperscale.jobs.leader.worker_liveness import Links
from hyperscale.jobs.messages import (
    AcknowledgeResult,
    AskState,
    AttemptId,
    PartPhase,
    PartProgress,
    ReleaseCores,
    RequestCoresReply,
    StopPart,
)
from hyperscale.plan.share import share
from hyperscale.stats.view import RunView, WorkerUsage

PROPOSAL_S = 10.0
"""After so long without a word a proposal is made again; committing it twice changes nothing."""
NEWS_S = 0.1
"""That parts have begun is committed so soon, for all that begin together."""
_BACKOFF_S_MAX = 8.0
_USAGE_SHOWN_MAX = 20  # workers: each view is sent to all who watch, and no screen has more room


@dataclass(slots=True)
class LiveAsk:
    job: str
    workflow: str
    since_s: float
    sent_s: float = float("-inf")
    wait_until_s: float = float("-inf")
    answer: RequestCoresReply | None = None
    granted_s: float = 0.0
    impossible_since_s: float | None = None  # since when it is said that nobody ever could


@dataclass(slots=True)
class LiveJob:
    deadline_s: float = float("inf")
    checkpoint_s: float = 0.0
    unsaved: list[AttemptId] = field(default_factory=list)  # whose checkpoint is due
    thresholds_s: float = 0.0
    workflows: dict[str, LiveWorkflow] = field(default_factory=dict)
    # Since when cores are wanted, by workflow and part; until a worker has accepted.
    waiting_s: dict[tuple[str, int], float] = field(default_factory=dict)
    start_at_s: dict[str, float] = field(default_factory=dict)
    refused: dict[tuple[str, int], int] = field(default_factory=dict)  # in a row, by part
    # Until when an attempt that was given up may have load: the next one is prepared meanwhile.
    quiet_s: dict[tuple[str, int], float] = field(default_factory=dict)


def proposal_key(event: Event) -> tuple[Any, ...]:
    """The same for two proposals of the same thing."""
    what: tuple[Any, ...]
    match event:
        case JobSubmitted():
            return ("submitted", event.key)
        case WorkflowsPlanned():
            what = ("planned", *event.parts)
        case Dispatched():
            parts = tuple((each.part, each.attempt) for each in event.dispatches)
            what = ("dispatched", event.workflow, parts)
        case AttemptRevoked() | PartEnded():
            what = ("closed", event.workflow, event.part, event.attempt)
        case WorkflowEnded():
            what = ("ended", event.workflow)
        case Checkpointed():
            what = ("checkpointed", *((p.workflow, p.part) for p in event.parts[:1]))
        case _:
            what = (type(event).__name__,)
    return (event.job, *what)


class Desk:
    """A leader's working papers. Void with its leadership."""

    def __init__(self, group: int, node: str, timing: Timing) -> None:
        self.group = group
        self.node = node
        self.timing = timing
        self.term = 0
        self.links = Links(timing)
        self.runs: dict[AttemptId, LiveRun] = {}
        self.returned: set[str] = set()  # workers that came (back) under this leader
        self._now_ms = 0
        self.jobs: dict[str, LiveJob] = {}
        self.asks: dict[str, LiveAsk] = {}
        self._proposed: dict[tuple[Any, ...], float] = {}

    # --- beginning and end ----------------------------------------------------------------

    def lead(self, term: int, workers: list[str], *, now_s: float, now_ms: int) -> None:
        self.clear()
        self.term = term
        self._now_ms = now_ms
        self.links.lead(workers, now_s=now_s)

    def clear(self) -> None:
        self.runs.clear()
        self.returned.clear()
        self.jobs.clear()
        self.asks.clear()
        self._proposed.clear()
        self.links.lead([], now_s=0.0)

    def admit(self, job: Job, *, now_s: float) -> LiveJob:
        """A job that was just submitted."""
        live = self.jobs.get(job.id)
        if live is None:
            live = self.jobs[job.id] = LiveJob()
            live.checkpoint_s = now_s + self.timing.checkpoint_s
            if job.options.timeout_s is not None:
                live.deadline_s = now_s + job.options.timeout_s
        return live

    def adopt(self, job: Job, *, now_s: float) -> None:
        """A job of an earlier leader: what is committed of it is all that is known."""
        live = self.admit(job, now_s=now_s)
        live.deadline_s -= max(0, self._now_ms - job.submitted_ms) / 1000
        for name, workflow in job.workflows.items():
            if workflow.parts:
                self.workflow(live, job, name).remember(workflow.parts)
            for index, part in enumerate(workflow.parts):
                if part.segments:
                    # Given up by an earlier leader, perhaps only just now.
                    live.quiet_s[name, index] = now_s + self.timing.silence_margin_s
        for run, _ in job.runs():
            self.open(run, job, now_s=now_s, is_inherited=True)

    def return_grants(self, job: Job) -> list[Effect]:
        """What an earlier leader was granted and had no time to use: nobody knows it any more."""
        return [
            self.release(ask_of_workflow(job.id, name))
            for name, workflow in job.workflows.items()
            if workflow.parts and not workflow.has_ended
        ]

    def open(self, run: AttemptId, job: Job, *, now_s: float, is_inherited: bool) -> None:
        """A run was dispatched. One that is known stays as it is: entries may be told of that
        were in the state this leader began with."""
        if run in self.runs:
            return
        part = job.workflows[run.workflow].parts[run.part]
        own, of_workflow = _asks_of(run)
        ask = self.asks.pop(own, None) or self.asks.get(of_workflow)
        shared = ask is not None and ask.answer is not None and ask.answer.shared
        slots = range(part.first_slot, part.first_slot + part.cores)
        all_vus, all_slots = job.plan_of(run.workflow).vus, job.workflows[run.workflow].slots
        vus = sum(share(all_vus, all_slots, slot) for slot in slots)
        live = LiveRun(
            id=run,
            worker=part.worker,
            parts=len(job.workflows[run.workflow].parts),
            first_slot=part.first_slot,
            cores=part.cores,
            vus=vus,
            began_s=part.began_s,
            iterations_done=part.iterations_done,
            is_inherited=is_inherited,
            shared=shared,
            opened_s=now_s,
        )
        if is_inherited:
            age_s = max(0, self._now_ms - part.seen_ms) / 1000
            live.remember(part, age_s=age_s, now_s=now_s)
        self.runs[run] = live
        if not is_inherited and self.links.get(part.worker, now_s=now_s).is_gone:
            # The allocator has heard of another process there before this leader has.
            self.links.forget(part.worker)
            self.links.get(part.worker, now_s=now_s).is_doubtful = True

    def run_of(self, job: Job, workflow: str, part: int, *, now_s: float) -> LiveRun:
        """The open run of a part. One that is committed and not known here was dispatched by
        this leader, and nobody was told of it: what earlier ones did was adopted."""
        run = AttemptId(job.id, workflow, part, job.workflows[workflow].parts[part].attempt)
        if run not in self.runs:
            self.open(run, job, now_s=now_s, is_inherited=False)
        return self.runs[run]

    def close(
        self, run_id: AttemptId, job: Job, event: AttemptRevoked | PartEnded, *, now_s: float
    ) -> list[Effect]:
        """A run was finished or revoked, or this came too late for it."""
        part = _part(job, run_id)
        if part is not None and part.is_open and part.attempt == run_id.attempt:
            return []  # refused, and still open: it is decided anew
        run = self.runs.pop(run_id, None)
        if run is None:
            return []
        live = self.jobs.get(run_id.job)
        if live is not None and isinstance(event, AttemptRevoked):
            if job.workflows[run_id.workflow].status is not WorkflowStatus.RUNNING:
                live.start_at_s.pop(run_id.workflow, None)  # all of them together, once more
            key = (run_id.workflow, run_id.part)
            live.quiet_s[key] = max(run.quiet_s, live.quiet_s.get(key, run.quiet_s))
            refused = 0 if event.costs_retry else live.refused.get(key, 0) + 1
            live.refused[key] = refused
            if refused:
                wait_s = min(_BACKOFF_S_MAX, 0.25 * 2 ** min(refused - 1, 10))
                ask = LiveAsk(run_id.job, run_id.workflow, now_s, wait_until_s=now_s + wait_s)
                self.asks[ask_of_run(replace(run_id, attempt=run_id.attempt + 1))] = ask
        if run.result is not None:
            return [self.ack(run.worker, run_id)]
        effects: list[Effect] = []
        if isinstance(event, AttemptRevoked):
            # Best effort: the worker may be back, and its lease may have hours if it says so.
            effects.append(self.stop(run.worker, run_id, event.reason))
            if run.is_refused:
                effects += [self.release(ask, part=run_id.part) for ask in _asks_of(run_id)]
        return effects

    # --- proposals ------------------------------------------------------------------------

    def propose(self, event: Event, *, now_s: float) -> list[Effect]:
        key = proposal_key(event)
        if now_s < self._proposed.get(key, float("-inf")) + PROPOSAL_S:
            return []
        self._proposed[key] = now_s
        return [Propose(event)]

    def settled(self, event: Event) -> None:
        self._proposed.pop(proposal_key(event), None)

    def failed(self, key: tuple[Any, ...], *, now_s: float) -> None:
        """Again, but not at once."""
        if key in self._proposed:
            self._proposed[key] = now_s - PROPOSAL_S + self.timing.repeat_s

    # --- commands -------------------------------------------------------------------------

    def stop(self, worker: str, run: AttemptId, reason: str) -> Send:
        command = StopPart(
            run=run,
            group=self.group,
            term=self.term,
            reason=reason,
            grace_s=self.timing.stop_grace_s,
        )
        return Send(worker, command)

    def ack(self, worker: str, run: AttemptId) -> Send:
        return Send(worker, AcknowledgeResult(run=run, group=self.group, term=self.term))

    # --- what is heard --------------------------------------------------------------------

    def take(self, run: LiveRun, progress: PartProgress, *, now_s: float) -> None:
        """A report: into the run and into the statistics of its workflow."""
        is_first = run.state is None
        if not run.take(progress, now_s=now_s):
            return
        live = self.jobs.get(run.id.job)
        if live is None:
            return
        workflow = live.workflows.get(run.id.workflow)
        if workflow is not None:
            rate = run.rates[-1] if run.rates else 0.0
            workflow.take(
                progress.report,
                attempt=run.id.attempt,
                rate_per_core=rate / run.cores,
                state=run.state,
            )
            if run.deadline_s == float("inf"):
                self._set_deadline(run, workflow)
        if is_first:
            # How far it was is known to the next leader, should this one end before long.
            live.checkpoint_s = min(live.checkpoint_s, now_s + NEWS_S)

    def accepted(self, run: LiveRun, phase: PartPhase, *, now_s: float) -> None:
        """Its worker has taken it."""
        run.phase = phase
        if phase in (PartPhase.PREPARING, PartPhase.READY):
            # It has not begun, and no earlier leader can start it now.
            run.maybe_s, run.origin_s = None, float("inf")
        run.opened_s = now_s
        run.sent_s = float("-inf")  # what comes next is due at once
        live = self.jobs.get(run.id.job)
        if live is not None:
            live.waiting_s.pop((run.id.workflow, -1), None)
            live.waiting_s.pop((run.id.workflow, run.id.part), None)
            live.refused.pop((run.id.workflow, run.id.part), None)

    def started(self, run: LiveRun, *, now_s: float) -> None:
        """Its worker counts down, or has begun."""
        live = self.jobs[run.id.job]
        run.phase = PartPhase.RUNNING
        run.started_s = max(now_s, live.start_at_s.get(run.id.workflow, now_s))
        run.moved_s = run.started_s
        self._set_deadline(run, live.workflows[run.id.workflow])
        live.checkpoint_s = min(live.checkpoint_s, now_s + NEWS_S)

    def _set_deadline(self, run: LiveRun, workflow: LiveWorkflow) -> None:
        started_s = run.started_s or 0.0
        plan = workflow.plan
        remaining_s = plan.duration_s - plan.offset_s(run.began_s)
        grace_s = plan.timeout_s + self.timing.overrun_s
        run.deadline_s = started_s + remaining_s + grace_s

    def lost(
        self, run: LiveRun, reason: str, *, now_s: float, until_s: float | None = None
    ) -> list[Effect]:
        """A run whose worker is gone, or has forgotten it: its load has ended by now."""
        if run.result is not None:
            return []
        costs_retry = run.was_accepted
        return self.give_up(run, reason, costs_retry=costs_retry, now_s=now_s, until_s=until_s)

    def give_up(
        self,
        run: LiveRun,
        reason: str,
        *,
        costs_retry: bool,
        now_s: float,
        until_s: float | None = None,
    ) -> list[Effect]:
        """Another attempt, or none. `until_s`: when its load was over, if not only by now."""
        unheard = self.unheard(run, now_s if until_s is None else until_s)
        event = run.revocation(reason, unheard=unheard, costs_retry=costs_retry)
        return self.propose(event, now_s=now_s)

    def unheard(self, run: LiveRun, until_s: float) -> Unheard:
        live = self.jobs.get(run.id.job)
        workflow = None if live is None else live.workflows.get(run.id.workflow)
        others_rate = 0.0 if workflow is None else workflow.rate_per_core
        return run.unheard(until_s, others_rate=others_rate)

    def take_answer(self, answer: RequestCoresReply, *, now_s: float) -> str | None:
        """The allocator's word; whose job it is about, if it is still wanted."""
        ask = self.asks.get(answer.ask)
        if ask is None:
            return None
        if ask.answer is None or ask.answer.state is not AskState.GRANTED:
            ask.answer = answer
            ask.granted_s = now_s
            if answer.state is not AskState.IMPOSSIBLE:
                ask.impossible_since_s = None
            elif ask.impossible_since_s is None:
                ask.impossible_since_s = now_s
            ask.wait_until_s = max(ask.wait_until_s, ask.sent_s + answer.retry_after_s)
        return ask.job

    def uses(self, ask: str) -> bool:
        """Whether a grant is in use by an open run."""
        return any(ask in _asks_of(run) for run in self.runs)

    def waits(self, job: str) -> tuple[int, str]:
        """The best place of a job's asks in the queue, and why it waits there; 0 if none does."""
        places = [
            (max(1, ask.answer.position), ask.answer.reason)
            for ask in self.asks.values()
            # What has just been asked for, or is about to be granted, does not wait.
            if ask.job == job and ask.answer is not None and ask.answer.reason
        ]
        return min(places, default=(0, ""))

    def drop(self, name: str) -> list[Effect]:
        """An ask, or the grant it got, is not needed."""
        del self.asks[name]
        return [self.release(name)]

    def release(self, ask: str, *, part: int = -1) -> Release:
        """Of a grant, or of the wish for one; with `part` only of that."""
        return Release(ReleaseCores(ask=ask, group=self.group, term=self.term, part=part))

    def forget(self, job: Job) -> list[Effect]:
        effects: list[Effect] = []
        for run in [run for run in self.runs.values() if run.id.job == job.id]:
            del self.runs[run.id]
            if run.result is not None:
                effects.append(self.ack(run.worker, run.id))
            else:
                effects.append(self.stop(run.worker, run.id, job.reason or "the job is over"))
        for name in [name for name, ask in self.asks.items() if ask.job == job.id]:
            effects += self.drop(name)
        self.jobs.pop(job.id, None)
        return effects

    def workflow(self, live: LiveJob, job: Job, name: str) -> LiveWorkflow:
        found = live.workflows.get(name)
        if found is None:
            found = live.workflows[name] = LiveWorkflow(job.plan_of(name))
        return found

    def view(self, job: Job, *, now_s: float) -> RunView:
        """The job as the terminal shows it."""
        live = self.admit(job, now_s=now_s)
        begun_s = [
            run.started_s
            for run in self.runs.values()
            if run.id.job == job.id and run.started_s is not None
        ]
        workflows = []
        for name, workflow in job.workflows.items():
            seen = self.workflow(live, job, name)
            workflows.append(
                seen.meter.view(
                    now_s=now_s,
                    status=workflow.status.value,
                    cores=workflow.slots,
                    error=workflow.error or (workflow.stop.reason if workflow.stop else None),
                    is_final=workflow.has_ended,
                )
            )
        elapsed_s = max([each.elapsed_s for each in workflows] or [0.0])
        if begun_s:
            elapsed_s = max(elapsed_s, now_s - min(begun_s))
        usage = self._usage(job, now_s=now_s)
        return RunView(
            file=job.plan.file,
            elapsed_s=elapsed_s,
            workflows=tuple(workflows),
            saturated=any(each.is_saturated for each in usage),
            warnings=(*job.plan.warnings, *_troubles(job), *_saturation(usage)),
            usage=tuple(usage[:_USAGE_SHOWN_MAX]),
        )

    def _usage(self, job: Job, *, now_s: float) -> list[WorkerUsage]:
        """How the workers fare that run parts of a job, the busiest first."""
        full: dict[str, bool] = {}
        for run in self.runs.values():
            if run.id.job == job.id:
                full[run.worker] = full.get(run.worker, False) or run.is_saturated
        found = []
        for worker, is_saturated in full.items():
            link = self.links.get(worker, now_s=now_s)
            found.append(WorkerUsage(worker, link.cpu, link.memory, is_saturated))
        return sorted(found, key=lambda each: (not each.is_saturated, -each.cpu, each.worker))


def _troubles(job: Job) -> list[str]:
    """Attempts that were lost, in words."""
    return [
        f"{name}: {segment.reason}; its load went on elsewhere"
        for name, workflow in job.workflows.items()
        for part in workflow.parts
        for segment in part.segments
        if segment.elapsed_s > 0
    ]


def _saturation(usage: list[WorkerUsage]) -> list[str]:
    full = [each for each in usage if each.is_saturated]
    if not full:
        return []
    worst = full[0]
    others = f" and {len(full) - 1} more are" if len(full) > 1 else " is"
    return [
        f"{worst.worker}{others} saturated (CPU {worst.cpu:.0%}, memory {worst.memory:.0%}), so "
        "latencies measured there are suspect: they contain its own delay"
    ]


def _part(job: Job, run: AttemptId) -> Part | None:
    workflow = job.workflows.get(run.workflow)
    if workflow is None or not 0 <= run.part < len(workflow.parts):
        return None
    return workflow.parts[run.part]


def ask_of_workflow(job: str, workflow: str) -> str:
    """The name of the wish for the first attempt of all parts."""
    return f"{job}/{workflow}"


def ask_of_run(run: AttemptId) -> str:
    """The name of the wish for one attempt of one part."""
    return f"{ask_of_workflow(run.job, run.workflow)}/{run.part}#{run.attempt}"


def _asks_of(run: AttemptId) -> tuple[str, str]:
    """By one of these it got its cores."""
    return ask_of_run(run), ask_of_workflow(run.job, run.workflow)
