"""Measurements of the load of a node."""

import asyncio
from pathlib import Path

import pytest

from hyperscale.health.load_monitor import (
    LoadMonitor,
    cgroup_memory_share,
    machine_memory_share,
    memory_share,
    resident_bytes,
)
from hyperscale.health.overload import OverloadDetector
from hyperscale.telemetry.metrics import render
from hyperscale.wire.admission import OverloadLevel
from tests.lab.waiting import until_async


def test_memory_is_measured_as_a_share_and_in_bytes() -> None:
    assert 0.0 < memory_share() <= 1.0
    assert resident_bytes() > 1024 * 1024


@pytest.mark.parametrize(
    ("limit", "current", "idle", "share"),
    [("max", 5, 0, None), ("100", 80, 0, 0.8), ("100", 80, 30, 0.5), ("0", 1, 0, None)],
)
def test_memory_is_a_share_of_the_limit_of_the_control_group(
    tmp_path: Path, limit: str, current: int, idle: int, share: float | None
) -> None:
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{current}\n")
    (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {idle}\n")
    assert cgroup_memory_share(tmp_path) == share


def test_missing_memory_files_mean_an_unknown_share(tmp_path: Path) -> None:
    assert cgroup_memory_share(tmp_path) is None
    assert machine_memory_share(tmp_path / "meminfo") is None


def test_a_full_queue_raises_the_overload_level() -> None:
    levels: list[OverloadLevel] = []
    monitor = LoadMonitor(
        OverloadDetector(counts_cpu=False),
        in_flight_share=lambda: 0.0,
        queue_share=lambda: 0.99,
        on_level=levels.append,
    )

    async def measure() -> None:
        task = asyncio.create_task(monitor.run())
        await until_async(lambda: levels)
        task.cancel()

    asyncio.run(measure())
    assert levels[0] is OverloadLevel.OVERLOADED
    assert "hyperscale_overload_level 3" in render([monitor.collect]).decode()


def test_the_latency_of_handlers_is_recorded() -> None:
    recorded: list[float] = []

    class Recording(OverloadDetector):
        def record_latency(self, latency_s: float, *, now_s: float) -> None:
            recorded.append(latency_s)

    monitor = LoadMonitor(
        Recording(counts_cpu=False),
        in_flight_share=lambda: 0.0,
        queue_share=lambda: 0.0,
        on_level=lambda _: None,
    )
    assert monitor.timed(lambda a, b: a + b)(1, 2) == 3
    assert len(recorded) == 1
