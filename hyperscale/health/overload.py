"""Is this node overloaded? The worst of several signals, slow to believe and slower to forget.

| level | lag of the loop | latency | above its baseline | in flight, queues, memory, CPU |
|---|---|---|---|---|
| BUSY | 100 ms | 200 ms | 20 % | 70 % |
| STRESSED | 250 ms | 500 ms | 50 % | 85 % |
| OVERLOADED | 1 s | 2 s | - | 95 % |

A level is taken on after its signals have asked for it for `rise_s`, and left, one step at a
time, after they have been clearly below it for `fall_s`. The baseline of latency learns slowly
and only while the node is healthy, so a lasting rise is not taken for normal; after
`baseline_hold_s` it is, or a change of what is asked of the node would be held against it for
ever. For the same reason growth above the baseline alone never reads OVERLOADED.

CPU counts only where it is asked for: a load generator is meant to be busy.
"""

import math
from enum import IntEnum
from typing import Annotated

from msgspec import Meta, Struct

from hyperscale.errors import InputError
from hyperscale.health.sample_window import SampleWindow


class OverloadLevel(IntEnum):
    """How loaded a node is; each level sheds one priority more."""

    HEALTHY = 0
    BUSY = 1
    STRESSED = 2
    OVERLOADED = 3


class OverloadSignal(IntEnum):
    """What a level was read from."""

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

Seconds = Annotated[float, Meta(gt=0, le=3600)]
Thresholds = tuple[float, float, float]
"""Above which a signal asks for BUSY, STRESSED, OVERLOADED."""


_OBSERVED_S_MAX = 1.0
"""Samples come a few times a second; a longer gap was a stall and teaches no more than this."""


class OverloadConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    lag_s: Thresholds = (0.1, 0.25, 1.0)
    latency_s: Thresholds = (0.2, 0.5, 2.0)
    growth: tuple[float, float] = (0.2, 0.5)
    share: Thresholds = (0.7, 0.85, 0.95)

    lag_window_s: Seconds = 5.0
    latency_window_s: Seconds = 10.0
    latency_samples: Annotated[int, Meta(ge=2, le=1000)] = 64
    warm_up_samples: Annotated[int, Meta(ge=2, le=1000)] = 10
    baseline_floor_s: Seconds = 0.05
    """Below it growth means nothing: 1 ms that becomes 10 ms is no trouble."""
    baseline_s: Seconds = 60.0
    """Over how long the baseline learns: it must not follow the rise it is there to show."""
    baseline_hold_s: Seconds = 300.0

    rise_s: Seconds = 1.0
    fall_s: Seconds = 5.0
    fall_share: Annotated[float, Meta(gt=0, le=1)] = 0.9
    """A mark is left only below this share of it."""

    def __post_init__(self) -> None:
        for name in ("lag_s", "latency_s", "growth", "share"):
            marks = getattr(self, name)
            if list(marks) != sorted(set(marks)) or marks[0] <= 0:
                raise InputError(
                    f"{name}={marks} must be above 0 and rise from level to level",
                    hint="they are the marks of busy, stressed and overloaded",
                )


class LoadSample(Struct, frozen=True, kw_only=True):
    """What was measured just now. Shares are of a limit: 0.5 is half of what there is."""

    lag_s: float = 0.0
    in_flight: float = 0.0
    queue: float = 0.0
    memory: float = 0.0
    cpu: float = 0.0


class OverloadDetector:
    """Judges samples taken a few times a second; `level` is its verdict."""

    def __init__(self, config: OverloadConfig | None = None, *, counts_cpu: bool) -> None:
        self._config = config or OverloadConfig()
        self._counts_cpu = counts_cpu
        c = self._config
        # A lag is sampled at most every 20 ms; more samples than that never come.
        self._lags = SampleWindow(
            horizon_s=c.lag_window_s, samples_max=int(c.lag_window_s * 50) + 2
        )
        self._latencies = SampleWindow(horizon_s=c.latency_window_s, samples_max=c.latency_samples)
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
        """One request this node has carried out."""
        self._latencies.add(latency_s, now_s=now_s)

    def observe(self, sample: LoadSample, *, now_s: float) -> OverloadLevel:
        """Takes one sample; returns the level it leads to."""
        self._lags.add(sample.lag_s, now_s=now_s)
        self.readings = self._read(sample, now_s, 1.0)
        asked = max(self.readings.values())
        self._rise(asked, now_s)
        self._fall(max(self._read(sample, now_s, self._config.fall_share).values()), now_s)
        if asked is OverloadLevel.HEALTHY and self.level is OverloadLevel.HEALTHY:
            self._unhealthy_since_s = None
        elif self._unhealthy_since_s is None:
            self._unhealthy_since_s = now_s
        self._learn(now_s)
        return self.level

    @property
    def backlog(self) -> OverloadLevel:
        """What is asked for by what waits here, however busy the CPU may be."""
        return max(self.readings[signal] for signal in _BACKLOG)

    def reasons(self) -> tuple[OverloadSignal, ...]:
        """The signals that ask for the worst level just now, if any asks for one."""
        worst = max(self.readings.values())
        if worst is OverloadLevel.HEALTHY:
            return ()
        return tuple(signal for signal, level in self.readings.items() if level is worst)

    def _learn(self, now_s: float) -> None:
        """Moves the baseline towards what is typical now, if now is to be learnt from."""
        passed_s = min(now_s - self._observed_s, _OBSERVED_S_MAX)
        self._observed_s = now_s
        if self._latencies.count(now_s=now_s) < self._config.warm_up_samples:
            return
        typical_s = self._latencies.typical(now_s=now_s)
        since_s = self._unhealthy_since_s
        if self._baseline_s is None:
            self._baseline_s = typical_s
        elif since_s is None or now_s - since_s > self._config.baseline_hold_s:
            learnt = -math.expm1(-passed_s / self._config.baseline_s)
            self._baseline_s += learnt * (typical_s - self._baseline_s)

    def _read(
        self, sample: LoadSample, now_s: float, scale: float
    ) -> dict[OverloadSignal, OverloadLevel]:
        c = self._config
        return {
            OverloadSignal.LAG: _level(self._lags.typical(now_s=now_s), c.lag_s, scale),
            OverloadSignal.IN_FLIGHT: _level(sample.in_flight, c.share, scale),
            OverloadSignal.QUEUE: _level(sample.queue, c.share, scale),
            OverloadSignal.MEMORY: _level(sample.memory, c.share, scale),
            OverloadSignal.LATENCY: self._read_latency(now_s, scale),
            OverloadSignal.CPU: _level(sample.cpu if self._counts_cpu else 0.0, c.share, scale),
        }

    def _read_latency(self, now_s: float, scale: float) -> OverloadLevel:
        if self._latencies.count(now_s=now_s) < self._config.warm_up_samples:
            return OverloadLevel.HEALTHY
        typical_s = self._latencies.typical(now_s=now_s)
        absolute = _level(typical_s, self._config.latency_s, scale)
        if self._baseline_s is None:
            return absolute
        baseline_s = max(self._baseline_s, self._config.baseline_floor_s)
        return max(absolute, _level(typical_s / baseline_s - 1.0, self._config.growth, scale))

    def _rise(self, asked: OverloadLevel, now_s: float) -> None:
        for level in OverloadLevel:
            if level is OverloadLevel.HEALTHY:
                continue
            since_s = self._above_since_s[level]
            if asked < level:
                self._above_since_s[level] = None
            elif since_s is None:
                self._above_since_s[level] = now_s
            elif level > self.level and now_s - since_s >= self._config.rise_s:
                self.level = level
                self._below_since_s = None

    def _fall(self, asked: OverloadLevel, now_s: float) -> None:
        if asked >= self.level:
            self._below_since_s = None
        elif self._below_since_s is None:
            self._below_since_s = now_s
        elif now_s - self._below_since_s >= self._config.fall_s:
            self.level = OverloadLevel(self.level - 1)
            self._below_since_s = now_s


def _level(value: float, marks: tuple[float, ...], scale: float) -> OverloadLevel:
    level = 0
    for mark in marks:
        if value > mark * scale:
            level += 1
    return OverloadLevel(level)
