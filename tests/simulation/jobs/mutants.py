"""The parts with one rule broken each: the invariants and bounds must notice every one."""

from dataclasses import dataclass
from typing import Any

import msgspec

from hyperscale.jobs.agent.attempts import StopCause
from hyperscale.jobs.agent.core import Agent
from hyperscale.jobs.agent.events import AgentEffect, CommandReceived
from hyperscale.jobs.allocator.core import Allocator
from hyperscale.jobs.leader.core import JobLeader
from hyperscale.jobs.leader.effects import Effect as LeaderEffect
from hyperscale.jobs.leader.worker_liveness import Links
from hyperscale.jobs.messages import AttemptId, DeliverResult
from tests.simulation.jobs.schedules import Cores


class TermAsAttempt(Agent):
    """A new term names a new run: whatever was begun under the last one is superseded."""

    def _command_received(self, event: CommandReceived, now_s: float) -> list[AgentEffect]:
        command = event.command
        is_newer = command.term > self._fences.term(command.group) > 0
        effects: list[AgentEffect] = []
        cause = StopCause("superseded by a newer term", is_retryable=True)
        for attempt in self._table.of_group(command.group) if is_newer else ():
            effects += self._table.stop(attempt, cause, 0.0, now_s=now_s)
        return effects + super()._command_received(event, now_s)


class GrantsAtOnce(Allocator):
    """A new allocator does not wait for the workers to announce what they hold."""

    @property
    def is_rebuilt(self) -> bool:
        return self.is_leading

    def _knows_all_grants(self, now_s: float) -> bool:
        return True


class AnyResultDecides(JobLeader):
    """The result of a part counts, whichever attempt it is of."""

    def received(self, message: Any, *, now_s: float) -> list[LeaderEffect]:
        if isinstance(message, DeliverResult) and message.run not in self._desk.runs:
            for run in list(self._desk.runs.values()):
                if _is_same_part(run.id, message.run):
                    message = msgspec.structs.replace(message, run=run.id, worker=run.worker)
                    break
        return super().received(message, now_s=now_s)


class _Hasty(Links):
    def stopped_at_s(self, worker: str, *, since_s: float, now_s: float) -> float:
        return max(self.get(worker, now_s=now_s).heard_s, since_s) + 3.0


class Impatient(JobLeader):
    """Silence is death: nobody waits for leases to run out."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._desk.links = _Hasty(self._timing)


class Unconfirmed(JobLeader):
    """Leases count from what was heard last, whoever may have been elected meanwhile."""

    def _confirm(self, due: list[str], now_s: float) -> list[LeaderEffect]:
        self._desk.links.confirmed(self._desk.links.stamps())
        return self._renew(due, now_s)


def _is_same_part(a: AttemptId, b: AttemptId) -> bool:
    return (a.job, a.workflow, a.part) == (b.job, b.workflow, b.part)


@dataclass(frozen=True)
class Mutant:
    name: str
    cores: Cores
    profile: str
    caught_by: tuple[str, ...]
    """Parts of what violations say, any of them."""


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
    Mutant("lease not waited for", Cores(leader=Impatient), "isolation", ("double load",)),
    Mutant("renewed by a deposed leader", Cores(leader=Unconfirmed), "deposed", ("double load",)),
)
