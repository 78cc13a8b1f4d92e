"""Code that holds the event loop is measured and named, on real executors."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest

from hyperscale.reporting.results import RunResult, StepResult
from hyperscale.runner.drive import RunOptions, drive
from hyperscale.runner.source import load_test_file
from hyperscale.stats.view import RunView
from hyperscale.ui.api import SilentUi
from tests.conftest import RunningTarget

HEADER = """
import asyncio, hashlib, time
from hyperscale import Workflow, action, check, step
from hyperscale.testing import CustomResult, HTTPResponse

class Tick(CustomResult):
    pass
"""


class RememberingUi(SilentUi):
    def __init__(self) -> None:
        self.views: list[RunView] = []

    def update(self, view: RunView) -> None:
        self.views.append(view)


def run(tmp_path: Path, body: str, ui: SilentUi | None = None) -> RunResult:
    path = tmp_path / "shop.py"
    path.write_text(HEADER + dedent(body))
    work = drive(load_test_file(path), RunOptions(workers=1), ui or SilentUi())
    return asyncio.run(work).result


def step_of(result: RunResult, name: str) -> StepResult:
    return next(step for step in result.workflows[0].steps if step.name == name)


def test_a_blocking_step_is_named_within_three_seconds_and_latencies_do_not_contain_it(
    tmp_path: Path, target: RunningTarget
) -> None:
    ui = RememberingUi()
    body = f"""
    class Shop(Workflow):
        vus = 5
        duration = "4s"

        @step()
        async def browse(self) -> HTTPResponse:
            return await self.client.http.get("{target.url}/json")

        @step("browse")
        async def pay(self) -> HTTPResponse:
            if self.iteration >= 20:  # calls that open a connection contain the time of a hold
                time.sleep(0.03)
            return await self.client.http.get("{target.url}/json")
    """
    result = run(tmp_path, body, ui)
    warned = [view for view in ui.views if view.saturation]
    assert "step `pay` blocks for" in " ".join(warned[0].saturation.values())
    assert warned[0].workflows[0].elapsed_s < 3.0
    assert not warned[0].workflows[0].is_loop_held
    workflow, browse, pay = result.workflows[0], step_of(result, "browse"), step_of(result, "pay")
    assert not workflow.loop_held
    # Each later call of `pay` held the loop for 30 ms, of which at least 20 are seen.
    assert 0.02 * (pay.total - 5 * 20 - 2) < pay.held_seconds <= workflow.elapsed_seconds
    assert pay.held_max_ms >= 25
    assert browse.held_seconds == 0
    text = " ".join(result.warnings)
    assert "(shop.py:" in text
    assert "use asyncio or `await asyncio.to_thread`" in text
    assert not result.saturated
    assert "saturated" not in text


def test_code_outside_requests_that_holds_the_loop_is_named_too(tmp_path: Path) -> None:
    body = """
    async def write_log():
        await asyncio.sleep(0.01)
        time.sleep(0.05)

    class Shop(Workflow):
        vus = 2
        duration = "2s"

        @step()
        async def nap(self) -> Tick:
            await asyncio.gather(asyncio.sleep(0.1), asyncio.create_task(write_log()))
            return Tick()

        @check()
        async def audit(self, nap: Tick) -> bool:
            time.sleep(0.04)
            return True
    """
    result = run(tmp_path, body)
    text = " ".join(result.warnings)
    assert "function `write_log` blocks for" in text
    assert "check `audit` blocks for" in text
    assert "step `nap`" not in text
    assert step_of(result, "nap").held_seconds == 0
    assert result.workflows[0].held_seconds > 0.2
    # The step has a result of its own, so it is timed in the loop that was held.
    assert result.workflows[0].loop_held
    assert "latencies contain that time" in text


def test_steps_that_await_hold_nothing(tmp_path: Path, target: RunningTarget) -> None:
    body = f"""
    class Shop(Workflow):
        vus = 50
        duration = "2s"

        @step()
        async def browse(self) -> HTTPResponse:
            await asyncio.to_thread(time.sleep, 0.03)
            return await self.client.http.get("{target.url}/json")
    """
    result = run(tmp_path, body)
    assert not result.workflows[0].loop_held
    assert "blocks" not in " ".join(result.warnings)


COMPUTING = """
class Shop(Workflow):
    vus = 2
    duration = "4s"

    @step()
    async def sign(self) -> Tick:
        hashlib.pbkdf2_hmac("sha256", b"key", b"salt", 150_000)
        return Tick()
"""
GENERATING = """
class Shop(Workflow):
    vus = 50
    duration = "4s"

    @step()
    async def go(self) -> Tick:
        await asyncio.sleep(0)
        return Tick()
"""
WAITS_FOR_A_CORE = "too few cores for what runs on this machine"


def test_a_computing_step_is_told_from_a_blocking_one(tmp_path: Path) -> None:
    text = " ".join(run(tmp_path, COMPUTING).warnings)
    if WAITS_FOR_A_CORE in text:
        pytest.skip("no core of this machine is free")
    assert "step `sign` computes for" in text
    assert "to_thread" not in text


def test_a_generator_at_its_limit_is_told_to_use_fewer_users(tmp_path: Path) -> None:
    result = run(tmp_path, GENERATING)
    text = " ".join(result.warnings)
    if WAITS_FOR_A_CORE in text:
        pytest.skip("no core of this machine is free")
    assert result.saturated
    assert "Use fewer vus" in text
    assert not result.workflows[0].loop_held


@contextmanager
def every_core_taken() -> Iterator[None]:
    """Keep every core busy with two processes that are in a session of their own."""
    spin = "while True: pass"
    cores = sorted(os.sched_getaffinity(0))
    spinners = [
        subprocess.Popen(
            [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{core}}})\n{spin}"],
            start_new_session=True,
        )
        for core in cores * 2
    ]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.send_signal(signal.SIGKILL)
            spinner.wait()


def test_a_generator_without_a_core_of_its_own_is_told_so(tmp_path: Path) -> None:
    with every_core_taken():
        result = run(tmp_path, GENERATING)
    text = " ".join(result.warnings)
    assert result.saturated
    assert WAITS_FOR_A_CORE in text
    assert "fewer vus" not in text
    assert not result.workflows[0].loop_held
