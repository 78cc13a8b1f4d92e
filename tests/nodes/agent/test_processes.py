"""Worker processes that are suspended, killed and restarted under load."""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hyperscale._native import Target
from hyperscale.jobs.messages import DeliverResult, PartPhase, ReportProgress
from hyperscale.plan.status import PartStatus
from tests.lab.job_leader import counted, is_quiet, load, run_id, stand_in_leader, total
from tests.lab.loops import run
from tests.lab.nodes import NodeCluster, NodeProcess
from tests.lab.processes import executors_of
from tests.lab.waiting import until_async

LEASE_MS = 2_000
LOADS = [pytest.param(0.005, id="python"), pytest.param(0.0, id="static")]


@contextmanager
def process(directory: Path) -> Iterator[NodeProcess]:
    with NodeCluster(directory) as cluster:
        yield start(cluster)


def start(cluster: NodeCluster) -> NodeProcess:
    data = cluster.directory / "data"
    arguments = ("--cores", "1", "--data-dir", str(data), "--seed", "127.0.0.1:9")
    return cluster.start("worker", "w1", *arguments).wait_listening()


def connections(target: Target) -> int:
    return int(json.loads(target.counts())["connections"]["current"])


@pytest.mark.parametrize("pause_s", LOADS)
def test_load_stops_with_its_lease_although_the_agent_is_suspended(
    tmp_path: Path, target: Target, pause_s: float
) -> None:
    code = load(tmp_path, target, pause_s=pause_s)

    async def work() -> None:
        with process(tmp_path) as node:
            async with stand_in_leader() as leader:
                await leader.meet(node.address)
                run = await leader.run(code, lease_ms=LEASE_MS)
                await leader.loads(target)
                await leader.renew(run, lease_ms=LEASE_MS)
                renewed_s = time.monotonic()
                os.kill(node.process.pid, signal.SIGSTOP)
                quiet = await is_quiet(target, for_s=1.0)
                assert time.monotonic() - renewed_s < 30.0  # of 60
                # A renewal that waited in the agent's socket must not start the load again.
                late = asyncio.ensure_future(leader.renew(run, lease_ms=LEASE_MS))
                await asyncio.sleep(0.3)
                os.kill(node.process.pid, signal.SIGCONT)
                await late
                finished = await leader.hears(DeliverResult)
                # Stopped by itself, or killed by the kernel if it got no CPU time for that.
                assert finished.status in (PartStatus.STOPPED, PartStatus.FAILED)
                assert "lease expired" in str(finished.error)
                assert total(finished) == quiet == await is_quiet(target)

    run(work)


@pytest.mark.parametrize("pause_s", LOADS)
def test_a_worker_suspended_longer_than_its_leases_sends_no_load_afterwards(
    tmp_path: Path, target: Target, pause_s: float
) -> None:
    code = load(tmp_path, target, pause_s=pause_s)

    async def work() -> None:
        with process(tmp_path) as node:
            async with stand_in_leader() as leader:
                await leader.meet(node.address)
                await leader.run(code, lease_ms=LEASE_MS)
                await leader.hears(ReportProgress)
                everyone = [node.process.pid, *executors_of(node.process.pid)]
                for pid in everyone:
                    os.kill(pid, signal.SIGSTOP)
                quiet = await is_quiet(target)
                # The kernel kills the executors some time after their leases: wait for that.
                await until_async(lambda: not connections(target))
                for pid in everyone:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)
                finished = await leader.hears(DeliverResult)
                # Stopped by itself, or killed by the kernel if it got no CPU time for that.
                assert finished.status in (PartStatus.STOPPED, PartStatus.FAILED)
                assert "lease expired" in str(finished.error)
                assert finished.is_retryable
                # Its last report is at most a tenth of a second old.
                assert 0 < total(finished) <= quiet == await is_quiet(target)

    run(work)


def test_a_killed_worker_leaves_no_executor_and_sends_its_results_after_a_restart(
    tmp_path: Path, target: Target
) -> None:
    (tmp_path / "short").mkdir()
    short = load(tmp_path / "short", target, duration="300ms")
    code = load(tmp_path, target, pause_s=0.01)

    async def work() -> None:
        with NodeCluster(tmp_path) as cluster:
            async with stand_in_leader() as leader:
                node = start(cluster)
                await leader.meet(node.address)
                done = await leader.run(short, run_id(job="dc.1-done"))
                first = await leader.hears(DeliverResult)
                assert first.attempt_id == done
                running = await leader.run(code)
                await leader.hears(ReportProgress, lambda each: each.parts[0].attempt_id == running)
                children = executors_of(node.process.pid)
                node.kill()
                await until_async(
                    lambda: not any(Path(f"/proc/{pid}").exists() for pid in children)
                )
                await is_quiet(target)
            async with stand_in_leader("m2", blobs={code.sha256: code.bundle.payload}) as heir:
                node = start(cluster)
                await heir.meet(node.address)
                here = await heir.who_runs(term=2)
                assert [(view.attempt_id, view.phase) for view in here.parts] == [
                    (done, PartPhase.FINISHED)
                ]
                again = await heir.hears(DeliverResult)
                assert again == first
                heir.acknowledge(done, term=2)
                await until_async(lambda: not list(tmp_path.rglob("*.result")))
                # The next attempt continues at the elapsed time of the last report.
                before = counted(target)
                newer = await heir.run(code, run_id(2), term=2, elapsed_s=59.0)
                finished = await heir.hears(DeliverResult, lambda each: each.attempt_id == newer)
                assert finished.status is PartStatus.COMPLETED
                assert before + total(finished) == await is_quiet(target)

    run(work)


def test_sigterm_hands_the_part_over_and_exits_with_0(tmp_path: Path, target: Target) -> None:
    code = load(tmp_path, target, pause_s=0.01)

    async def work() -> None:
        with process(tmp_path) as node:
            async with stand_in_leader() as leader:
                await leader.meet(node.address)
                run = await leader.run(code)
                await leader.loads(target, more_than=20)
                node.process.send_signal(signal.SIGTERM)
                finished = await leader.hears(DeliverResult)
                assert (finished.attempt_id, finished.is_retryable) == (run, True)
                leader.acknowledge(run)
                await until_async(lambda: node.process.poll() is not None)
                assert node.process.returncode == 0
                assert total(finished) == await is_quiet(target)

    run(work)
