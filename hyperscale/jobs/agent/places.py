"""The places of a worker: where the executors of attempts run, and which of them have a core."""

from collections.abc import Collection

from hyperscale.errors import InvariantError
from hyperscale.jobs.messages import SHARED_MAX, AttemptId, HeldCores, PreparePart
from hyperscale.jobs.provisioner import SHARED_PER_WORKER_MAX


class PlaceTable:
    """Which attempt holds which place: no core is held twice.

    Places 0 ... total - 1 are cores. An attempt that may share gets higher places, whose executors
    run beside those that hold the cores: first come the places of recoveries, then those of
    attempts that share the cores of their own job. The latter run only where their job holds a
    core: a core that the job leaves passes to one of them. An attempt that supersedes another one
    takes over its places before they are vacant, so that no other attempt gets them in between.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._within_job = range(total * SHARED_MAX, total * SHARED_MAX + SHARED_PER_WORKER_MAX)
        self._holders: dict[int, AttemptId] = {}
        self._leaving: dict[int, AttemptId] = {}  # superseded, but not vacated yet

    @property
    def free(self) -> int:
        """Cores without a holder."""
        return len(self._free_cores())

    def held(self, attempt_id: AttemptId) -> HeldCores | None:
        """Return what an attempt holds; None if it has left all its places."""
        places = self._of(attempt_id)
        beside = [place for place in places if place >= self.total]
        if not places:
            return None
        return HeldCores(
            attempt_id=attempt_id,
            cores=len(beside) or len(places),
            shared=len(beside) == len(places),
            within_job=any(place in self._within_job for place in beside),
        )

    def why_not(self, command: PreparePart, older: Collection[AttemptId]) -> str:
        """Say why there are no places for an attempt that supersedes the `older` ones; empty if
        there are."""
        holders = [self._holders.get(place) for place in self._span(command)]
        left = sum(holder is None or holder in older for holder in holders)
        if command.within_job and left < command.cores:
            return f"{len(holders)} executors share cores of their job here, and no more may"
        if left < command.cores:
            return f"{command.cores} cores requested, {self.free} free"
        if command.within_job and not self.free and not self._has_core(command.attempt_id.job):
            return "its job has no core here that it could share, and none is free"
        return ""

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
        if command.within_job and not self._has_core(attempt_id.job):
            self._holders[self._free_cores()[0]] = attempt_id
        return chosen

    def vacate(self, attempt_id: AttemptId, place: int) -> None:
        """Note that no process of the attempt is left at a place."""
        if self._leaving.get(place) == attempt_id:
            del self._leaving[place]
        elif self._holders.get(place) == attempt_id:
            if place in self._leaving:
                raise InvariantError(f"{attempt_id} vacates place {place}, which it never used")
            self._release(place)

    def drop(self, attempt_id: AttemptId) -> None:
        """Remove an attempt that has left all places, or never used them."""
        for place in [place for place, held in self._leaving.items() if held == attempt_id]:
            del self._leaving[place]
        for place in reversed(self._of(attempt_id)):
            if place in self._leaving:  # its executor is still there: it holds the place again
                self._holders[place] = self._leaving.pop(place)
            else:
                self._release(place)

    def _release(self, place: int) -> None:
        """Free a place; a core passes to an attempt that shares the cores of the same job."""
        holder = self._holders.pop(place)
        if place >= self.total:
            return
        for beside in self._within_job:
            heir = self._holders.get(beside)
            if heir is not None and heir.job == holder.job and not self._cores_of(heir):
                self._holders[place] = heir
                return

    def _free_cores(self) -> list[int]:
        return [place for place in range(self.total) if place not in self._holders]

    def _cores_of(self, attempt_id: AttemptId) -> list[int]:
        return [place for place in self._of(attempt_id) if place < self.total]

    def _has_core(self, job: str) -> bool:
        holders = (self._holders.get(place) for place in range(self.total))
        return any(holder is not None and holder.job == job for holder in holders)

    def _of(self, attempt_id: AttemptId) -> list[int]:
        """Return the places an attempt holds, in order, whether vacant or not."""
        return sorted(place for place, held in self._holders.items() if held == attempt_id)

    def _span(self, command: PreparePart) -> range:
        """Return the places that an attempt may get: cores, or places beside them."""
        if command.within_job:
            return self._within_job
        return range(self.total, self._within_job.start) if command.shared else range(self.total)
