"""Which run holds which place of a worker: no core is held twice.

Cores are places 0 ... total - 1. A run that may share gets places above them, which run beside
whoever holds the cores. A run that supersedes another inherits its places before they are
vacated, so that nobody else gets them in between.
"""

from collections import Counter

from hyperscale.errors import InvariantError
from hyperscale.jobs.messages import SHARED_MAX, AttemptId


class CoreBook:
    def __init__(self, total: int) -> None:
        self.total = total
        self._holders: dict[int, AttemptId] = {}
        self._leaving: dict[int, AttemptId] = {}  # inherited by another, still there

    @property
    def free(self) -> int:
        return sum(1 for place in range(self.total) if self._is_free(place))

    def held(self) -> dict[AttemptId, int]:
        """How many places each run holds; what is inherited is the heir's."""
        return dict(Counter(self._holders.values()))

    def places(self, run: AttemptId) -> tuple[int, ...]:
        """What the run holds, in order; whether it can use them yet is another question."""
        return tuple(sorted(place for place, held in self._holders.items() if held == run))

    def take(
        self, run: AttemptId, count: int, *, shared: bool, heir_of: AttemptId | None = None
    ) -> tuple[int, ...] | None:
        """So many places for the run, or None and nothing has changed."""
        inherited = () if heir_of is None else self.places(heir_of)
        is_of_kind = self._is_shared if shared else self._is_core
        candidates = [place for place in inherited if is_of_kind(place)]
        span = range(self.total, self.total * SHARED_MAX) if shared else range(self.total)
        candidates += [place for place in span if self._is_free(place)]
        if len(candidates) < count:
            return None
        chosen = tuple(sorted(candidates[:count]))
        for place in chosen:
            if place in self._holders:
                if place in self._leaving:
                    raise InvariantError(f"{run} would be the heir of one who never entered")
                self._leaving[place] = self._holders[place]
            self._holders[place] = run
        return chosen

    def vacate(self, run: AttemptId, place: int) -> None:
        """Nothing of the run is left there."""
        if self._leaving.get(place) == run:
            del self._leaving[place]
        elif self._holders.get(place) == run:
            if place in self._leaving:
                raise InvariantError(f"place {place} is left by {run} before it could enter")
            del self._holders[place]

    def drop(self, run: AttemptId) -> None:
        """The run is gone from everywhere, or never came to use what it holds."""
        for place in [place for place, held in self._leaving.items() if held == run]:
            del self._leaving[place]
        for place in self.places(run):
            del self._holders[place]
            if place in self._leaving:  # whoever was there is the holder again, until it left
                self._holders[place] = self._leaving.pop(place)

    def copy(self) -> "CoreBook":
        book = CoreBook(self.total)
        book._holders, book._leaving = dict(self._holders), dict(self._leaving)
        return book

    def _is_free(self, place: int) -> bool:
        return place not in self._holders

    def _is_core(self, place: int) -> bool:
        return place < self.total

    def _is_shared(self, place: int) -> bool:
        return place >= self.total
