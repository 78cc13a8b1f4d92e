"""Nodes die or pause while a job runs: the job continues and its results stay exact."""

import asyncio
import resource
import time

import pytest

from hyperscale.client.client import HyperscaleClient
from hyperscale.client.messages import WatchJobUpdate
from hyperscale.lab.node_processes import children_of
from hyperscale.lab.readiness import why_not_ready
from tests.lab.cluster import Cluster, assert_exact, leader_of, running, users
from tests.lab.loops import on_loop
from tests.lab.processes import is_alive
from tests.lab.waiting import WAIT_S, until

LOW_LIMIT = 70  # enough file descriptors to start a worker, not enough to be fit


async def watched(client: HyperscaleClient, job: str) -> list[WatchJobUpdate]:
    return [news async for news in client.follow_job(job)]


@on_loop
async def test_a_killed_worker_is_replaced_for_the_rest_of_the_time(cluster: Cluster) -> None:
    async with cluster.client() as client:
        job = await client.submit_job(cluster.paced(vus=6, duration="10s"))
        await running(client, cluster, job, 0)
        began_s = time.monotonic()
        await running(client, cluster, job, 500)
        victim = (await client.get_job(job)).job.workflows[0].workers[0]
        executors = children_of(cluster.node(victim).pid)
        killed_s = time.monotonic()
        cluster.kill(victim)
        final = await client.wait_for_completion(job)
    result, counts = final.result, cluster.counts()
    assert (final.status, final.exit_code) == ("completed", 0)
    assert_exact(cluster, result)
    assert [segment.worker for segment in result.segments] == [victim]
    assert {gap.worker for gap in result.gaps} <= {victim}
    assert result.attempts == len(result.workflows[0].workers) + 1
    # The new attempt runs for the remaining time only.
    assert result.workflows[0].elapsed_seconds < 10.0 + killed_s - began_s
    # The new attempt has as many virtual users as the old one, whose executor is gone.
    assert counts["connections"]["total"] == 6 + 6 // result.workflows[0].cores
    assert max(cluster.per_second().values()) <= 6 * 51  # requests at both ends of a second count
    until(
        lambda: not any(map(is_alive, executors)),
        what="the executors of the killed worker are gone",
    )


@on_loop
async def test_a_job_continues_when_its_leader_is_killed(cluster: Cluster) -> None:
    async with cluster.client() as client:
        job = await client.submit_job(cluster.paced(vus=6, duration="6s"))
        watching = asyncio.create_task(watched(client, job))
        await running(client, cluster, job, 300)
        cluster.kill(leader_of(cluster, job))
        news = await watching
        result = await client.get_results(job)
    assert news[-1].job.status.value == "completed"
    assert_exact(cluster, result)
    assert (result.segments, result.gaps) == ([], [])
    assert result.attempts == len(result.workflows[0].workers)  # no part has a second attempt
    assert cluster.counts()["connections"]["total"] == 6


@on_loop
async def test_a_job_is_cancelled_while_its_leader_is_gone(cluster: Cluster) -> None:
    async with cluster.client() as client:
        job = await client.submit_job(cluster.paced(vus=6, duration="60s"))
        await running(client, cluster, job, 300)
        cluster.kill(leader_of(cluster, job))
        assert (await client.cancel_job(job, "no more")).accepted
        final = await client.wait_for_completion(job)
    assert final.status == "cancelled"
    assert "no more" in final.reason
    assert_exact(cluster, final.result)


@on_loop
async def test_a_submission_survives_the_loss_of_managers(cluster: Cluster) -> None:
    """The manager that is asked first is dead: another one accepts the job, once."""
    cluster.kill("manager-2")
    async with cluster.client("manager-2", "manager-1", "manager-3") as client:
        job = await client.submit_job(cluster.paced(vus=3, duration="1s"), key="once")
        other = await client.submit_job(cluster.paced(vus=3, duration="1s"), key="twice")
        finals = [await client.wait_for_completion(each) for each in (job, other)]
    assert job != other
    assert [final.status for final in finals] == ["completed", "completed"]


async def receiver(cluster: Cluster) -> str:
    """Return the manager that receives a bundle, as soon as there is one.

    It runs on the loop of the client, between the pieces of the bundle."""
    data = cluster.directory / "data"
    async with asyncio.timeout(WAIT_S):
        while not (found := list(data.rglob("*.part"))):
            await asyncio.sleep(0)
    return found[0].relative_to(data).parts[0]


@on_loop
async def test_a_submission_survives_the_loss_of_the_manager_that_gets_its_bundle(
    cluster: Cluster,
) -> None:
    file = cluster.paced(vus=3, duration="1s")
    file.write_text("import large\n" + file.read_text())
    file.with_name("large.py").write_text("# nothing but this remark\n" * 200_000)
    async with cluster.client() as client:
        submitting = asyncio.create_task(client.submit_job(file))
        cluster.kill(await receiver(cluster))
        job = await submitting
        final = await client.wait_for_completion(job)
    assert final.status == "completed", final.reason
    assert_exact(cluster, final.result)


@on_loop
async def test_an_unfit_worker_gets_no_part_and_recovers_by_itself(cluster: Cluster) -> None:
    sick = cluster.file.workers[0].id
    cluster.kill(sick)
    parent = cluster.file.pid
    usual = resource.prlimit(parent, resource.RLIMIT_NOFILE)
    resource.prlimit(parent, resource.RLIMIT_NOFILE, (LOW_LIMIT, usual[1]))  # it is inherited
    try:
        cluster.start(sick)
    finally:
        resource.prlimit(parent, resource.RLIMIT_NOFILE, usual)
    until(
        lambda: f"of {LOW_LIMIT} file descriptors" in why_not_ready(cluster.node(sick)),
        what="the worker says why it is not ready",
    )
    async with cluster.client() as client:
        for number in range(2):
            job = await client.submit_job(cluster.paced(duration="1s", name=f"Load{number}"))
            final = await client.wait_for_completion(job)
            assert final.status == "completed"
            assert sick not in final.result.workflows[0].workers
            assert final.result.segments == []
    told = await asyncio.to_thread(cluster.run, "workers", "--dir", str(cluster.directory))
    assert "not ready" in told.stdout
    assert f"{sick} gets no work" in told.stderr
    resource.prlimit(cluster.node(sick).pid, resource.RLIMIT_NOFILE, usual)
    cluster.wait_ready()


@on_loop
async def test_second_nodes_of_living_names_leave_a_running_job_undisturbed(
    cluster: Cluster,
) -> None:
    async with cluster.client() as client:
        job = await client.submit_job(cluster.paced(vus=6, duration="6s"))
        await running(client, cluster, job, 100)
        for name in ("worker-1", leader_of(cluster, job)):
            argv = cluster.node(name).argv
            words = argv[argv.index(name.partition("-")[0]) :]
            for flag, value in (("--port", "0"), ("--http-port", "0")):
                words[words.index(flag) + 1] = value
            words[words.index("--data-dir") + 1] = str(cluster.directory / f"second-{name}")
            second = await asyncio.to_thread(cluster.run, *words)
            assert second.returncode == 3, second.stderr
            assert f"the name '{name}' is taken" in second.stderr
        final = await client.wait_for_completion(job)
    assert (final.status, final.exit_code) == ("completed", 0)
    assert_exact(cluster, final.result)
    assert (final.result.segments, final.result.gaps) == ([], [])
    assert not any(map(why_not_ready, cluster.file.nodes))


@pytest.mark.soak
@on_loop
async def test_load_stops_without_a_majority_of_managers_and_continues_with_one(
    cluster: Cluster,
) -> None:
    async with cluster.client() as client:
        job = await client.submit_job(cluster.paced(vus=6, duration="20s"))
        await running(client, cluster, job, 200)
        lost = [manager.id for manager in cluster.file.managers[:2]]
        for name in lost:
            cluster.kill(name)
        # Leases that nothing renews: the connections of all users are closed.
        await asyncio.to_thread(until, lambda: users(cluster) == 0, what="the load has stopped")
        assert why_not_ready(cluster.file.managers[2])
        for name in lost:
            cluster.start(name)
        final = await client.wait_for_completion(job)
    assert (final.status, final.exit_code) == ("completed", 0)
    assert_exact(cluster, final.result)
    assert final.result.workflows[0].elapsed_seconds >= 20
