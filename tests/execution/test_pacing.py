"""How often and how long virtual users run their steps: iterations, intervals, deadlines."""

import pytest

from hyperscale.plan.status import PartStatus
from tests.lab.executors import Lab


def test_an_action_workflow_runs_its_steps_once_per_user(lab: Lab) -> None:
    lab.write("""
        class Seed(Workflow):
            vus = 3
            duration = "30s"

            @action()
            async def make(self):
                log("make")
    """)
    (outcome,) = lab.run("Seed")
    assert lab.log() == ["make"] * 3
    assert outcome.step("make").counts.total == 3


@pytest.mark.parametrize(("executors", "iterations", "vus"), [(1, 7, 3), (2, 7, 3), (2, 1, 2)])
def test_iterations_are_split_exactly(lab: Lab, executors: int, iterations: int, vus: int) -> None:
    lab.write(f"""
        class Counted(Workflow):
            vus = {vus}
            duration = "30s"
            iterations = {iterations}

            @step()
            async def one(self) -> Result:
                await asyncio.sleep(0)
                return Result()
    """)
    outcomes = lab.run("Counted", executors=executors)
    assert sum(outcome.report.iterations for outcome in outcomes) == iterations
    assert sum(outcome.step("one").counts.total for outcome in outcomes) == iterations


def test_an_interval_keeps_the_starts_of_iterations_apart(lab: Lab) -> None:
    lab.write("""
        class Paced(Workflow):
            vus = 1
            duration = "30s"
            interval = "400ms"
            iterations = 3

            @step()
            async def one(self) -> Result:
                log(time.monotonic())
                await asyncio.sleep(0.02)
                return Result()
    """)
    lab.run("Paced")
    first, _, last = [float(line) for line in lab.log()]
    # The first start may be logged late, but not by half the time; without pacing it takes 40 ms.
    assert last - first > 0.4


def test_a_pause_ends_with_the_deadline(lab: Lab) -> None:
    lab.write("""
        class Patient(Workflow):
            vus = 3
            duration = "300ms"
            interval = "1h"

            @step()
            async def one(self) -> Result:
                return Result()
    """)
    (outcome,) = lab.run("Patient")
    counts = outcome.step("one").counts
    # Users begin spread over the interval: the first at once, the others after the deadline.
    assert (counts.total, counts.cut) == (1, 0)


def test_steps_in_flight_at_the_deadline_are_cut_once_and_never_failed(lab: Lab) -> None:
    lab.write("""
        class Long(Workflow):
            vus = 4
            duration = "200ms"

            @step()
            async def quick(self) -> Result:
                return Result()

            @step("quick")
            async def left(self) -> Result:
                await asyncio.sleep(60)

            @step("quick")
            async def right(self) -> Result:
                try:
                    await asyncio.sleep(60)
                finally:
                    log("let go")

            @step("left", "right")
            async def never(self) -> Result:
                log("never")

            @teardown(per="executor")
            async def close(self):
                log("teardown")
    """)
    (outcome,) = lab.run("Long")
    for name, expected in {"quick": 0, "left": 4, "right": 4, "never": 0}.items():
        counts = outcome.step(name).counts
        assert (counts.cut, counts.failed, counts.skipped) == (expected, 0, 0), name
    assert lab.log() == ["let go"] * 4 + ["teardown"]
    assert outcome.finished is not None
    assert outcome.finished.status is PartStatus.COMPLETED


def test_a_step_that_ends_within_the_grace_period_is_not_cut(lab: Lab) -> None:
    lab.write("""
        class Graceful(Workflow):
            vus = 2
            duration = "200ms"

            @step()
            async def one(self) -> Result:
                await asyncio.sleep(0.6)
                return Result()
    """)
    (outcome,) = lab.run("Graceful")
    counts = outcome.step("one").counts
    assert (counts.ok, counts.cut) == (2, 0)


def test_steps_that_never_await_end_at_the_deadline(lab: Lab) -> None:
    lab.write("""
        class Busy(Workflow):
            vus = 1
            duration = "300ms"

            @step()
            async def one(self) -> Result:
                return Result()
    """)
    (outcome,) = lab.run("Busy")
    assert outcome.finished is not None
    assert outcome.finished.status is PartStatus.COMPLETED
    assert outcome.report.iterations > 100
