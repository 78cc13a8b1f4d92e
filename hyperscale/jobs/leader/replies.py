"""What the replies of workers to a leader's commands mean."""

from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.jobs.leader.attempts import PHASE_ON_WORKER, Attempt, AttemptPhase
from hyperscale.jobs.leader.events import CommandAnswered, LeaderEffect
from hyperscale.jobs.leader.leases import LeaseRenewal
from hyperscale.jobs.leader.lifecycle import AttemptLifecycle
from hyperscale.jobs.leader.tables import LeaderTables
from hyperscale.jobs.messages import (
    AttemptId,
    ListAttemptsReply,
    PartCommandReply,
    PartPhase,
    PartProgress,
    PartView,
    PreparePart,
    Refusal,
    RenewLeasesReply,
    StartPart,
    StopPart,
)

_NO_RETRY = frozenset({Refusal.NO_CORES, Refusal.DRAINING, Refusal.STALE_ATTEMPT})


class WorkerReplies:
    def __init__(
        self,
        tables: LeaderTables,
        machine: JobMachine,
        lifecycle: AttemptLifecycle,
        leases: LeaseRenewal,
    ) -> None:
        self._tables = tables
        self._machine = machine
        self._lifecycle = lifecycle
        self._leases = leases

    def take(self, event: CommandAnswered, *, now_s: float) -> list[LeaderEffect]:
        """Take a worker's reply to a command."""
        match event.reply:
            case RenewLeasesReply() as reply:
                return self._renewed(event.worker, reply, now_s)
            case ListAttemptsReply() as reply:
                return self._listed(event.worker, reply, now_s)
            case PartCommandReply() as reply:
                match event.command:
                    case PreparePart(attempt_id=attempt):
                        return self._prepared(attempt, reply, now_s)
                    case StartPart(attempt_id=attempt):
                        return self._started(attempt, reply, now_s)
                    case StopPart(attempt_id=attempt):
                        return self._stopped(attempt, reply, now_s)
        return []

    def _prepared(
        self, attempt_id: AttemptId, reply: PartCommandReply, now_s: float
    ) -> list[LeaderEffect]:
        attempt = self._tables.attempts.get(attempt_id)
        if attempt is None or attempt.phase is not AttemptPhase.DISPATCHED:
            return []
        if reply.accepted:
            # The reply may have been overtaken by the attempt itself.
            is_ready = reply.phase is PartPhase.READY
            phase = AttemptPhase.READY if is_ready else AttemptPhase.PREPARING
            self._lifecycle.accept(attempt, phase, now_s=now_s)
            self._tables.touched.add(attempt_id.job)
            # By the time it is ready, a lease may count from the stamp of this reply.
            return self._leases.confirm([], now_s=now_s)
        if reply.refusal is Refusal.STALE_TERM:
            return []  # another leader was elected: the ledger will say so
        attempt.is_absent = True
        if reply.refusal in _NO_RETRY:
            reason = f"worker {attempt.worker} refused it: {reply.reason}"
        else:
            reason = f"worker {attempt.worker} cannot run it: {reply.reason}"
        costs_retry = reply.refusal not in _NO_RETRY
        return self._lose(attempt, reason, costs_retry=costs_retry, now_s=now_s)

    def _started(
        self, attempt_id: AttemptId, reply: PartCommandReply, now_s: float
    ) -> list[LeaderEffect]:
        attempt = self._tables.attempts.get(attempt_id)
        if attempt is None or attempt.phase is not AttemptPhase.READY:
            return []
        if reply.accepted:
            job = self._machine.job(attempt_id.job)
            if job is not None:
                self._lifecycle.start(attempt, job, now_s=now_s)
                self._tables.touched.add(attempt_id.job)
            return []
        if reply.refusal in (Refusal.STALE_TERM, Refusal.INVALID):
            return []  # another leader; or the command was under way too long, and is repeated
        reason = f"worker {attempt.worker} could not start it: {reply.reason}"
        costs_retry = reply.refusal is Refusal.UNKNOWN_ATTEMPT
        return self._lose(attempt, reason, costs_retry=costs_retry, now_s=now_s)

    def _stopped(
        self, attempt_id: AttemptId, reply: PartCommandReply, now_s: float
    ) -> list[LeaderEffect]:
        attempt = self._tables.attempts.get(attempt_id)
        if attempt is None or not reply.accepted or reply.phase is not PartPhase.UNKNOWN:
            return []
        # The worker has nothing of it and never will.
        return self._lose(attempt, "stopped", costs_retry=False, now_s=now_s)

    def _renewed(self, worker: str, reply: RenewLeasesReply, now_s: float) -> list[LeaderEffect]:
        if not reply.accepted:
            return []
        tables = self._tables
        effects: list[LeaderEffect] = []
        for attempt_id in reply.unknown:
            attempt = tables.attempts.on(worker, attempt_id)
            if attempt is None:
                continue
            if attempt.phase is AttemptPhase.DISPATCHED and not attempt.is_inherited:
                continue  # the worker is just being told
            attempt.times_unknown += 1
            if attempt.times_unknown >= 2:  # once may be a message that was overtaken
                effects += self._forgotten(worker, attempt, now_s)
        for attempt_id in reply.unlisted:
            if tables.attempts.on(worker, attempt_id) is None:
                effects.append(tables.stop(worker, attempt_id))
        return effects

    def _listed(self, worker: str, reply: ListAttemptsReply, now_s: float) -> list[LeaderEffect]:
        """What a worker runs: adopted if it belongs there, stopped if not, lost if missing."""
        if not reply.accepted:
            return []
        tables = self._tables
        liveness = tables.workers.get(worker, now_s=now_s)
        is_first = not liveness.has_listed_attempts
        liveness.has_listed_attempts = True
        if is_first:
            liveness.renewed_s = None  # the leases of its last leader are short
        effects: list[LeaderEffect] = []
        here = set()
        for view in reply.parts:
            here.add(view.attempt_id)
            attempt = tables.attempts.on(worker, view.attempt_id)
            if attempt is not None:
                self._adopt(attempt, view, now_s)
            elif view.phase is not PartPhase.FINISHED:
                effects.append(tables.stop(worker, view.attempt_id))
        if is_first:
            alive_s = reply.alive_ms / 1000
            for attempt in tables.attempts.of_worker(worker):
                if attempt.is_inherited and attempt.id not in here:
                    effects += self._missing(worker, attempt, alive_s, now_s)
        tables.touched |= {attempt.job for attempt in here}
        return effects + self._leases.contact(now_s=now_s)

    def _adopt(self, attempt: Attempt, view: PartView, now_s: float) -> None:
        phase = PHASE_ON_WORKER.get(view.phase)
        is_early = attempt.phase in (AttemptPhase.DISPATCHED, AttemptPhase.PREPARING)
        if is_early and phase is not None:
            self._lifecycle.accept(attempt, phase, now_s=now_s)
        job = self._machine.job(attempt.id.job)
        if view.report is not None and job is not None:
            reported = PartProgress(
                attempt_id=view.attempt_id,
                report=view.report,
                elapsed_s=view.elapsed_s,
                phase=view.phase,
            )
            self._lifecycle.report(attempt, job, reported, now_s=now_s)

    def _missing(
        self, worker: str, attempt: Attempt, alive_s: float, now_s: float
    ) -> list[LeaderEffect]:
        """An attempt of an earlier leader that its worker does not have."""
        if attempt.was_accepted or attempt.may_predate(alive_s, now_s=now_s):
            return self._forgotten(worker, attempt, now_s)
        attempt.is_absent = True
        reason = f"worker {worker} was never told of it"
        return self._lifecycle.lose(attempt, reason, costs_retry=False, over_s=None, now_s=now_s)

    def _forgotten(self, worker: str, attempt: Attempt, now_s: float) -> list[LeaderEffect]:
        attempt.is_absent = True
        costs_retry = attempt.was_accepted
        reason = f"worker {worker} has lost it"
        return self._lose(attempt, reason, costs_retry=costs_retry, now_s=now_s)

    def _lose(
        self, attempt: Attempt, reason: str, *, costs_retry: bool, now_s: float
    ) -> list[LeaderEffect]:
        return self._lifecycle.lose(
            attempt, reason, costs_retry=costs_retry, over_s=now_s, now_s=now_s
        )
