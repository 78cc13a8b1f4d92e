"""Detection of load generators that are themselves the bottleneck.

An executor that is never idle, because it uses its whole core or shares it with other processes, or
whose event loop runs late, handles responses late: the latencies it reports contain its own delay.
A loop that is late because code of the test holds it is not saturated: `stats.holds` names that
code. All times come from reports; nothing here reads a clock.
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import reduce

from hyperscale._native import Report

CPU_WINDOW_S = 2.0
# Share of time spent running or waiting for a core; the rest is idle time.
BUSY_SHARE_HIGH = 0.90
BUSY_SHARE_CALM = 0.80  # lower than HIGH, so that the warning does not flicker
WAIT_SHARE_NAMED = 0.10
HELD_SHARE_HIGH = 0.10  # then the code that holds the loop is the cause
LAG_S_HIGH = 0.100
LAG_S_CALM = 0.050
# A single lag may be a garbage collection; this many within the window are not. The window is
# longer than that of the CPU because a loop that stalls for a second also reports that rarely.
LAG_WINDOW_S = 5.0
LAG_REPEATS = 3


@dataclass(frozen=True, slots=True)
class _Sample:
    elapsed_s: float
    cpu_s: float
    cpu_wait_s: float
    loop_lag_s: float
    held_s: float


@dataclass(frozen=True, slots=True)
class _Load:
    cpu_share: float = 0.0
    wait_share: float = 0.0
    loop_lag_s: float = 0.0
    held_share: float = 0.0

    @property
    def busy_share(self) -> float:
        return self.cpu_share + self.wait_share

    def or_worse(self, other: "_Load") -> "_Load":
        return _Load(
            max(self.cpu_share, other.cpu_share),
            max(self.wait_share, other.wait_share),
            max(self.loop_lag_s, other.loop_lag_s),
            max(self.held_share, other.held_share),
        )


@dataclass
class _Executor:
    sequence: int = -1
    samples: deque[_Sample] = field(default_factory=deque)
    is_saturated: bool = False
    was_saturated: bool = False
    now: _Load = _Load()
    worst: _Load = _Load()  # while saturated
    saturated_s: float = 0.0


class SaturationWatch:
    """Watches the executors of one workflow, by slot and attempt, through all their reports."""

    def __init__(self, workflow: str) -> None:
        self._workflow = workflow
        self._executors: dict[Hashable, _Executor] = {}

    def observe(self, report: Report, *, attempt: int = 0) -> None:
        executor = self._executors.setdefault((report.slot, attempt), _Executor())
        if report.sequence <= executor.sequence:
            return
        executor.sequence = report.sequence
        samples = executor.samples
        since_s = report.elapsed_s - samples[-1].elapsed_s if samples else report.elapsed_s
        samples.append(
            _Sample(
                report.elapsed_s,
                report.cpu_s,
                report.cpu_wait_s,
                report.loop_lag_s,
                report.held_s,
            )
        )
        while samples[0].elapsed_s <= report.elapsed_s - LAG_WINDOW_S:
            samples.popleft()
        self._judge(executor)
        if executor.is_saturated:
            executor.was_saturated = True
            executor.saturated_s += max(0.0, since_s)
            executor.worst = executor.worst.or_worse(executor.now)

    @property
    def is_saturated(self) -> bool:
        """True if an executor is saturated now."""
        return any(executor.is_saturated for executor in self._executors.values())

    @property
    def was_saturated(self) -> bool:
        """True if an executor was saturated at any time of the run."""
        return any(executor.was_saturated for executor in self._executors.values())

    def live_warning(self) -> str | None:
        """Return the warning for the live view; None if no executor is saturated now."""
        now = [executor.now for executor in self._executors.values() if executor.is_saturated]
        return self._text(now, "is", "") if now else None

    def final_warning(self) -> str | None:
        """Return the warning for the results; None if no executor was ever saturated."""
        past = [executor for executor in self._executors.values() if executor.was_saturated]
        if not past:
            return None
        longest_s = max(executor.saturated_s for executor in past)
        worst = [executor.worst for executor in past]
        return self._text(worst, "was", f" for up to {longest_s:.0f} s")

    def _judge(self, executor: _Executor) -> None:
        samples = executor.samples
        last = samples[-1]
        # CPU use is measured between two samples that are at least one window apart.
        edge_s = last.elapsed_s - CPU_WINDOW_S
        first = next((s for s in reversed(samples) if s.elapsed_s <= edge_s), samples[0])
        span_s = last.elapsed_s - first.elapsed_s
        now = executor.now = _Load(
            cpu_share=(last.cpu_s - first.cpu_s) / span_s if span_s > 0 else 0.0,
            wait_share=(last.cpu_wait_s - first.cpu_wait_s) / span_s if span_s > 0 else 0.0,
            loop_lag_s=max(sample.loop_lag_s for sample in samples),
            held_share=(last.held_s - first.held_s) / span_s if span_s > 0 else 0.0,
        )
        is_busy = span_s >= CPU_WINDOW_S and now.busy_share > BUSY_SHARE_HIGH
        is_late = sum(sample.loop_lag_s > LAG_S_HIGH for sample in samples) >= LAG_REPEATS
        is_held = now.held_share > HELD_SHARE_HIGH
        if (is_busy or is_late) and not is_held:
            executor.is_saturated = True
        elif is_held or (now.busy_share < BUSY_SHARE_CALM and now.loop_lag_s < LAG_S_CALM):
            executor.is_saturated = False

    def _text(self, loads: list[_Load], verb: str, how_long: str) -> str:
        cores = f"{len(loads)} of {len(self._executors)} core"
        cores += "s" if len(self._executors) > 1 else ""
        worst = reduce(_Load.or_worse, loads)
        facts = f"CPU {worst.cpu_share:.0%}, loop lag {worst.loop_lag_s * 1000:.0f} ms"
        advice = "Use fewer vus, add an interval between iterations, or give it more cores."
        if worst.wait_share > WAIT_SHARE_NAMED:
            facts = f"waited for a core {worst.wait_share:.0%} of the time, {facts}"
            advice = (
                "There are too few cores for what runs on this machine: stop or move other "
                "processes, or use a machine with more cores."
            )
        return (
            f"{self._workflow}: the load generator itself {verb} saturated on {cores}{how_long} "
            f"({facts}), so latencies are suspect: they contain its own delay. {advice}"
        )
