"""Cores with one broken rule each: an invariant must catch every one of them."""

from typing import Any

from hyperscale.gates.committed.events import (
    AssignmentChanged,
    AssignmentRefused,
    DatacenterFinished,
    DatacentersAssigned,
    GlobalCancelRequested,
)
from hyperscale.gates.committed.machine import GlobalApplied, GlobalJobMachine
from hyperscale.gates.committed.state import AssignmentStatus, GlobalJob
from hyperscale.gates.messages import AssignJob, ChangeAssignment, DeliverAssignmentResult
from hyperscale.gates.owner.core import GlobalJobOwner
from hyperscale.gates.owner.events import (
    AssignmentAnswered,
    BecameOwner,
    DatacenterReported,
    OwnerEffect,
    OwnerEvent,
)
from hyperscale.gates.owner.reconcile import GlobalReconciler
from tests.simulation.campaign import Mutant
from tests.simulation.gates.schedules import Cores


class FallsBackOnSilence(GlobalJobOwner):
    """No answer is taken for a refusal, so another datacenter gets the part as well."""

    def _answered(self, event: AssignmentAnswered) -> None:
        super()._answered(event)
        if event.reply is None and isinstance(event.command, AssignJob):
            self.state.propose(
                AssignmentRefused(
                    job=event.command.job, datacenter=event.datacenter, reason="no answer"
                )
            )


class ForgetsAssignments(GlobalJobOwner):
    """An owner that takes over takes every assignment for delivered."""

    def _became_owner(self, event: BecameOwner) -> None:
        super()._became_owner(event)
        for job in self._machine.jobs():
            for assignment in job.assignments:
                key = (job.id, assignment.datacenter, AssignJob.__name__)
                self.state.deliveries.is_due(key, now_s=self.state.now_s)
                self.state.deliveries.answered(key, is_done=True, now_s=self.state.now_s)


class FencesResults(GlobalJobOwner):
    """A result of a part that an earlier owner assigned is refused."""

    def __init__(self, group: int, machine: GlobalJobMachine) -> None:
        super().__init__(group, machine)
        self._inherited: set[str] = set()

    def _became_owner(self, event: BecameOwner) -> None:
        super()._became_owner(event)
        self._inherited = {job.id for job in self._machine.jobs() if job.assignments}

    def _reported(self, event: DatacenterReported) -> None:
        is_result = isinstance(event.report, DeliverAssignmentResult)
        if not (is_result and event.report.job in self._inherited):
            super()._reported(event)


class CountsAgain(GlobalJobMachine):
    """A result that is delivered again is counted again."""

    def apply(self, index: int, time_ms: int, body: bytes, **entry: Any) -> GlobalApplied:
        applied = super().apply(index, time_ms, body, **entry)
        event = applied.event
        if isinstance(event, DatacenterFinished) and applied.reply.code.value == "duplicate":
            job = self.job(event.job)
            assignment = job.assignment(event.datacenter) if job and not job.has_ended else None
            if assignment is not None:
                assignment.result += event.result
        return applied


class CommitsEveryDelivery(GlobalJobOwner):
    """The owner's part of the same fault: a result is proposed for each delivery."""

    def _reported(self, event: DatacenterReported) -> None:
        report = event.report
        if not isinstance(report, DeliverAssignmentResult):
            super()._reported(event)
            return
        key = (report.job, report.datacenter)
        self.state.unanswered.setdefault(key, []).append(event.token)
        finished = DatacenterFinished(
            job=report.job, datacenter=report.datacenter, status=report.status, result=report.result
        )
        self.state.proposal_applied(finished)  # so that it is proposed again
        self.state.propose(finished)


class DropsCancel(GlobalJobOwner):
    """A cancel is sent once, whether or not it arrives."""

    def __init__(self, group: int, machine: GlobalJobMachine) -> None:
        super().__init__(group, machine)
        self._cancelled: set[tuple[str, str]] = set()

    def handle(self, event: OwnerEvent, *, now_s: float) -> list[OwnerEffect]:
        effects = super().handle(event, now_s=now_s)
        kept = []
        for effect in effects:
            command = getattr(effect, "command", None)
            key = (getattr(command, "job", ""), getattr(effect, "datacenter", ""))
            if type(command).__name__ == "CancelAssignment":
                if key in self._cancelled:
                    continue
                self._cancelled.add(key)
            kept.append(effect)
        return kept


class ConcludesWithout(GlobalJobOwner):
    """A cancelled job ends although a datacenter has not confirmed that it stopped."""

    class Rules(GlobalReconciler):
        def _is_lost(self, job: GlobalJob, *_given: object) -> bool:
            return job.stop is not None

    def __init__(self, group: int, machine: GlobalJobMachine) -> None:
        super().__init__(group, machine)
        self._reconciler.__class__ = self.Rules


class CancelWins(GlobalJobMachine):
    """A job that was cancelled is cancelled, even if every datacenter had completed it."""

    def apply(self, index: int, time_ms: int, body: bytes, **entry: Any) -> GlobalApplied:
        applied = super().apply(index, time_ms, body, **entry)
        if isinstance(applied.event, GlobalCancelRequested) and applied.reply.ok:
            job = self.job(applied.event.job)
            if job is not None:
                for assignment in job.open_assignments():
                    assignment.become(AssignmentStatus.FINISHED)
                    assignment.ended_as = applied.event.status
        return applied


class TakesSilenceForTaken(GlobalJobOwner):
    """A change of the load that was not answered is taken for delivered."""

    def _answered(self, event: AssignmentAnswered) -> None:
        super()._answered(event)
        command = event.command
        if event.reply is None and isinstance(command, ChangeAssignment):
            self.state.propose(
                AssignmentChanged(job=command.job, datacenter=event.datacenter, taken=command.taken)
            )


class SplitsToNobody(GlobalJobMachine):
    """Datacenters that are given some of a vacant part do not grow."""

    def apply(self, index: int, time_ms: int, body: bytes, *, unix_ms: int = 0) -> GlobalApplied:
        applied = super().apply(index, time_ms, body, unix_ms=unix_ms)
        event = applied.event
        job = self.job(event.job) if isinstance(event, DatacentersAssigned) else None
        for part in job.assignments if job and applied.reply.ok else ():
            part.changes.all = [each for each in part.changes.all if "part of" not in each.id]
        return applied


def digest_with_time(command: AssignJob) -> str:
    """A repeated assignment is another one, since less of the job's time is left."""
    return repr(command)


MUTANTS = (
    Mutant(
        "fallback on timeout",
        Cores(owner=FallsBackOnSilence),
        "refusals",
        ("run twice", "refused and runs", "not settled"),
    ),
    Mutant(
        "assignment lost on takeover",
        Cores(owner=ForgetsAssignments),
        "owners",
        ("not ended", "taken for stuck"),
    ),
    Mutant("result fenced away", Cores(owner=FencesResults), "owners", ("not ended", "was lost")),
    Mutant(
        "double count after a heal",
        Cores(owner=CommitsEveryDelivery, machine=CountsAgain),
        "links",
        ("requests are reported",),
    ),
    Mutant("cancel sent once", Cores(owner=DropsCancel), "links", ("not ended", "ended as")),
    Mutant(
        "cancel concludes without a datacenter",
        Cores(owner=ConcludesWithout),
        "links",
        ("was lost",),
    ),
    Mutant(
        "cancel overrides what datacenters say",
        Cores(machine=CancelWins),
        "links",
        ("the gates have", "requests are reported", "not settled"),
    ),
    Mutant(
        "change of the load sent once",
        Cores(owner=TakesSilenceForTaken),
        "links",
        ("not ended", "of the changes", "got"),
    ),
    Mutant(
        "vacant part split to nobody",
        Cores(machine=SplitsToNobody),
        "vacancies",
        ("users",),
    ),
    Mutant(
        "repeated assignment taken for another job",
        Cores(digest=digest_with_time),
        "owners",
        ("not settled", "refused and runs"),
    ),
)
