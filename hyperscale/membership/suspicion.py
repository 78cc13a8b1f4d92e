"""One suspicion: since when, who says so, when it becomes a verdict.

The deadline is anchored at the start of the suspicion and only ever moves earlier, except by
this node's own stalls, whose sum is bounded. A witness counts once: our own gossip comes back
to us, and counting it again would let one slow member condemn alone.
"""

from hyperscale.membership.formulas import suspicion_s


class Suspicion:
    """What one member thinks of another it has not heard from."""

    __slots__ = (
        "_max_s",
        "_min_s",
        "_wanted",
        "deadline_s",
        "extended_s",
        "looks",
        "start_s",
        "witnesses",
    )

    def __init__(
        self, by: str, *, now_s: float, min_s: float, max_s: float, wanted: int, multiplier: float
    ) -> None:
        self.start_s = now_s
        self.witnesses = {by: None}  # ordered, so that runs repeat
        self.looks = 0
        self.extended_s = 0.0
        self._min_s = min_s
        self._max_s = max_s
        self._wanted = wanted
        self.deadline_s = now_s + self._lasts_s(multiplier)

    @property
    def first_witness(self) -> str:
        return next(iter(self.witnesses))

    @property
    def wants_witnesses(self) -> bool:
        return len(self.witnesses) <= self._wanted

    def confirm(self, by: str, multiplier: float) -> bool:
        """Counts `by` as an independent witness; whether it was a new one that matters."""
        if by in self.witnesses or not self.wants_witnesses:
            return False
        self.witnesses[by] = None
        self._earlier(self.start_s + self._lasts_s(multiplier))
        return True

    def condemn(self) -> None:
        """Another member has come to its verdict: this node's own troubles buy no more time."""
        self._earlier(self.start_s + self._min_s)

    def extend(self, by_s: float, *, most_s: float) -> None:
        """This node stood still; what it could not hear in that time is not held against anyone."""
        by_s = min(by_s, most_s - self.extended_s)
        if by_s > 0:
            self.extended_s += by_s
            self.deadline_s += by_s
            self.start_s += by_s

    def _lasts_s(self, multiplier: float) -> float:
        lasts_s = suspicion_s(self._min_s, self._max_s, len(self.witnesses) - 1, self._wanted)
        return min(self._max_s, lasts_s * multiplier)

    def _earlier(self, deadline_s: float) -> None:
        # start_s moves with every extension, so what follows from it does too.
        self.deadline_s = min(self.deadline_s, deadline_s)
