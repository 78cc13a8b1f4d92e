"""Handles the replies of workers to a leader's commands."""

from hyperscale.jobs.committed.events import AttemptFault
from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.jobs.leader.attempts import (
    ATTEMPT_MOVES,
    NOT_READY,
    PHASE_ON_WORKER,
    Attempt,
    AttemptPhase,
)
from hyperscale.jobs.leader.events import CommandAnswered, PartCommand
from hyperscale.jobs.leader.leases import LeaseRenewal
from hyperscale.jobs.leader.lifecycle import AttemptLifecycle
from hyperscale.jobs.leader.state import LeaderState
from hyperscale.jobs.messages import (
    ChangePart,
    GrantRows,
    ListAttemptsReply,
    PartCommandReply,
    PartPhase,
    PartProgress,
    PartView,
    PreparePart,
    Refusal,
    RenewLeasesReply,
    ShareSetUpContext,
    StartPart,
    StopPart,
)

_NO_RETRY = frozenset({Refusal.NO_CORES, Refusal.DRAINING, Refusal.UNFIT, Refusal.STALE_ATTEMPT})


class WorkerReplies:
    def __init__(
        self,
        state: LeaderState,
        machine: JobMachine,
        lifecycle: AttemptLifecycle,
        leases: LeaseRenewal,
    ) -> None:
        self._state = state
        self._machine = machine
        self._lifecycle = lifecycle
        self._leases = leases

    def take(self, event: CommandAnswered) -> None:
        """Take a worker's reply to a command."""
        match event.reply:
            case RenewLeasesReply() as reply if reply.accepted:
                self._renewed(event.worker, reply)
            case ListAttemptsReply() as reply if reply.accepted:
                self._listed(event.worker, reply)
            case PartCommandReply() as reply:
                if isinstance(event.command, PartCommand):
                    self._obeyed(event.command, reply)

    def _obeyed(self, command: PartCommand, reply: PartCommandReply) -> None:
        attempt = self._state.attempts.get(command.attempt_id)
        if attempt is None:
            return
        match command:
            case PreparePart() if attempt.phase is AttemptPhase.DISPATCHED:
                self._prepared(attempt, reply)
            case ChangePart() if reply.accepted:
                # Of a part that is not ready or running any more nothing is expected.
                attempt.copy.changes_known = len(command.changes)
            case GrantRows() if reply.accepted:
                attempt.rows.known = max(command.limit, attempt.rows.known or 0)
            case ShareSetUpContext() if reply.accepted:
                attempt.setup.shared_s = self._state.now_s
            case StartPart() if attempt.phase is AttemptPhase.READY:
                self._started(attempt, reply)
            case StopPart() if reply.accepted and reply.phase is PartPhase.UNKNOWN:
                # The worker does not have the attempt; its tombstone refuses a late PreparePart.
                self._lose(attempt, "stopped", AttemptFault.NONE)

    def _prepared(self, attempt: Attempt, reply: PartCommandReply) -> None:
        if reply.accepted:
            # AnnounceReady may have overtaken this reply.
            is_ready = reply.phase is PartPhase.READY
            phase = AttemptPhase.READY if is_ready else AttemptPhase.PREPARING
            self._lifecycle.accept(attempt, phase)
            self._state.touched.add(attempt.id.job)
            # Once confirmed, the lease of the attempt may count from the stamp of this reply.
            self._leases.confirm([])
        elif reply.refusal is not Refusal.STALE_TERM:  # STALE_TERM: another node was elected
            attempt.copy.is_absent = True
            fault = AttemptFault.NONE if reply.refusal in _NO_RETRY else AttemptFault.REFUSED
            verb = "refused" if fault is AttemptFault.NONE else "cannot run"
            reason = f"worker {attempt.worker} {verb} it: {reply.reason}"
            self._lose(attempt, reason, fault)

    def _started(self, attempt: Attempt, reply: PartCommandReply) -> None:
        job = self._machine.job(attempt.id.job)
        if reply.accepted:
            if job is not None:
                self._lifecycle.start(attempt, job)
                self._state.touched.add(attempt.id.job)
        # Another node was elected; or the command was under way too long, and is repeated.
        elif reply.refusal not in (Refusal.STALE_TERM, Refusal.INVALID):
            reason = f"worker {attempt.worker} could not start it: {reply.reason}"
            is_lost = reply.refusal is Refusal.UNKNOWN_ATTEMPT
            self._lose(attempt, reason, AttemptFault.WORKER_LOST if is_lost else AttemptFault.NONE)

    def _renewed(self, worker: str, reply: RenewLeasesReply) -> None:
        attempts = self._state.attempts
        for attempt_id in reply.unknown:
            attempt = attempts.on(worker, attempt_id)
            if attempt is None:
                continue
            if attempt.phase is AttemptPhase.DISPATCHED and not attempt.is_inherited:
                continue  # PreparePart is under way
            attempt.copy.times_unknown += 1
            if attempt.copy.times_unknown >= 2:  # once: the renewal may have overtaken a message
                self._forgotten(attempt)
        for attempt_id in reply.unlisted:
            if attempts.on(worker, attempt_id) is None:
                self._state.stop(worker, attempt_id)

    def _listed(self, worker: str, reply: ListAttemptsReply) -> None:
        """Adopt the attempts that belong on the worker, stop others, give up missing ones."""
        state = self._state
        liveness = state.workers[worker]
        is_first = not liveness.has_listed_attempts
        liveness.has_listed_attempts = True
        if is_first:
            liveness.renewed_s = None  # the leases of its last leader are short
        for view in reply.parts:
            attempt = state.attempts.on(worker, view.attempt_id)
            if attempt is not None:
                self._adopt(attempt, view)
            elif view.phase is not PartPhase.FINISHED:
                state.stop(worker, view.attempt_id)
        here = {view.attempt_id for view in reply.parts}
        if is_first:
            for attempt in state.attempts.of_worker(worker):
                if attempt.is_inherited and attempt.id not in here:
                    self._missing(attempt, reply.alive_ms / 1000)
        state.touched |= {attempt.job for attempt in here}
        self._leases.contact()

    def _adopt(self, attempt: Attempt, view: PartView) -> None:
        phase = PHASE_ON_WORKER.get(view.phase)
        # A phase that is behind was overtaken by a message of the worker.
        if attempt.phase in NOT_READY and phase in ATTEMPT_MOVES[attempt.phase]:
            self._lifecycle.accept(attempt, phase)
        job = self._machine.job(attempt.id.job)
        if view.report is not None and job is not None:
            reported = PartProgress(
                attempt_id=view.attempt_id,
                report=view.report,
                elapsed_s=view.elapsed_s,
                phase=view.phase,
            )
            self._lifecycle.report(attempt, job, reported)

    def _missing(self, attempt: Attempt, alive_s: float) -> None:
        """Give up an attempt of an earlier leader that its worker does not have."""
        if attempt.was_accepted or attempt.may_predate(alive_s, now_s=self._state.now_s):
            self._forgotten(attempt)
            return
        attempt.copy.is_absent = True
        reason = f"worker {attempt.worker} never received it"
        self._lifecycle.lose(attempt, reason, fault=AttemptFault.NONE, over_s=None)

    def _forgotten(self, attempt: Attempt) -> None:
        attempt.copy.is_absent = True
        reason = f"worker {attempt.worker} has lost it"
        self._lose(attempt, reason, attempt.fault_of_loss)

    def _lose(self, attempt: Attempt, reason: str, fault: AttemptFault) -> None:
        now_s = self._state.now_s
        self._lifecycle.lose(attempt, reason, fault=fault, over_s=now_s)
