"""Renews leases, each time after a majority of managers has confirmed this leader.

One question to the other managers covers every worker. While its answer takes long, further
questions are sent; the answer to any of them is enough.
"""

from dataclasses import dataclass

from hyperscale.jobs.leader.attempts import AttemptPhase
from hyperscale.jobs.leader.events import ConfirmLeadership, LeadershipConfirmed
from hyperscale.jobs.leader.state import LeaderState
from hyperscale.jobs.leader.worker_liveness import Stamps, WorkerState
from hyperscale.jobs.messages import ListAttempts, RenewLeases

_RENEWALS_AT_ONCE = 64
_QUESTIONS_MAX = 8


@dataclass(frozen=True, slots=True)
class _Question:
    """A question to the other managers: does this node still lead?"""

    asked_s: float
    due: list[str]  # workers whose leases are renewed on confirmation
    stamps: Stamps  # confirmed together with the leadership


class LeaseRenewal:
    def __init__(self, state: LeaderState) -> None:
        self._state = state
        self._questions: dict[int, _Question] = {}  # not answered yet
        self._last_question = 0  # questions asked so far
        self._is_asked_again = False  # a stamp arrived after the last question was sent

    def contact(self) -> None:
        """Renew the leases that are due; ask workers that have not listed their attempts."""
        state = self._state
        busy = state.attempts.workers()
        due: list[tuple[float, str]] = []  # with when they were last renewed
        unrenewed: list[str] = []
        for name, worker in state.workers.items():
            if worker.is_gone or not state.workers.is_due(worker):
                continue
            if worker.has_listed_attempts and worker.stamp_ms:
                if name not in busy:
                    continue
                if worker.renewed_s is None:
                    unrenewed.append(name)
                else:
                    due.append((worker.renewed_s, name))
            elif worker.state is WorkerState.UP or name in busy:
                worker.renewed_s = state.now_s
                question = ListAttempts(group=state.group, term=state.term, leader=state.node)
                state.send(name, question)
        # Hundreds of leases that were granted together need not be renewed together for ever.
        at_once = max(0, max(_RENEWALS_AT_ONCE, len(busy) // 3) - len(unrenewed))
        first = sorted(unrenewed) + [name for _, name in sorted(due)[:at_once]]
        if first:
            self.confirm(first)

    def confirm(self, due: list[str]) -> None:
        """Ask for a confirmation of this leader; it confirms the latest stamps and renews `due`."""
        state = self._state
        last = self._questions.get(self._last_question)
        if last is not None and state.now_s < last.asked_s + state.timeouts.lease_s / 4:
            self._is_asked_again = True
            return
        self._is_asked_again = False
        self._last_question += 1
        question = _Question(state.now_s, due, state.workers.stamps())
        self._questions[self._last_question] = question
        self._questions.pop(self._last_question - _QUESTIONS_MAX, None)
        state.effects.append(ConfirmLeadership(self._last_question))

    def confirmed(self, event: LeadershipConfirmed) -> None:
        """Confirm the stamps of a question that a majority answered, and renew its leases."""
        answered = self._questions.get(event.question)
        if answered is None:
            return
        for earlier in [number for number in self._questions if number <= event.question]:
            del self._questions[earlier]
        state = self._state
        state.workers.confirm(answered.stamps)
        self._renew(answered.due)
        state.touched |= {
            attempt.id.job for attempt in state.attempts if attempt.phase is AttemptPhase.READY
        }

    def ask_again(self) -> None:
        """Send the question that waited for the answer to the last one, if there is one."""
        if self._is_asked_again:
            self.contact()
        if self._is_asked_again:
            self.confirm([])

    def _renew(self, workers: list[str]) -> None:
        state = self._state
        for name in workers:
            worker = state.workers[name]
            if worker.is_gone or not worker.confirmed_ms:
                continue
            worker.renewed_s = state.now_s
            command = RenewLeases(
                group=state.group,
                term=state.term,
                leader=state.node,
                lease_ms=state.lease_ms,
                attempts=[
                    attempt.id
                    for attempt in state.attempts.of_worker(name)
                    if attempt.phase is not AttemptPhase.LOST
                ],
                stamp_ms=worker.confirmed_ms,
            )
            state.send(name, command)
