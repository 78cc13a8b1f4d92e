"""Which attempt holds which place of a worker: no core is held twice.

Places 0 ... total - 1 are cores. An attempt that may share gets higher places, whose executors
run beside those that hold the cores. An attempt that supersedes another one takes over its
places before they are vacant, so that no other attempt gets them in between.
"""

from collections import Counter

from hyperscale.errors import InvariantError
from hyperscale.jobs.messages import SHARED_MAX, AttemptId, PreparePart


class PlaceTable:
    """Places and their holders."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._holders: dict[int, AttemptId] = {}
        self._leaving: dict[int, AttemptId] = {}  # superseded, but not vacated yet

    @property
    def free(self) -> int:
        """Cores without a holder."""
        return sum(place not in self._holders for place in range(self.total))

    def held(self) -> dict[AttemptId, int]:
        """Return how many places each attempt holds."""
        return dict(Counter(self._holders.values()))

    def places(self, attempt_id: AttemptId) -> tuple[int, ...]:
        """Return the places an attempt holds, in order, whether vacant or not."""
        return tuple(sorted(place for place, held in self._holders.items() if held == attempt_id))

    def take(
        self, command: PreparePart, *, superseded: AttemptId | None = None
    ) -> tuple[int, ...] | None:
        """Give a new attempt its places, those of the `superseded` attempt first.

        Return None and change nothing if there are not enough.
        """
        attempt_id, count = command.attempt_id, command.cores
        cores, shared = range(self.total), range(self.total, self.total * SHARED_MAX)
        span = shared if command.shared else cores
        taken_over = () if superseded is None else self.places(superseded)
        candidates = [place for place in taken_over if place in span]
        candidates += [place for place in span if place not in self._holders]
        if len(candidates) < count:
            return None
        chosen = tuple(sorted(candidates[:count]))
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
        for place in self.places(attempt_id):
            del self._holders[place]
            if place in self._leaving:  # its executor is still there: it holds the place again
                self._holders[place] = self._leaving.pop(place)

    def copy(self) -> "PlaceTable":
        """Return a copy, to try what fits."""
        table = PlaceTable(self.total)
        table._holders, table._leaving = dict(self._holders), dict(self._leaving)
        return table
