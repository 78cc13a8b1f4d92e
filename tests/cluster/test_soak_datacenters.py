"""Soak tests of datacenters under gates: joint thresholds, elections, restarts of every node."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hyperscale.client.client import HyperscaleClient
from hyperscale.client.updates import JobFinalResult
from tests.cluster.test_gate_failures import VUS, has_loaded, local_jobs
from tests.cluster.test_gates import BOTH, failing_later
from tests.cluster.test_soak_gates import facts
from tests.lab.cluster import Cluster, assert_exact, leader_of, running, running_cluster, users
from tests.lab.processes import is_alive
from tests.lab.soak_report import gates_report
from tests.lab.waiting import WAIT_S, until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

SHAPE = ("--gates", "3", "--datacenters", "2", "--managers", "3", "--workers", "2")
ABORTED_WITHIN_S = 2.0
MANAGEMENT = "dc1.0-any"  # what a job of the managers' own group would be called


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("datacenters") / "lab", *SHAPE) as cluster:
        yield cluster


async def seen_failing(client: HyperscaleClient, job: str) -> float:
    """Wait until the owner of a job shows failures; return when."""
    async with asyncio.timeout(WAIT_S):
        while not (await client.get_job_status(job)).total_failed:
            await asyncio.sleep(0.02)
    return time.monotonic()


def test_a_joint_threshold_aborts_all_datacenters_soon(shared: Cluster, tmp_path: Path) -> None:
    count = int(os.environ.get("HYPERSCALE_ABORTS", "5"))
    lines: list[str] = []
    took_s: list[float] = []

    async def once(number: int) -> None:
        shared.heal()
        switch = tmp_path / f"fail-{number}"
        async with shared.client() as client:
            job = await client.submit_job(
                failing_later(shared, switch, vus=VUS), target_datacenters=BOTH
            )
            await running(client, shared, job, 50)
            await asyncio.sleep(2.5)  # thresholds do not abort in the first two seconds
            switch.touch()
            began_s = time.monotonic()
            visible_s = await seen_failing(client, job)
            async with asyncio.timeout(WAIT_S):
                while users(shared):
                    await asyncio.sleep(0.02)
            ended_s = time.monotonic()
            final = await client.wait_for_completion(job, timeout=60)
        assert (final.status, final.result.aborted_by) == ("failed", "Load")
        assert_exact(shared, final.result)
        took_s.append(ended_s - visible_s)
        lines.append(
            f"failures are visible {visible_s - began_s:.2f} s after the first, no user is left "
            f"{took_s[-1]:.2f} s later; {facts(shared, final)}"
        )

    for number in range(count):
        asyncio.run(once(number))
    gates_report().write(f"a joint threshold aborts 2 datacenters, {count} times", *lines)
    assert min(took_s) <= ABORTED_WITHIN_S  # a busy machine adds to it


def test_elections_in_a_datacenter_leave_it_reachable(shared: Cluster) -> None:
    """Freeze the leader of a datacenter's managers again and again, each time until another one is
    elected."""
    count = int(os.environ.get("HYPERSCALE_ELECTIONS", "20"))
    managers = [row.id for row in shared.file.managers if row.datacenter == "dc1"]
    seen: dict[str, set[tuple[str, str]]] = {gate.id: set() for gate in shared.file.gates}

    async def look(gate: str) -> None:
        async with shared.client(gate) as client:
            while True:
                rows = await client.list_datacenters()
                seen[gate] |= {(row.datacenter, row.reachability) for row in rows}
                await asyncio.sleep(0.1)

    def elect() -> None:
        leader = leader_of(shared, MANAGEMENT, among=managers)
        others = [name for name in managers if name != leader]
        (pid,) = shared.pause(leader)
        try:
            leader_of(shared, MANAGEMENT, among=others)
        finally:
            os.kill(pid, signal.SIGCONT)

    async def main() -> JobFinalResult:
        async with asyncio.TaskGroup() as tasks, shared.client() as client:
            looking = [tasks.create_task(look(gate)) for gate in seen]
            job = await client.submit_job(
                shared.paced(vus=VUS, duration="60s"), target_datacenters=BOTH
            )
            await running(client, shared, job, 50)
            for _ in range(count):
                await asyncio.to_thread(elect)
            final = await client.wait_for_completion(job, timeout=180)
            for task in looking:
                task.cancel()
        return final

    shared.heal()
    began_s = time.monotonic()
    final = asyncio.run(main())
    assert_exact(shared, final.result)
    gates_report().write(
        f"{count} elections among the managers of a datacenter",
        f"{facts(shared, final)}; {time.monotonic() - began_s:.0f} s in all",
        *(
            f"{gate} saw {', '.join(sorted(map(' '.join, states)))}"
            for gate, states in seen.items()
        ),
    )
    assert final.status == "completed", final.reason
    assert all(states == {(name, "reachable") for name in BOTH} for states in seen.values())


def test_every_node_of_gates_and_datacenters_is_restarted_under_a_job(shared: Cluster) -> None:
    duration_s = int(os.environ.get("HYPERSCALE_ROLLING_S", "180"))

    async def main() -> tuple[str, JobFinalResult, float]:
        async with shared.client() as client:
            job = await client.submit_job(
                shared.paced(vus=VUS, duration=f"{duration_s}s"), target_datacenters=BOTH
            )
            waiting = asyncio.create_task(client.wait_for_completion(job, timeout=duration_s + 180))
            await has_loaded(shared, 100)
            began_s = time.monotonic()
            for row in shared.file.nodes:
                os.kill(row.pid, signal.SIGTERM)
                await asyncio.to_thread(
                    until, lambda pid=row.pid: not is_alive(pid), what=f"{row.id} has ended"
                )
                shared.start(row.id)
                await asyncio.to_thread(shared.wait_ready)
            took_s = time.monotonic() - began_s
            return job, await waiting, took_s

    shared.heal()
    job, final, took_s = asyncio.run(main())
    result = final.result
    skew = "unknown" if result.start_skew_ms is None else f"{result.start_skew_ms:.0f} ms"
    gates_report().write(
        f"all {len(shared.file.nodes)} nodes restarted one by one during a job of {duration_s} s",
        f"{facts(shared, final)}; start skew {skew}; restarts took {took_s:.0f} s",
        *(f"segment of {each.worker}: {each.reason}" for each in result.segments),
    )
    assert final.status == "completed", final.reason
    assert took_s < duration_s, "the job ended before the last node was restarted"
    assert_exact(shared, result)
    assert asyncio.run(local_jobs(shared, job)) == dict.fromkeys(BOTH, 1)
