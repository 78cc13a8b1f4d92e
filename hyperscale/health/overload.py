"""Whether this node is overloaded: the worst of several signals, with hysteresis.

| level | lag of the loop | latency | above its baseline | in flight, queues, memory, CPU |
|---|---|---|---|---|
| BUSY | 100 ms | 200 ms | 20 % | 70 % |
| STRESSED | 250 ms | 500 ms | 50 % | 85 % |
| OVERLOADED | 1 s | 2 s | - | 95 % |

The level rises once its signals have been above a threshold for `RISE_S`, and falls, one step at a
time, once they have been clearly below it for `FALL_S`. The baseline of latency learns slowly and
only while the node is healthy, so that a lasting rise is not taken for normal. After
`BASELINE_HOLD_S` it is: requests of another kind must not count as overload for ever. For the same
reason growth above the baseline alone never means OVERLOADED.

CPU counts only if the role says so: a load generator is meant to be busy.
"""

import math
from collections import deque
from enum import IntEnum

from msgspec import Struct

from hyperscale.wire.admission import OverloadLevel

# The thresholds of BUSY, STRESSED and OVERLOADED.
_LAG_S = (0.1, 0.25, 1.0)
_LATENCY_S = (0.2, 0.5, 2.0)
_GROWTH = (0.2, 0.5)
_SHARE = (0.7, 0.85, 0.95)

LAG_WINDOW_S = 5.0
LATENCY_WINDOW_S = 10.0
LATENCY_SAMPLES_MAX = 64
WARM_UP_SAMPLES = 10
BASELINE_FLOOR_S = 0.05
"""Below it growth means nothing: 1 ms that becomes 10 ms is no trouble."""
BASELINE_S = 60.0
"""The time constant of the baseline: it must not follow the rise it is there to show."""
BASELINE_HOLD_S = 300.0
_OBSERVED_S_MAX = 1.0
"""Samples come a few times a second; a longer gap was a stall and teaches no more than this."""

RISE_S = 1.0
FALL_S = 5.0
_FALL_SHARE = 0.9
"""A signal is clearly below a threshold if it is below this share of it."""


class OverloadSignal(IntEnum):
    """A measurement from which a level is read."""

    LAG = 0
    IN_FLIGHT = 1
    QUEUE = 2
    MEMORY = 3
    LATENCY = 4
    CPU = 5


_BACKLOG = (
    OverloadSignal.LAG,
    OverloadSignal.IN_FLIGHT,
    OverloadSignal.QUEUE,
    OverloadSignal.LATENCY,
)


class LoadSample(Struct, frozen=True, kw_only=True):
    """One measurement of this node. All but `lag_s` are shares of a limit: 0.5 is half of it."""

    lag_s: float = 0.0
    in_flight: float = 0.0
    queue: float = 0.0
    memory: float = 0.0
    cpu: float = 0.0


class SampleWindow:
    """At most `samples_max` samples of the last `horizon_s`."""

    __slots__ = ("_horizon_s", "_samples")

    def __init__(self, *, horizon_s: float, samples_max: int) -> None:
        self._horizon_s = horizon_s
        self._samples: deque[tuple[float, float]] = deque(maxlen=samples_max)

    def add(self, value: float, *, now_s: float) -> None:
        self._samples.append((now_s, value))

    def count(self, *, now_s: float) -> int:
        samples = self._samples
        while samples and samples[0][0] < now_s - self._horizon_s:
            samples.popleft()
        return len(samples)

    def typical(self, *, now_s: float) -> float:
        """Return the mean without the largest tenth, at least without the largest sample.

        A single spike says nothing, a repeated one does. 0.0 if there are fewer than two samples.
        """
        if self.count(now_s=now_s) < 2:
            return 0.0
        values = sorted(value for _, value in self._samples)
        kept = values[: len(values) - max(1, len(values) // 10)]
        return sum(kept) / len(kept)


class OverloadDetector:
    """Judges samples taken a few times a second; `level` is the result."""

    def __init__(self, *, counts_cpu: bool) -> None:
        self._counts_cpu = counts_cpu
        # A lag is sampled at most every 20 ms.
        self._lags = SampleWindow(horizon_s=LAG_WINDOW_S, samples_max=int(LAG_WINDOW_S * 50) + 2)
        self._latencies = SampleWindow(horizon_s=LATENCY_WINDOW_S, samples_max=LATENCY_SAMPLES_MAX)
        self._baseline_s: float | None = None
        self._observed_s = 0.0
        self._unhealthy_since_s: float | None = None
        # Since when the signals have asked for at least level i; None while they do not.
        self._above_since_s: list[float | None] = [None] * len(OverloadLevel)
        self._below_since_s: float | None = None
        self.level = OverloadLevel.HEALTHY
        self.readings: dict[OverloadSignal, OverloadLevel] = dict.fromkeys(
            OverloadSignal, OverloadLevel.HEALTHY
        )

    def record_latency(self, latency_s: float, *, now_s: float) -> None:
        """Record the latency of one request that this node has served."""
        self._latencies.add(latency_s, now_s=now_s)

    def observe(self, sample: LoadSample, *, now_s: float) -> OverloadLevel:
        """Take one sample; return the level."""
        self._lags.add(sample.lag_s, now_s=now_s)
        self.readings = self._read(sample, now_s, 1.0)
        asked = max(self.readings.values())
        self._rise(asked, now_s)
        self._fall(max(self._read(sample, now_s, _FALL_SHARE).values()), now_s)
        if asked is OverloadLevel.HEALTHY and self.level is OverloadLevel.HEALTHY:
            self._unhealthy_since_s = None
        elif self._unhealthy_since_s is None:
            self._unhealthy_since_s = now_s
        self._learn(now_s)
        return self.level

    @property
    def backlog(self) -> OverloadLevel:
        """The level that waiting work asks for, however busy the CPU may be."""
        return max(self.readings[signal] for signal in _BACKLOG)

    def reasons(self) -> tuple[OverloadSignal, ...]:
        """Return the signals that ask for the worst level; empty if all are healthy."""
        worst = max(self.readings.values())
        if worst is OverloadLevel.HEALTHY:
            return ()
        return tuple(signal for signal, level in self.readings.items() if level is worst)

    def _learn(self, now_s: float) -> None:
        """Move the baseline towards the typical latency, unless the node became unhealthy."""
        passed_s = min(now_s - self._observed_s, _OBSERVED_S_MAX)
        self._observed_s = now_s
        if self._latencies.count(now_s=now_s) < WARM_UP_SAMPLES:
            return
        typical_s = self._latencies.typical(now_s=now_s)
        since_s = self._unhealthy_since_s
        if self._baseline_s is None:
            self._baseline_s = typical_s
        elif since_s is None or now_s - since_s > BASELINE_HOLD_S:
            learnt = -math.expm1(-passed_s / BASELINE_S)
            self._baseline_s += learnt * (typical_s - self._baseline_s)

    def _read(
        self, sample: LoadSample, now_s: float, scale: float
    ) -> dict[OverloadSignal, OverloadLevel]:
        return {
            OverloadSignal.LAG: _level(self._lags.typical(now_s=now_s), _LAG_S, scale),
            OverloadSignal.IN_FLIGHT: _level(sample.in_flight, _SHARE, scale),
            OverloadSignal.QUEUE: _level(sample.queue, _SHARE, scale),
            OverloadSignal.MEMORY: _level(sample.memory, _SHARE, scale),
            OverloadSignal.LATENCY: self._read_latency(now_s, scale),
            OverloadSignal.CPU: _level(sample.cpu if self._counts_cpu else 0.0, _SHARE, scale),
        }

    def _read_latency(self, now_s: float, scale: float) -> OverloadLevel:
        if self._latencies.count(now_s=now_s) < WARM_UP_SAMPLES:
            return OverloadLevel.HEALTHY
        typical_s = self._latencies.typical(now_s=now_s)
        absolute = _level(typical_s, _LATENCY_S, scale)
        if self._baseline_s is None:
            return absolute
        baseline_s = max(self._baseline_s, BASELINE_FLOOR_S)
        return max(absolute, _level(typical_s / baseline_s - 1.0, _GROWTH, scale))

    def _rise(self, asked: OverloadLevel, now_s: float) -> None:
        for level in list(OverloadLevel)[1:]:
            since_s = self._above_since_s[level]
            if asked < level:
                self._above_since_s[level] = None
            elif since_s is None:
                self._above_since_s[level] = now_s
            elif level > self.level and now_s - since_s >= RISE_S:
                self.level = level
                self._below_since_s = None

    def _fall(self, asked: OverloadLevel, now_s: float) -> None:
        if asked >= self.level:
            self._below_since_s = None
        elif self._below_since_s is None:
            self._below_since_s = now_s
        elif now_s - self._below_since_s >= FALL_S:
            self.level = OverloadLevel(self.level - 1)
            self._below_since_s = now_s


def _level(value: float, thresholds: tuple[float, ...], scale: float) -> OverloadLevel:
    return OverloadLevel(sum(value > threshold * scale for threshold in thresholds))
