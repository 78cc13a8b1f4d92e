"""Managers send results and live statistics of jobs, with credentials of their own."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hyperscale.client.client import HyperscaleClient
from hyperscale.errors import InputError
from hyperscale.jobs.committed.state import Reported
from tests.lab.cluster import Cluster, leader_of, running, running_cluster, sent
from tests.lab.loops import on_loop
from tests.lab.receiver import Receiver
from tests.lab.waiting import WAIT_S, until

TOKEN = "sesame-of-the-managers"


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("reports")
    (folder / "reporters.toml").write_text(
        f'[reporters.metrics]\ntype = "influxdb"\nurl = "{receiver.url}"\nbucket = "load"\n'
        'token = "${METRICS_TOKEN}"\n\n'
        '[reporters.gone]\ntype = "influxdb"\nurl = "http://127.0.0.1:9"\nbucket = "load"\n'
        "deadline_s = 1.0\n\n"
        f'[streams.live]\ntype = "jsonl"\npath = "{folder}/live.jsonl"\n'
    )
    (folder / "nodes.toml").write_text(
        f'[reporting]\nconfig = "{folder}/reporters.toml"\nstream_interval_s = 0.5\n'
    )
    flags = ("--config", str(folder / "nodes.toml"))
    environment = {"METRICS_TOKEN": TOKEN}
    with running_cluster(folder / "lab", *flags, environment=environment) as cluster:
        yield cluster


async def reported(client: HyperscaleClient, job: str) -> Reported:
    async with asyncio.timeout(WAIT_S):
        while (found := (await client.get_job(job)).job.reported) is None:
            await asyncio.sleep(0.05)
    return found


def test_the_leader_sends_the_results_and_the_job_says_so(
    cluster: Cluster, receiver: Receiver, tmp_path: Path
) -> None:
    before = len(receiver.bodies)
    file, place = str(cluster.paced(vus=2, duration="1s")), ("--dir", str(cluster.directory))
    done = cluster.run("submit", file, "--report-from", "manager", "--report", "metrics", *place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "results sent by manager-" in done.stdout
    assert len(receiver.bodies) > before
    assert any(TOKEN in token for token in receiver.tokens)
    job = done.stdout.split()[1]
    assert job.encode() in b"".join(receiver.bodies)
    said = cluster.run("status", job, *place)
    assert "results sent by manager-" in said.stdout, said.stdout
    for file_of_ledger in (cluster.directory / "data").rglob("*"):
        if file_of_ledger.is_file():
            assert TOKEN.encode() not in file_of_ledger.read_bytes(), file_of_ledger


@on_loop
async def test_a_leader_killed_before_the_commit_has_its_successor_send_again(
    cluster: Cluster, receiver: Receiver
) -> None:
    async with cluster.client() as client:
        receiver.answers.clear()
        before = len(receiver.bodies)
        job = await client.submit_job(
            cluster.paced(vus=2, duration="1s"), report_from="manager", report=["metrics"]
        )
        final = await client.wait_for_completion(job)
        until(lambda: len(receiver.bodies) > before, what="the first leader sends")
        victim = leader_of(cluster, job)
        cluster.kill(victim)
        receiver.answers.set()
        found = await reported(client, job)
    assert final.status == "completed"
    assert found.by != victim
    assert found.failed == []
    written = [body for body in receiver.bodies[before:] if job.encode() in body]
    assert len(written) >= 2
    assert set(written[-1].splitlines()) <= set(b"\n".join(written[:1]).splitlines())


@on_loop
async def test_a_reporter_that_fails_is_named_and_changes_no_verdict(cluster: Cluster) -> None:
    async with cluster.client() as client:
        job = await client.submit_job(
            cluster.paced(vus=2, duration="1s"), report_from="manager", report=["gone"]
        )
        final = await client.wait_for_completion(job)
        found = await reported(client, job)
    assert (final.status, final.exit_code) == ("completed", 0)
    assert found.sent == []
    assert len(found.failed) == 1
    assert "lost" in found.failed[0] or "nothing was sent" in found.failed[0]


@on_loop
async def test_unknown_reporters_are_refused_with_those_that_exist(cluster: Cluster) -> None:
    async with cluster.client() as client:
        with pytest.raises(InputError, match="no reporter 'graphs'; they have metrics, gone"):
            await client.submit_job(
                cluster.paced(vus=2, duration="1s"), report_from="manager", report=["graphs"]
            )


def streamed(cluster: Cluster, job: str) -> list[dict[str, Any]]:
    """Return what the managers have streamed about a job so far, in order."""
    file = cluster.directory.parent / "live.jsonl"
    lines = file.read_bytes().splitlines() if file.exists() else []
    return [line for line in map(json.loads, lines) if line["run"] == job]


def kinds(cluster: Cluster, job: str) -> set[str]:
    """Return the kinds of annotations that were streamed."""
    return {line["kind"] for line in streamed(cluster, job) if line["type"] == "annotation"}


def requests_of(snapshot: dict[str, Any]) -> int:
    found = [m for m in snapshot["metrics"] if m["name"] == "hyperscale_requests_total"]
    assert {metric["labels"]["datacenter"] for metric in found} == {"default"}
    return int(sum(metric["value"] for metric in found))


@on_loop
async def test_a_stream_survives_its_leader_and_ends_with_the_totals_of_the_result(
    cluster: Cluster,
) -> None:
    async with cluster.client() as client:
        job = await client.submit_job(cluster.paced(vus=6, duration="25s"))
        await running(client, cluster, job, 100)
        worker = (await client.get_job(job)).job.workflows[0].workers[0]
        until(lambda: streamed(cluster, job), what="the leader streams the job")
        cluster.kill(worker)
        until(lambda: "worker_lost" in kinds(cluster, job), what="the loss is annotated")
        cluster.kill(leader_of(cluster, job))
        seen = len(streamed(cluster, job))
        until(lambda: len(streamed(cluster, job)) > seen, what="the next leader streams the job")
        final = await client.wait_for_completion(job)
        until(
            lambda: any(line.get("is_final") for line in streamed(cluster, job)),
            what="the stream ends",
        )
    lines = streamed(cluster, job)
    snapshots = [line for line in lines if line["type"] == "snapshot"]
    counts = [requests_of(snapshot) for snapshot in snapshots]
    assert counts == sorted(counts)
    assert counts[-1] == sent(final.result)
    assert {"start", "worker_lost", "end"} <= kinds(cluster, job)
