"""Sick workers cost nothing: parts that fail on one worker are run by the others."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hyperscale.lab.node_processes import children_of
from hyperscale.lab.readiness import why_not_ready
from tests.lab.cluster import Cluster, assert_exact, running, running_cluster, users
from tests.lab.disks import full, mounted, read_only
from tests.lab.loops import on_loop
from tests.lab.waiting import WAIT_S, until

SICK = "worker-1"
JOBS = 10
KILLS = 4


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run a cluster that allows one retry more than by default."""
    directory = tmp_path_factory.mktemp("cluster")
    config = directory / "nodes.toml"
    config.write_text(f"[retries]\nmax = {KILLS}\n")
    with running_cluster(directory / "lab", "--config", str(config)) as cluster:
        yield cluster


@pytest.fixture
def disk(cluster: Cluster) -> Iterator[Path]:
    """Yield the data directory of a worker, which is a small disk of its own."""
    directory = cluster.directory / "data" / SICK
    cluster.kill(SICK)
    with mounted(directory, "size=160m"):
        cluster.start(SICK)
        cluster.wait_ready()
        pid = cluster.node(SICK).pid
        yield directory
        assert cluster.node(SICK).pid == pid  # trouble with its disk ends no worker
        cluster.kill(SICK)


@pytest.mark.parametrize("trouble", ["full", "read-only"])
@on_loop
async def test_ten_of_ten_jobs_complete_beside_a_worker_whose_disk_fails(
    cluster: Cluster, disk: Path, trouble: str
) -> None:
    with full(disk) if trouble == "full" else read_only(disk):
        await ten_jobs(cluster)


async def ten_jobs(cluster: Cluster) -> None:
    async with cluster.client() as client:
        jobs = [
            await client.submit_job(cluster.paced(vus=3, duration="300ms", name=f"Load{number}"))
            for number in range(JOBS)
        ]
        finals = [await client.wait_for_completion(job) for job in jobs]
    assert [final.status for final in finals] == ["completed"] * JOBS
    ran_on = {name for final in finals for name in final.result.workflows[0].workers}
    assert ran_on == {"worker-2", "worker-3"}
    total = cluster.counts()["total"]
    assert total == sum(
        step.sent for final in finals for each in final.result.workflows for step in each.steps
    )
    until(
        lambda: bool(why_not_ready(cluster.node(SICK))), what="the worker says that it is not ready"
    )


@on_loop
async def test_a_part_whose_executor_is_killed_goes_to_a_worker_that_has_not_had_it(
    cluster: Cluster,
) -> None:
    async with cluster.client() as client:
        job = await client.submit_job(cluster.paced(vus=1, duration="8s"))
        await running(client, cluster, job, 10)
        had = []
        for _ in range(KILLS):
            row = (await client.get_job(job)).job.workflows[0]
            had += row.workers
            for pid in children_of(cluster.node(had[-1]).pid):
                os.kill(pid, signal.SIGKILL)
            async with asyncio.timeout(WAIT_S):
                while (await client.get_job(job)).job.workflows[0].attempts == row.attempts:
                    await asyncio.sleep(0.05)
            await asyncio.to_thread(until, lambda: users(cluster) == 1, what="the load is back")
        final = await client.wait_for_completion(job)
    assert final.status == "completed", final.reason
    assert_exact(cluster, final.result)
    assert cluster.counts()["connections"]["peak"] == 1
    assert [segment.worker for segment in final.result.segments] == had
    assert sorted(had[:3]) == ["worker-1", "worker-2", "worker-3"]
    assert had[3] == had[0]  # all have had it: the first one is excluded longest
