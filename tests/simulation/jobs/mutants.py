"""Cores with one broken rule each: an invariant or a bound must catch every one of them."""

import msgspec

from hyperscale.jobs.agent.attempts import StopCause
from hyperscale.jobs.agent.core import Agent
from hyperscale.jobs.agent.events import (
    AgentEffect,
    AgentEvent,
    AttemptSetUp,
    CommandReceived,
    ShareWithAttempt,
)
from hyperscale.jobs.agent.places import PlaceTable
from hyperscale.jobs.allocator.core import Allocator
from hyperscale.jobs.committed.events import AttemptRevoked, JobEvent
from hyperscale.jobs.committed.machine import Applied, JobMachine
from hyperscale.jobs.committed.state import Job, Part, Teardown, WorkflowState
from hyperscale.jobs.leader.attempt_rules import AttemptRules
from hyperscale.jobs.leader.attempts import Attempt
from hyperscale.jobs.leader.core import JobLeader
from hyperscale.jobs.leader.events import LeaderEffect, LeaderEvent, WorkerAnnounced
from hyperscale.jobs.leader.leases import LeaseRenewal
from hyperscale.jobs.leader.reconcile import Reconciler
from hyperscale.jobs.leader.retries import RetryLimits
from hyperscale.jobs.leader.state import JobProgress
from hyperscale.jobs.leader.worker_liveness import WorkerTable
from hyperscale.jobs.messages import AttemptId, DeliverResult
from hyperscale.ledger.group_clock import GroupClock, GroupClocks
from tests.simulation.campaign import Mutant
from tests.simulation.jobs.schedules import Cores
from tests.simulation.kernel import Host


class TermAsAttempt(Agent):
    """A new term supersedes every attempt of an older term."""

    def _command_received(self, event: CommandReceived, now_s: float) -> list[AgentEffect]:
        command = event.command
        is_newer = command.term > self._fences.term(command.group) > 0
        effects: list[AgentEffect] = []
        cause = StopCause("superseded by a newer term", is_retryable=True)
        for attempt in self._attempts.of_group(command.group) if is_newer else ():
            effects += self._supervisor.stop(attempt, cause, 0.0, now_s=now_s)
        return effects + super()._command_received(event, now_s)


class SharesUncommitted(Agent):
    """What setup left is used before it is committed."""

    def handle(self, event: AgentEvent, *, now_s: float) -> list[AgentEffect]:
        if isinstance(event, AttemptSetUp) and event.context:
            attempt = self._attempts.get(event.attempt_id)
            if attempt is not None:
                return [ShareWithAttempt(attempt.id, attempt.places, event.context)]
        return super().handle(event, now_s=now_s)


class GrantsAtOnce(Allocator):
    """A new allocator does not wait for the workers to announce what they hold."""

    @property
    def is_rebuilt(self) -> bool:
        return self.is_leading

    def _knows_all_grants(self, now_s: float) -> bool:
        return True


class StartsUncommitted(JobLeader):
    """That a teardown is started is not committed first."""

    class Rules(Reconciler):
        def _tear_down(
            self, job: Job, progress: JobProgress, name: str, workflow: WorkflowState
        ) -> None:
            owed, workflow.teardown = workflow.teardown, Teardown.STARTED
            super()._tear_down(job, progress, name, workflow)
            workflow.teardown = owed

    def __init__(self, group: int, node: str, machine: JobMachine) -> None:
        super().__init__(group, node, machine)
        self._reconciler.__class__ = self.Rules


class AnyResultDecides(JobLeader):
    """The result of any attempt decides its part."""

    def handle(self, event: LeaderEvent, *, now_s: float) -> list[LeaderEffect]:
        if isinstance(event, WorkerAnnounced) and isinstance(event.message, DeliverResult):
            message = event.message
            if self.state.attempts.get(message.attempt_id) is None:
                for attempt in self.state.attempts:
                    if _is_same_part(attempt.id, message.attempt_id):
                        message = msgspec.structs.replace(
                            message, attempt_id=attempt.id, worker=attempt.worker
                        )
                        break
                event = WorkerAnnounced(message)
        return super().handle(event, now_s=now_s)


class Impatient(JobLeader):
    """Silence is death: no attempt waits until the lease of the one before it has expired."""

    class Workers(WorkerTable):
        def stopped_at_s(self, worker: str, *, since_s: float) -> float:
            return max(self[worker].heard_s, since_s) + 3.0

    def __init__(self, group: int, node: str, machine: JobMachine) -> None:
        super().__init__(group, node, machine)
        self.state.workers = self.Workers(self.state.timeouts)


class Unconfirmed(JobLeader):
    """Leases count from the last stamp, although another leader may have been elected."""

    class Leases(LeaseRenewal):
        def confirm(self, due: list[str]) -> None:
            self._state.workers.confirm(self._state.workers.stamps())
            self._renew(due)

    def __init__(self, group: int, node: str, machine: JobMachine) -> None:
        super().__init__(group, node, machine)
        self._leases.__class__ = self.Leases


class KeepsNoPace(JobLeader):
    """A lost part takes its shape up where its last attempt ended."""

    class Rules(Reconciler):
        def _since_s(self, job: Job, name: str, start_at_s: float) -> float | None:
            return None

    def __init__(self, group: int, node: str, machine: JobMachine) -> None:
        super().__init__(group, node, machine)
        self._reconciler.__class__ = self.Rules


class ForgetsChanges(JobLeader):
    """An attempt does not get the changes of the load that were committed before it."""

    class Rules(AttemptRules):
        def _prepare(self, job: Job, attempt: Attempt) -> None:
            workflow = job.workflows[attempt.id.workflow]
            changes, workflow.changes = workflow.changes, []
            super()._prepare(job, attempt)
            workflow.changes = changes
            attempt.copy.changes_known = len(changes)

    def __init__(self, group: int, node: str, machine: JobMachine) -> None:
        super().__init__(group, node, machine)
        self._reconciler._rules.__class__ = self.Rules


class LeavesCores(Agent):
    """A core that a job leaves does not pass to the attempts that shared it."""

    class Places(PlaceTable):
        def _release(self, place: int) -> None:
            del self._holders[place]

    def __init__(self, worker: str, *, incarnation: int, cores: int, now_s: float) -> None:
        super().__init__(worker, incarnation=incarnation, cores=cores, now_s=now_s)
        self._supervisor.places.__class__ = self.Places


class ExcludesNobody(JobLeader):
    """A part may return to the worker on which it failed."""

    class Limits(RetryLimits, frozen=True):
        def excluded(self, part: Part, *, time_ms: int, returned: set[str]) -> list[str]:
            return []

    def __init__(self, group: int, node: str, machine: JobMachine) -> None:
        super().__init__(group, node, machine, retries=self.Limits())


class ReusesRows(JobMachine):
    """The next attempt of a part begins at the last row that was reported, not at the limit."""

    def _changed(self, event: JobEvent, body: bytes, unix_ms: int) -> Applied:
        applied = super()._changed(event, body, unix_ms)
        job = self.job(event.job)
        if isinstance(event, AttemptRevoked) and applied.reply.ok and job is not None:
            rows = job.workflows[event.workflow].parts[event.part].rows
            if rows is not None and event.rows_used:
                rows.first = max(event.rows_used)
        return applied


class DatesAsTime(GroupClocks):
    """The time of a group is the wall clock of its leader."""

    class Clock(GroupClock):
        host: Host

        def read_ms(self, now_s: float) -> int:
            return self.host.wall_ms()

    def __init__(self, host: Host) -> None:
        super().__init__()
        self._host = host

    def open(self, group: int, last_index: int) -> None:
        super().open(group, last_index)
        clock = self._clocks[group] = self.Clock()
        clock.host = self._host


class ForgetsContext(JobMachine):
    """What workflows provided is forgotten when an attempt is revoked."""

    def _changed(self, event: JobEvent, body: bytes, unix_ms: int) -> Applied:
        applied = super()._changed(event, body, unix_ms)
        if isinstance(event, AttemptRevoked) and applied.reply.ok:
            job = self.job(event.job)
            for workflow in () if job is None else job.workflows.values():
                for part in workflow.parts:
                    if part.end is not None:
                        part.end = msgspec.structs.replace(part.end, provided=[])
        return applied


def _is_same_part(a: AttemptId, b: AttemptId) -> bool:
    return (a.job, a.workflow, a.part) == (b.job, b.workflow, b.part)


MUTANTS = (
    Mutant("term treated as attempt", Cores(agent=TermAsAttempt), "leaders", ("restarts a part",)),
    Mutant("lease ignored", Cores(obeys_leases=False), "isolation", ("double load",)),
    Mutant("grant before rebuild", Cores(allocator=GrantsAtOnce), "allocators", ("not alone",)),
    Mutant(
        "result of a revoked attempt decides",
        Cores(leader=AnyResultDecides),
        "deposed",
        ("decided by the result of another", "are reported"),
    ),
    Mutant("core not passed on", Cores(agent=LeavesCores), "leaders", ("shares no core",)),
    Mutant(
        "context shared before its commit",
        Cores(agent=SharesUncommitted),
        "workers",
        ("without the committed context",),
    ),
    Mutant(
        "context forgotten",
        Cores(machine=ForgetsContext),
        "workers",
        ("starts with another context",),
    ),
    Mutant(
        "teardown started before its commit",
        Cores(leader=StartsUncommitted),
        "workers",
        ("teardown runs twice",),
    ),
    Mutant("lease not waited for", Cores(leader=Impatient), "isolation", ("double load",)),
    Mutant(
        "excludes nobody",
        Cores(leader=ExcludesNobody),
        "sick",
        ("on which it failed", "fails a job"),
    ),
    Mutant("dates as time", Cores(clocks=DatesAsTime), "clocks", ("s are committed", "at most")),
    Mutant("no pace kept", Cores(leader=KeepsNoPace), "changes", ("takes its shape up",)),
    Mutant("rows reused", Cores(machine=ReusesRows), "rows", ("is used twice",)),
    Mutant("changes forgotten", Cores(leader=ForgetsChanges), "changes", ("changes of its load",)),
    Mutant("renewed by a deposed leader", Cores(leader=Unconfirmed), "deposed", ("double load",)),
)
