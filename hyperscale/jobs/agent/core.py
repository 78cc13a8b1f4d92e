"""The worker's agent: a sans-IO core that obeys job leaders within their fences.

Decides which commands are obeyed and answers them, and announces the worker's cores.
`supervisor` brings attempts from their first command to their end, `reports` sends reports and
results to job leaders, `fences` holds terms and tombstones. `now_s` is a clock that also counts
while the machine sleeps.

    agent = Agent("w1", incarnation=7, cores=4, now_s=0.0)
    for effect in agent.handle(CommandReceived("m1", prepare, token), now_s=1.0): ...
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

from msgspec.structs import replace

from hyperscale.jobs.agent import events
from hyperscale.jobs.agent.attempts import AttemptState, StopCause, WorkerAttempts
from hyperscale.jobs.agent.events import AgentEffect, AgentEvent, PartCommand
from hyperscale.jobs.agent.fences import Fences, part_of
from hyperscale.jobs.agent.reports import ReportSchedule, StampClock
from hyperscale.jobs.agent.results import bounded
from hyperscale.jobs.agent.statistics import POINTS_MAX
from hyperscale.jobs.agent.supervisor import STOP_GRACE_S, AttemptSupervisor
from hyperscale.jobs.messages import (
    AcknowledgeResult,
    AnnounceCores,
    AttemptId,
    ChangePart,
    GrantRows,
    ListAttempts,
    ListAttemptsReply,
    PartCommandReply,
    PartPhase,
    PartView,
    PreparePart,
    Refusal,
    RenewLeases,
    RenewLeasesReply,
    ShareSetUpContext,
    StartPart,
    StopPart,
)
from hyperscale.sansio.core import Tick

ANNOUNCE_CORES_EVERY_S = 1.0
"""How often cores are announced to the allocator if nothing about them changes."""
LEAVING = "the worker is leaving"

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


class _Refused(Exception):  # noqa: N818 -- a refusal is a reply, not an error
    """A command is refused and has changed nothing."""

    def __init__(self, refusal: Refusal, reason: str) -> None:
        super().__init__(reason)
        self.refusal = refusal
        self.reason = reason


class Agent:
    """One worker's decisions."""

    def __init__(
        self,
        worker: str,
        *,
        incarnation: int,
        cores: int,
        now_s: float,
        labels: Mapping[str, str] = MappingProxyType({}),
        reserved: int = 0,
    ) -> None:
        """`reserved` cores of the machine are not offered, and not among `cores`."""
        self.is_draining = False
        self._unfit: tuple[str, ...] = ()  # why it can run no part
        self._clock = StampClock(incarnation, now_s=now_s)
        self._fences = Fences()
        self._attempts = WorkerAttempts()
        self._reports = ReportSchedule(worker, self._clock, self._attempts)
        self._supervisor = AttemptSupervisor(cores, self._attempts, self._fences, self._reports)
        self._announced = AnnounceCores(
            worker=worker,
            incarnation=incarnation,
            version=0,
            total=cores,
            labels=dict(labels),
            reserved=reserved,
        )
        self._announce_at_s = now_s

    # --- reads ------------------------------------------------------------------------------

    @property
    def total_cores(self) -> int:
        return self._supervisor.places.total

    @property
    def free_cores(self) -> int:
        return self._supervisor.places.free

    @property
    def is_idle(self) -> bool:
        """True if no attempt is here and every result was acknowledged."""
        return not self._attempts and not self._reports.results

    @property
    def attempts(self) -> dict[AttemptId, PartPhase]:
        """The phase of every attempt, including those whose result is not acknowledged."""
        finished = dict.fromkeys(self._reports.results, PartPhase.FINISHED)
        return finished | {attempt.id: attempt.phase for attempt in self._attempts.values()}

    def wake_at_s(self) -> float | None:
        """Return when a `Tick` is due."""
        due_s = [self._announce_at_s, self._reports.wake_at_s()]
        due_s += [attempt.expires_at_s for attempt in self._attempts.values()]
        return min(at_s for at_s in due_s if at_s is not None)

    # --- events -----------------------------------------------------------------------------

    def handle(self, event: AgentEvent, *, now_s: float) -> list[AgentEffect]:
        """Take one event; return what has to be done about it, in order."""
        match event:
            # The most frequent events; they change no core.
            case events.PlaceReported():
                if (attempt := self._attempts.get(event.attempt_id)) is None:
                    return []
                attempt.statistics.add(event.place, event.report, now_s=now_s)
                return self._reports.rows_used(attempt, event, now_s=now_s)
            case events.PlacePrinted():
                self._reports.printed(event, now_s=now_s)
                return []
            case events.UsageMeasured():
                self._reports.usage = event
                return []
            case events.FitnessChecked(unfit=unfit):
                self._unfit = unfit
                return self._announce_cores(now_s)
        return self._apply(event, now_s) + self._announce_cores(now_s)

    def _apply(self, event: AgentEvent, now_s: float) -> list[AgentEffect]:
        effects: list[AgentEffect] = []
        match event:
            case events.CommandReceived():
                effects = self._command_received(event, now_s)
            case events.AttemptSetUp() | events.AttemptPrepared() | events.AttemptPrepareFailed():
                effects = self._supervisor.preparing(event, now_s)
            case events.PlaceEnded():
                effects = self._supervisor.place_ended(event, now_s)
            case events.PlaceVacated():
                effects = self._supervisor.place_vacated(event, now_s)
            case events.ResultStored(attempt_id=attempt_id):
                effects = self._reports.result_stored(attempt_id, now_s=now_s)
            case events.ReportAnswered():
                self._reports.answered(event, now_s=now_s)
            case events.ResultsRestored(results=results):
                for result in results:
                    self._fences.bury(result.attempt_id, now_s=now_s)
                    self._reports.add_result(bounded(result), now_s=now_s, is_stored=True)
            case events.DrainRequested(hands_over=hands_over):
                self.is_draining = True
                for attempt in list(self._attempts.values()) if hands_over else ():
                    cause = StopCause(LEAVING, is_retryable=True)
                    effects += self._supervisor.stop(attempt, cause, STOP_GRACE_S, now_s=now_s)
            case Tick():
                effects = self._supervisor.stop_expired(now_s=now_s)
                effects += self._reports.tick(now_s=now_s)
                self._fences.forget_old(now_s=now_s)
        return effects

    def _announce_cores(self, now_s: float) -> list[AgentEffect]:
        """Announce the worker's cores to the allocator: on every change, and each second."""
        held, last = self._supervisor.held(), self._announced
        news = replace(last, held=held, draining=self.is_draining, unfit=self._unfit)
        if news == last and now_s < self._announce_at_s:
            return []
        self._announce_at_s = now_s + ANNOUNCE_CORES_EVERY_S
        self._announced = replace(news, version=last.version + 1)
        return [events.SendMessage(None, self._announced)]

    # --- commands ---------------------------------------------------------------------------

    def _command_received(self, event: events.CommandReceived, now_s: float) -> list[AgentEffect]:
        command = event.command
        is_admitted = self._fences.admit(command.group, command.term)
        if isinstance(command, AcknowledgeResult):
            return self._acknowledge(command, now_s) if is_admitted else []
        if is_admitted:
            self._reports.follow(command.group, event.sender, now_s=now_s)
        effects: list[AgentEffect] = []
        reply: RenewLeasesReply | ListAttemptsReply | PartCommandReply
        match command:
            case RenewLeases():
                effects, reply = self._renew(command, is_admitted, now_s)
            case ListAttempts():
                reply = self._list(command, is_admitted, now_s)
            case (
                PreparePart()
                | ShareSetUpContext()
                | StartPart()
                | ChangePart()
                | GrantRows()
                | StopPart()
            ):
                refused = None
                try:
                    effects = self._command_part(command, is_admitted, now_s)
                except _Refused as exc:
                    refused = exc
                reply = self._part_reply(command, refused, now_s)
        return [*effects, events.ReplyToCommand(event.token, reply)]

    def _command_part(
        self, command: PartCommand, is_admitted: bool, now_s: float
    ) -> list[AgentEffect]:
        if not is_admitted:
            seen = self._fences.term(command.group)
            reason = f"term {command.term} is over: the group is at term {seen}"
            raise _Refused(Refusal.STALE_TERM, reason)
        match command:
            case PreparePart():
                return self._prepare(command, now_s)
            case ShareSetUpContext():
                attempt = self._attempts.get(command.attempt_id)
                if attempt is None:
                    raise _Refused(Refusal.UNKNOWN_ATTEMPT, "the attempt is not here")
                return self._supervisor.share_context(attempt, command.context)
            case StartPart():
                return self._start(command, now_s)
            case ChangePart() | GrantRows():
                attempt = self._attempts.get(command.attempt_id)
                return [] if attempt is None else self._supervisor.adjust(attempt, command)
            case StopPart():
                return self._stop(command, now_s)

    def _prepare(self, command: PreparePart, now_s: float) -> list[AgentEffect]:
        attempt_id = command.attempt_id
        if attempt_id in self.attempts:
            return []  # a repeated command gets the same reply
        older = self._attempts.of_part(attempt_id)
        if problem := _contradiction(command):
            raise _Refused(Refusal.INVALID, problem)
        newest = self._fences.attempt(attempt_id)
        if newest >= attempt_id.attempt:
            is_superseded = newest > attempt_id.attempt
            reason = f"attempt {newest} was seen" if is_superseded else "the attempt is over"
            raise _Refused(Refusal.STALE_ATTEMPT, reason)
        if self.is_draining:
            raise _Refused(Refusal.DRAINING, "the worker is draining")
        if self._unfit:
            raise _Refused(Refusal.UNFIT, "; ".join(self._unfit))
        if reason := self._supervisor.places.why_not(command, [each.id for each in older]):
            raise _Refused(Refusal.NO_CORES, reason)
        # Output is numbered from a stamp, so that an attempt that began here before a restart of
        # the worker uses no number twice.
        first_output = self._clock.stamp_ms(now_s)
        return self._supervisor.begin(command, older, first_output=first_output, now_s=now_s)

    def _start(self, command: StartPart, now_s: float) -> list[AgentEffect]:
        attempt_id = command.attempt_id
        if attempt_id in self._reports.results:
            return []
        attempt = self._attempts.get(attempt_id)
        if attempt is None and not self._fences.is_over(attempt_id):
            raise _Refused(Refusal.UNKNOWN_ATTEMPT, "the attempt was never prepared here")
        if attempt is None or not attempt.is_live:
            raise _Refused(Refusal.STALE_ATTEMPT, "the attempt is over")
        if attempt.state not in (AttemptState.READY, AttemptState.RUNNING):
            raise _Refused(Refusal.INVALID, "the attempt is still being prepared")
        lease_until_s = self._lease_until_s(command, now_s)
        if lease_until_s <= now_s:
            raise _Refused(Refusal.INVALID, "the command is older than its lease")
        if attempt.state is AttemptState.RUNNING:
            return self._supervisor.extend_lease(attempt, lease_until_s)
        return self._supervisor.start(
            attempt,
            start_in_ms=command.start_in_ms,
            since_s=command.since_s,
            lease_until_s=lease_until_s,
            now_s=now_s,
        )

    def _stop(self, command: StopPart, now_s: float) -> list[AgentEffect]:
        newest = self._fences.attempt(command.attempt_id)
        if command.attempt_id.attempt < newest:
            raise _Refused(Refusal.STALE_ATTEMPT, f"attempt {newest} was seen")
        effects: list[AgentEffect] = []
        for attempt in self._attempts.of_part(command.attempt_id):
            cause = StopCause(command.reason)
            effects += self._supervisor.stop(attempt, cause, command.grace_s, now_s=now_s)
        self._fences.bury(command.attempt_id, now_s=now_s)
        return effects

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
                effects += self._supervisor.extend_lease(attempt, lease_until_s)
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
            return ListAttemptsReply(accepted=False, seen_term=seen_term)
        attempts = self._attempts.of_group(command.group)
        points_max = POINTS_MAX // max(1, len(attempts))  # all reports go into one message
        views = [
            PartView(
                attempt_id=attempt.id,
                phase=attempt.phase,
                elapsed_s=attempt.statistics.elapsed_s,
                report=attempt.statistics.whole(points_max=points_max),
            )
            for attempt in attempts
        ]
        # The statistics of ended attempts are in their results, which are sent again.
        finished = self._reports.resend_results(command.group, now_s=now_s)
        views += [PartView(attempt_id=each, phase=PartPhase.FINISHED) for each in finished]
        return ListAttemptsReply(
            seen_term=seen_term,
            parts=views,
            stamp_ms=self._clock.stamp_ms(now_s),
            alive_ms=self._clock.alive_ms(now_s),
        )

    def _acknowledge(self, command: AcknowledgeResult, now_s: float) -> list[AgentEffect]:
        if self._reports.results.pop(command.attempt_id, None) is None:
            return []
        self._fences.bury(command.attempt_id, now_s=now_s)
        return [events.EraseResult(command.attempt_id)]

    def _part_reply(
        self,
        command: PartCommand,
        refused: _Refused | None,
        now_s: float,
    ) -> PartCommandReply:
        attempt_id, known = command.attempt_id, self.attempts
        same_part = [other for other in known if part_of(other) == part_of(attempt_id)]
        newest = max(same_part, key=lambda other: other.attempt, default=attempt_id)
        return PartCommandReply(
            attempt_id=attempt_id,
            accepted=refused is None,
            refusal=Refusal.NONE if refused is None else refused.refusal,
            reason="" if refused is None else refused.reason,
            seen_term=self._fences.term(command.group),
            seen_attempt=self._fences.attempt(attempt_id),
            phase=known.get(attempt_id, known.get(newest, PartPhase.UNKNOWN)),
            stamp_ms=self._clock.stamp_ms(now_s),
        )


def _contradiction(command: PreparePart) -> str:
    """Say what is wrong with a command; empty if nothing is."""
    if command.attempt_id.attempt < 1:
        return f"attempt {command.attempt_id.attempt} is below 1"
    slots = command.slots + command.tears_down  # teardown has a slot of its own
    if command.cores < 1 or not 0 <= command.first_slot <= slots - command.cores:
        return f"{command.cores} cores from slot {command.first_slot} exceed {command.slots} slots"
    if command.within_job and (not command.shared or command.cores != 1):
        return "a part that shares the cores of its job has one executor and takes no core"
    if command.plan.name != command.attempt_id.workflow:
        return f"the plan is that of workflow {command.plan.name}"
    if not _SHA256.match(command.bundle):
        return f"{command.bundle[:64]!r} is not the SHA-256 of a bundle"
    return ""
