"""Samples of the last seconds, and what is typical of them.

Typical is the mean without the largest tenth, but at least without the largest one: a single
spike says nothing, the same spike again and again does.
"""

from collections import deque


class SampleWindow:
    """At most `samples_max` samples of the last `horizon_s`."""

    __slots__ = ("_horizon_s", "_samples")

    def __init__(self, *, horizon_s: float, samples_max: int) -> None:
        self._horizon_s = horizon_s
        self._samples: deque[tuple[float, float]] = deque(maxlen=samples_max)

    def add(self, value: float, *, now_s: float) -> None:
        self._samples.append((now_s, value))

    def count(self, *, now_s: float) -> int:
        self._forget(now_s)
        return len(self._samples)

    def typical(self, *, now_s: float) -> float:
        """0.0 if there are fewer than two samples: one alone is not typical of anything."""
        self._forget(now_s)
        if len(self._samples) < 2:
            return 0.0
        values = sorted(value for _, value in self._samples)
        kept = values[: len(values) - max(1, len(values) // 10)]
        return sum(kept) / len(kept)

    def _forget(self, now_s: float) -> None:
        samples = self._samples
        while samples and samples[0][0] < now_s - self._horizon_s:
            samples.popleft()
