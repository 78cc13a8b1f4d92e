"""Gates, workers and whole datacenters fail while a job runs in two datacenters at once.

The client goes on by itself, each datacenter runs its part once, and the counts stay exact.
"""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from hyperscale.client.client import HyperscaleClient
from hyperscale.client.updates import JobFinalResult
from hyperscale.errors import RunError
from hyperscale.gates.datacenters.registry import DatacenterState
from hyperscale.jobs.committed.keys import job_id
from tests.cluster.test_gates import BOTH, SHAPE
from tests.lab.cluster import (
    Cluster,
    assert_exact,
    cut,
    leader_of,
    running,
    running_cluster,
    sent,
    status_is,
    users,
)
from tests.lab.loops import on_loop
from tests.lab.processes import is_alive
from tests.lab.waiting import until

VUS = 6


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("gates") / "lab", *SHAPE) as cluster:
        yield cluster


async def local_jobs(cluster: Cluster, job: str) -> dict[str, int]:
    """Return how many jobs each datacenter has made of a global job."""
    found = {}
    suffix = job_id("", 0, job).rpartition("-")[2]  # the key of a part is the global job's id
    for name in cluster.file.datacenters:
        managers = [row.id for row in cluster.file.managers if row.datacenter == name]
        async with cluster.client(*managers) as client:
            rows = (await client.get_jobs()).jobs
        found[name] = sum(row.job.endswith(suffix) for row in rows)
    return found


async def assert_ran_once(cluster: Cluster, job: str, final: JobFinalResult) -> None:
    """Assert that each datacenter ran its part once, undisturbed, and that the counts are exact."""
    assert final.status == "completed", (final.reason, final.errors)
    result = final.result
    assert_exact(cluster, result)
    assert (result.segments, result.gaps) == ([], [])
    assert cluster.counts()["connections"]["total"] == VUS
    assert await local_jobs(cluster, job) == dict.fromkeys(BOTH, 1)


async def has_loaded(cluster: Cluster, requests: int) -> None:
    what = f"the target has seen {requests} requests"
    await asyncio.to_thread(until, lambda: cluster.counts()["total"] > requests, what=what)


@pytest.mark.parametrize("moment", ["submitted", "dispatching", "running", "completing"])
@on_loop
async def test_another_gate_takes_over_when_the_owner_is_killed(
    cluster: Cluster, moment: str
) -> None:
    async with cluster.client() as client:
        job = await client.submit_job(
            cluster.paced(vus=VUS, duration="4s"), target_datacenters=BOTH
        )
        waiting = asyncio.create_task(client.wait_for_completion(job, timeout=90))
        match moment:
            case "dispatching":
                await status_is(client, job, "dispatching", "running")
            case "running":
                await has_loaded(cluster, 300)
            case "completing":
                await has_loaded(cluster, 100)
                await asyncio.to_thread(until, lambda: not users(cluster), what="the load is over")
        cluster.kill(leader_of(cluster, job))
        final = await waiting
    await assert_ran_once(cluster, job, final)


@on_loop
async def test_every_gate_gives_the_same_result(cluster: Cluster) -> None:
    async with cluster.client() as client:
        job = await client.submit_job(
            cluster.paced(vus=VUS, duration="2s"), target_datacenters=BOTH
        )
        await client.wait_for_completion(job, timeout=60)
    records = set()
    for gate in cluster.file.gates:
        async with cluster.client(gate.id) as client:
            records.add(await client.get_record(job, within_s=30.0))
    assert len(records) == 1


@on_loop
async def test_gates_are_restarted_one_by_one_under_a_job(cluster: Cluster) -> None:
    async with cluster.client() as client:
        job = await client.submit_job(
            cluster.paced(vus=VUS, duration="12s"), target_datacenters=BOTH
        )
        waiting = asyncio.create_task(client.wait_for_completion(job, timeout=90))
        await has_loaded(cluster, 100)
        for gate in cluster.file.gates:
            os.kill(gate.pid, signal.SIGTERM)
            await asyncio.to_thread(
                until, lambda pid=gate.pid: not is_alive(pid), what=f"{gate.id} has ended"
            )
            cluster.start(gate.id)
            await asyncio.to_thread(cluster.wait_ready)
        final = await waiting
    await assert_ran_once(cluster, job, final)


@on_loop
async def test_a_cancel_at_any_gate_ends_the_job_everywhere(cluster: Cluster) -> None:
    async with cluster.client() as client:
        job = await client.submit_job(
            cluster.paced(vus=VUS, duration="60s"), target_datacenters=BOTH
        )
        await running(client, cluster, job, 100)
    owner = leader_of(cluster, job)
    other = next(gate.id for gate in cluster.file.gates if gate.id != owner)
    cluster.kill(owner)
    async with cluster.client(other) as client:
        assert (await client.cancel_job(job, "enough")).accepted
        final = await client.wait_for_completion(job, timeout=60)
    assert (final.status, users(cluster)) == ("cancelled", 0)
    assert "enough" in final.reason
    assert_exact(cluster, final.result)


@on_loop
async def test_a_hundred_submissions_of_one_key_through_all_gates_are_one_job(
    cluster: Cluster,
) -> None:
    file = cluster.paced(vus=VUS, duration="2s")
    gates = [gate.id for gate in cluster.file.gates]

    async def submit(client: HyperscaleClient) -> str:
        return await client.submit_job(file, key="nightly", target_datacenters=BOTH)

    async with (
        cluster.client(gates[0]) as first,
        cluster.client(gates[1]) as second,
        cluster.client(gates[2]) as third,
    ):
        clients = (first, second, third)
        tasks = [asyncio.create_task(submit(clients[number % 3])) for number in range(100)]
        for task in tasks[::10]:  # acknowledgements that are lost
            asyncio.get_running_loop().call_later(0.05, task.cancel)
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        jobs = {answer for answer in answers if not isinstance(answer, asyncio.CancelledError)}
        assert len(jobs) == 1, jobs
        (job,) = jobs
        assert isinstance(job, str)
        final = await first.wait_for_completion(job, timeout=60)
    await assert_ran_once(cluster, job, final)


@on_loop
async def test_a_minority_of_gates_refuses_jobs_and_dispatches_nothing(cluster: Cluster) -> None:
    alone, *others = (gate.id for gate in cluster.file.gates)
    for name in others:
        cluster.kill(name)
    async with cluster.client(alone) as client:
        with pytest.raises(RunError, match="too few gates are up"):
            await client.submit_job(
                cluster.paced(vus=VUS, duration="2s"),
                target_datacenters=BOTH,
                submit_timeout="8s",
            )
    assert cluster.counts()["total"] == 0


@pytest.mark.parametrize("policy", ["best_effort", "all_or_nothing"])
@on_loop
async def test_a_datacenter_without_workers_fails_its_part_under_both_policies(
    cluster: Cluster, policy: str
) -> None:
    async with cluster.client() as client:
        job = await client.submit_job(
            cluster.paced(vus=VUS, duration="15s"),
            target_datacenters=BOTH,
            on_datacenter_lost=policy,
            dispatch_timeout="2s",
        )
        await running(client, cluster, job, 100)
        cluster.kill("dc2-worker-1")
        final = await client.wait_for_completion(job, timeout=90)
    result = final.result
    assert_exact(cluster, result)
    assert "dc2" in final.reason
    if policy == "best_effort":
        assert (final.status, final.exit_code) == ("partial", 3)
        assert result.workflows[0].elapsed_seconds >= 14
    else:
        assert (final.status, final.exit_code) == ("failed", 3)
        assert "all or nothing" in final.reason
        assert users(cluster) == 0


@pytest.mark.timeout(180)
@on_loop
async def test_a_datacenter_that_was_killed_goes_on_when_it_is_back(cluster: Cluster) -> None:
    async with cluster.client() as client:
        job = await client.submit_job(
            cluster.paced(vus=VUS, duration="10s"), target_datacenters=BOTH
        )
        await running(client, cluster, job, 200)
        nodes = [node.id for node in cluster.file.nodes if node.datacenter == "dc2"]
        for name in nodes:
            cluster.kill(name)
        for name in nodes:
            cluster.start(name)
        final = await client.wait_for_completion(job, timeout=120)
    assert final.status == "completed", final.reason
    assert_exact(cluster, final.result)
    assert cluster.counts()["connections"]["peak"] <= VUS
    assert await local_jobs(cluster, job) == dict.fromkeys(BOTH, 1)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("policy", ["best_effort", "all_or_nothing"])
@on_loop
async def test_a_datacenter_that_was_killed_and_removed_ends_its_part_under_both_policies(
    cluster: Cluster, policy: str
) -> None:
    async with cluster.client() as client:
        job = await client.submit_job(
            cluster.paced(vus=VUS, duration="10s"),
            target_datacenters=BOTH,
            on_datacenter_lost=policy,
        )
        await running(client, cluster, job, 200)
        for name in [node.id for node in cluster.file.nodes if node.datacenter == "dc2"]:
            cluster.kill(name)
        await client.change_datacenter("dc2", DatacenterState.REMOVED, force=True)
        try:
            final = await client.wait_for_completion(job, timeout=120)
        finally:
            await client.change_datacenter("dc2", DatacenterState.ACTIVE)
    assert "dc2" in final.reason
    assert final.exit_code == 3
    # What dc2 had sent and not reported is a gap with a bound.
    assert_exact(cluster, final.result)
    assert users(cluster) == 0
    assert final.status == ("partial" if policy == "best_effort" else "failed")


@on_loop
async def test_jobs_of_gates_and_of_managers_run_side_by_side(cluster: Cluster) -> None:
    file = cluster.paced(vus=VUS, duration="2s")
    async with cluster.client() as gates, cluster.client("dc1-manager-1") as manager:
        jobs = [
            await gates.submit_job(file, target_datacenters=BOTH),
            await manager.submit_job(file),  # waits for the only core of dc1
            await gates.submit_job(file, target_datacenters=BOTH),  # dc1 is busy
        ]
        finals = [
            await client.wait_for_completion(job, timeout=90)
            for client, job in zip((gates, manager, gates), jobs, strict=True)
        ]
    assert [final.status for final in finals] == ["completed"] * 3
    total = sum(sent(final.result) for final in finals)
    cut_off = sum(cut(final.result) for final in finals)
    assert total - cut_off <= cluster.counts()["total"] <= total
