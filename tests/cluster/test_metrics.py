"""Metrics of nodes while jobs run, wait, fail and lose executors; thresholds on metrics."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from hyperscale.client.cluster_file import ClusterNode
from hyperscale.lab.node_processes import children_of
from tests.lab.cluster import Cluster, running, running_cluster, status_is
from tests.lab.loops import on_loop
from tests.lab.waiting import until


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("metrics") / "lab"
    with running_cluster(directory, "--managers", "1", "--workers", "1", "--cores", "1") as one:
        yield one


def value(node: ClusterNode, sample: str) -> float:
    """Return the value of one sample, named with its labels."""
    text = urlopen(f"http://{node.http}/metrics").read().decode()
    found = [line for line in text.splitlines() if line.rpartition(" ")[0] == sample]
    assert len(found) == 1, f"{sample}: {found}"
    return float(found[0].rpartition(" ")[2])


@on_loop
async def test_jobs_cores_queue_and_load_are_counted(small: Cluster) -> None:
    manager, worker = small.file.managers[0], small.file.workers[0]
    small.heal()
    async with small.client() as client:
        first = await client.submit_job(small.paced(vus=3, duration="4s"))
        await running(client, small, first, 20)
        assert value(manager, 'hyperscale_jobs{state="running"}') == 1
        assert value(manager, "hyperscale_cores") == 1
        assert value(manager, "hyperscale_cores_free") == 0
        second = await client.submit_job(small.paced(vus=1, duration="500ms"))
        await status_is(client, second, "queued")
        assert value(manager, 'hyperscale_jobs{state="queued"}') == 1
        assert value(manager, "hyperscale_queue_length") == 1
        age_s = value(manager, "hyperscale_queue_oldest_age_seconds")
        assert 0 < age_s < 60
        for job in (first, second):
            assert (await client.wait_for_completion(job)).status == "completed"
    assert value(manager, 'hyperscale_jobs_ended_total{state="completed"}') == 2
    assert value(manager, "hyperscale_jobs_submitted_total") == 2
    assert value(manager, "hyperscale_queue_length") == 0
    assert value(manager, "hyperscale_queue_oldest_age_seconds") == 0
    assert value(worker, "hyperscale_load_requests_total") == small.counts()["total"]
    assert value(worker, "hyperscale_load_failed_calls_total") == 0
    until(lambda: value(manager, "hyperscale_cores_free") == 1, what="the core is free")
    for group in (0, 1):
        assert value(manager, f'hyperscale_ledger_has_leader{{group="{group}"}}') == 1
        assert value(manager, f'hyperscale_ledger_has_quorum{{group="{group}"}}') == 1
    assert value(manager, 'hyperscale_disk_used_bytes{content="ledger"}') > 0


@on_loop
async def test_failures_retries_and_executors_that_die_are_counted(small: Cluster) -> None:
    manager, worker = small.file.managers[0], small.file.workers[0]
    small.heal()
    failing = small.write(
        """
        class Broken(Workflow):
            vus = 1
            duration = "1s"

            @setup()
            async def prepare(self):
                raise ValueError("no such shop")

            @step()
            async def get(self, url: URL = "URL_/") -> HTTPResponse:
                return await self.client.http.get(url)
        """
    )
    died = 'hyperscale_executors_ended_total{cause="died"}'
    before = value(worker, "hyperscale_executors_started_total"), value(worker, died)
    async with small.client() as client:
        broken = await client.submit_job(failing)
        assert (await client.wait_for_completion(broken)).status == "failed"
        assert value(manager, 'hyperscale_job_failures_total{reason="test"}') == 1
        assert value(manager, 'hyperscale_jobs_ended_total{state="failed"}') == 1
        job = await client.submit_job(small.paced(vus=1, duration="5s"))
        await running(client, small, job, 5)
        for pid in children_of(worker.pid):
            os.kill(pid, signal.SIGKILL)
        await client.wait_for_completion(job)
    assert value(manager, 'hyperscale_attempts_failed_total{fault="executor_died"}') >= 1
    await asyncio.to_thread(
        until,
        lambda: value(worker, "hyperscale_executors_started_total") > before[0],
        what="the executor is replaced",
    )
    assert value(worker, died) > before[1]
    assert value(worker, "hyperscale_executors") >= 0


def test_thresholds_on_a_metric_are_judged_alike_on_one_machine_and_on_a_cluster(
    small: Cluster, tmp_path: Path
) -> None:
    small.heal()
    file = small.write(
        """
        from hyperscale import metric

        class Shop(Workflow):
            vus = 2
            duration = "1s"
            thresholds = {
                "basket": "<6", "basket.p99": "<6", "basket.mean": "<6", "basket.max": "<4",
                "wait.p99": "<1s", "wait.max": "<100ms", "buy.p99": "<1s",
            }

            @step()
            async def buy(self, url: URL = "URL_/delay/20") -> HTTPResponse:
                return await self.client.http.get(url)

            @metric("distribution")
            def basket(self, buy: HTTPResponse) -> float:
                return 5.0

            @metric("timer")
            def wait(self, buy: HTTPResponse) -> float:
                return 0.5

        class Other(Workflow):
            vus = 1
            duration = "1s"

            @step()
            async def get(self, url: URL = "URL_/delay/20") -> HTTPResponse:
                return await self.client.http.get(url)
        """
    )
    judged = []
    for words in (
        ("run", str(file)),
        ("run", str(file), "--only", "Shop"),
        ("run", str(file), "--threshold", "basket.p95<4"),
        ("submit", str(file), "--watch", "--dir", str(small.directory)),
        ("submit", str(file), "--watch", "--dir", str(small.directory), "--only", "Shop"),
        (
            "submit",
            str(file),
            "--watch",
            "--dir",
            str(small.directory),
            "--threshold",
            "basket.p95<4",
        ),
    ):
        out = tmp_path / str(len(judged))
        done = small.run(*words, "--ui", "none", "--json", f"{out}.json", "--out", str(out))
        assert done.returncode == 1, done.stderr
        rows = json.loads(Path(f"{out}.json").read_text())["thresholds"]
        judged.append({row["name"]: row["passed"] for row in rows})
    own = {
        "basket": True,
        "basket.p99": True,
        "basket.mean": True,
        "basket.max": False,
        "wait.p99": True,
        "wait.max": False,
        "buy.p99": True,
    }
    assert judged == 2 * [own, own, {**own, "basket.p95": False}]
