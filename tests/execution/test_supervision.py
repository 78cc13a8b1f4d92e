"""Executors as processes under a pool: how they are stopped, killed and replaced."""

import asyncio
import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hyperscale.errors import RunError
from hyperscale.execution import overdue, pooled_executor
from hyperscale.execution.process import ExecutorLostError
from hyperscale.plan.status import PartStatus
from tests.lab.executors import SLEEPER, Bench, Lab, Outcome


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_stop_cuts_steps_runs_teardown_hooks_and_keeps_its_reason(lab: Lab, loop: str) -> None:
    lab.write(SLEEPER)

    async def work(bench: Bench) -> None:
        await bench.begin("Sleeper", until="napping")
        bench.pool.stop(bench.ids, "interrupted", 0.05)
        (outcome,) = await bench.ended()
        assert outcome.finished is not None
        assert outcome.finished.status is PartStatus.STOPPED
        assert outcome.finished.error == "interrupted"
        assert outcome.step("nap").counts.cut == 2

    lab.work(work, loop=loop)
    assert lab.log()[-1] == "teardown"


def test_a_slot_stopped_before_its_start_only_runs_teardown_hooks(lab: Lab) -> None:
    lab.write(SLEEPER)

    async def work(bench: Bench) -> None:
        await bench.prepare("Sleeper")
        bench.pool.stop(bench.ids, "not needed", 1.0)
        (outcome,) = await bench.ended()
        assert outcome.finished is not None
        assert outcome.finished.status is PartStatus.STOPPED

    lab.work(work)
    assert lab.log() == ["teardown"]


def test_a_start_in_the_future_can_still_be_stopped(lab: Lab) -> None:
    lab.write(SLEEPER)

    async def work(bench: Bench) -> None:
        await bench.prepare("Sleeper")
        bench.pool.start(bench.ids, start_in_ms=60_000)
        bench.pool.stop(bench.ids, "not needed", 1.0)
        (outcome,) = await bench.ended()
        assert outcome.finished is not None
        assert outcome.finished.status is PartStatus.STOPPED

    lab.work(work)
    assert lab.log() == ["teardown"]


def test_a_killed_executor_is_reported_with_its_signal_and_the_pool_starts_another(
    lab: Lab,
) -> None:
    lab.write(SLEEPER)

    async def work(bench: Bench) -> None:
        await bench.begin("Sleeper", until="napping")
        killed = bench.pool.pids[0]
        os.kill(killed, signal.SIGKILL)
        await bench.until(lambda: bench.outcomes[0].is_over)
        died = bench.outcomes[0].died
        assert died is not None
        assert died.reason.startswith("killed by SIGKILL")
        assert not bench.outcomes[1].is_over  # the other executor continues
        bench.pool.stop([1], "enough", 0.0)
        await bench.until(lambda: bench.outcomes[1].is_over)
        await bench.prepare("Sleeper")
        assert bench.pool.pids[0] != killed

    lab.work(work, executors=2)


def test_sigterm_tears_down_before_the_executor_leaves(lab: Lab) -> None:
    lab.write(SLEEPER)

    async def work(bench: Bench) -> None:
        await bench.begin("Sleeper", until="napping")

    lab.work(work)  # closing the pool is the SIGTERM
    assert lab.log()[-1] == "teardown"


@contextmanager
def descriptors(spare: int) -> Iterator[None]:
    """Limit the descriptors that this process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + spare, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_executor_that_cannot_be_started_is_lost_and_leaves_nothing_open(lab: Lab) -> None:
    async def work(bench: Bench) -> None:
        opened = set(os.listdir("/proc/self/fd"))
        for spare in range(5):
            with (
                descriptors(spare),
                pytest.raises(ExecutorLostError, match="no executor can be started"),
            ):
                bench.pool.grow()
            assert set(os.listdir("/proc/self/fd")) <= opened
        assert bench.pool.size == 1

    lab.work(work)


def test_an_executor_that_could_not_be_restarted_is_started_with_its_next_slot(lab: Lab) -> None:
    lab.write(SLEEPER)

    async def work(bench: Bench) -> None:
        bench.pool.retire(0)
        await bench.pool.wait_vacant(0)
        with descriptors(0), pytest.raises(ExecutorLostError):
            await bench.prepare("Sleeper")
        await bench.prepare("Sleeper")

    lab.work(work)


def freeze(bench: Bench) -> int:
    """Stop the executor at its start, before it sends its first message; return its process id."""
    (pid,) = bench.pool.pids
    os.kill(pid, signal.SIGSTOP)
    return pid


def test_a_stop_does_not_wait_for_an_executor_that_never_starts(lab: Lab) -> None:
    lab.write(SLEEPER)

    async def work(bench: Bench) -> None:
        pid = freeze(bench)
        preparing = asyncio.ensure_future(bench.prepare("Sleeper"))
        await asyncio.sleep(0)
        bench.pool.stop(bench.ids, "not needed", 0.0)
        async with asyncio.timeout(30):
            with pytest.raises(RunError, match="stopped while preparing"):
                await preparing
            await bench.pool.wait_vacant(0)
        os.kill(pid, signal.SIGCONT)
        await bench.prepare("Sleeper")  # the executor was only slow

    lab.work(work)


def test_an_executor_that_never_starts_is_replaced(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.write(SLEEPER)

    async def work(bench: Bench) -> None:
        freeze(bench)
        with monkeypatch.context() as patched:
            patched.setattr(pooled_executor, "START_S", 0.1)
            with pytest.raises(ExecutorLostError, match=r"did not start within 0\.1 s"):
                await bench.prepare("Sleeper")
        await bench.prepare("Sleeper")

    lab.work(work)


def test_the_code_of_a_stopped_process_is_not_blamed_for_its_silence(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.write(SLEEPER)
    monkeypatch.setattr(overdue, "SILENT_S", 0.2)
    monkeypatch.setattr(overdue, "TEARDOWN_S", 0.2)

    async def work(bench: Bench) -> None:
        await bench.begin("Sleeper", until="napping")
        freeze(bench)
        bench.pool.stop(bench.ids, "not needed", 0.0)
        (outcome,) = await bench.ended()
        assert outcome.died is not None
        assert "the process was stopped, waited for I/O or got no CPU time" in outcome.died.reason
        assert not outcome.died.blames_code

    lab.work(work)


def test_an_expired_lease_cuts_steps_at_once(lab: Lab) -> None:
    lab.write(SLEEPER)

    async def work(bench: Bench) -> None:
        await bench.begin("Sleeper", until="napping")
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        bench.pool.renew_lease(bench.ids, now_ns + 300_000_000)
        bench.pool.renew_lease(bench.ids, now_ns + 400_000_000)
        (outcome,) = await bench.ended()
        assert time.clock_gettime_ns(time.CLOCK_BOOTTIME) >= now_ns + 400_000_000
        assert outcome.finished is not None
        assert outcome.finished.status is PartStatus.STOPPED
        assert outcome.finished.error == "lease expired"
        assert outcome.step("nap").counts.cut == 2

    lab.work(work)


def test_a_pool_can_kill_an_executor_with_a_reason(lab: Lab) -> None:
    lab.write(SLEEPER)

    async def work(bench: Bench) -> None:
        await bench.begin("Sleeper", until="napping")
        bench.pool.kill(bench.ids, "interrupted twice")
        (outcome,) = await bench.ended()
        assert outcome.died is not None
        assert outcome.died.reason == "interrupted twice"

    lab.work(work)
    assert "teardown" not in lab.log()


def test_an_executor_is_not_killed_because_its_parent_was_suspended(lab: Lab) -> None:
    lab.write("""
        class Short(Workflow):
            vus = 1
            duration = "100ms"

            @step()
            async def one(self) -> Result:
                await asyncio.sleep(0.01)
                return Result()
    """)

    async def work(bench: Bench) -> None:
        await bench.prepare("Short")
        bench.pool.start(bench.ids)
        time.sleep(4)  # longer than an executor may be silent after its slot should have ended
        (outcome,) = await bench.ended()
        assert outcome.finished is not None
        assert outcome.finished.status is PartStatus.COMPLETED

    lab.work(work)


def test_an_executor_that_may_not_get_more_weight_again_is_replaced(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a privileged process may lower nice; this machine may permit it."""
    lab.write(SLEEPER)
    set_priority = os.setpriority

    def unprivileged(which: int, who: int, nice: int) -> None:
        if nice < os.getpriority(which, who):
            raise PermissionError
        set_priority(which, who, nice)

    monkeypatch.setattr(os, "setpriority", unprivileged)
    own_nice = os.getpriority(os.PRIO_PROCESS, 0)

    async def work(bench: Bench) -> None:
        pids = []
        for weight, nice in ((15, 15), (15, 15), (None, 5)):
            await bench.pool.prepare(bench.ids, [bench.assignment("Sleeper", 0)], nice=weight)
            pids += bench.pool.pids
            assert os.getpriority(os.PRIO_PROCESS, pids[-1]) == own_nice + nice
            bench.outcomes[0] = Outcome()
            bench.pool.stop(bench.ids, "not needed", 1.0)
            await bench.ended()
        assert pids[0] == pids[1] != pids[2]

    lab.work(work)
