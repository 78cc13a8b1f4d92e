"""`LocalRunner` changes the load of its run; the machine of a run holds what is not begun."""

import asyncio
from typing import Any

import pytest

from hyperscale.errors import InputError
from hyperscale.graph.changes import pause, resume, scale_to
from hyperscale.plan import Plan, StepKind, StepPlan, WorkflowPlan
from hyperscale.reporting.results import RunResult
from hyperscale.runner.events import (
    ChangeAnswered,
    ChangeExecutors,
    LoadChangeRequested,
    PoolReady,
    StartExecutors,
    WorkflowPrepared,
)
from hyperscale.runner.local import LocalRunner
from hyperscale.runner.run import LocalRun
from tests.lab.waiting import WAIT_S
from tests.runner.workflows import Steady


def made(run: LocalRun, change: Any, *, now_s: float) -> list[Any]:
    return run.handle(LoadChangeRequested(change, "token"), now_s=now_s)


def make_run() -> LocalRun:
    step = StepPlan(name="get", kind=StepKind.TEST)
    plan = WorkflowPlan(name="Load", vus=2, duration_s=10.0, timeout_s=1.0, steps=(step,))
    run = LocalRun(Plan(file="shop.py", workflows=(plan,)), cores=1)
    run.handle(PoolReady(), now_s=0.0)
    return run


def test_a_workflow_that_is_prepared_during_a_pause_begins_after_it() -> None:
    run = make_run()
    assert made(run, pause(), now_s=1.0) == [ChangeAnswered("token")]
    assert run.handle(WorkflowPrepared("Load"), now_s=2.0) == []
    assert made(run, resume(), now_s=3.0) == [StartExecutors((0,)), ChangeAnswered("token")]


def test_changes_of_a_workflow_that_has_not_begun_come_with_its_start() -> None:
    run = make_run()
    made(run, scale_to(vus=5), now_s=1.0)
    changed, started = run.handle(WorkflowPrepared("Load"), now_s=2.0)
    assert isinstance(changed, ChangeExecutors)
    assert (changed.changes[0].at_s, changed.changes[0].target) == (0.0, 5.0)
    assert started == StartExecutors((0,))


def test_executors_get_all_changes_so_far_and_a_refused_one_changes_nothing() -> None:
    run = make_run()
    run.handle(WorkflowPrepared("Load"), now_s=2.0)
    made(run, scale_to(vus=5, over="2s"), now_s=4.0)
    changed, answered = made(run, pause(), now_s=5.0)
    assert isinstance(changed, ChangeExecutors)
    assert [(each.kind.value, each.at_s) for each in changed.changes] == [
        ("scale", 2.0),
        ("pause", 3.0),
    ]
    assert answered == ChangeAnswered("token")
    (refused,) = made(run, scale_to(rate="5/s"), now_s=6.0)
    assert isinstance(refused, ChangeAnswered)
    assert isinstance(refused.error, InputError)


def test_a_run_from_python_is_scaled_paused_and_resumed() -> None:
    async def work() -> RunResult:
        runner = LocalRunner(workers=1)
        with pytest.raises(InputError, match="no run is under way"):
            await runner.pause()
        ended = asyncio.create_task(runner.run("ticks", [Steady], terminal_mode="none"))
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    await runner.scale(vus=3)
                    break
                except InputError:  # the run has not begun
                    await asyncio.sleep(0.05)
        await runner.pause()
        await runner.resume()
        return await ended

    (ticks,) = asyncio.run(work()).workflows
    assert ticks.changes[0].kind == "scale"
    assert max(point.vus or 0 for point in ticks.series) == 3
