"""The local health of this node (Lifeguard's LHA, §IV-A): how well it can judge others.

Only evidence about *this* node counts: relays that sent not even a nack, late wake-ups,
suspicions this node had to refute. A dead peer is no such evidence, because the nacks of the
relays show that this node receives datagrams.
"""

from hyperscale.membership.formulas import HEALTH_SCORE_MAX, health_multiplier


class Awareness:
    """A score from 0 (healthy) to 8, and the factor by which timeouts grow with it."""

    __slots__ = ("_score_max", "multiplier", "score")

    def __init__(self, score_max: int = HEALTH_SCORE_MAX) -> None:
        self._score_max = score_max
        self.score = 0
        self.multiplier = 1.0

    def probe_answered(self) -> None:
        """Improve the score: a direct probe was answered in time."""
        if self.score:
            self._change(-1)

    def nacks_missed(self, missed: int) -> None:
        """Worsen the score by the number of relays that sent neither ack nor nack."""
        if missed:
            self._change(missed)

    def refuted(self) -> None:
        """Worsen the score: others suspected this node."""
        self._change(1)

    def stalled(self, late_s: float) -> None:
        """Worsen the score: this node woke up `late_s` too late."""
        self._change(2 if late_s > 2.0 else 1)

    def _change(self, by: int) -> None:
        self.score = max(0, min(self._score_max, self.score + by))
        self.multiplier = health_multiplier(self.score)
