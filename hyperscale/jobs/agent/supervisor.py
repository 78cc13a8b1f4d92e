"""The life of attempts on a worker, from their first command to their end, and their places.

Performs every move of an attempt's state. Which commands are obeyed is decided in `core`.
"""

import dataclasses

from msgspec.structs import replace

from hyperscale.jobs.agent.attempts import (
    AttemptOnWorker,
    AttemptRows,
    AttemptState,
    Directives,
    OutputBuffer,
    StopCause,
    WorkerAttempts,
)
from hyperscale.jobs.agent.events import (
    AgentEffect,
    AttemptPrepared,
    AttemptPrepareFailed,
    AttemptSetUp,
    ChangeAttempt,
    GrantAttemptRows,
    LeaseAttempt,
    PlaceEnded,
    PlaceVacated,
    PrepareAttempt,
    ShareWithAttempt,
    StartAttempt,
    StopAttempt,
    StoreResult,
    WeighAttempt,
)
from hyperscale.jobs.agent.fences import Fences
from hyperscale.jobs.agent.places import PlaceTable
from hyperscale.jobs.agent.reports import ReportSchedule
from hyperscale.jobs.agent.results import (
    LEASE_OVER,
    RENEWALS_MISSED,
    AttemptEnd,
    prepare_failure_of,
    result_of,
)
from hyperscale.jobs.agent.statistics import AttemptStatistics
from hyperscale.jobs.messages import (
    AttemptId,
    ChangePart,
    DeliverResult,
    GrantRows,
    HeldCores,
    PreparePart,
)
from hyperscale.jobs.provisioner import SHARED_NICE
from hyperscale.plan.status import PartStatus

STOP_GRACE_S = 1.0


class AttemptSupervisor:
    """Begins, starts, stops and ends attempts, and gives them places."""

    def __init__(
        self, cores: int, attempts: WorkerAttempts, fences: Fences, reports: ReportSchedule
    ) -> None:
        self.places = PlaceTable(cores)
        self._attempts = attempts
        self._fences = fences
        self._reports = reports

    def held(self) -> list[HeldCores]:
        """Return what holds the places of this worker."""
        return [
            replace(held, exclusive=attempt.command.exclusive)
            for attempt_id, attempt in self._attempts.items()
            if (held := self.places.held(attempt_id)) is not None
        ]

    # --- commands ---------------------------------------------------------------------------

    def begin(
        self,
        command: PreparePart,
        older: list[AttemptOnWorker],
        *,
        first_output: int,
        now_s: float,
    ) -> list[AgentEffect]:
        """Prepare a new attempt, once the older attempts of its part have left their places."""
        attempt_id = command.attempt_id
        effects: list[AgentEffect] = []
        cause = StopCause(f"superseded by attempt {attempt_id.attempt}")
        # At most one attempt of a part uses its places; the others wait for them.
        in_use = (each.id for each in older if each.state is not AttemptState.WAITING)
        superseded = next(in_use, None)
        is_waiting = superseded is not None
        for other in older:
            effects += self.stop(other, cause, STOP_GRACE_S, now_s=now_s)
        places = self.places.take(command, superseded=superseded)
        self._fences.begin(attempt_id, now_s=now_s)
        offset_s = command.plan.offset_s(command.elapsed_s)
        self._attempts[attempt_id] = AttemptOnWorker(
            command=command,
            places=places,
            state=AttemptState.WAITING if is_waiting else AttemptState.PREPARING,
            lease_until_s=now_s + command.lease_ms / 1000,
            statistics=AttemptStatistics(
                attempt_id.workflow, command.first_slot, offset_s=offset_s
            ),
            output=OutputBuffer(first=first_output, now_s=now_s),
            directives=Directives(len(command.changes), _rows_of(command, places)),
        )
        return effects if is_waiting else effects + self._prepare(self._attempts[attempt_id])

    def _prepare(self, attempt: AttemptOnWorker) -> list[AgentEffect]:
        """Prepare the executors of an attempt, and weigh those of its job if they share cores."""
        effects: list[AgentEffect] = [PrepareAttempt(attempt.command, attempt.places)]
        of_job = [
            each
            for each in self._attempts.values()
            if each.id.job == attempt.id.job and each.state is not AttemptState.WAITING
        ]
        if any(each.command.within_job for each in of_job):
            for each in of_job:
                if not each.is_weighed and each.remaining:
                    each.is_weighed = True
                    nice = SHARED_NICE[each.command.plan.priority]
                    effects.append(WeighAttempt(each.id, each.remaining, nice))
        return effects

    def start(
        self,
        attempt: AttemptOnWorker,
        *,
        start_in_ms: float,
        since_s: float | None,
        lease_until_s: float,
        now_s: float,
    ) -> list[AgentEffect]:
        """Start the load of a ready attempt."""
        attempt.become(AttemptState.RUNNING)
        if since_s is not None:
            attempt.statistics.begin_at(attempt.command.plan.offset_s(since_s))
        attempt.started_s = now_s + start_in_ms / 1000
        self._reports.watch(attempt.group, now_s=now_s)
        # Load begins under the lease of the start, even if the lease it was prepared under
        # lasts longer: the job leader may not know of the longer one.
        attempt.lease_until_s = lease_until_s
        start = StartAttempt(attempt.id, attempt.remaining, start_in_ms, since_s)
        return [*_lease(attempt), start]

    def adjust(
        self, attempt: AttemptOnWorker, command: ChangePart | GrantRows
    ) -> list[AgentEffect]:
        """Change the load of an attempt that is ready or runs, or let it use more rows, unless it
        knows what the command says."""
        has_slots = attempt.state in (AttemptState.READY, AttemptState.RUNNING)
        if not has_slots or not attempt.remaining:
            return []
        if isinstance(command, GrantRows):
            rows = attempt.directives.rows
            if rows is None or not rows.grant(command.limit):
                return []
            return [GrantAttemptRows(attempt.id, attempt.remaining, command.limit)]
        if len(command.changes) <= attempt.directives.changes:
            return []
        attempt.directives.changes = len(command.changes)
        return [ChangeAttempt(attempt.id, attempt.remaining, command.changes)]

    def extend_lease(self, attempt: AttemptOnWorker, until_s: float) -> list[AgentEffect]:
        """Extend the lease of an attempt; a lease never gets shorter."""
        if until_s <= attempt.lease_until_s:
            return []
        attempt.lease_until_s = until_s
        return _lease(attempt)

    def stop(
        self, attempt: AttemptOnWorker, cause: StopCause, grace_s: float, *, now_s: float
    ) -> list[AgentEffect]:
        """Stop an attempt in any state. A repeated stop keeps the first cause."""
        if attempt.stop_cause is None:
            attempt.stop_cause = cause
        if attempt.state is AttemptState.WAITING:
            return self._finish(attempt, now_s)
        self._reports.watch(attempt.group, now_s=now_s)
        return _stop_executors(attempt, cause.reason, grace_s)

    def stop_expired(self, *, now_s: float) -> list[AgentEffect]:
        """Stop the attempts whose lease is over."""
        effects: list[AgentEffect] = []
        for attempt in list(self._attempts.values()):
            if attempt.is_expired(now_s):
                cause = StopCause(LEASE_OVER, is_retryable=True)
                effects += self.stop(attempt, cause, 0.0, now_s=now_s)
        return effects

    # --- executors --------------------------------------------------------------------------

    def preparing(
        self, event: AttemptSetUp | AttemptPrepared | AttemptPrepareFailed, now_s: float
    ) -> list[AgentEffect]:
        match event:
            case AttemptSetUp():
                return self._set_up(event, now_s)
            case AttemptPrepared(attempt_id=attempt_id):
                return self._prepared(attempt_id, now_s)
            case AttemptPrepareFailed():
                return self._prepare_failed(event, now_s)

    def _set_up(self, event: AttemptSetUp, now_s: float) -> list[AgentEffect]:
        """Ask the job leader for the context that setup left, and tell it if setup ran here."""
        attempt = self._attempts.get(event.attempt_id)
        if attempt is None or attempt.state is not AttemptState.PREPARING:
            if attempt is not None:
                attempt.set_up = event.context  # it is stopping: its result says so
            return []
        attempt.become(AttemptState.SETTING_UP)
        attempt.set_up = event.context
        return self._reports.announce(attempt, now_s=now_s)

    def share_context(self, attempt: AttemptOnWorker, context: bytes) -> list[AgentEffect]:
        """Let an attempt that waits for it go on with the context that setup left."""
        if attempt.state is not AttemptState.SETTING_UP or attempt.has_context:
            return []
        attempt.has_context = True
        return [ShareWithAttempt(attempt.id, attempt.places, context)]

    def _prepared(self, attempt_id: AttemptId, now_s: float) -> list[AgentEffect]:
        """Make an attempt ready, unless it was told to stop meanwhile."""
        attempt = self._attempts.get(attempt_id)
        preparing = (AttemptState.PREPARING, AttemptState.SETTING_UP)
        if attempt is None or attempt.state not in preparing:
            return []
        attempt.become(AttemptState.READY)
        return _lease(attempt) + self._reports.announce(attempt, now_s=now_s)

    def _prepare_failed(self, event: AttemptPrepareFailed, now_s: float) -> list[AgentEffect]:
        """End an attempt that could not be prepared."""
        attempt = self._attempts.get(event.attempt_id)
        if attempt is None:
            return []
        if attempt.stop_cause is not None:
            return self._finish(attempt, now_s)
        return self._close(attempt, prepare_failure_of(attempt, event, self._reports.worker), now_s)

    def place_ended(self, event: PlaceEnded, now_s: float) -> list[AgentEffect]:
        """Note the end of one executor; stop the other executors if it failed."""
        attempt = self._attempts.get(event.attempt_id)
        if attempt is None or event.place in attempt.ends:
            return []
        if _missed_renewals(attempt, event, now_s):
            event = dataclasses.replace(
                event, status=PartStatus.FAILED, error=RENEWALS_MISSED, is_dead=True
            )
        attempt.ends[event.place] = event
        if event.report is not None:
            attempt.statistics.add(event.place, event.report, now_s=now_s)
            if attempt.directives.rows is not None:
                attempt.directives.rows.use(event.place, event.drawn)
        else:
            if attempt.started_s is not None:
                # Once its lease is over, an executor sends nothing.
                ended_s = min(now_s, attempt.lease_until_s) if attempt.is_leased else now_s
                attempt.statistics.note_gap(event.place, ended_s - attempt.started_s)
            if attempt.is_expired(now_s):
                # The kernel kills executors that do not stop at the end of their lease.
                attempt.stop_cause = StopCause(LEASE_OVER, is_retryable=True)
        has_failed = event.is_dead or event.status is PartStatus.FAILED
        if not has_failed or attempt.stop_cause is not None or not attempt.remaining:
            return []
        # A part must run on all of its cores or on none.
        reason = f"another core of the part failed: {event.error}"
        return _stop_executors(attempt, reason, STOP_GRACE_S)

    def place_vacated(self, event: PlaceVacated, now_s: float) -> list[AgentEffect]:
        """Free a place; end the attempt if it was the last one."""
        attempt = self._attempts.get(event.attempt_id)
        if attempt is None or event.place in attempt.vacated:
            return []
        attempt.vacated.add(event.place)
        self.places.vacate(attempt.id, event.place)
        is_last = len(attempt.vacated) == len(attempt.places)
        return self._finish(attempt, now_s) if is_last else []

    # --- the end ----------------------------------------------------------------------------

    def _finish(self, attempt: AttemptOnWorker, now_s: float) -> list[AgentEffect]:
        return self._close(attempt, result_of(attempt, self._reports.worker), now_s)

    def _close(
        self, attempt: AttemptOnWorker, message: AttemptEnd, now_s: float
    ) -> list[AgentEffect]:
        """End an attempt and prepare the attempt that waited for its places."""
        had_places = attempt.state is not AttemptState.WAITING
        attempt.become(AttemptState.ENDED)
        effects = self._reports.forward_output(attempt)
        del self._attempts[attempt.id]
        self.places.drop(attempt.id)
        self._fences.bury(attempt.id, now_s=now_s)
        if not self._attempts.of_group(attempt.group):
            self._reports.unwatch(attempt.group)
        self._reports.add_result(message, now_s=now_s)
        if isinstance(message, DeliverResult):
            effects.append(StoreResult(message))
        else:
            effects += self._reports.result_stored(attempt.id, now_s=now_s)
        for other in self._attempts.of_part(attempt.id) if had_places else ():
            if other.state is AttemptState.WAITING:
                other.become(AttemptState.PREPARING)
                effects += self._prepare(other)
        return effects


def _rows_of(command: PreparePart, places: tuple[int, ...]) -> AttemptRows | None:
    rows = command.rows
    if rows is None or rows.limit is None:
        return None
    return AttemptRows(rows.first, rows.limit, places)


def _lease(attempt: AttemptOnWorker) -> list[AgentEffect]:
    """Hand the lease to the executors of an attempt, if it has any that need one."""
    has_executors = attempt.state in (AttemptState.READY, AttemptState.RUNNING)
    if not (attempt.is_leased and has_executors and attempt.remaining):
        return []
    return [LeaseAttempt(attempt.id, attempt.remaining, attempt.lease_until_s)]


def _missed_renewals(attempt: AttemptOnWorker, event: PlaceEnded, now_s: float) -> bool:
    """Return True if an executor stopped by its lease, which the job leader had renewed."""
    is_own_stop = event.status is PartStatus.STOPPED and attempt.stop_cause is None
    return is_own_stop and attempt.state is AttemptState.RUNNING and not attempt.is_expired(now_s)


def _stop_executors(attempt: AttemptOnWorker, reason: str, grace_s: float) -> list[AgentEffect]:
    if attempt.state is not AttemptState.STOPPING:
        attempt.become(AttemptState.STOPPING)
    remaining = attempt.remaining
    return [StopAttempt(attempt.id, remaining, reason, grace_s)] if remaining else []
