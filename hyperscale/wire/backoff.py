"""Exponential backoff with a cap, and with jitter so that many nodes do not retry at once."""

from random import Random


class Backoff:
    """`first_s`, doubled each time up to `cap_s`, plus up to `jitter` of itself."""

    def __init__(
        self,
        rng: Random,
        *,
        first_s: float = 0.5,
        cap_s: float = 15.0,
        factor: float = 2.0,
        jitter: float = 0.25,
    ) -> None:
        self._rng = rng
        self._first_s = first_s
        self._cap_s = cap_s
        self._factor = factor
        self._jitter = jitter
        self._base_s = first_s

    def next_s(self) -> float:
        base_s = self._base_s
        self._base_s = min(base_s * self._factor, self._cap_s)
        return base_s * (1 + self._rng.random() * self._jitter)

    def reset(self) -> None:
        self._base_s = self._first_s
