"""The worker's agent: obeys leaders within their fences, and answers for what runs here.

Owns which run holds which places, its phase, its lease and its end. Refuses to know sockets,
processes, files and clocks: events and `now_s` in, effects out, in order. `now_s` is a clock
that also counts while the machine sleeps.

    agent = Agent("w1", incarnation=7, cores=4, now_s=0.0)
    for effect in agent.handle(Commanded("m1", prepare, token), now_s=1.0): ...
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

from hyperscale.errors import InvariantError
from hyperscale.jobs.agent.attempts import LIVE, OutputBuffer, Run, StampClock
from hyperscale.jobs.agent.cores import CoreBook
from hyperscale.jobs.agent.events import (
    Answered,
    Commanded,
    Drain,
    Effect,
    Ended,
    Erase,
    Event,
    LeaseRun,
    Measured,
    Prepared,
    PrepareFailed,
    PrepareRun,
    Printed,
    Reply,
    Reported,
    Restored,
    StartRun,
    StopRun,
    Store,
    Stored,
    Tick,
    Vacated,
)
from hyperscale.jobs.agent.fences import Fences
from hyperscale.jobs.agent.merge import POINTS_MAX, PartMerge
from hyperscale.jobs.agent.reports import ReportSchedule
from hyperscale.jobs.agent.results import LEASE_OVER, bounded, refusal_of, result_of
from hyperscale.jobs.messages import (
    AcknowledgeResult,
    AnnouncePrepareFailed,
    AttemptId,
    DeliverResult,
    HeldCores,
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
from hyperscale.plan.status import PartStatus
from hyperscale.stats.saturation import SaturationWatch

LEAVING = "the worker is leaving"
STOP_GRACE_S = 1.0

_Refused = tuple[Refusal, str]
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


class Agent:
    """One worker's decisions."""

    def __init__(self, worker: str, *, incarnation: int, cores: int, now_s: float) -> None:
        self.is_draining = False
        self._worker = worker
        self._book = CoreBook(cores)
        self._fences = Fences()
        self._runs: dict[AttemptId, Run] = {}
        self._clock = StampClock(incarnation, now_s=now_s)
        self._telling = ReportSchedule(
            worker, incarnation=incarnation, clock=self._clock, now_s=now_s
        )
        self._handlers: dict[type, Callable[[Any, float], list[Effect] | None]] = {
            Commanded: self._commanded,
            Prepared: self._prepared,
            PrepareFailed: self._prepare_failed,
            Reported: self._reported,
            Ended: self._ended,
            Vacated: self._vacated,
            Printed: self._printed,
            Answered: self._answered,
            Stored: self._stored,
            Restored: self._restored,
            Measured: self._measured,
            Drain: self._drain,
            Tick: self._tick,
        }

    # --- looking at it --------------------------------------------------------------------

    @property
    def total_cores(self) -> int:
        return self._book.total

    @property
    def free_cores(self) -> int:
        return self._book.free

    @property
    def is_idle(self) -> bool:
        """Nothing runs here and every result was acknowledged."""
        return not self._runs and not self._telling.results

    @property
    def runs(self) -> dict[AttemptId, PartPhase]:
        """Every run that is here, results included."""
        finished = dict.fromkeys(self._telling.results, PartPhase.FINISHED)
        return finished | {run.id: run.phase for run in self._runs.values()}

    def places(self, run: AttemptId) -> tuple[int, ...]:
        return self._book.places(run)

    def wake_at_s(self) -> float:
        """When a `Tick` is due."""
        runs = self._runs.values()
        leases_s = [run.lease_until_s for run in runs if run.can_expire]
        return min([self._telling.wake_at_s(runs), *leases_s])

    # --- events ---------------------------------------------------------------------------

    def handle(self, event: Event, *, now_s: float) -> list[Effect]:
        effects: list[Effect] = self._handlers[type(event)](event, now_s) or []
        if isinstance(event, Reported | Printed):
            return effects  # most of all events, and they change no core
        held = [
            HeldCores(
                run=run,
                cores=cores,
                shared=self._runs[run].command.shared,
                exclusive=self._runs[run].command.exclusive,
            )
            for run, cores in self._book.held().items()
        ]
        return effects + self._telling.cores(
            self._book.total, held, is_draining=self.is_draining, now_s=now_s
        )

    def _reported(self, event: Reported, now_s: float) -> None:
        run = self._runs.get(event.run)
        if run is not None:
            run.take(event.place, event.report, now_s=now_s)

    def _printed(self, event: Printed, now_s: float) -> None:
        run = self._runs.get(event.run)
        if run is not None:
            run.output.add(event.place, event.stream, event.text, now_s=now_s)
            self._telling.printed(now_s=now_s)

    def _answered(self, event: Answered, now_s: float) -> None:
        self._telling.answered(event, self._runs.values(), now_s=now_s)

    def _stored(self, event: Stored, now_s: float) -> list[Effect]:
        return self._telling.stored(event.run, now_s=now_s)

    def _restored(self, event: Restored, now_s: float) -> None:
        # Of an earlier version, perhaps, that looked at no size.
        for message in map(bounded, event.results):
            self._fences.bury(message.run, now_s=now_s)
            self._telling.keep(message, is_stored=True, now_s=now_s)

    def _measured(self, event: Measured, _now_s: float) -> None:
        self._telling.usage = event

    def _drain(self, event: Drain, now_s: float) -> list[Effect]:
        self.is_draining = True
        effects: list[Effect] = []
        if event.hands_over:
            for run in list(self._runs.values()):
                effects += self._stop(
                    run, LEAVING, STOP_GRACE_S, is_worth_retrying=True, now_s=now_s
                )
        return effects

    def _tick(self, _event: Tick, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for run in list(self._runs.values()):
            if run.can_expire and run.lease_until_s <= now_s:
                effects += self._stop(run, LEASE_OVER, 0.0, is_worth_retrying=True, now_s=now_s)
        effects += self._telling.tick(list(self._runs.values()), now_s=now_s)
        self._fences.forget_old(now_s=now_s)
        return effects

    # --- commands -------------------------------------------------------------------------

    def _commanded(self, event: Commanded, now_s: float) -> list[Effect]:
        command = event.command
        is_admitted = self._fences.admit(command.group, command.term)
        if is_admitted and not isinstance(command, AcknowledgeResult):
            runs = self._runs.values()
            self._telling.follow(command.group, event.sender, runs, now_s=now_s)
        match command:
            case RenewLeases():
                return self._renew(command, event.token, is_admitted, now_s)
            case ListAttempts():
                return self._who_runs(command, event.token, is_admitted, now_s)
            case AcknowledgeResult():
                return self._acknowledged(command.run, now_s) if is_admitted else []
            case PreparePart() | StartPart() | StopPart():
                effects, refusal = self._about_part(command, is_admitted, now_s)
                return [*effects, Reply(event.token, self._answer(command, refusal, now_s))]

    def _about_part(
        self, command: PreparePart | StartPart | StopPart, is_admitted: bool, now_s: float
    ) -> tuple[list[Effect], _Refused | None]:
        """What to do, or why not; then nothing has changed."""
        if not is_admitted:
            seen = self._fences.term(command.group)
            reason = f"term {command.term} is over, the group is at {seen}"
            return [], (Refusal.STALE_TERM, reason)
        match command:
            case PreparePart():
                return self._prepare(command, now_s)
            case StartPart():
                return self._start(command, now_s)
            case StopPart():
                return self._stop_commanded(command, now_s)

    def _prepare(self, command: PreparePart, now_s: float) -> tuple[list[Effect], _Refused | None]:
        run = command.run
        if run in self._runs or run in self._telling.results:
            return [], None  # heard before: the same answer again
        older = [other for other in self._runs.values() if _is_same_part(other.id, run)]
        # Of several, all but one only waited for it to leave.
        there = next((other.id for other in older if not other.is_waiting), None)
        refusal = self._why_not(command, older, there)
        if refusal is not None:
            return [], refusal
        effects: list[Effect] = []
        for other in older:
            reason = f"superseded by attempt {run.attempt}"
            effects += self._stop(other, reason, STOP_GRACE_S, now_s=now_s)
        places = self._book.take(run, command.cores, shared=command.shared, heir_of=there)
        if places is None:
            raise InvariantError(f"the places of {run} are gone")
        self._fences.begin(run, now_s=now_s)
        begun = Run(
            command=command,
            places=places,
            lease_until_s=now_s + command.lease_ms / 1000,
            merge=PartMerge(run.workflow, command.first_slot),
            saturation=SaturationWatch(run.workflow),
            # Also if this attempt was begun here before the worker was restarted, which it has
            # forgotten, its numbers are new.
            output=OutputBuffer(first=self._clock.stamp_ms(now_s), now_s=now_s),
            is_waiting=there is not None,
        )
        self._runs[run] = begun
        if not begun.is_waiting:
            effects.append(PrepareRun(command, places))
        return effects, None

    def _why_not(
        self, command: PreparePart, older: Iterable[Run], there: AttemptId | None
    ) -> _Refused | None:
        run, newest = command.run, self._fences.attempt(command.run)
        problem = _contradiction(command)
        if problem:
            return Refusal.INVALID, problem
        if not self._fences.may_begin(run):
            is_superseded = newest > run.attempt
            reason = f"attempt {newest} of it was seen" if is_superseded else "it is over"
            return Refusal.STALE_ATTEMPT, reason
        if self.is_draining:
            return Refusal.DRAINING, "it takes no new work"
        book = self._book.copy()
        for other in older:
            if other.is_waiting:
                book.drop(other.id)
        if book.take(run, command.cores, shared=command.shared, heir_of=there) is None:
            return Refusal.NO_CORES, f"{command.cores} cores asked for, {self._book.free} free"
        return None

    def _start(self, command: StartPart, now_s: float) -> tuple[list[Effect], _Refused | None]:
        run = self._runs.get(command.run)
        until_s = self._lease_until_s(command, now_s)
        refusal: _Refused | None = None
        if command.run in self._telling.results:
            return [], None
        if run is None and not self._fences.is_over(command.run):
            refusal = Refusal.UNKNOWN_RUN, "it was never prepared here"
        elif run is None or run.phase is PartPhase.STOPPING:
            refusal = Refusal.STALE_ATTEMPT, "it is over"
        elif run.phase is PartPhase.PREPARING:
            refusal = Refusal.INVALID, "it is still being prepared"
        elif until_s <= now_s:
            refusal = Refusal.INVALID, "the command is older than its lease"
        if run is None or refusal is not None:
            return [], refusal
        if run.phase is PartPhase.RUNNING:
            return self._extend(run, until_s), None
        run.phase = PartPhase.RUNNING
        run.started_s = now_s + command.start_in_ms / 1000
        self._telling.watch(run, now_s=now_s)
        effects: list[Effect] = []
        # Load begins under this lease, also if the one it was prepared under lasts longer: of
        # that the leader may never have heard.
        run.lease_until_s = until_s
        if run.is_leased:
            effects.append(LeaseRun(run.id, run.left, until_s))
        return [*effects, StartRun(run.id, run.left, command.start_in_ms)], None

    def _stop_commanded(
        self, command: StopPart, now_s: float
    ) -> tuple[list[Effect], _Refused | None]:
        newest = self._fences.attempt(command.run)
        if command.run.attempt < newest:
            return [], (Refusal.STALE_ATTEMPT, f"attempt {newest} of it was seen")
        effects: list[Effect] = []
        for run in list(self._runs.values()):
            if _is_same_part(run.id, command.run):
                effects += self._stop(run, command.reason, command.grace_s, now_s=now_s)
        self._fences.bury(command.run, now_s=now_s)
        return effects, None

    def _renew(
        self, command: RenewLeases, token: Any, is_admitted: bool, now_s: float
    ) -> list[Effect]:
        seen_term = self._fences.term(command.group)
        if not is_admitted:
            return [Reply(token, RenewLeasesReply(accepted=False, seen_term=seen_term))]
        until_s = self._lease_until_s(command, now_s)
        effects: list[Effect] = []
        for run_id in command.runs:
            run = self._runs.get(run_id)
            if run is not None and run.phase in LIVE:
                effects += self._extend(run, until_s)
        known, listed = self.runs, set(command.runs)
        here = [run.id for run in self._runs.values() if run.group == command.group]
        answer = RenewLeasesReply(
            accepted=True,
            seen_term=seen_term,
            unknown=[run for run in command.runs if run not in known],
            unlisted=[run for run in here if run not in listed],
            stamp_ms=self._clock.stamp_ms(now_s),
        )
        return [*effects, Reply(token, answer)]

    def _lease_until_s(self, command: StartPart | RenewLeases, now_s: float) -> float:
        """A lease counts from when the leader last heard of this worker, if that is known."""
        since_s = self._clock.instant_s(command.stamp_ms) if command.stamp_ms else now_s
        return min(since_s, now_s) + command.lease_ms / 1000

    def _extend(self, run: Run, until_s: float) -> list[Effect]:
        if until_s <= run.lease_until_s:
            return []
        run.lease_until_s = until_s
        # One that is still being prepared has no executor to keep it.
        if not run.is_leased or not run.is_prepared or not run.left:
            return []
        return [LeaseRun(run.id, run.left, until_s)]

    def _who_runs(
        self, command: ListAttempts, token: Any, is_admitted: bool, now_s: float
    ) -> list[Effect]:
        seen_term = self._fences.term(command.group)
        if not is_admitted:
            answer = ListAttemptsReply(worker=self._worker, accepted=False, seen_term=seen_term)
            return [Reply(token, answer)]
        runs = [run for run in self._runs.values() if run.group == command.group]
        points_max = POINTS_MAX // max(1, len(runs))
        views = [
            PartView(
                run=run.id,
                phase=run.phase,
                cores=run.command.cores,
                elapsed_s=run.elapsed_s(),
                report=run.merge.whole(points_max=points_max),
            )
            for run in runs
        ]
        # Their statistics come with the result itself, which is sent anew.
        finished = self._telling.offer_anew(command.group, now_s=now_s)
        views += [PartView(run=run, phase=PartPhase.FINISHED, cores=0) for run in finished]
        answer = ListAttemptsReply(
            worker=self._worker,
            seen_term=seen_term,
            parts=views,
            stamp_ms=self._clock.stamp_ms(now_s),
            alive_ms=self._clock.alive_ms(now_s),
        )
        return [Reply(token, answer)]

    def _acknowledged(self, run: AttemptId, now_s: float) -> list[Effect]:
        if self._telling.results.pop(run, None) is None:
            return []
        self._fences.bury(run, now_s=now_s)
        return [Erase(run)]

    # --- the life of a run ----------------------------------------------------------------

    def _prepared(self, event: Prepared, now_s: float) -> list[Effect]:
        run = self._runs.get(event.run)
        if run is None:
            return []
        run.is_prepared = True
        if run.phase is not PartPhase.PREPARING:
            return []  # told to stop meanwhile: its ends follow
        run.phase = PartPhase.READY
        effects: list[Effect] = []
        if run.is_leased:
            effects.append(LeaseRun(run.id, run.left, run.lease_until_s))
        return effects + self._telling.ready(run, now_s=now_s)

    def _prepare_failed(self, event: PrepareFailed, now_s: float) -> list[Effect]:
        run = self._runs.get(event.run)
        if run is None:
            return []
        if run.stop_reason is not None:
            return self._finish(run, now_s)
        return self._close(run, refusal_of(run, event, self._worker), now_s)

    def _stop(
        self,
        run: Run,
        reason: str,
        grace_s: float,
        *,
        is_worth_retrying: bool = False,
        now_s: float,
    ) -> list[Effect]:
        """Ends a run, whatever it is doing. Told again, only the grace can get shorter."""
        if run.stop_reason is None:
            run.stop_reason = reason
            run.is_worth_retrying = is_worth_retrying
        if run.is_waiting:
            return self._finish(run, now_s)
        run.phase = PartPhase.STOPPING
        self._telling.watch(run, now_s=now_s)
        return [StopRun(run.id, run.left, reason, grace_s)] if run.left else []

    def _ended(self, event: Ended, now_s: float) -> list[Effect]:
        run = self._runs.get(event.run)
        if run is None or event.place in run.ended:
            return []
        run.ended[event.place] = event
        if event.report is not None:
            run.take(event.place, event.report, now_s=now_s)
        else:
            run.died(event.place, now_s=now_s)
        is_trouble = event.is_dead or event.status is PartStatus.FAILED
        if event.report is None and run.can_expire and run.lease_until_s <= now_s:
            # The kernel ended it, as it does with those that do not end by themselves.
            run.stop_reason, run.is_worth_retrying = LEASE_OVER, True
        if not is_trouble or run.stop_reason is not None or not run.left:
            return []
        # Without one of its cores the part cannot be what was asked for.
        run.phase = PartPhase.STOPPING
        reason = f"another core of the part failed: {event.error}"
        return [StopRun(run.id, run.left, reason, STOP_GRACE_S)]

    def _vacated(self, event: Vacated, now_s: float) -> list[Effect]:
        run = self._runs.get(event.run)
        if run is None or event.place in run.vacated:
            return []
        run.vacated.add(event.place)
        self._book.vacate(run.id, event.place)
        return self._finish(run, now_s) if len(run.vacated) == len(run.places) else []

    def _finish(self, run: Run, now_s: float) -> list[Effect]:
        return self._close(run, result_of(run, self._worker), now_s)

    def _close(
        self, run: Run, message: DeliverResult | AnnouncePrepareFailed, now_s: float
    ) -> list[Effect]:
        """The run leaves its places, and the one that waited for them may enter."""
        effects = self._telling.output(run)
        del self._runs[run.id]
        self._book.drop(run.id)
        self._fences.bury(run.id, now_s=now_s)
        self._telling.forget(run, self._runs.values())
        is_stored = isinstance(message, AnnouncePrepareFailed)
        self._telling.keep(message, is_stored=is_stored, now_s=now_s)
        if isinstance(message, DeliverResult):
            effects.append(Store(message))
        else:
            effects += self._telling.stored(run.id, now_s=now_s)
        for other in list(self._runs.values()):
            # Everything of the older attempt is gone, also where the new one does not go.
            if other.is_waiting and _is_same_part(other.id, run.id) and not run.is_waiting:
                other.is_waiting = False
                effects.append(PrepareRun(other.command, other.places))
        return effects

    # --- answers --------------------------------------------------------------------------

    def _answer(
        self,
        command: PreparePart | StartPart | StopPart,
        refusal: _Refused | None,
        now_s: float,
    ) -> PartCommandReply:
        run, known = command.run, self.runs
        newest = max(
            (other for other in known if _is_same_part(other, run)),
            key=lambda other: other.attempt,
            default=run,
        )
        return PartCommandReply(
            run=run,
            accepted=refusal is None,
            refusal=Refusal.NONE if refusal is None else refusal[0],
            reason="" if refusal is None else refusal[1],
            seen_term=self._fences.term(command.group),
            seen_attempt=self._fences.attempt(run),
            phase=known.get(run) or known.get(newest, PartPhase.UNKNOWN),
            stamp_ms=self._clock.stamp_ms(now_s),
        )


def _contradiction(command: PreparePart) -> str:
    """What is wrong with a command, in words; empty if nothing is."""
    if command.run.attempt < 1:
        return f"attempt {command.run.attempt}"
    if command.cores < 1 or not 0 <= command.first_slot <= command.slots - command.cores:
        return f"{command.cores} cores from slot {command.first_slot} of {command.slots}"
    if command.plan.name != command.run.workflow:
        return f"the plan is of {command.plan.name}"
    if not _SHA256.match(command.bundle):
        return f"{command.bundle!r} names no bundle"
    return ""


def _is_same_part(one: AttemptId, other: AttemptId) -> bool:
    return (one.job, one.workflow, one.part) == (other.job, other.workflow, other.part)
