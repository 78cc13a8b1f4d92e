"""Probes counted against thresholds: a few misses are weather, many are an answer.

For watching from outside, where no membership protocol runs (across datacenters, at start-up).
Within a cluster membership decides who is alive.
"""

from typing import Annotated

from msgspec import Meta, Struct

Seconds = Annotated[float, Meta(gt=0, le=3600)]
Count = Annotated[int, Meta(ge=1, le=1000)]


class ProbeConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    timeout_s: Seconds
    period_s: Seconds
    misses: Count = 3
    answers: Count = 1


LIVENESS = ProbeConfig(timeout_s=1.0, period_s=10.0)
READINESS = ProbeConfig(timeout_s=2.0, period_s=10.0)
STARTUP = ProbeConfig(timeout_s=5.0, period_s=5.0, misses=30)

SILENCE_S_MAX = 30.0


class Probed:
    """One signal of one node, by probes: `misses` in a row turn it off, `answers` turn it on.

    Until the first answer the node is starting: it counts as on, for as long as `startup` says.
    """

    def __init__(
        self,
        config: ProbeConfig = LIVENESS,
        startup: ProbeConfig = STARTUP,
        *,
        now_s: float,
        silence_s_max: float = SILENCE_S_MAX,
    ) -> None:
        self._config = config
        self._startup_until_s = now_s + startup.misses * startup.period_s
        self._silence_s_max = silence_s_max
        self._answered_s: float | None = None
        self._misses = 0
        self._answers = 0
        self._is_off = False

    def answered(self, *, now_s: float) -> None:
        self._answered_s = now_s
        self._misses = 0
        self._answers += 1
        if self._answers >= self._config.answers:
            self._is_off = False

    def missed(self) -> None:
        self._answers = 0
        self._misses += 1
        if self._misses >= self._config.misses:
            self._is_off = True

    def is_on(self, *, now_s: float) -> bool:
        if self._answered_s is None:
            return now_s <= self._startup_until_s
        return not self._is_off and now_s - self._answered_s < self._silence_s_max
