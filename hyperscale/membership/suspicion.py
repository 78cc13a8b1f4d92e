"""One suspicion: when it began, which members confirmed it, when it becomes a verdict.

The deadline is anchored at the start of the suspicion and only moves earlier, except for stalls
of this node, whose sum is bounded. A member confirms once: gossip comes back to its sender, and
counting it again would let one slow member reach the number of confirmations alone.
"""

from hyperscale.membership.formulas import suspicion_s


class Suspicion:
    """Why a member is suspected, and until when it can refute."""

    __slots__ = (
        "_max_s",
        "_min_s",
        "_wanted",
        "deadline_s",
        "extended_s",
        "final_probes",
        "start_s",
        "witnesses",
    )

    def __init__(
        self, by: str, *, now_s: float, min_s: float, max_s: float, wanted: int, multiplier: float
    ) -> None:
        """`wanted` confirmations beside `by` shorten the suspicion to `min_s`."""
        self.start_s = now_s
        self.witnesses = {by: None}  # ordered, so that simulations replay
        self.final_probes = 0
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
        """True while one more confirmation would shorten the suspicion."""
        return len(self.witnesses) <= self._wanted

    def confirm(self, by: str, multiplier: float) -> bool:
        """Count `by` as an independent witness; return True if that shortened the suspicion."""
        if by in self.witnesses or not self.wants_witnesses:
            return False
        self.witnesses[by] = None
        self._move_earlier(self.start_s + self._lasts_s(multiplier))
        return True

    def shorten(self) -> None:
        """Shorten to the minimum: another member found the suspect dead. The local health of
        this node buys no more time."""
        self._move_earlier(self.start_s + self._min_s)

    def extend(self, by_s: float, *, most_s: float) -> None:
        """Delay the deadline by a stall of this node, in which it could hear no refutation."""
        by_s = min(by_s, most_s - self.extended_s)
        if by_s > 0:
            self.extended_s += by_s
            self.deadline_s += by_s
            self.start_s += by_s

    def _lasts_s(self, multiplier: float) -> float:
        lasts_s = suspicion_s(self._min_s, self._max_s, len(self.witnesses) - 1, self._wanted)
        return min(self._max_s, lasts_s * multiplier)

    def _move_earlier(self, deadline_s: float) -> None:
        # start_s moves with every extension, so deadlines computed from it include extensions.
        self.deadline_s = min(self.deadline_s, deadline_s)
