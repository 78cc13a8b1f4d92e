"""Three gates and two datacenters as real processes, started by `hyperscale cluster up`."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from hyperscale.reporting.results import RunStatus
from tests.cluster.test_load_changes import until_more, until_quiet, until_users
from tests.execution.server import CountingServer
from tests.lab.cluster import (
    Cluster,
    assert_exact,
    leader_of,
    running,
    running_cluster,
    users,
)
from tests.lab.loops import on_loop

SHAPE = ("--gates", "3", "--datacenters", "2", "--managers", "1", "--workers", "1")
BOTH = ["dc1", "dc2"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("gates") / "lab", *SHAPE) as cluster:
        yield cluster


def test_a_job_submitted_with_dir_runs_in_all_datacenters(cluster: Cluster) -> None:
    where = ("--dir", str(cluster.directory))
    listed = cluster.run("datacenters", *where, "--json")
    rows = json.loads(listed.stdout)["datacenters"]
    assert [(row["datacenter"], row["health"], row["workers"]) for row in rows] == [
        ("dc1", "healthy", 1),
        ("dc2", "healthy", 1),
    ]
    out = cluster.directory.parent / "out.json"
    done = cluster.run(
        *("submit", str(cluster.paced(duration="2s")), *where),
        *("--datacenters", "2", "--json", str(out)),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert sorted(result["datacenters"]) == BOTH
    total = sum(step["sent"] for step in result["workflows"][0]["steps"])
    assert cluster.counts()["total"] == total
    (job,) = done.stdout.split()[1:2]
    assert "completed" in cluster.run("jobs", *where).stdout
    assert cluster.run("results", job, *where).returncode == 0


@on_loop
async def test_datacenters_share_the_arrivals_and_the_rows_of_a_job(cluster: Cluster) -> None:
    with CountingServer() as server:
        file = cluster.write(f"""
from hyperscale import Feed

class Fed(Workflow):
    vus = 4
    duration = "30s"
    rows = Feed([{{"url": f"{server.url}/{{row}}"}} for row in range(301)], take="once")

    @step()
    async def page(self, url: URL = rows.column("url")) -> HTTPResponse:
        return await self.client.http.get(url)

class Rate(Workflow):
    rate = "51/s"
    duration = "1s"
    max_vus = 60

    @step()
    async def get(self, url: URL = "URL_/") -> HTTPResponse:
        return await self.client.http.get(url)
""")
        async with cluster.client() as client:
            job = await client.submit_job(file, datacenter_count=2)
            final = await client.wait_for_completion(job, timeout=90)
        used = Counter(int(request.rpartition("/")[2]) for request in server.requests.elements())
    fed, rate = final.result.workflows
    assert used == dict.fromkeys(range(301), 1)
    assert (fed.sent, final.result.gaps) == (301, [])
    assert rate.arrivals == 51


def failing_later(cluster: Cluster, switch: Path, *, vus: int) -> Path:
    """Write a test whose requests fail once a file exists, with a threshold that ends it then."""
    return cluster.write(f"""
import os

class Load(Workflow):
    vus = {vus}
    duration = "120s"
    thresholds = {{"errors": {{"limit": "<5%", "abort_on_fail": True}}}}

    @step()
    async def get(self) -> HTTPResponse:
        path = "/status/500" if os.path.exists({str(switch)!r}) else "/delay/20"
        await asyncio.sleep(0.02)
        return await self.client.http.get("URL_" + path)
""")


@on_loop
async def test_a_joint_threshold_ends_the_job_in_all_datacenters(
    cluster: Cluster, tmp_path: Path
) -> None:
    switch = tmp_path / "fail"
    async with cluster.client() as client:
        job = await client.submit_job(failing_later(cluster, switch, vus=4), datacenter_count=2)
        await running(client, cluster, job, 20)
        switch.touch()
        final = await client.wait_for_completion(job, timeout=60)
    assert (final.status, final.result.aborted_by) == ("failed", "Load")
    assert "stopped by the threshold of Load" in final.reason
    assert users(cluster) == 0
    assert_exact(cluster, final.result)


def test_the_cluster_file_names_the_datacenter_of_each_node(cluster: Cluster) -> None:
    found = json.loads((cluster.directory / "cluster.json").read_text())
    assert found["datacenters"] == BOTH
    nodes = [*found["gates"], *found["managers"], *found["workers"]]
    assert {node["id"]: node["datacenter"] for node in nodes} == {
        **dict.fromkeys(("gate-1", "gate-2", "gate-3"), ""),
        **{f"{name}-{role}-1": name for name in BOTH for role in ("manager", "worker")},
    }


@pytest.mark.timeout(180)
@on_loop
async def test_a_job_is_scaled_paused_and_resumed_in_all_datacenters(cluster: Cluster) -> None:
    where = ("--dir", str(cluster.directory))
    async with cluster.client() as client:
        job = await client.submit_job(cluster.paced(vus=4, duration="5m"), datacenter_count=2)
        await running(client, cluster, job, 50)
        done = await asyncio.to_thread(cluster.run, "scale", job, "--vus", "10", *where)
        assert (done.returncode, done.stdout) == (0, "the load goes to 10 users\n"), done.stderr
        await until_users(cluster, 10)
        done = await asyncio.to_thread(cluster.run, "scale", job, "--rate", "5/s", *where)
        assert done.returncode == 2
        assert "Load has users and no rate" in done.stderr
        cluster.kill(leader_of(cluster, job))
        await client.pause_job(job)
        before = await until_quiet(cluster)
        await client.resume_job(job)
        await until_more(cluster, before)
        await client.cancel_job(job)
        final = await client.wait_for_completion(job, timeout=90)
    (load,) = final.result.workflows
    assert final.result.status is RunStatus.CANCELLED
    assert [(each.kind, each.target) for each in load.changes] == [
        ("scale", 10.0),
        ("pause", None),
        ("resume", None),
    ]
    for each in final.result.datacenter_results:
        (mine,) = each.workflows
        assert [change.target for change in mine.changes] == [5.0, None, None]
    assert_exact(cluster, final.result)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [4, 5])
def test_all_checks_hold_under_chaos(cluster: Cluster, seed: int) -> None:
    done = cluster.command(
        *("chaos", "--dir", str(cluster.directory), "--seed", str(seed), "--duration", "10s")
    )
    stdout, stderr = done.communicate(timeout=150)
    assert (done.returncode, stderr) == (0, ""), stdout
