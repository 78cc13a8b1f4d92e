"""Renewing leases: who is due, and only after a majority has confirmed this leader.

One question to the other managers at a time covers every worker; while an answer takes long, more
are asked, and any of them will do.
"""

from dataclasses import dataclass

from hyperscale.jobs.leader.attempts import AttemptPhase
from hyperscale.jobs.leader.events import ConfirmLeadership, LeaderEffect, SendCommand
from hyperscale.jobs.leader.tables import LeaderTables
from hyperscale.jobs.leader.worker_liveness import Stamps, WorkerState
from hyperscale.jobs.messages import AttemptId, ListAttempts, RenewLeases

_RENEWALS_AT_ONCE = 64
_QUESTIONS_MAX = 8


@dataclass(frozen=True, slots=True)
class _Question:
    """Whether this node leads, as the other managers were asked."""

    asked_s: float
    due: list[str]  # workers whose leases are renewed if it does
    stamps: Stamps  # confirmed if it does


class LeaseRenewal:
    def __init__(self, tables: LeaderTables) -> None:
        self._tables = tables
        self._questions: dict[int, _Question] = {}  # not answered yet
        self._last_question = 0  # questions asked since this object was made
        self._is_asked_again = False  # a stamp came too late for the last question

    def clear(self) -> None:
        """Forget the questions of an earlier leadership."""
        self._questions.clear()
        self._is_asked_again = False

    def contact(self, *, now_s: float) -> list[LeaderEffect]:
        """Renew the leases that are due; ask workers that have not said what they run."""
        tables = self._tables
        busy = tables.attempts.workers()
        for name in busy:
            tables.workers.get(name, now_s=now_s)
        effects: list[LeaderEffect] = []
        due: list[tuple[float, str]] = []  # with when they were last renewed
        unrenewed: list[str] = []
        for name, worker in tables.workers.all().items():
            if worker.is_gone or not tables.workers.is_due(worker, now_s=now_s):
                continue
            if worker.has_listed_attempts and worker.stamp_ms:
                if name not in busy:
                    continue
                if worker.renewed_s is None:
                    unrenewed.append(name)
                else:
                    due.append((worker.renewed_s, name))
            elif worker.state is WorkerState.UP or name in busy:
                worker.renewed_s = now_s
                question = ListAttempts(group=tables.group, term=tables.term, leader=tables.node)
                effects.append(SendCommand(name, question))
        # Hundreds of leases that were granted together need not be renewed together for ever.
        at_once = max(0, max(_RENEWALS_AT_ONCE, len(busy) // 3) - len(unrenewed))
        first = sorted(unrenewed) + [name for _, name in sorted(due)[:at_once]]
        return effects + self.confirm(first, now_s=now_s) if first else effects

    def confirm(self, due: list[str], *, now_s: float) -> list[LeaderEffect]:
        """Have the latest stamps confirmed, and then the leases that are due renewed."""
        last = self._questions.get(self._last_question)
        if last is not None and now_s < last.asked_s + self._tables.timeouts.lease_s / 4:
            self._is_asked_again = True
            return []
        self._is_asked_again = False
        self._last_question += 1
        question = _Question(now_s, due, self._tables.workers.stamps())
        self._questions[self._last_question] = question
        self._questions.pop(self._last_question - _QUESTIONS_MAX, None)
        return [ConfirmLeadership(self._last_question)]

    def confirmed(self, question: int, *, now_s: float) -> list[LeaderEffect]:
        """A majority has taken this node for the leader since the question was asked."""
        answered = self._questions.get(question)
        if answered is None:
            return []
        for earlier in [number for number in self._questions if number <= question]:
            del self._questions[earlier]
        tables = self._tables
        tables.workers.confirm(answered.stamps)
        effects = self._renew(answered.due, now_s)
        tables.touched |= {
            attempt.id.job for attempt in tables.attempts if attempt.phase is AttemptPhase.READY
        }
        return effects

    def ask_again(self, *, now_s: float) -> list[LeaderEffect]:
        """Ask the question that had to wait for the last one, if there is one."""
        effects: list[LeaderEffect] = []
        if self._is_asked_again:
            effects += self.contact(now_s=now_s)
        if self._is_asked_again:
            effects += self.confirm([], now_s=now_s)
        return effects

    def _renew(self, workers: list[str], now_s: float) -> list[LeaderEffect]:
        tables = self._tables
        effects: list[LeaderEffect] = []
        for name in workers:
            worker = tables.workers.get(name, now_s=now_s)
            if worker.is_gone or not worker.confirmed_ms:
                continue
            worker.renewed_s = now_s
            listed: list[AttemptId] = [
                attempt.id
                for attempt in tables.attempts.of_worker(name)
                if attempt.phase is not AttemptPhase.LOST
            ]
            command = RenewLeases(
                group=tables.group,
                term=tables.term,
                leader=tables.node,
                lease_ms=tables.lease_ms,
                attempts=listed,
                stamp_ms=worker.confirmed_ms,
            )
            effects.append(SendCommand(name, command))
        return effects
