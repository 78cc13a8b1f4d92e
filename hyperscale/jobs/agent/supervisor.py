"""The life of attempts on a worker, from their first command to their end, and their places.

Performs every move of an attempt's state. Which commands are obeyed is decided in `core`.
"""

from collections import Counter
from collections.abc import Collection

from hyperscale.errors import InvariantError
from hyperscale.jobs.agent.attempts import (
    AttemptOnWorker,
    AttemptState,
    OutputBuffer,
    StopCause,
    WorkerAttempts,
)
from hyperscale.jobs.agent.events import (
    AgentEffect,
    AttemptPrepareFailed,
    LeaseAttempt,
    PlaceEnded,
    PlaceVacated,
    PrepareAttempt,
    StartAttempt,
    StopAttempt,
    StoreResult,
)
from hyperscale.jobs.agent.fences import Fences
from hyperscale.jobs.agent.reports import ReportSchedule
from hyperscale.jobs.agent.results import LEASE_OVER, AttemptEnd, prepare_failure_of, result_of
from hyperscale.jobs.agent.statistics import AttemptStatistics
from hyperscale.jobs.messages import (
    SHARED_MAX,
    AttemptId,
    DeliverResult,
    HeldCores,
    PreparePart,
)
from hyperscale.plan.status import PartStatus

STOP_GRACE_S = 1.0


class PlaceTable:
    """Which attempt holds which place: no core is held twice.

    Places 0 ... total - 1 are cores. An attempt that may share gets higher places, whose executors
    run beside those that hold the cores. An attempt that supersedes another one takes over its
    places before they are vacant, so that no other attempt gets them in between.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._holders: dict[int, AttemptId] = {}
        self._leaving: dict[int, AttemptId] = {}  # superseded, but not vacated yet

    @property
    def free(self) -> int:
        """Cores without a holder."""
        return sum(place not in self._holders for place in range(self.total))

    def held(self) -> Counter[AttemptId]:
        """Return how many places each attempt holds."""
        return Counter(self._holders.values())

    def fits(self, command: PreparePart, older: Collection[AttemptId]) -> bool:
        """Return True if there are places for an attempt that supersedes the `older` ones."""
        holders = map(self._holders.get, self._span(command))
        return sum(holder is None or holder in older for holder in holders) >= command.cores

    def take(self, command: PreparePart, *, superseded: AttemptId | None) -> tuple[int, ...]:
        """Give a new attempt its places, those of the `superseded` attempt first."""
        attempt_id, span = command.attempt_id, self._span(command)
        candidates = [] if superseded is None else [p for p in self._of(superseded) if p in span]
        candidates += [place for place in span if place not in self._holders]
        if len(candidates) < command.cores:
            raise InvariantError(f"{attempt_id} was accepted, but there are no places for it")
        chosen = tuple(sorted(candidates[: command.cores]))
        for place in chosen:
            if place in self._holders:
                if place in self._leaving:
                    raise InvariantError(f"{attempt_id} supersedes a waiting attempt at {place}")
                self._leaving[place] = self._holders[place]
            self._holders[place] = attempt_id
        return chosen

    def vacate(self, attempt_id: AttemptId, place: int) -> None:
        """Note that no process of the attempt is left at a place."""
        if self._leaving.get(place) == attempt_id:
            del self._leaving[place]
        elif self._holders.get(place) == attempt_id:
            if place in self._leaving:
                raise InvariantError(f"{attempt_id} vacates place {place}, which it never used")
            del self._holders[place]

    def drop(self, attempt_id: AttemptId) -> None:
        """Remove an attempt that has left all places, or never used them."""
        for place in [place for place, held in self._leaving.items() if held == attempt_id]:
            del self._leaving[place]
        for place in self._of(attempt_id):
            del self._holders[place]
            if place in self._leaving:  # its executor is still there: it holds the place again
                self._holders[place] = self._leaving.pop(place)

    def _of(self, attempt_id: AttemptId) -> list[int]:
        """Return the places an attempt holds, in order, whether vacant or not."""
        return sorted(place for place, held in self._holders.items() if held == attempt_id)

    def _span(self, command: PreparePart) -> range:
        """Return the places that an attempt may get: cores, or places beside them."""
        cores = self.total
        return range(cores, cores * SHARED_MAX) if command.shared else range(cores)


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
            HeldCores(
                attempt_id=attempt_id,
                cores=cores,
                shared=self._attempts[attempt_id].command.shared,
                exclusive=self._attempts[attempt_id].command.exclusive,
            )
            for attempt_id, cores in self.places.held().items()
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
        )
        return effects if is_waiting else [*effects, PrepareAttempt(command, places)]

    def start(
        self, attempt: AttemptOnWorker, *, start_in_ms: float, lease_until_s: float, now_s: float
    ) -> list[AgentEffect]:
        """Start the load of a ready attempt."""
        attempt.become(AttemptState.RUNNING)
        attempt.started_s = now_s + start_in_ms / 1000
        self._reports.watch(attempt.group, now_s=now_s)
        # Load begins under the lease of the start, even if the lease it was prepared under
        # lasts longer: the job leader may not know of the longer one.
        attempt.lease_until_s = lease_until_s
        return [*_lease(attempt), StartAttempt(attempt.id, attempt.remaining, start_in_ms)]

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

    def prepared(self, attempt_id: AttemptId, now_s: float) -> list[AgentEffect]:
        """Make an attempt ready, unless it was told to stop meanwhile."""
        attempt = self._attempts.get(attempt_id)
        if attempt is None or attempt.state is not AttemptState.PREPARING:
            return []
        attempt.become(AttemptState.READY)
        return _lease(attempt) + self._reports.announce_ready(attempt, now_s=now_s)

    def prepare_failed(self, event: AttemptPrepareFailed, now_s: float) -> list[AgentEffect]:
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
        attempt.ends[event.place] = event
        if event.report is not None:
            attempt.statistics.add(event.place, event.report, now_s=now_s)
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
                effects.append(PrepareAttempt(other.command, other.places))
        return effects


def _lease(attempt: AttemptOnWorker) -> list[AgentEffect]:
    """Hand the lease to the executors of an attempt, if it has any that need one."""
    has_executors = attempt.state in (AttemptState.READY, AttemptState.RUNNING)
    if not (attempt.is_leased and has_executors and attempt.remaining):
        return []
    return [LeaseAttempt(attempt.id, attempt.remaining, attempt.lease_until_s)]


def _stop_executors(attempt: AttemptOnWorker, reason: str, grace_s: float) -> list[AgentEffect]:
    if attempt.state is not AttemptState.STOPPING:
        attempt.become(AttemptState.STOPPING)
    remaining = attempt.remaining
    return [StopAttempt(attempt.id, remaining, reason, grace_s)] if remaining else []
