"""User code that blocks the event loop, ignores cancellation or exits is ended."""

import asyncio

import pytest

from hyperscale.errors import RunError
from hyperscale.plan.status import PartStatus
from tests.lab.executors import Bench, Lab
from tests.lab.processes import is_alive


def test_an_executor_that_exits_is_reported_with_its_exit_code_and_last_output(lab: Lab) -> None:
    lab.write("""
        class Quitter(Workflow):
            vus = 1
            duration = "60s"

            @step()
            async def quit(self) -> Result:
                os.write(2, b"cannot go on\\n")
                os._exit(9)
    """)
    (outcome,) = lab.run("Quitter")
    assert outcome.died is not None
    assert "exited with code 9" in outcome.died.reason
    assert "cannot go on" in outcome.died.reason


def test_sys_exit_in_a_step_is_only_a_failed_step(lab: Lab) -> None:
    lab.write("""
        class Quitter(Workflow):
            vus = 1
            duration = "60s"
            iterations = 2

            @step()
            async def quit(self) -> Result:
                sys.exit(3)
    """)
    (outcome,) = lab.run("Quitter")
    assert outcome.step("quit").counts.failed == 2


def test_code_that_never_awaits_is_killed_after_the_deadline(lab: Lab) -> None:
    lab.write("""
        class Hog(Workflow):
            vus = 1
            duration = "100ms"

            @step()
            async def spin(self) -> Result:
                while True:
                    pass
    """)
    (outcome,) = lab.run("Hog")
    assert outcome.died is not None
    assert "blocked the event loop" in outcome.died.reason


def test_code_that_never_awaits_is_killed_after_a_stop(lab: Lab) -> None:
    lab.write("""
        class Hog(Workflow):
            vus = 1
            duration = "60s"

            @step()
            async def spin(self) -> Result:
                log("spinning")
                while True:
                    pass
    """)

    async def work(bench: Bench) -> None:
        await bench.begin("Hog", until="spinning")
        while not bench.outcomes[0].is_over:  # repeated stops, as a job leader sends them
            bench.pool.stop(bench.ids, "interrupted", 1.0)
            await asyncio.sleep(0.1)
        (outcome,) = await bench.ended()
        assert outcome.died is not None
        assert outcome.died.blames_code
        assert "blocked the event loop" in outcome.died.reason

    lab.work(work)


def test_code_that_ignores_its_cancellation_is_abandoned_and_its_process_killed(
    lab: Lab,
) -> None:
    lab.write("""
        class Stubborn(Workflow):
            vus = 2
            duration = "100ms"

            @step()
            async def hold(self) -> Result:
                while True:
                    try:
                        await asyncio.sleep(60)
                    except BaseException:
                        pass

        class Next(Workflow):
            vus = 1
            duration = "10s"
            iterations = 1

            @step()
            async def one(self) -> Result:
                return Result()
    """)

    async def work(bench: Bench) -> None:
        first_pid = bench.pool.pids[0]
        (stubborn,) = await bench.run("Stubborn")
        assert stubborn.finished is not None
        assert stubborn.step("hold").counts.cut == 2
        assert stubborn.step("hold").counts.failed == 0
        assert "ignored their cancellation" in stubborn.output
        (following,) = await bench.run("Next")
        assert following.step("one").counts.ok == 1
        assert bench.pool.pids[0] != first_pid
        assert not is_alive(first_pid)

    lab.work(work)


def test_a_step_that_ignores_its_cancellation_and_returns_is_cut_not_ok(lab: Lab) -> None:
    lab.write("""
        class Quiet(Workflow):
            vus = 1
            duration = "100ms"

            @step()
            async def hold(self) -> Result:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    pass
                return Result()
    """)
    (outcome,) = lab.run("Quiet")
    counts = outcome.step("hold").counts
    assert (counts.cut, counts.ok, counts.failed) == (1, 0, 0)
    assert outcome.finished is not None
    assert not outcome.finished.tainted


@pytest.mark.parametrize("kind", ["setup", "teardown"])
@pytest.mark.parametrize("what", ["sys.exit(3)", "raise KeyboardInterrupt"])
def test_a_hook_that_raises_system_exit_has_failed(lab: Lab, kind: str, what: str) -> None:
    lab.write(f"""
        class Quitter(Workflow):
            vus = 1
            duration = "10s"
            iterations = 1

            @{kind}(per="executor")
            async def quit(self) -> None:
                {what}

            @step()
            async def one(self) -> Result:
                return Result()
    """)

    async def work(bench: Bench) -> None:
        if kind == "setup":
            with pytest.raises(RunError, match=r"Quitter.quit failed: \w+"):
                await bench.prepare("Quitter")
        else:
            (outcome,) = await bench.run("Quitter")
            assert outcome.step("quit").counts.failed == 1
        assert is_alive(bench.pool.pids[0])

    lab.work(work)


def test_an_interrupt_does_not_reach_an_executor(lab: Lab) -> None:
    lab.write("""
        class Short(Workflow):
            vus = 1
            duration = "30s"
            iterations = 1

            @step()
            async def one(self) -> Result:
                os.kill(os.getpid(), 2)
                await asyncio.sleep(0.05)
                return Result()
    """)
    (outcome,) = lab.run("Short")
    assert outcome.step("one").counts.ok == 1


def test_a_teardown_hook_that_never_ends_is_abandoned(lab: Lab) -> None:
    lab.write("""
        from hyperscale.execution import lifecycle_hooks as host
        host.TEARDOWN_S = 0.2

        class Endless(Workflow):
            vus = 1
            duration = "30s"
            iterations = 1

            @step()
            async def one(self) -> Result:
                return Result()

            @teardown(per="executor")
            async def close(self):
                await asyncio.sleep(3600)
    """)
    (outcome,) = lab.run("Endless")
    assert outcome.finished is not None
    assert outcome.finished.status is PartStatus.COMPLETED
    assert "teardown hooks took longer" in outcome.output
