"""Preparing slots: refused, stopped and cancelled slots leave the executor usable."""

import asyncio
import os
import signal

import msgspec
import pytest

from hyperscale.errors import InputError, RunError
from hyperscale.execution.process import ExecutorLostError
from tests.lab.executors import SLEEPER, Bench, Lab


@pytest.mark.parametrize("when", ["before the task begins", "while executors start"])
def test_a_stop_reaches_a_slot_whose_assignment_was_not_sent_yet(lab: Lab, when: str) -> None:
    lab.write(SLEEPER)

    async def work(bench: Bench) -> None:
        preparing = asyncio.ensure_future(bench.prepare("Sleeper"))
        await asyncio.sleep(0)
        if when == "while executors start":
            await asyncio.sleep(0)
        bench.pool.stop(bench.ids, "interrupted", 1.0)
        with pytest.raises(RunError, match="stopped while preparing"):
            await preparing
        await bench.prepare("Sleeper")  # and are usable for another workflow

    lab.work(work, executors=2)
    assert lab.log() == ["teardown", "teardown"]


def test_an_assignment_too_large_to_be_sent_fails_and_leaves_the_executor_usable(
    lab: Lab,
) -> None:
    lab.write(SLEEPER)

    async def work(bench: Bench) -> None:
        with pytest.raises(RunError, match="over the limit"):
            await bench.prepare("Sleeper", context=bytes(17 * 1024 * 1024))
        await bench.prepare("Sleeper")

    lab.work(work)


def test_a_bad_file_refuses_every_slot_and_leaves_the_executors_usable(lab: Lab) -> None:
    lab.write("""
        class Good(Workflow):
            vus = 2
            duration = "30s"
            iterations = 2

            @step()
            async def one(self) -> Result:
                return Result()
    """)

    async def work(bench: Bench) -> None:
        good = lab.file.read_text()
        lab.file.write_text("raise RuntimeError('not today')")
        with pytest.raises(InputError, match="not today"):
            await bench.prepare("Good")
        lab.file.write_text(good)
        outcomes = await bench.run("Good")
        assert sum(outcome.report.iterations for outcome in outcomes) == 2

    lab.work(work, executors=2)


def test_one_refused_slot_ends_the_preparation_of_the_others(lab: Lab) -> None:
    lab.write("""
        class Picky(Workflow):
            vus = 2
            duration = "30s"

            @setup(per="executor")
            async def open(self):
                try:
                    os.mkdir(LOG + ".taken")
                except FileExistsError:
                    raise RuntimeError("taken")
                log("open")

            @step()
            async def one(self) -> Result:
                return Result()

            @teardown(per="executor")
            async def close(self):
                log("close")
    """)

    async def work(bench: Bench) -> None:
        with pytest.raises(RunError, match=r"Picky\.open failed: RuntimeError: taken"):
            await bench.prepare("Picky")
        assert not any(outcome.is_over for outcome in bench.outcomes)

    lab.work(work, executors=2)
    assert sorted(lab.log()) == ["close", "close", "open"]


def test_an_executor_that_dies_while_preparing_fails_the_preparation(lab: Lab) -> None:
    lab.write("""
        class Fragile(Workflow):
            vus = 1
            duration = "30s"

            @setup(per="executor")
            async def open(self):
                os.kill(os.getpid(), 9)

            @step()
            async def one(self) -> Result:
                return Result()
    """)
    with pytest.raises(RunError, match="failed while it prepared a slot: killed by SIGKILL"):
        lab.run("Fragile")


ONE_READY = """
    class Pair(Workflow):
        vus = 2
        duration = "30s"

        @setup(per="executor")
        async def open(self):
            try:
                os.mkdir(LOG + ".taken")
            except FileExistsError:
                log("opening")
                await asyncio.sleep(60)
            # Called when the pool has been sent the answer.
            asyncio.current_task().add_done_callback(lambda _: log("ready", os.getpid()))

        @step()
        async def one(self) -> Result:
            return Result()
"""


async def one_ready(bench: Bench) -> int:
    """Return the executor that is prepared while the other is not."""
    await bench.lab.logged("opening")
    await bench.lab.logged("ready")
    (line,) = (line for line in bench.lab.log() if line.startswith("ready"))
    await asyncio.sleep(0)  # the pool reads the answer
    return bench.pool.pids.index(int(line.split()[1]))


def test_an_executor_that_dies_while_others_prepare_fails_the_preparation_without_an_event(
    lab: Lab,
) -> None:
    lab.write(ONE_READY)

    async def work(bench: Bench) -> None:
        preparing = asyncio.ensure_future(bench.prepare("Pair"))
        os.kill(bench.pool.pids[await one_ready(bench)], signal.SIGKILL)
        with pytest.raises(
            ExecutorLostError, match="failed while it prepared a slot: killed by SIGKILL"
        ):
            await preparing
        assert not any(outcome.is_over for outcome in bench.outcomes)

    lab.work(work, executors=2)


def test_a_slot_that_is_stopped_while_others_prepare_ends_with_them(lab: Lab) -> None:
    lab.write(ONE_READY)

    async def work(bench: Bench) -> None:
        preparing = asyncio.ensure_future(bench.prepare("Pair"))
        bench.pool.stop([await one_ready(bench)], "interrupted", 1.0)
        with pytest.raises(RunError, match="stopped while preparing"):
            await preparing
        assert not any(outcome.is_over for outcome in bench.outcomes)
        assert all(outcome.reports for outcome in bench.outcomes)  # requests of setup hooks count

    lab.work(work, executors=2)


def test_a_cancelled_preparation_leaves_no_slot_behind(lab: Lab) -> None:
    lab.write("""
        class Slow(Workflow):
            vus = 1
            duration = "30s"

            @setup(per="executor")
            async def open(self):
                log("opening")
                await asyncio.sleep(60)

            @step()
            async def one(self) -> Result:
                return Result()

            @teardown(per="executor")
            async def close(self):
                log("close")
    """)

    async def work(bench: Bench) -> None:
        preparing = asyncio.ensure_future(bench.prepare("Slow"))
        await lab.logged("opening")
        preparing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await preparing

    lab.work(work)
    assert lab.log() == ["opening", "close"]


def test_an_internal_error_while_preparing_is_reported(lab: Lab) -> None:
    lab.write(SLEEPER)

    async def work(bench: Bench) -> None:
        assignment = msgspec.structs.replace(bench.assignment("Sleeper", 0), log_level="nonsense")
        with pytest.raises(RunError, match="internal error: ValueError: Unknown level"):
            await bench.pool.prepare([0], [assignment])
        await bench.prepare("Sleeper")

    lab.work(work)
