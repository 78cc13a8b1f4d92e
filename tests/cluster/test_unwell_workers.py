"""Workers that are alive and unwell get no new part, and get parts again after relief."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hyperscale.client.client import HyperscaleClient
from hyperscale.client.messages import WorkerRow
from hyperscale.health.signals import RoutingDecision
from hyperscale.lab.node_processes import children_of
from tests.lab.cluster import Cluster, running, running_cluster
from tests.lab.loops import on_loop
from tests.lab.waiting import WAIT_S

UNWELL = (RoutingDecision.HOLD, RoutingDecision.DRAIN, RoutingDecision.EVICT)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("unwell")
    with running_cluster(directory / "lab", "--managers", "1", "--workers", "2") as cluster:
        yield cluster


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Suspend processes for a while."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


async def row_of(client: HyperscaleClient, worker: str, *decisions: RoutingDecision) -> WorkerRow:
    """Wait until the allocator has decided so about a worker."""
    async with asyncio.timeout(WAIT_S):
        while True:
            rows = {row.worker: row for row in (await client.get_workers()).workers}
            if rows[worker].routing in decisions:
                return rows[worker]
            await asyncio.sleep(0.05)


async def workers_of_next_job(client: HyperscaleClient, cluster: Cluster) -> set[str]:
    """Run a job that would like all cores, and return where it ran."""
    job = await client.submit_job(cluster.paced(vus=8, duration="300ms", name="Next"))
    final = await client.wait_for_completion(job)
    assert final.status == "completed", final.reason
    return set(final.result.workflows[0].workers)


@on_loop
async def test_a_worker_with_a_suspended_executor_gets_no_part_until_it_reports_again(
    cluster: Cluster,
) -> None:
    async with cluster.client() as client:
        # Without a lease that would end the suspended executor.
        path = cluster.paced(vus=1, duration="2m")
        job = await client.submit_job(path, on_isolation="continue")
        await running(client, cluster, job, 5)
        (worker,) = (await client.get_job(job)).job.workflows[0].workers
        with stopped(*children_of(cluster.node(worker).pid)):
            row = await row_of(client, worker, RoutingDecision.DRAIN)
            assert row.why == f"an executor of Load of {job} has not reported for 3 s"
            assert worker not in await workers_of_next_job(client, cluster)
        await row_of(client, worker, RoutingDecision.ROUTE)
        await client.cancel_job(job)
        await client.wait_for_completion(job)
        assert worker in await workers_of_next_job(client, cluster)


@on_loop
async def test_a_worker_whose_agent_is_held_gets_no_part_until_it_announces_again(
    cluster: Cluster,
) -> None:
    async with cluster.client() as client:
        with stopped(cluster.node("worker-1").pid):
            await row_of(client, "worker-1", *UNWELL)
            assert await workers_of_next_job(client, cluster) == {"worker-2"}
        await row_of(client, "worker-1", RoutingDecision.ROUTE)
        assert "worker-1" in await workers_of_next_job(client, cluster)
