"""Jobs on three workers are scaled, paused and resumed while they run."""

import asyncio

import pytest

from hyperscale.client.client import HyperscaleClient
from hyperscale.errors import InputError
from hyperscale.reporting.results import RunStatus
from tests.lab.cluster import Cluster, leader_of, running, users
from tests.lab.loops import on_loop
from tests.lab.waiting import WAIT_S


async def until_users(cluster: Cluster, count: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while users(cluster) != count:
            await asyncio.sleep(0.05)


async def until_quiet(cluster: Cluster) -> int:
    """Wait until no request arrives for a second; return how many have arrived."""
    async with asyncio.timeout(WAIT_S):
        while True:
            before = cluster.counts()["total"]
            await asyncio.sleep(1.0)
            if cluster.counts()["total"] == before:
                return int(before)


async def until_more(cluster: Cluster, count: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while cluster.counts()["total"] <= count:
            await asyncio.sleep(0.05)


@on_loop
async def test_a_change_survives_the_leader_and_reaches_a_part_that_is_run_again(
    cluster: Cluster,
) -> None:
    async with cluster.client() as client:
        job = await client.submit_job(cluster.paced(vus=3, duration="25s"))
        await running(client, cluster, job, 50)
        leader = leader_of(cluster, job)
        await client.scale_job(job, vus=12)
        cluster.kill(leader)
        await until_users(cluster, 12)
        cluster.kill("worker-1")
        await until_users(cluster, 8)
        await until_users(cluster, 12)
        final = await client.wait_for_completion(job, timeout=90)
    (load,) = final.result.workflows
    assert final.result.status is RunStatus.COMPLETED
    assert [(each.kind, each.target) for each in load.changes] == [("scale", 12.0)]


@on_loop
async def test_a_paused_job_sends_nothing_and_goes_on_where_it_was(cluster: Cluster) -> None:
    async with cluster.client() as client:
        job = await client.submit_job(cluster.paced(vus=3, duration="6s"))
        await running(client, cluster, job, 50)
        await client.pause_job(job)
        before = await until_quiet(cluster)
        with pytest.raises(InputError, match="paused already"):
            await client.pause_job(job)
        await client.resume_job(job)
        await until_more(cluster, before)
        final = await client.wait_for_completion(job, timeout=60)
    (load,) = final.result.workflows
    assert final.result.status is RunStatus.COMPLETED
    assert [each.kind for each in load.changes] == ["pause", "resume"]
    assert load.paused_seconds >= 1.0
    assert load.elapsed_seconds >= 6.0 + load.paused_seconds - 0.5
    assert load.sent == cluster.counts()["total"]


@on_loop
async def test_a_rate_is_scaled_for_all_workers_together(cluster: Cluster) -> None:
    file = cluster.write("""
class Rate(Workflow):
    rate = "30/s"
    duration = "8s"
    max_vus = 60

    @step()
    async def page(self, url: URL = "URL_/delay/20") -> HTTPResponse:
        return await self.client.http.get(url)
""")
    async with cluster.client() as client:
        job = await client.submit_job(file)
        await running(client, cluster, job, 30)
        await client.scale_job(job, rate="90/s")
        final = await client.wait_for_completion(job, timeout=60)
    (rate,) = final.result.workflows
    (change,) = rate.changes
    planned = 30 * change.at_seconds + 90 * (8 - change.at_seconds)
    assert abs(rate.arrivals - planned) <= 12  # three workers, each a few arrivals off


@on_loop
async def test_changes_that_do_not_fit_exit_with_2(cluster: Cluster) -> None:
    async with cluster.client() as client:
        job = await client.submit_job(cluster.paced(vus=3, duration="5m"))
        await running(client, cluster, job, 10)
        await asyncio.to_thread(_refused, cluster, job)
        await client.cancel_job(job)
        await client.wait_for_completion(job, timeout=30)
        with pytest.raises(InputError, match="has ended: cancelled"):
            await client.pause_job(job)
        await _unknown(client)


def _refused(cluster: Cluster, job: str) -> None:
    where = ("--dir", str(cluster.directory))
    for words, message in {
        ("scale", job, "--rate", "5/s"): "Load has users and no rate",
        ("scale", job, "--vus", "5", "--workflow", "Shop"): "there is no workflow Shop",
        ("scale", job, "--vus", "x"): "--vus: 'x' is not a whole number",
        ("scale", job): "give --vus or --rate, and not both",
        ("scale", job, "--vus", "5", "--run", "x"): "give a job or --run, and not both",
        ("resume", job): "the load is not paused",
        ("pause", "default.1-nothing"): "default.1-nothing",
    }.items():
        done = cluster.run(*words, *where)
        assert done.returncode == 2, done
        assert message in done.stderr, words
    done = cluster.run("scale", job, "--vus", "6", "--over", "1s", *where)
    assert (done.returncode, done.stdout) == (0, "the load goes to 6 users over 1 s\n")


async def _unknown(client: HyperscaleClient) -> None:
    with pytest.raises(InputError, match="no job"):
        await client.resume_job("default.1-nothing")
