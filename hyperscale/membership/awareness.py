"""How well this node itself is doing (Lifeguard's local health, §IV-A).

Only what says something about *this* node counts: relays that did not even say no, wake-ups
that came late, suspicions it had to refute. That a peer is dead does not: the relays' nacks
show that this node hears well.
"""

from hyperscale.membership.formulas import HEALTH_SCORE_MAX, health_multiplier


class Awareness:
    """A score from 0 (well) to 8, and the patience it asks for."""

    __slots__ = ("_most", "multiplier", "score")

    def __init__(self, most: int = HEALTH_SCORE_MAX) -> None:
        self._most = most
        self.score = 0
        self.multiplier = 1.0

    def probe_answered(self) -> None:
        if self.score:
            self._move(-1)

    def nacks_missed(self, missed: int) -> None:
        if missed:
            self._move(missed)

    def refuted(self) -> None:
        self._move(1)

    def stalled(self, late_s: float) -> None:
        self._move(2 if late_s > 2.0 else 1)

    def _move(self, by: int) -> None:
        self.score = max(0, min(self._most, self.score + by))
        self.multiplier = health_multiplier(self.score)
