"""The leader of a group's jobs: from committed state and what workers say to what is done next.

It decides, others act: every input returns effects. It reconciles rather than remembers: for
each job it compares what is committed with what it knows of the workers and asks for what is
missing, so that a lost message, a repeated one or a change of leader only costs time. Nothing
is sent to a worker before the event that justifies it is committed, and no lease is given or
renewed before most managers have confirmed that this one leads (see `links`).

A leader that takes over knows the machine's state and nothing else. It asks every worker what
it runs, renews the leases of what belongs there, has the rest stopped, and gives up open runs
that their workers do not know.

A run is *inherited* if it was dispatched under an earlier leader.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from hyperscale.jobs.committed.events import (
    AttemptRevoked,
    Checkpointed,
    Dispatched,
    Event,
    JobStatus,
    JobSubmitted,
    PartEnded,
    Reply,
)
from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.jobs.committed.state import Job, JobView, view_of
from hyperscale.jobs.leader.effects import Command, Confirm, Effect, Send, Trouble
from hyperscale.jobs.leader.reconcile import Steering
from hyperscale.jobs.leader.timeouts import Timing
from hyperscale.jobs.leader.worker_liveness import Stamps
from hyperscale.jobs.leader.working_state import Desk, proposal_key
from hyperscale.jobs.messages import (
    AnnouncePrepareFailed,
    AnnounceReady,
    AskState,
    AttemptId,
    Backpressure,
    DeliverResult,
    ListAttempts,
    ListAttemptsReply,
    PartCommandReply,
    PartPhase,
    PartProgress,
    PreparePart,
    Refusal,
    RenewLeases,
    RenewLeasesReply,
    ReportProgress,
    ReportProgressReply,
    RequestCoresReply,
    StartPart,
    StopPart,
)
from hyperscale.stats.view import RunView

Answer = PartCommandReply | RenewLeasesReply | ListAttemptsReply

_RUNS_AT_ONCE = 64
_RUNS_MANY = 1_000
_RENEWALS_AT_ONCE = 64
_SOON_S = 0.02
_QUESTIONS_MAX = 8


@dataclass(frozen=True, slots=True)
class _Question:
    """Whether this one leads, as the other managers were asked."""

    asked_s: float
    due: list[str]  # workers whose leases are renewed if so
    stamps: Stamps  # sure if so


class JobLeader:
    """All jobs of one group, while this node leads it."""

    def __init__(
        self, group: int, node: str, machine: JobMachine, *, timing: Timing | None = None
    ) -> None:
        self._machine = machine
        self._timing = timing or Timing()
        self._desk = Desk(group, node, self._timing)
        self._steering = Steering(self._desk)
        self._is_leading = False
        self._tick_at_s = float("inf")
        self._full_at_s = float("inf")  # when all jobs are looked at again
        self._contact_at_s = float("inf")  # when leases are
        self._dirty: set[str] = set()  # jobs to be looked at before that
        self._troubled: set[str] = set()  # jobs that make this fail, as was told
        self._questions: dict[int, _Question] = {}  # to the other managers, not answered yet
        self._asked = 0  # so many so far
        self._is_asked_again = False  # something came that was too late for the last one
        self.backpressure = Backpressure.NONE  # what reports are answered with

    # --- who leads ------------------------------------------------------------------------

    def lead(self, term: int, workers: Iterable[str], *, now_s: float, now_ms: int) -> list[Effect]:
        """This node leads the group from here on. `workers` are those membership sees."""
        desk = self._desk
        self._is_leading = True
        desk.lead(term, list(workers), now_s=now_s, now_ms=now_ms)
        self._look_at(now_s)
        self._dirty.clear()
        self._troubled.clear()
        self._questions.clear()
        effects: list[Effect] = []
        for job in list(self._machine.jobs()):
            effects += self._adopt(job, now_s)
        effects += self._contact(now_s)
        for job in list(self._machine.jobs()):
            effects += self._steer_now(job, now_s)
        return effects

    def follow(self) -> None:
        """This node does not lead any more: it knows nothing and does nothing."""
        self._is_leading = False
        self._look_at(float("inf"))
        self._dirty.clear()
        self._desk.clear()

    @property
    def is_leading(self) -> bool:
        return self._is_leading

    @property
    def term(self) -> int:
        return self._desk.term

    # --- the ledger -----------------------------------------------------------------------

    def applied(self, event: Event, reply: Reply, *, now_s: float) -> list[Effect]:
        """An entry of the group was applied to the machine, whoever proposed it."""
        if not self._is_leading:
            return []
        desk = self._desk
        desk.settled(event)
        job = self._machine.job(reply.job if isinstance(event, JobSubmitted) else event.job)
        if job is None:
            return []
        effects: list[Effect] = []
        match event:
            case JobSubmitted():
                if reply.ok and not reply.was_duplicate:
                    desk.admit(job, now_s=now_s)
            case Dispatched() if reply.ok:
                for dispatch in event.dispatches:
                    run = AttemptId(job.id, event.workflow, dispatch.part, dispatch.attempt)
                    desk.open(run, job, now_s=now_s, is_inherited=False)
            case AttemptRevoked() | PartEnded():
                run = AttemptId(event.job, event.workflow, event.part, event.attempt)
                effects += desk.close(run, job, event, now_s=now_s)
            case Checkpointed() if reply.ok:
                return []
            case _:
                pass
        if job.has_ended:
            return effects + self._steer_now(job, now_s)
        return effects + self._steer(job.id, now_s)

    def proposal_failed(self, event: Event, *, now_s: float) -> list[Effect]:
        """It was not committed, or nobody knows. It is proposed again if it is still wanted."""
        self._desk.failed(proposal_key(event), now_s=now_s)
        return []

    # --- workers --------------------------------------------------------------------------

    def worker_up(self, worker: str, *, now_s: float) -> list[Effect]:
        """Membership sees a worker, for the first time or again."""
        if not self._is_leading:
            return []
        desk = self._desk
        link = desk.links.get(worker, now_s=now_s)
        if link.is_gone:
            desk.links.forget(worker)  # another process: nothing of the last one holds
            link = desk.links.get(worker, now_s=now_s)
        link.is_up, link.is_doubtful = True, False
        desk.returned.add(worker)
        return self._contact(now_s)

    def worker_down(
        self, worker: str, *, is_certain: bool, now_s: float, ended_s: float | None = None
    ) -> list[Effect]:
        """Membership gave a worker up. Certain: a process of it is gone, and what that ran;
        from silence alone nothing follows before its leases have run out.

        Call it with `is_certain` also before `worker_up` of a newer incarnation. `ended_s` is
        since when nobody listens there, if that is known: it sent nothing after that.
        """
        if not self._is_leading:
            return []
        desk = self._desk
        link = desk.links.get(worker, now_s=now_s)
        link.is_up = False
        desk.returned.discard(worker)
        if not is_certain:
            return []
        runs = [run for run in desk.runs.values() if run.worker == worker]
        # What was accepted just now may have been by its successor: that one is asked.
        recent_s = now_s - self._timing.evidence_s
        recent = [run for run in runs if not run.was_accepted or run.accepted_s > recent_s]
        link.is_gone, link.is_doubtful = not recent, bool(recent)
        known_s = [each for each in (link.ended_s, ended_s, now_s) if each is not None]
        link.ended_s = min(known_s)
        link.has_answered, link.renewed_s = False, float("-inf")
        effects: list[Effect] = []
        for run in runs:
            if run in recent:
                run.is_inherited = run.is_inherited or run.phase is not None
            else:
                reason = f"worker {worker} died"
                effects += desk.lost(run, reason, now_s=now_s, until_s=link.ended_s)
        return effects + self._contact(now_s)

    def hold(self, workers: frozenset[str]) -> None:
        """Workers whose silence is put down to the network for now, and no others."""
        for worker, link in self._desk.links.all().items():
            link.is_held = worker in workers

    def answered(
        self,
        worker: str,
        command: Command,
        answer: Answer | None,
        *,
        now_s: float,
        rtt_s: float | None = None,
        refused_s: float | None = None,
    ) -> list[Effect]:
        """What became of a `Send`. None: no answer; it is repeated while it is wanted.
        `refused_s`: since when nobody listens there, if that is so."""
        if not self._is_leading:
            return []
        links = self._desk.links
        if answer is None:
            if links.unanswered(worker, refused_s=refused_s, now_s=now_s):
                self._look_at(now_s)
            return []
        if rtt_s is not None:
            links.measured(worker, rtt_s, now_s=now_s)
        link = links.get(worker, now_s=now_s)
        silent_s = now_s - link.heard_s
        links.heard(worker, answer.stamp_ms, now_s=now_s)
        if silent_s > 2 * self._timing.renew_s:
            # What it was sent meanwhile has echoed an old stamp: its leases have not long to live.
            link.renewed_s = float("-inf")
            self._look_at(now_s)
        if isinstance(answer, RenewLeasesReply):
            return self._renewed(worker, answer, now_s)
        if isinstance(answer, ListAttemptsReply):
            return self._told(worker, answer, now_s)
        effects: list[Effect] = []
        match command:
            case PreparePart(run=run):
                effects = self._prepared(run, answer, now_s)
            case StartPart(run=run):
                effects = self._started(run, answer, now_s)
            case StopPart(run=run):
                effects = self._stopped(run, answer, now_s)
        return effects

    def received(
        self, message: AnnounceReady | AnnouncePrepareFailed | DeliverResult, *, now_s: float
    ) -> list[Effect]:
        """What a worker sends by itself. What no longer matters is acknowledged, so it stops."""
        if not self._is_leading:
            return []
        desk = self._desk
        run = desk.runs.get(message.run)
        if run is None or run.worker != message.worker:
            if isinstance(message, AnnounceReady):
                return [desk.stop(message.worker, message.run, "it is not wanted any more")]
            return [desk.ack(message.worker, message.run)]
        effects: list[Effect] = []
        if isinstance(message, AnnounceReady):
            desk.links.heard(message.worker, message.stamp_ms, now_s=now_s)
            if run.phase in (None, PartPhase.PREPARING):
                desk.accepted(run, PartPhase.READY, now_s=now_s)
            if not desk.links.is_sure(message.worker, now_s=now_s):
                effects = self._confirm([], now_s)
        else:
            run.result = run.result or message
            if isinstance(message, DeliverResult) and message.report is not None:
                final = PartProgress(run=run.id, report=message.report, elapsed_s=message.elapsed_s)
                desk.take(run, final, now_s=now_s)
            run.phase = PartPhase.FINISHED
        return effects + self._steer(message.run.job, now_s)

    def progress(
        self, progress: ReportProgress, *, now_s: float
    ) -> tuple[ReportProgressReply, list[Effect]]:
        """Reports of one worker."""
        if not self._is_leading:
            return ReportProgressReply(backpressure=self.backpressure), []
        desk = self._desk
        link = desk.links.get(progress.worker, now_s=now_s)
        link.cpu, link.memory = progress.cpu, progress.memory
        effects: list[Effect] = []
        extended_s: dict[str, float] = {}
        for part in progress.parts:
            run = desk.runs.get(part.run)
            if run is None or run.worker != progress.worker:
                effects.append(desk.stop(progress.worker, part.run, "it is not wanted any more"))
                continue
            if run.is_given_up:
                continue  # it is stopped once that is committed
            desk.take(run, part, now_s=now_s)
            run.is_saturated = part.run in progress.saturated
            if part.extension:
                granted_s = run.extend(now_s=now_s)
                if granted_s:
                    extended_s[f"{part.run.workflow}/{part.run.part}"] = granted_s
        taken = ReportProgressReply(backpressure=self.backpressure, extended_s=extended_s)
        return taken, effects

    # --- the allocator --------------------------------------------------------------------

    def cores(self, answer: RequestCoresReply, *, now_s: float) -> list[Effect]:
        """The allocator's word on an ask, in reply or later."""
        if not self._is_leading:
            return []
        desk = self._desk
        job = desk.take_answer(answer, now_s=now_s)
        if job is not None:
            return self._steer(job, now_s)
        if answer.state is AskState.GRANTED and not desk.uses(answer.ask):
            return [desk.release(answer.ask)]
        return []

    # --- time -----------------------------------------------------------------------------

    def tick(self, *, now_s: float) -> list[Effect]:
        """Whatever is due."""
        if not self._is_leading:
            return []
        self._desk.links.awake(now_s=now_s)
        effects: list[Effect] = []
        jobs = list(self._machine.jobs())
        often_s = self._timing.renew_s / 4
        if now_s >= self._contact_at_s:
            self._contact_at_s = now_s + often_s
            effects += self._contact(now_s)
        if now_s >= self._full_at_s:
            is_large = len(self._desk.runs) > _RUNS_MANY
            self._full_at_s = now_s + often_s * (2 if is_large else 1)
        else:
            jobs = [job for job in jobs if job.id in self._dirty]
        self._dirty.clear()
        self._tick_at_s = min(self._full_at_s, self._contact_at_s)
        for job in jobs:
            effects += self._steer_now(job, now_s)
        return effects

    def wake_at_s(self) -> float:
        return self._tick_at_s

    def _look_at(self, at_s: float) -> None:
        self._tick_at_s = self._full_at_s = self._contact_at_s = at_s

    def _steer(self, job_id: str, now_s: float) -> list[Effect]:
        if len(self._desk.runs) > _RUNS_AT_ONCE:
            # Looking at thousands of runs for each word of one of them would take too long.
            self._dirty.add(job_id)
            self._tick_at_s = min(self._tick_at_s, now_s + _SOON_S)
            return []
        self._desk.links.awake(now_s=now_s)
        job = self._machine.job(job_id)
        return [] if job is None else self._steer_now(job, now_s)

    # A job that makes this fail, which is a fault of ours, must not take the others with it.
    def _adopt(self, job: Job, now_s: float) -> list[Effect]:
        try:
            self._desk.adopt(job, now_s=now_s)
            return self._desk.return_grants(job)
        except Exception as error:  # noqa: BLE001  other jobs have no part in it
            return self._trouble(job, error)

    def _steer_now(self, job: Job, now_s: float) -> list[Effect]:
        try:
            return self._steering.steer(job, now_s=now_s)
        except Exception as error:  # noqa: BLE001  other jobs have no part in it
            return self._trouble(job, error)

    def _trouble(self, job: Job, error: Exception) -> list[Effect]:
        if job.id in self._troubled:
            return []
        self._troubled.add(job.id)
        return [Trouble(job.id, error)]

    def _contact(self, now_s: float) -> list[Effect]:
        """Has leases renewed that are due; asks those that have not said what they run."""
        desk = self._desk
        busy = {run.worker for run in desk.runs.values()}
        for worker in busy:
            desk.links.get(worker, now_s=now_s)
        effects: list[Effect] = []
        due: list[tuple[float, str]] = []  # with when they were last renewed
        for worker, link in desk.links.all().items():
            if link.is_gone or not desk.links.is_due(link, now_s=now_s):
                continue
            if link.has_answered and link.stamp_ms:
                if worker in busy:
                    due.append((link.renewed_s, worker))
            elif link.is_up or worker in busy:
                link.renewed_s = now_s
                question = ListAttempts(group=desk.group, term=desk.term, leader=desk.node)
                effects.append(Send(worker, question))
        # Hundreds of leases that were given together should not be renewed together for ever.
        at_once = max(_RENEWALS_AT_ONCE, len(busy) // 3)
        first = [
            worker
            for place, (renewed_s, worker) in enumerate(sorted(due))
            if place < at_once or renewed_s == float("-inf")
        ]
        return effects + self._confirm(first, now_s) if first else effects

    # --- confirmation ---------------------------------------------------------------------

    def _confirm(self, due: list[str], now_s: float) -> list[Effect]:
        """Makes the latest stamps sure, and then renews the leases that are due. One question
        at a time; while one takes long, others are asked, and any answer is good."""
        last = self._questions.get(self._asked)
        if last is not None and now_s < last.asked_s + self._timing.lease_s / 4:
            self._is_asked_again = True
            return []
        self._is_asked_again = False
        self._asked += 1
        self._questions[self._asked] = _Question(now_s, due, self._desk.links.stamps())
        self._questions.pop(self._asked - _QUESTIONS_MAX, None)
        return [Confirm(self._asked)]

    def confirmed(self, question: int, *, now_s: float) -> list[Effect]:
        """Since the question was asked, most managers have taken this one for the leader."""
        answered = self._questions.get(question)
        if not self._is_leading or answered is None:
            return []
        for earlier in [number for number in self._questions if number <= question]:
            del self._questions[earlier]
        self._desk.links.confirmed(answered.stamps)
        effects = self._renew(answered.due, now_s)
        waiting = {r.id.job for r in self._desk.runs.values() if r.phase is PartPhase.READY}
        for job_id in waiting:
            effects += self._steer(job_id, now_s)
        if self._is_asked_again:
            effects += self._contact(now_s)
        if self._is_asked_again:
            effects += self._confirm([], now_s)
        return effects

    def _renew(self, workers: list[str], now_s: float) -> list[Effect]:
        desk = self._desk
        runs: dict[str, list[AttemptId]] = {worker: [] for worker in workers}
        for run in desk.runs.values():
            if run.worker in runs and not run.is_given_up:
                runs[run.worker].append(run.id)
        effects: list[Effect] = []
        for worker, listed in runs.items():
            link = desk.links.get(worker, now_s=now_s)
            if link.is_gone or not link.sure_ms:
                continue
            link.renewed_s = now_s
            command = RenewLeases(
                group=desk.group,
                term=desk.term,
                leader=desk.node,
                lease_ms=round(self._timing.lease_s * 1000),
                runs=listed,
                stamp_ms=link.sure_ms,
            )
            effects.append(Send(worker, command))
        return effects

    # --- answers --------------------------------------------------------------------------

    def _prepared(self, run_id: AttemptId, answer: PartCommandReply, now_s: float) -> list[Effect]:
        run = self._desk.runs.get(run_id)
        if run is None or run.phase is not None:
            return []
        if answer.accepted:
            # The answer may have been overtaken by the run itself.
            is_ready = answer.phase is PartPhase.READY
            phase = PartPhase.READY if is_ready else PartPhase.PREPARING
            self._desk.accepted(run, phase, now_s=now_s)
            # By the time it is ready, a lease may count from what has just been heard.
            return self._confirm([], now_s) + self._steer(run_id.job, now_s)
        if answer.refusal is Refusal.STALE_TERM:
            return []  # deposed: the ledger will say so
        run.is_refused = True
        match answer.refusal:
            case Refusal.NO_CORES | Refusal.DRAINING | Refusal.STALE_ATTEMPT:
                reason = f"worker {run.worker} refused it: {answer.reason}"
                return self._desk.give_up(run, reason, costs_retry=False, now_s=now_s)
            case _:
                reason = f"worker {run.worker} cannot run it: {answer.reason}"
                return self._desk.give_up(run, reason, costs_retry=True, now_s=now_s)

    def _started(self, run_id: AttemptId, answer: PartCommandReply, now_s: float) -> list[Effect]:
        run = self._desk.runs.get(run_id)
        if run is None or run.phase is not PartPhase.READY:
            return []
        if answer.accepted:
            self._desk.started(run, now_s=now_s)
            return self._steer(run_id.job, now_s)
        if answer.refusal in (Refusal.STALE_TERM, Refusal.INVALID):
            return []  # deposed; or it was too long under way, and is sent again
        reason = f"worker {run.worker} could not start it: {answer.reason}"
        costs_retry = answer.refusal is Refusal.UNKNOWN_RUN
        return self._desk.give_up(run, reason, costs_retry=costs_retry, now_s=now_s)

    def _stopped(self, run_id: AttemptId, answer: PartCommandReply, now_s: float) -> list[Effect]:
        run = self._desk.runs.get(run_id)
        if run is None or not answer.accepted or run.result is not None:
            return []
        if answer.phase is PartPhase.UNKNOWN:
            # Its worker has nothing of it and never will: there is nothing to wait for.
            return self._desk.give_up(run, "stopped", costs_retry=False, now_s=now_s)
        return []

    def _renewed(self, worker: str, answer: RenewLeasesReply, now_s: float) -> list[Effect]:
        desk = self._desk
        if not answer.accepted:
            return []
        effects: list[Effect] = []
        for run_id in answer.unknown:
            run = desk.runs.get(run_id)
            if run is None or run.worker != worker or run.result is not None:
                continue
            if run.phase is None and not run.is_inherited:
                continue  # it is being told of it
            run.missing += 1
            if run.missing >= 2:  # once may be a message overtaken by another
                effects += desk.lost(run, f"worker {worker} has lost it", now_s=now_s)
        for run_id in answer.unlisted:
            run = desk.runs.get(run_id)
            if run is None or run.worker != worker:
                effects.append(desk.stop(worker, run_id, "it is not wanted any more"))
        return effects

    def _told(self, worker: str, answer: ListAttemptsReply, now_s: float) -> list[Effect]:
        """What a worker runs: adopted if it belongs there, stopped if not, given up if missing."""
        desk = self._desk
        if not answer.accepted:
            return []
        link = desk.links.get(worker, now_s=now_s)
        is_first = not link.has_answered
        link.has_answered = True
        if is_first:
            link.renewed_s = float("-inf")  # its leases have not long to live
        effects: list[Effect] = []
        here = set()
        for view in answer.parts:
            here.add(view.run)
            run = desk.runs.get(view.run)
            if run is None or run.worker != worker:
                if view.phase is not PartPhase.FINISHED:
                    effects.append(desk.stop(worker, view.run, "it is not wanted any more"))
                continue
            if run.phase is None or run.phase is PartPhase.PREPARING:
                desk.accepted(run, view.phase, now_s=now_s)
            if view.report is not None:
                seen = PartProgress(
                    run=view.run, report=view.report, elapsed_s=view.elapsed_s, phase=view.phase
                )
                desk.take(run, seen, now_s=now_s)
        for run in [run for run in desk.runs.values() if run.worker == worker]:
            if not (is_first and run.is_inherited and run.id not in here):
                continue
            if run.was_accepted or run.may_be_older_than(answer.alive_ms / 1000, now_s):
                effects += desk.lost(run, f"worker {worker} has lost it", now_s=now_s)
            else:
                run.is_refused = True
                reason = f"worker {worker} was never told of it"
                effects += desk.give_up(
                    run, reason, costs_retry=False, now_s=now_s, until_s=float("-inf")
                )
        for job_id in {run.job for run in here}:
            effects += self._steer(job_id, now_s)
        return effects + self._contact(now_s)

    # --- reads ----------------------------------------------------------------------------

    def row(self, job: Job) -> JobView:
        """A job for people: also whether it waits for cores, where in the queue, and why."""
        row = view_of(job)
        position, why = self._desk.waits(job.id) if self._is_leading else (0, "")
        if not position or row.ended_ms:
            return row
        status = JobStatus.QUEUED if job.status is JobStatus.SUBMITTED else job.status
        return replace(row, status=status, position=position, reason=row.reason or why)

    def view(self, job_id: str, *, now_s: float) -> RunView | None:
        """The live statistics of a job; None if it is not led here, or over."""
        job = self._machine.job(job_id)
        if job is None or job.has_ended or not self._is_leading:
            return None
        return self._desk.view(job, now_s=now_s)
