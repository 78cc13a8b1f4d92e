"""A worker without processes: performs the effects of its agent and checks its invariants."""

from collections import Counter
from typing import Any, TypeVar

import msgspec

from hyperscale._native import Report
from hyperscale.jobs.agent.core import Agent
from hyperscale.jobs.agent.events import (
    AgentEffect,
    AgentEvent,
    AttemptPrepared,
    AttemptPrepareFailed,
    ChangeAttempt,
    CommandReceived,
    EraseResult,
    LeaderCommand,
    LeaseAttempt,
    PartCommand,
    PlaceEnded,
    PlaceReported,
    PlaceVacated,
    PrepareAttempt,
    ReplyToCommand,
    ResultStored,
    SendMessage,
    SendReport,
    StartAttempt,
    StopAttempt,
    StoreResult,
    WorkerMessage,
)
from hyperscale.jobs.messages import (
    AcknowledgeResult,
    AttemptId,
    DeliverResult,
    ListAttempts,
    ListAttemptsReply,
    PartCommandReply,
    PreparePart,
    RenewLeases,
    RenewLeasesReply,
    ReportProgress,
    ShareSetUpContext,
    StartPart,
    StopPart,
)
from hyperscale.plan import WorkflowPlan
from hyperscale.plan.status import PartStatus
from hyperscale.sansio.core import Tick
from tests.lab.reports import PartReport, StepCounts, StepReport, native

BUNDLE = "a" * 64
PLAN = WorkflowPlan(name="Load", vus=10, duration_s=60.0, timeout_s=30.0)
_M = TypeVar("_M")


def attempt_id(attempt: int = 1, *, job: str = "dc.1-a", part: int = 0) -> AttemptId:
    return AttemptId(job, "Load", part, attempt)


def prepare(
    attempt: AttemptId | None = None, *, term: int = 1, cores: int = 1, **changes: Any
) -> PreparePart:
    command = PreparePart(
        attempt_id=attempt or attempt_id(),
        group=1,
        term=term,
        leader="m1",
        first_slot=0,
        slots=max(1, cores),
        cores=cores,
        plan=PLAN,
        file="shop.py",
        bundle=BUNDLE,
    )
    return msgspec.structs.replace(command, **changes)


def start(attempt: AttemptId | None = None, *, term: int = 1, **changes: Any) -> StartPart:
    command = StartPart(attempt_id=attempt or attempt_id(), group=1, term=term, start_in_ms=50.0)
    return msgspec.structs.replace(command, **changes)


def stop(attempt: AttemptId | None = None, *, term: int = 1, reason: str = "cancelled") -> StopPart:
    return StopPart(attempt_id=attempt or attempt_id(), group=1, term=term, reason=reason)


def share(attempt: AttemptId | None = None, *, context: bytes = b"left") -> ShareSetUpContext:
    return ShareSetUpContext(attempt_id=attempt or attempt_id(), group=1, term=1, context=context)


def renew(*runs: AttemptId, term: int = 1, lease_ms: int = 8_000, stamp_ms: int = 0) -> RenewLeases:
    return RenewLeases(
        group=1, term=term, leader="m1", lease_ms=lease_ms, attempts=list(runs), stamp_ms=stamp_ms
    )


def list_attempts(*, term: int = 1) -> ListAttempts:
    return ListAttempts(group=1, term=term, leader="m1")


def ack(attempt: AttemptId | None = None, *, term: int = 1) -> AcknowledgeResult:
    return AcknowledgeResult(attempt_id=attempt or attempt_id(), group=1, term=term)


def report(total: int, *, slot: int = 0, sequence: int = 1, elapsed_s: float = 1.0) -> Report:
    made = PartReport(
        workflow="Load",
        slot=slot,
        sequence=sequence,
        elapsed_s=elapsed_s,
        vus=1,
        iterations=total,
        steps=[StepReport(name="hit", counts=StepCounts(total=total, ok=total, sent=total))],
    )
    return native(made)


class AgentWorld:
    """One agent, its simulated executors, and every effect it returned."""

    def __init__(self, cores: int = 4, *, worker: str = "w1", incarnation: int = 7) -> None:
        self.now_s = 1000.0
        self.agent = Agent(worker, incarnation=incarnation, cores=cores, now_s=self.now_s)
        self.effects: list[AgentEffect] = []
        self.places: dict[int, AttemptId] = {}  # place -> attempt of its executor
        self.preparing: dict[AttemptId, tuple[int, ...]] = {}
        self.held: dict[AttemptId, tuple[int, ...]] = {}  # places of prepared or running executors
        self.started: Counter[AttemptId] = Counter()
        self.begun: list[AttemptId] = []
        self.leases: dict[AttemptId, float] = {}
        self.stopping: dict[AttemptId, str] = {}
        self.disk: dict[AttemptId, DeliverResult] = {}
        self.finished: Counter[AttemptId] = Counter()

    # --- commands and time ---------------------------------------------------------------------

    def command(self, command: LeaderCommand, *, sender: str = "m1") -> Any:
        """Hand a command to the agent and return its reply, if it has one."""
        token = object()
        effects = self.feed(CommandReceived(sender, command, token))
        answers = [e.reply for e in effects if isinstance(e, ReplyToCommand) and e.token is token]
        return answers[0] if answers else None

    def part(self, command: PartCommand, *, sender: str = "m1") -> PartCommandReply:
        answer = self.command(command, sender=sender)
        assert isinstance(answer, PartCommandReply)
        return answer

    def renewed(self, command: RenewLeases, *, sender: str = "m1") -> RenewLeasesReply:
        answer = self.command(command, sender=sender)
        assert isinstance(answer, RenewLeasesReply)
        return answer

    def listed(self, command: ListAttempts, *, sender: str = "m1") -> ListAttemptsReply:
        answer = self.command(command, sender=sender)
        assert isinstance(answer, ListAttemptsReply)
        return answer

    def feed(self, event: AgentEvent) -> list[AgentEffect]:
        effects = self.agent.handle(event, now_s=self.now_s)
        self.effects += effects
        for effect in effects:
            self._perform(effect)
        return effects

    def wait(self, seconds: float) -> list[AgentEffect]:
        """Let time pass; wake the agent at each `wake_at_s`."""
        until_s = self.now_s + seconds
        effects: list[AgentEffect] = []
        while (wake_at_s := self._wake_at_s()) <= until_s:
            self.now_s = max(self.now_s, wake_at_s)
            effects += self.feed(Tick())
            assert self._wake_at_s() > self.now_s, "the agent wakes again at once"
        self.now_s = until_s
        return effects

    def _wake_at_s(self) -> float:
        wake_at_s = self.agent.wake_at_s()
        assert wake_at_s is not None, "core announcements are always scheduled"
        return wake_at_s

    # --- executors ----------------------------------------------------------------

    def get_ready(self, attempt: AttemptId | None = None) -> None:
        attempt = attempt or attempt_id()
        self.held[attempt] = self.preparing.pop(attempt)
        self.feed(AttemptPrepared(attempt))

    def fail_to_prepare(self, attempt: AttemptId | None = None, **facts: Any) -> None:
        attempt = attempt or attempt_id()
        for place in self.preparing.pop(attempt):
            del self.places[place]
        self.feed(
            AttemptPrepareFailed(attempt, facts.pop("error", "no module named shop"), **facts)
        )

    def runs(self, attempt: AttemptId | None = None, *, cores: int = 1, **changes: Any) -> None:
        """Bring an attempt to RUNNING."""
        attempt = attempt or attempt_id()
        assert self.part(prepare(attempt, cores=cores, **changes)).accepted
        self.get_ready(attempt)
        assert self.part(start(attempt)).accepted

    def report(self, attempt: AttemptId, place: int, total: int, **facts: Any) -> None:
        self.feed(PlaceReported(attempt, place, report(total, slot=place, **facts)))

    def end(
        self,
        attempt: AttemptId | None = None,
        *,
        status: PartStatus = PartStatus.COMPLETED,
        places: tuple[int, ...] | None = None,
        **facts: Any,
    ) -> None:
        """End the executors of an attempt and vacate their places."""
        attempt = attempt or attempt_id()
        leaving = self.held[attempt] if places is None else places
        for place in leaving:
            self.feed(PlaceEnded(attempt, place, status, **facts))
        for place in leaving:
            self.vacate(attempt, place)

    def vacate(self, attempt: AttemptId, place: int) -> None:
        del self.places[place]
        self.held[attempt] = tuple(each for each in self.held[attempt] if each != place)
        self.feed(PlaceVacated(attempt, place))

    def obey_stops(self) -> None:
        """Let the executors stop that were told to."""
        while self.stopping:
            attempt, reason = self.stopping.popitem()
            if attempt in self.preparing:
                self.fail_to_prepare(attempt, error=reason)
            elif attempt in self.held:
                self.end(attempt, status=PartStatus.STOPPED, error=reason)

    # --- messages ---------------------------------------------------------------------

    def sent(self, kind: type[_M], effects: list[AgentEffect] | None = None) -> list[_M]:
        chosen = self.effects if effects is None else effects
        messages: list[WorkerMessage | ReportProgress] = [
            effect.message if isinstance(effect, SendMessage) else effect.progress
            for effect in chosen
            if isinstance(effect, SendMessage | SendReport)
        ]
        return [message for message in messages if isinstance(message, kind)]

    def result(self, attempt: AttemptId | None = None) -> DeliverResult:
        return next(
            m for m in self.sent(DeliverResult) if m.attempt_id == (attempt or attempt_id())
        )

    # --- effects and invariants ---------------------------------------------------

    def _perform(self, effect: AgentEffect) -> None:
        if isinstance(effect, StartAttempt | ChangeAttempt | LeaseAttempt | StopAttempt):
            strangers = [p for p in effect.places if self.places.get(p) != effect.attempt_id]
            assert not strangers, f"{effect} names places of other attempts"
        match effect:
            case PrepareAttempt():
                attempt = effect.command.attempt_id
                for place in effect.places:
                    assert place not in self.places, (
                        f"place {place} is taken by {self.places[place]}"
                    )
                    self.places[place] = attempt
                others = [each for each in self.places.values() if each.part == attempt.part]
                assert {each for each in others if each.job == attempt.job} == {attempt}
                newest = [each.attempt for each in self.begun if _part(each) == _part(attempt)]
                assert attempt.attempt > max(newest, default=0), (
                    "an attempt begins that is not the newest of its part"
                )
                assert len(effect.places) == effect.command.cores
                self.begun.append(attempt)
                self.preparing[attempt] = effect.places
            case StartAttempt():
                assert effect.attempt_id in self.held
                self.started[effect.attempt_id] += 1
                assert self.started[effect.attempt_id] == 1, "started twice"
            case LeaseAttempt():
                if self.started[effect.attempt_id]:
                    assert effect.until_s > self.leases[effect.attempt_id]
                self.leases[effect.attempt_id] = effect.until_s
            case StopAttempt():
                self.stopping[effect.attempt_id] = effect.reason
            case StoreResult():
                self.finished[effect.result.attempt_id] += 1
                assert self.finished[effect.result.attempt_id] == 1, "two results of one attempt"
                assert effect.result.attempt_id not in self.places.values(), (
                    "a result before the places are vacant"
                )
                self.disk[effect.result.attempt_id] = effect.result
                self.feed(ResultStored(effect.result.attempt_id))
            case EraseResult():
                self.disk.pop(effect.attempt_id, None)
            case _:
                pass


def _part(attempt: AttemptId) -> tuple[str, str, int]:
    return attempt.job, attempt.workflow, attempt.part
