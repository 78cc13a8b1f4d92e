"""An executor under a lease ends its load at the deadline, even if processes are stopped."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator

import msgspec
import pytest

from hyperscale import _native
from hyperscale.execution.lease import boottime_ns
from hyperscale.plan.status import PartStatus
from tests.lab.executors import Bench, Lab

IN_PYTHON = """
    class Load(Workflow):
        vus = 40
        duration = "60s"

        @step()
        async def hit(self, url: URL = "{url}") -> HTTPResponse:
            first = await self.client.http.get(url)
            return await self.client.http.get(url)
"""
STATIC = """
    class Load(Workflow):
        vus = 40
        duration = "60s"

        @step()
        async def hit(self, url: URL = "{url}") -> HTTPResponse:
            return await self.client.http.get(url)
"""
BUSY = """
    class Load(Workflow):
        vus = 1
        duration = "60s"

        @step()
        async def hog(self) -> Result:
            log("hogging")
            while True:
                pass
"""
LOADS = [pytest.param(IN_PYTHON, id="python"), pytest.param(STATIC, id="static")]


@pytest.fixture
def target() -> Iterator[_native.Target]:
    target = _native.Target()
    yield target
    target.stop()


def total(target: _native.Target) -> int:
    return int(json.loads(target.counts())["total"])


async def settled(target: _native.Target) -> int:
    """Return the count of the target when it no longer rises."""
    known = -1
    while known != (known := total(target)):
        await asyncio.sleep(0.2)
    return known


async def disconnected(target: _native.Target) -> None:
    async with asyncio.timeout(5):
        while json.loads(target.counts())["connections"]["current"]:
            await asyncio.sleep(0.01)


async def begin(bench: Bench, *, lease_s: float) -> int:
    """Prepare and start the load under a lease; return the deadline."""
    await bench.prepare("Load")
    deadline_ns = boottime_ns() + round(lease_s * 1e9)
    bench.pool.renew_lease(bench.ids, deadline_ns)
    bench.pool.start(bench.ids)
    return deadline_ns


@pytest.mark.parametrize("source", LOADS)
def test_an_executor_that_was_stopped_beyond_its_lease_sends_nothing_more(
    lab: Lab, target: _native.Target, source: str
) -> None:
    lab.write(source.format(url=f"http://127.0.0.1:{target.port}/delay/5"))

    async def work(bench: Bench) -> None:
        deadline_ns = await begin(bench, lease_s=3.0)
        await bench.until(lambda: any(r.steps[0].counts.total for r in bench.outcomes[0].reports))
        os.kill(bench.pool.pids[0], signal.SIGSTOP)
        before = await settled(target)
        while boottime_ns() < deadline_ns + 300_000_000:
            await asyncio.sleep(0.05)
        os.kill(bench.pool.pids[0], signal.SIGCONT)
        (outcome,) = await bench.ended()
        assert outcome.finished is not None, outcome.died
        assert outcome.finished.status is PartStatus.STOPPED
        assert outcome.finished.error == "lease expired"
        assert await settled(target) == before
        counts = outcome.step("hit").counts
        assert counts.sent == before
        assert counts.failed == 0

    lab.work(work)


@pytest.mark.parametrize("source", LOADS)
def test_load_ends_at_the_deadline_unless_the_lease_is_renewed(
    lab: Lab, target: _native.Target, source: str
) -> None:
    lab.write(source.format(url=f"http://127.0.0.1:{target.port}/"))

    async def work(bench: Bench) -> None:
        first_ns = await begin(bench, lease_s=3.0)
        await bench.until(lambda: bool(bench.outcomes[0].reports))
        deadline_ns = first_ns + 500_000_000
        bench.pool.renew_lease(bench.ids, deadline_ns)
        (outcome,) = await bench.ended()
        assert boottime_ns() >= deadline_ns
        assert outcome.finished is not None, outcome.died
        assert outcome.finished.error == "lease expired"
        assert outcome.step("hit").counts.sent == total(target)

    lab.work(work)


@pytest.mark.parametrize("pause", ["", "await asyncio.sleep(0.05)"])
def test_connections_end_with_their_slot(lab: Lab, target: _native.Target, pause: str) -> None:
    lab.write(f"""
        class Load(Workflow):
            vus = 20
            duration = "60s"

            @step()
            async def hit(self, url: URL = "http://127.0.0.1:{target.port}/") -> HTTPResponse:
                {pause}
                return await self.client.http.get(url)
    """)

    async def work(bench: Bench) -> None:
        await begin(bench, lease_s=0.7)
        (outcome,) = await bench.ended()
        assert outcome.finished is not None
        assert outcome.report.iterations > 20
        assert outcome.report.vus == 0
        await disconnected(target)

    lab.work(work)


def test_an_executor_that_stays_stopped_is_killed_and_its_connections_end(
    lab: Lab, target: _native.Target
) -> None:
    lab.write(IN_PYTHON.format(url=f"http://127.0.0.1:{target.port}/delay/5"))

    async def work(bench: Bench) -> None:
        await begin(bench, lease_s=3.0)
        await bench.until(lambda: any(r.steps[0].counts.total for r in bench.outcomes[0].reports))
        os.kill(bench.pool.pids[0], signal.SIGSTOP)
        (outcome,) = await bench.ended()
        assert outcome.died is not None
        assert "without a report: the process was stopped" in outcome.died.reason
        assert not outcome.died.blames_code
        await disconnected(target)

    lab.work(work)


def test_the_kernel_kills_code_that_blocks_the_event_loop_beyond_the_lease(lab: Lab) -> None:
    """The code is blamed although the lease was renewed: the executor never read the renewals."""
    lab.write(BUSY)

    async def work(bench: Bench) -> None:
        await begin(bench, lease_s=3.0)
        await bench.until(lambda: "hogging" in lab.log())
        for _ in range(3):
            bench.pool.renew_lease(bench.ids, boottime_ns() + 60_000_000_000)
        (outcome,) = await bench.ended()
        assert outcome.died is not None
        assert "the code of the test blocked the event loop" in outcome.died.reason
        assert "its lease expired after" in outcome.died.reason
        assert outcome.died.blames_code

    lab.work(work)


def test_a_lease_that_expires_before_the_start_ends_the_slot(lab: Lab) -> None:
    lab.write(BUSY)

    async def work(bench: Bench) -> None:
        await bench.prepare("Load")
        bench.pool.renew_lease(bench.ids, boottime_ns() + 200_000_000)
        (outcome,) = await bench.ended()
        assert outcome.finished is not None
        assert outcome.finished.status is PartStatus.STOPPED
        assert lab.log() == []

    lab.work(work)


def test_teardown_hooks_run_after_the_lease_expired_and_may_send(
    lab: Lab, target: _native.Target
) -> None:
    lab.write(f"""
        class Load(Workflow):
            vus = 2
            duration = "60s"

            @step()
            async def hit(self, url: URL = "http://127.0.0.1:{target.port}/") -> HTTPResponse:
                await asyncio.sleep(0.01)
                return await self.client.http.get(url)

            @teardown(per="executor")
            async def leave(self, url: URL = "http://127.0.0.1:{target.port}/") -> None:
                response = await self.client.http.get(url)
                log("left", response.status)
    """)

    async def work(bench: Bench) -> None:
        await begin(bench, lease_s=0.3)
        (outcome,) = await bench.ended()
        assert outcome.finished is not None
        assert lab.log() == ["left 200"]

    lab.work(work)


def test_a_renewal_during_teardown_does_not_put_hooks_under_the_lease(
    lab: Lab, target: _native.Target
) -> None:
    lab.write(f"""
        class Load(Workflow):
            vus = 1
            duration = "100ms"

            @step()
            async def one(self) -> Result:
                await asyncio.sleep(0.01)
                return Result()

            @teardown(per="executor")
            async def leave(self, url: URL = "http://127.0.0.1:{target.port}/") -> None:
                log("tears down")
                await asyncio.sleep(1)
                response = await self.client.http.get(url)
                log("left", response.status)
    """)

    async def work(bench: Bench) -> None:
        await begin(bench, lease_s=60.0)
        await bench.until(lambda: bool(lab.log()))
        bench.pool.renew_lease(bench.ids, boottime_ns() + 100_000_000)
        (outcome,) = await bench.ended()
        assert outcome.finished is not None, outcome.died
        assert outcome.finished.status is PartStatus.COMPLETED
        assert lab.log() == ["tears down", "left 200"]

    lab.work(work)


def test_an_executor_takes_its_next_slot_after_a_lease_expired(lab: Lab) -> None:
    lab.write("""
        class Load(Workflow):
            vus = 1
            duration = "300ms"

            @step()
            async def one(self) -> Result:
                await asyncio.sleep(0.01)
                return Result()
    """)

    async def work(bench: Bench) -> None:
        await begin(bench, lease_s=0.0)
        (outcome,) = await bench.ended()
        assert outcome.finished is not None
        assert outcome.finished.status is PartStatus.STOPPED
        pids = bench.pool.pids
        (outcome,) = await bench.run("Load")
        assert outcome.finished is not None
        assert outcome.finished.status is PartStatus.COMPLETED
        assert bench.pool.pids == pids

    lab.work(work)


# --- the remaining duration -----------------------------------------------------------------


@pytest.mark.parametrize("static", [True, False])
def test_a_later_attempt_runs_for_the_remaining_duration(
    lab: Lab, target: _native.Target, static: bool
) -> None:
    lab.write(STATIC.format(url=f"http://127.0.0.1:{target.port}/delay/5"))

    async def work(bench: Bench) -> None:
        whole = bench.assignment("Load", 0, static=static)
        began_s = time.monotonic()
        await bench.pool.prepare([0], [msgspec.structs.replace(whole, elapsed_s=58.6)])
        bench.pool.start(bench.ids)
        (outcome,) = await bench.ended()
        assert outcome.finished is not None
        assert outcome.finished.status is PartStatus.COMPLETED
        assert time.monotonic() - began_s < 30
        assert 60.0 <= outcome.report.elapsed_s < 65.0
        assert {point.second for point in outcome.step("hit").series} <= {58, 59, 60}
        assert all(report.elapsed_s >= 58.6 for report in outcome.reports)

    lab.work(work)


def test_a_later_attempt_runs_an_action_workflow_completely(lab: Lab) -> None:
    lab.write("""
        class Prepares(Workflow):
            vus = 1
            duration = "20s"

            @action()
            async def one(self) -> None:
                await asyncio.sleep(0.3)
    """)

    async def work(bench: Bench) -> None:
        whole = bench.assignment("Prepares", 0)
        await bench.pool.prepare([0], [msgspec.structs.replace(whole, elapsed_s=19.9)])
        bench.pool.start(bench.ids)
        (outcome,) = await bench.ended()
        assert outcome.finished is not None
        assert outcome.finished.status is PartStatus.COMPLETED
        assert outcome.step("one").counts.ok == 1

    lab.work(work)


@pytest.mark.parametrize("static", [True, False])
def test_a_slot_can_be_given_its_own_number_of_iterations(
    lab: Lab, target: _native.Target, static: bool
) -> None:
    lab.write(STATIC.format(url=f"http://127.0.0.1:{target.port}/"))
    lab.change_plan("Load", iterations=1000)

    async def work(bench: Bench) -> None:
        whole = bench.assignment("Load", 0, static=static)
        await bench.pool.prepare([0], [msgspec.structs.replace(whole, iterations=7)])
        bench.pool.start(bench.ids)
        (outcome,) = await bench.ended()
        assert outcome.step("hit").counts.ok == 7
        assert total(target) == 7

    lab.work(work)
