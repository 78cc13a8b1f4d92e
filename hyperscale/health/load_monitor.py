"""Measures the load of this node: lag of its event loop, memory, CPU, latency of its handlers.

`health.overload` turns the measurements into an overload level; `on_level` is called when the
level changes.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hyperscale.health.overload import LoadSample, OverloadDetector
from hyperscale.telemetry.metrics import DurationHistogram, Family, counter, gauge
from hyperscale.wire.admission import OverloadLevel

SAMPLE_S = 0.25
_CPU_SAMPLES = 40
_MEMORY_EVERY = 8
"""Memory changes slowly: it is measured with every eighth sample."""

_CGROUP = Path("/sys/fs/cgroup")
_LAG_BOUNDS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

_log = logging.getLogger("hyperscale.health")

_F = TypeVar("_F", bound=Callable[..., Any])


class LoadMonitor:
    """Samples this process four times a second and keeps its overload level."""

    def __init__(
        self,
        detector: OverloadDetector,
        *,
        in_flight_share: Callable[[], float],
        queue_share: Callable[[], float],
        on_level: Callable[[OverloadLevel], None],
    ) -> None:
        self.detector = detector
        self.memory = 0.0
        self.cpu = 0.0
        self._in_flight_share = in_flight_share
        self._queue_share = queue_share
        self._on_level = on_level
        self._lag = DurationHistogram(
            "hyperscale_loop_lag_seconds", "Lag of the event loop", _LAG_BOUNDS_S
        )

    @property
    def level(self) -> OverloadLevel:
        return self.detector.level

    async def run(self) -> None:
        """Sample until cancelled."""
        samples = 0
        # Nodes work in bursts: a core that is busy for a second or two is no reason to shed load,
        # so CPU use is measured over ten seconds.
        spent: deque[tuple[float, float]] = deque(maxlen=_CPU_SAMPLES + 1)
        spent.append((time.monotonic(), time.process_time()))
        while True:
            due_s = time.monotonic() + SAMPLE_S
            await asyncio.sleep(SAMPLE_S)
            now_s = time.monotonic()
            lag_s = max(0.0, now_s - due_s)
            self._lag.observe(lag_s)
            spent.append((now_s, time.process_time()))
            (wall_before_s, cpu_before_s), (wall_s, cpu_s) = spent[0], spent[-1]
            # The event loop is one thread: it can use one core.
            self.cpu = min(1.0, (cpu_s - cpu_before_s) / max(wall_s - wall_before_s, 1e-6))
            if samples % _MEMORY_EVERY == 0:
                self.memory = memory_share()
            samples += 1
            self._judge(lag_s, now_s)

    def timed(self, function: _F) -> _F:
        """Return a handler whose latency is measured."""

        def run(*args: Any) -> Any:
            began_s = time.monotonic()
            try:
                return function(*args)
            finally:
                ended_s = time.monotonic()
                self.detector.record_latency(ended_s - began_s, now_s=ended_s)

        return run  # type: ignore[return-value]  # the signature of `function`

    def collect(self) -> list[Family]:
        """Return the metrics of this module."""
        readings = self.detector.readings.items()
        return [
            self._lag.family(),
            gauge(
                "hyperscale_overload_level",
                "Load of this node: 0 healthy, 1 busy, 2 stressed, 3 overloaded",
                ({}, self.level),
            ),
            gauge(
                "hyperscale_overload_reading",
                "Load level by signal",
                *(({"signal": signal.name.lower()}, level) for signal, level in readings),
            ),
            gauge(
                "hyperscale_memory_used_ratio",
                "Memory in use, of what the machine or the control group has",
                self.memory,
            ),
            counter(
                "process_cpu_seconds_total", "CPU time of this process", ({}, time.process_time())
            ),
            gauge(
                "process_resident_memory_bytes",
                "Resident memory of this process",
                ({}, resident_bytes()),
            ),
        ]

    def _judge(self, lag_s: float, now_s: float) -> None:
        sample = LoadSample(
            lag_s=lag_s,
            in_flight=self._in_flight_share(),
            queue=self._queue_share(),
            memory=self.memory,
            cpu=self.cpu,
        )
        before = self.detector.level
        level = self.detector.observe(sample, now_s=now_s)
        if level is not before:
            reasons = [signal.name.lower() for signal in self.detector.reasons()]
            is_worrying = level > before and level > OverloadLevel.BUSY
            report = _log.warning if is_worrying else _log.info
            report(
                "overload.changed",
                extra={"to": level.name.lower(), "was": before.name.lower(), "signals": reasons},
            )
            self._on_level(level)


def memory_share() -> float:
    """Return the share of memory in use, of the machine or of the control group."""
    shares = [machine_memory_share(Path("/proc/meminfo")), cgroup_memory_share(_CGROUP)]
    return max((share for share in shares if share is not None), default=0.0)


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 if it cannot be read."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * 4096


def machine_memory_share(meminfo: Path) -> float | None:
    """Return the share of the machine's memory in use; None if it cannot be read."""
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines[:8]}
        return 1.0 - kilobytes["MemAvailable"] / kilobytes["MemTotal"]
    except (OSError, ValueError, IndexError, KeyError, ZeroDivisionError):
        return None


def cgroup_memory_share(root: Path) -> float | None:
    """Return the share of the control group's limit in use; None if there is no limit."""
    try:
        limit = (root / "memory.max").read_text(encoding="ascii").strip()
        if limit == "max":
            return None
        used = int((root / "memory.current").read_text(encoding="ascii"))
        stat = (root / "memory.stat").read_text(encoding="ascii")
        # The kernel reclaims inactive file pages before it runs out of memory.
        idle = next((int(x.split()[1]) for x in stat.splitlines() if x[:13] == "inactive_file"), 0)
        return max(0, used - idle) / int(limit)
    except (OSError, ValueError, IndexError, ZeroDivisionError):
        return None
