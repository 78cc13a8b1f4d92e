"""Counts are exact: the target received what was reported as sent, short by at most `cut`."""

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import pytest

from hyperscale.reporting.results import RunResult, RunStatus
from hyperscale.runner.drive import RunOptions, drive
from hyperscale.runner.source import load_test_file
from hyperscale.ui.api import SilentUi
from tests.conftest import RunningTarget

RUNS = 20
SOAK_RUNS = 500

# A step's body and the routes only it uses, with their method.
STEPS: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "plain": (
        'return await http.get(base + "/json")',
        [("/json", "GET")],
    ),
    "echo": (
        'return await http.post(base + "/echo", json={"n": 1})',
        [("/echo", "POST")],
    ),
    "failing": (
        'return await http.get(base + "/status/503")',
        [("/status/{code}", "GET")],
    ),
    "hops": (
        'return await http.get(base + "/redirect/3")',
        [("/redirect/{n}", "GET"), ("/", "GET")],
    ),
    "two_calls": (
        'await http.get(base + "/gzip")\n        return await http.head(base + "/bytes/100")',
        [("/gzip", "GET"), ("/bytes/{n}", "HEAD")],
    ),
    "late": (
        'return await http.get(base + f"/delay/{random.choice(DELAYS)}")',
        [("/delay/{ms}", "GET")],
    ),
    "closing": (
        'return await http.get(base + "/close")',
        [("/close", "GET")],
    ),
    "resetting": (
        'return await http.get(base + "/reset")',
        [("/reset", "GET")],
    ),
    "raising": (
        'await http.get(base + "/cookies")\n        raise ValueError("after the call")',
        [("/cookies", "GET")],
    ),
    "slow": (
        'return await http.put(base + "/slow/2/3")',
        [("/slow/{ms}/{n}", "PUT")],
    ),
}


def mixed_file(path: Path, url: str, rng: random.Random) -> dict[str, list[tuple[str, str]]]:
    """Writes a test of two workflows; returns the routes of each step."""
    chosen = rng.sample(sorted(STEPS), rng.randint(3, len(STEPS)))
    connections = rng.choice(["per-vu", "shared", "per-request"])
    lines = [
        "import random",
        "from hyperscale import Workflow, step",
        "from hyperscale.testing import HTTPResponse, URL",
        # Those of 1.6 s outlast the grace at the end, and are cut.
        f"DELAYS = {[1, 20, 1600] if rng.random() < 0.3 else [1, 20]}",
        "class Mixed(Workflow):",
        f"    vus = {rng.randint(1, 12)}",
        f'    duration = "{rng.randint(200, 500)}ms"',
        f"    connections = {connections!r}",
    ]
    if rng.random() < 0.3:
        lines.append(f"    iterations = {rng.randint(1, 60)}")
    for index, name in enumerate(chosen):
        after = repr(rng.choice(chosen[:index])) if index and rng.random() < 0.6 else ""
        lines += [
            f"    @step({after})",
            f"    async def {name}(self, base: URL = {url!r}) -> HTTPResponse:",
            "        http = self.client.http",
            f"        {STEPS[name][0]}",
        ]
    # Needs no interpreter: the engine loops it by itself.
    lines += [
        "class Static(Workflow):",
        f"    vus = {rng.randint(1, 8)}",
        f'    duration = "{rng.randint(100, 400)}ms"',
        "    @step()",
        f'    async def fixed(self, url: URL = "{url}/headers") -> HTTPResponse:',
        "        return await self.client.http.get(url)",
    ]
    path.write_text("\n".join(lines) + "\n")
    return {**{name: STEPS[name][1] for name in chosen}, "fixed": [("/headers", "GET")]}


def settled_counts(target: RunningTarget) -> Any:
    """What the target received, once it has read all that was sent to it."""
    deadline_s = time.monotonic() + 10
    while (counts := target.counts())["connections"]["current"]:
        assert time.monotonic() < deadline_s, "connections stay open after the run"
        time.sleep(0.01)
    return counts["routes"]


def total_of(routes: Any, wanted: list[tuple[str, str]]) -> int:
    return sum(routes.get(route, {}).get(method, 0) for route, method in wanted)


def run_once(path: Path, workers: int, timeout_s: float | None = None) -> RunResult:
    options = RunOptions(workers=workers, timeout_s=timeout_s)
    return asyncio.run(drive(load_test_file(path), options, SilentUi())).result


def check_counts(tmp_path: Path, target: RunningTarget, workers: int, seed: int) -> None:
    rng = random.Random(f"{workers}-{seed}")
    target.reset()
    path = tmp_path / "mixed.py"
    routes_of = mixed_file(path, target.url, rng)
    result = run_once(path, workers)
    assert result.status is RunStatus.COMPLETED, result
    routes = settled_counts(target)
    steps = [step for workflow in result.workflows for step in workflow.steps]
    assert sum(step.sent for step in steps) > 0
    for step in steps:
        received = sum(
            routes.get(route, {}).get(method, 0) for route, method in routes_of[step.name]
        )
        what = f"{step.name} (seed {seed}, {workers} workers): {received} received, {step}"
        assert step.sent - step.cut <= received <= step.sent, what
        assert step.total == step.ok + step.failed, what
    known = {route for pairs in routes_of.values() for route, _ in pairs}
    assert set(routes) <= known


@pytest.mark.timeout(300)
@pytest.mark.parametrize("workers", [1, 2])
def test_the_target_received_what_was_reported_as_sent(
    tmp_path: Path, target: RunningTarget, workers: int
) -> None:
    for seed in range(RUNS):
        check_counts(tmp_path, target, workers, seed)


@pytest.mark.soak
@pytest.mark.parametrize("workers", [1, 2])
def test_repeated_runs_report_what_the_target_received(
    tmp_path: Path, target: RunningTarget, workers: int
) -> None:
    for seed in range(RUNS, SOAK_RUNS):
        check_counts(tmp_path, target, workers, seed)


def test_counts_hold_when_the_run_is_stopped_in_the_middle(
    tmp_path: Path, target: RunningTarget
) -> None:
    path = tmp_path / "mixed.py"
    routes_of = mixed_file(path, target.url, random.Random(7))
    path.write_text(path.read_text().replace("duration = ", 'duration = "1m" or '))
    result = run_once(path, 2, timeout_s=2.0)
    assert result.status is RunStatus.TIMEOUT
    routes = settled_counts(target)
    for step in (step for workflow in result.workflows for step in workflow.steps):
        received = sum(
            routes.get(route, {}).get(method, 0) for route, method in routes_of[step.name]
        )
        assert step.sent - step.cut <= received <= step.sent, step
