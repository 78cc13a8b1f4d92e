"""The worker's agent: a sans-IO core that obeys job leaders within their fences.

Decides which commands are obeyed and answers them. `worker_attempts` holds the attempts and their
places, `reports` sends what job leaders are told, `fences` holds terms and tombstones. `now_s`
is a clock that also counts while the machine sleeps.

    agent = Agent("w1", incarnation=7, cores=4, now_s=0.0)
    for effect in agent.handle(CommandReceived("m1", prepare, token), now_s=1.0): ...
"""

import re
from collections.abc import Callable
from typing import Any

from hyperscale.jobs.agent.announcements import CoreAnnouncements
from hyperscale.jobs.agent.attempts import AttemptOnWorker, AttemptState, StopCause
from hyperscale.jobs.agent.events import (
    AgentEffect,
    AgentEvent,
    AttemptPrepared,
    AttemptPrepareFailed,
    CommandReceived,
    DrainRequested,
    EraseResult,
    PlaceEnded,
    PlacePrinted,
    PlaceReported,
    PlaceVacated,
    ReplyToCommand,
    ReportAnswered,
    ResultsRestored,
    ResultStored,
    SendMessage,
    UsageMeasured,
)
from hyperscale.jobs.agent.fences import Fences, part_of
from hyperscale.jobs.agent.reports import ReportSchedule
from hyperscale.jobs.agent.results import bounded
from hyperscale.jobs.agent.stamps import StampClock
from hyperscale.jobs.agent.worker_attempts import STOP_GRACE_S, WorkerAttempts
from hyperscale.jobs.messages import (
    AcknowledgeResult,
    AttemptId,
    ListAttempts,
    ListAttemptsReply,
    PartCommandReply,
    PartPhase,
    PartView,
    PreparePart,
    Refusal,
    RenewLeases,
    RenewLeasesReply,
    StartPart,
    StopPart,
)
from hyperscale.sansio.core import Tick

LEAVING = "the worker is leaving"

_Refused = tuple[Refusal, str]
_Decision = tuple[list[AgentEffect], _Refused | None]
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


class Agent:
    """One worker's decisions."""

    def __init__(self, worker: str, *, incarnation: int, cores: int, now_s: float) -> None:
        self.is_draining = False
        self._worker = worker
        self._clock = StampClock(incarnation, now_s=now_s)
        self._fences = Fences()
        self._reports = ReportSchedule(worker, self._clock)
        self._attempts = WorkerAttempts(cores, self._fences, self._reports)
        self._announcements = CoreAnnouncements(
            worker, incarnation=incarnation, cores=cores, now_s=now_s
        )
        self._handlers: dict[type, Callable[[Any, float], list[AgentEffect] | None]] = {
            CommandReceived: self._command_received,
            AttemptPrepared: self._attempts.prepared,
            AttemptPrepareFailed: self._attempts.prepare_failed,
            PlaceReported: self._place_reported,
            PlaceEnded: self._attempts.place_ended,
            PlaceVacated: self._attempts.place_vacated,
            PlacePrinted: self._place_printed,
            ReportAnswered: self._report_answered,
            ResultStored: self._result_stored,
            ResultsRestored: self._results_restored,
            UsageMeasured: self._usage_measured,
            DrainRequested: self._drain_requested,
            Tick: self._tick,
        }

    # --- reads ------------------------------------------------------------------------------

    @property
    def total_cores(self) -> int:
        return self._attempts.places.total

    @property
    def free_cores(self) -> int:
        return self._attempts.places.free

    @property
    def is_idle(self) -> bool:
        """True if no attempt is here and every result was acknowledged."""
        return not self._attempts and not self._reports.results

    @property
    def attempts(self) -> dict[AttemptId, PartPhase]:
        """The phase of every attempt, including those whose result is not acknowledged."""
        finished = dict.fromkeys(self._reports.results.ids(), PartPhase.FINISHED)
        return finished | {attempt.id: attempt.phase for attempt in self._attempts.all()}

    def wake_at_s(self) -> float | None:
        """Return when a `Tick` is due."""
        attempts = self._attempts.all()
        due_s = [self._announcements.wake_at_s(), self._reports.wake_at_s(attempts)]
        due_s += [attempt.expires_at_s for attempt in attempts]
        return min((at_s for at_s in due_s if at_s is not None), default=None)

    # --- events -----------------------------------------------------------------------------

    def handle(self, event: AgentEvent, *, now_s: float) -> list[AgentEffect]:
        """Take one event; return what has to be done about it, in order."""
        effects = self._handlers[type(event)](event, now_s) or []
        if isinstance(event, PlaceReported | PlacePrinted):
            return effects  # by far the most frequent events; they change no core
        announcement = self._announcements.update(
            self._attempts.held(), is_draining=self.is_draining, now_s=now_s
        )
        return effects if announcement is None else [*effects, SendMessage(None, announcement)]

    def _place_reported(self, event: PlaceReported, now_s: float) -> None:
        attempt = self._attempts.get(event.attempt_id)
        if attempt is not None:
            attempt.statistics.add(event.place, event.report, now_s=now_s)

    def _place_printed(self, event: PlacePrinted, now_s: float) -> None:
        attempt = self._attempts.get(event.attempt_id)
        if attempt is not None:
            attempt.output.add(event.place, event.stream, event.text, now_s=now_s)
            self._reports.printed(now_s=now_s)

    def _report_answered(self, event: ReportAnswered, now_s: float) -> None:
        self._reports.answered(event, self._attempts.all(), now_s=now_s)

    def _result_stored(self, event: ResultStored, now_s: float) -> list[AgentEffect]:
        return self._reports.result_stored(event.attempt_id, now_s=now_s)

    def _results_restored(self, event: ResultsRestored, now_s: float) -> None:
        for result in event.results:
            self._fences.bury(result.attempt_id, now_s=now_s)
            self._reports.results.add(bounded(result), is_stored=True, now_s=now_s)

    def _usage_measured(self, event: UsageMeasured, _now_s: float) -> None:
        self._reports.usage = event

    def _drain_requested(self, event: DrainRequested, now_s: float) -> list[AgentEffect]:
        self.is_draining = True
        effects: list[AgentEffect] = []
        for attempt in self._attempts.all() if event.hands_over else ():
            cause = StopCause(LEAVING, is_retryable=True)
            effects += self._attempts.stop(attempt, cause, STOP_GRACE_S, now_s=now_s)
        return effects

    def _tick(self, _event: Tick, now_s: float) -> list[AgentEffect]:
        effects = self._attempts.stop_expired(now_s=now_s)
        effects += self._reports.tick(self._attempts.all(), now_s=now_s)
        self._fences.forget_old(now_s=now_s)
        return effects

    # --- commands ---------------------------------------------------------------------------

    def _command_received(self, event: CommandReceived, now_s: float) -> list[AgentEffect]:
        command = event.command
        is_admitted = self._fences.admit(command.group, command.term)
        if isinstance(command, AcknowledgeResult):
            return self._acknowledge(command, now_s) if is_admitted else []
        if is_admitted:
            self._reports.follow(command.group, event.sender, self._attempts.all(), now_s=now_s)
        effects: list[AgentEffect] = []
        reply: RenewLeasesReply | ListAttemptsReply | PartCommandReply
        match command:
            case RenewLeases():
                effects, reply = self._renew(command, is_admitted, now_s)
            case ListAttempts():
                reply = self._list(command, is_admitted, now_s)
            case PreparePart() | StartPart() | StopPart():
                effects, refusal = self._command_part(command, is_admitted, now_s)
                reply = self._part_reply(command, refusal, now_s)
        return [*effects, ReplyToCommand(event.token, reply)]

    def _command_part(
        self, command: PreparePart | StartPart | StopPart, is_admitted: bool, now_s: float
    ) -> _Decision:
        """Return what to do, or why the command is refused; a refusal changes nothing."""
        if not is_admitted:
            seen = self._fences.term(command.group)
            reason = f"term {command.term} is over: the group is at term {seen}"
            return [], (Refusal.STALE_TERM, reason)
        match command:
            case PreparePart():
                return self._prepare(command, now_s)
            case StartPart():
                return self._start(command, now_s)
            case StopPart():
                return self._stop(command, now_s)

    def _prepare(self, command: PreparePart, now_s: float) -> _Decision:
        attempt_id = command.attempt_id
        if self._attempts.get(attempt_id) is not None or attempt_id in self._reports.results:
            return [], None  # a repeated command gets the same reply
        older = self._attempts.of_part(attempt_id)
        refusal = self._why_not_prepare(command, older)
        if refusal is not None:
            return [], refusal
        # Output is numbered from a stamp, so that an attempt that began here before a restart of
        # the worker uses no number twice.
        first_output = self._clock.stamp_ms(now_s)
        return self._attempts.begin(command, older, first_output=first_output, now_s=now_s), None

    def _why_not_prepare(
        self, command: PreparePart, older: list[AttemptOnWorker]
    ) -> _Refused | None:
        problem = _contradiction(command)
        if problem:
            return Refusal.INVALID, problem
        if not self._fences.may_begin(command.attempt_id):
            newest = self._fences.attempt(command.attempt_id)
            is_superseded = newest > command.attempt_id.attempt
            reason = f"attempt {newest} was seen" if is_superseded else "the attempt is over"
            return Refusal.STALE_ATTEMPT, reason
        if self.is_draining:
            return Refusal.DRAINING, "the worker is draining"
        if not self._attempts.fits(command, older):
            return Refusal.NO_CORES, f"{command.cores} cores requested, {self.free_cores} free"
        return None

    def _start(self, command: StartPart, now_s: float) -> _Decision:
        attempt = self._attempts.get(command.attempt_id)
        lease_until_s = self._lease_until_s(command, now_s)
        refusal: _Refused | None = None
        if command.attempt_id in self._reports.results:
            return [], None
        if attempt is None and not self._fences.is_over(command.attempt_id):
            refusal = Refusal.UNKNOWN_ATTEMPT, "the attempt was never prepared here"
        elif attempt is None or not attempt.is_live:
            refusal = Refusal.STALE_ATTEMPT, "the attempt is over"
        elif attempt.state not in (AttemptState.READY, AttemptState.RUNNING):
            refusal = Refusal.INVALID, "the attempt is still being prepared"
        elif lease_until_s <= now_s:
            refusal = Refusal.INVALID, "the command is older than its lease"
        if attempt is None or refusal is not None:
            return [], refusal
        if attempt.state is AttemptState.RUNNING:
            return self._attempts.extend_lease(attempt, lease_until_s), None
        effects = self._attempts.start(
            attempt, start_in_ms=command.start_in_ms, lease_until_s=lease_until_s, now_s=now_s
        )
        return effects, None

    def _stop(self, command: StopPart, now_s: float) -> _Decision:
        newest = self._fences.attempt(command.attempt_id)
        if command.attempt_id.attempt < newest:
            return [], (Refusal.STALE_ATTEMPT, f"attempt {newest} was seen")
        effects: list[AgentEffect] = []
        for attempt in self._attempts.of_part(command.attempt_id):
            cause = StopCause(command.reason)
            effects += self._attempts.stop(attempt, cause, command.grace_s, now_s=now_s)
        self._fences.bury(command.attempt_id, now_s=now_s)
        return effects, None

    def _renew(
        self, command: RenewLeases, is_admitted: bool, now_s: float
    ) -> tuple[list[AgentEffect], RenewLeasesReply]:
        seen_term = self._fences.term(command.group)
        if not is_admitted:
            return [], RenewLeasesReply(accepted=False, seen_term=seen_term)
        lease_until_s = self._lease_until_s(command, now_s)
        effects: list[AgentEffect] = []
        for attempt_id in command.attempts:
            attempt = self._attempts.get(attempt_id)
            if attempt is not None and attempt.is_live:
                effects += self._attempts.extend_lease(attempt, lease_until_s)
        known, listed = self.attempts, set(command.attempts)
        here = [attempt.id for attempt in self._attempts.of_group(command.group)]
        reply = RenewLeasesReply(
            accepted=True,
            seen_term=seen_term,
            unknown=[attempt_id for attempt_id in command.attempts if attempt_id not in known],
            unlisted=[attempt_id for attempt_id in here if attempt_id not in listed],
            stamp_ms=self._clock.stamp_ms(now_s),
        )
        return effects, reply

    def _lease_until_s(self, command: StartPart | RenewLeases, now_s: float) -> float:
        """A lease counts from the stamp that the job leader returned, if it has one."""
        since_s = self._clock.instant_s(command.stamp_ms) if command.stamp_ms else now_s
        return min(since_s, now_s) + command.lease_ms / 1000

    def _list(self, command: ListAttempts, is_admitted: bool, now_s: float) -> ListAttemptsReply:
        seen_term = self._fences.term(command.group)
        if not is_admitted:
            return ListAttemptsReply(worker=self._worker, accepted=False, seen_term=seen_term)
        attempts = self._attempts.of_group(command.group)
        views = [
            PartView(
                attempt_id=attempt.id,
                phase=attempt.phase,
                cores=attempt.command.cores,
                elapsed_s=attempt.statistics.elapsed_s,
                report=attempt.statistics.whole(shared_by=len(attempts)),
            )
            for attempt in attempts
        ]
        # The statistics of ended attempts are in their results, which are sent again.
        finished = self._reports.results.restart(command.group, now_s=now_s)
        views += [PartView(attempt_id=each, phase=PartPhase.FINISHED, cores=0) for each in finished]
        return ListAttemptsReply(
            worker=self._worker,
            seen_term=seen_term,
            parts=views,
            stamp_ms=self._clock.stamp_ms(now_s),
            alive_ms=self._clock.alive_ms(now_s),
        )

    def _acknowledge(self, command: AcknowledgeResult, now_s: float) -> list[AgentEffect]:
        if not self._reports.results.acknowledge(command.attempt_id):
            return []
        self._fences.bury(command.attempt_id, now_s=now_s)
        return [EraseResult(command.attempt_id)]

    def _part_reply(
        self,
        command: PreparePart | StartPart | StopPart,
        refusal: _Refused | None,
        now_s: float,
    ) -> PartCommandReply:
        attempt_id, known = command.attempt_id, self.attempts
        newest = max(
            (other for other in known if part_of(other) == part_of(attempt_id)),
            key=lambda other: other.attempt,
            default=attempt_id,
        )
        return PartCommandReply(
            attempt_id=attempt_id,
            accepted=refusal is None,
            refusal=Refusal.NONE if refusal is None else refusal[0],
            reason="" if refusal is None else refusal[1],
            seen_term=self._fences.term(command.group),
            seen_attempt=self._fences.attempt(attempt_id),
            phase=known.get(attempt_id) or known.get(newest, PartPhase.UNKNOWN),
            stamp_ms=self._clock.stamp_ms(now_s),
        )


def _contradiction(command: PreparePart) -> str:
    """Say what is wrong with a command; empty if nothing is."""
    if command.attempt_id.attempt < 1:
        return f"attempt {command.attempt_id.attempt} is below 1"
    if command.cores < 1 or not 0 <= command.first_slot <= command.slots - command.cores:
        return f"{command.cores} cores from slot {command.first_slot} exceed {command.slots} slots"
    if command.plan.name != command.attempt_id.workflow:
        return f"the plan is that of workflow {command.plan.name}"
    if not _SHA256.match(command.bundle):
        return f"{command.bundle[:64]!r} is not the SHA-256 of a bundle"
    return ""
