"""Noticing that the load generator itself is the bottleneck.

An executor without CPU to spare, or whose loop runs late, handles responses late, and the
latencies it reports then contain its own delay. Works on what the reports say of their own
time; reads no clock.
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from hyperscale.stats.report import PartReport

CPU_WINDOW_S = 2.0
CPU_SHARE_HIGH = 0.90
CPU_SHARE_CALM = 0.80  # lower than HIGH, or the warning would flicker
LAG_S_HIGH = 0.100
LAG_S_CALM = 0.050
# One late tick is a garbage collection; this many within the window are not. The window
# is longer than that of the CPU, since a loop that stalls for a second reports as seldom.
LAG_WINDOW_S = 5.0
LAG_REPEATS = 3


@dataclass(frozen=True, slots=True)
class _Sample:
    elapsed_s: float
    cpu_s: float
    loop_lag_s: float


@dataclass
class _Executor:
    sequence: int = -1
    samples: deque[_Sample] = field(default_factory=deque)
    is_saturated: bool = False
    was_saturated: bool = False
    cpu_share: float = 0.0
    loop_lag_s: float = 0.0
    cpu_share_worst: float = 0.0  # while saturated
    loop_lag_s_worst: float = 0.0
    saturated_s: float = 0.0


class SaturationWatch:
    """Watches the executors of one workflow. Feed it the reports that feed the stats."""

    def __init__(self, workflow: str) -> None:
        self._workflow = workflow
        self._executors: dict[Hashable, _Executor] = {}

    def observe(self, report: PartReport, *, attempt: int = 0) -> None:
        executor = self._executors.setdefault((report.slot, attempt), _Executor())
        if report.sequence <= executor.sequence:
            return
        executor.sequence = report.sequence
        samples = executor.samples
        since_s = report.elapsed_s - samples[-1].elapsed_s if samples else report.elapsed_s
        samples.append(_Sample(report.elapsed_s, report.cpu_s, report.loop_lag_s))
        while samples[0].elapsed_s <= report.elapsed_s - LAG_WINDOW_S:
            samples.popleft()
        self._judge(executor)
        if executor.is_saturated:
            executor.was_saturated = True
            executor.saturated_s += max(0.0, since_s)
            executor.cpu_share_worst = max(executor.cpu_share_worst, executor.cpu_share)
            executor.loop_lag_s_worst = max(executor.loop_lag_s_worst, executor.loop_lag_s)

    @property
    def is_saturated(self) -> bool:
        """Now."""
        return any(executor.is_saturated for executor in self._executors.values())

    @property
    def was_saturated(self) -> bool:
        """At any time of the run."""
        return any(executor.was_saturated for executor in self._executors.values())

    def live_warning(self) -> str | None:
        """For the live view, while it lasts."""
        now = [executor for executor in self._executors.values() if executor.is_saturated]
        if not now:
            return None
        cpu = max(executor.cpu_share for executor in now)
        lag_s = max(executor.loop_lag_s for executor in now)
        return self._text(len(now), "is", cpu, lag_s, "")

    def final_warning(self) -> str | None:
        """For the results, if it ever was."""
        past = [executor for executor in self._executors.values() if executor.was_saturated]
        if not past:
            return None
        cpu = max(executor.cpu_share_worst for executor in past)
        lag_s = max(executor.loop_lag_s_worst for executor in past)
        longest_s = max(executor.saturated_s for executor in past)
        return self._text(len(past), "was", cpu, lag_s, f" for up to {longest_s:.0f} s")

    def _judge(self, executor: _Executor) -> None:
        samples = executor.samples
        last = samples[-1]
        # CPU use needs both ends: from the youngest sample that is a whole window old.
        edge_s = last.elapsed_s - CPU_WINDOW_S
        first = next((s for s in reversed(samples) if s.elapsed_s <= edge_s), samples[0])
        span_s = last.elapsed_s - first.elapsed_s
        executor.cpu_share = (last.cpu_s - first.cpu_s) / span_s if span_s > 0 else 0.0
        executor.loop_lag_s = max(sample.loop_lag_s for sample in samples)
        is_busy = span_s >= CPU_WINDOW_S and executor.cpu_share > CPU_SHARE_HIGH
        is_late = sum(sample.loop_lag_s > LAG_S_HIGH for sample in samples) >= LAG_REPEATS
        if is_busy or is_late:
            executor.is_saturated = True
        elif executor.cpu_share < CPU_SHARE_CALM and executor.loop_lag_s < LAG_S_CALM:
            executor.is_saturated = False

    def _text(self, busy: int, verb: str, cpu_share: float, lag_s: float, how_long: str) -> str:
        cores = f"{busy} of {len(self._executors)} core{'s' if len(self._executors) > 1 else ''}"
        return (
            f"{self._workflow}: the load generator itself {verb} saturated on {cores}{how_long} "
            f"(CPU {cpu_share:.0%}, loop lag {lag_s * 1000:.0f} ms), so latencies are suspect: "
            "they contain its own delay. Use fewer vus, add an interval between iterations, "
            "or give it more cores."
        )
