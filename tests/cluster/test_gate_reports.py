"""Gates send results and live statistics of global jobs, with credentials of their own."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.cluster import Cluster, leader_of, running_cluster, sent
from tests.lab.loops import on_loop
from tests.lab.receiver import Receiver
from tests.lab.waiting import until

TOKEN = "sesame-of-the-gates"
SHAPE = ("--gates", "3", "--datacenters", "2", "--managers", "1", "--workers", "1")


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
        f'[streams.live]\ntype = "jsonl"\npath = "{folder}/live.jsonl"\n'
    )
    (folder / "nodes.toml").write_text(
        f'[reporting]\nconfig = "{folder}/reporters.toml"\nstream_interval_s = 0.5\n'
    )
    flags = (*SHAPE, "--config", str(folder / "nodes.toml"))
    environment = {"METRICS_TOKEN": TOKEN}
    with running_cluster(folder / "lab", *flags, environment=environment) as cluster:
        yield cluster


def streamed(folder: Path, job: str) -> list[dict[str, Any]]:
    """Return what was streamed under the id of a global job so far, in order."""
    file = folder / "live.jsonl"
    lines = file.read_bytes().splitlines() if file.exists() else []
    return [line for line in map(json.loads, lines) if line["run"] == job]


def requests_of(snapshot: dict[str, Any]) -> int:
    found = [m for m in snapshot["metrics"] if m["name"] == "hyperscale_requests_total"]
    return int(sum(metric["value"] for metric in found))


def test_the_owning_gate_alone_sends_the_merged_result(
    cluster: Cluster, receiver: Receiver
) -> None:
    file, place = str(cluster.paced(vus=4, duration="2s")), ("--dir", str(cluster.directory))
    done = cluster.run(
        *("submit", file, "--datacenters", "2", "--report-from", "manager", *place),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "results sent by gate-" in done.stdout
    job = done.stdout.split()[1]
    written = [body for body in receiver.bodies if b"run_id" in body or job.encode() in body]
    assert written
    assert all(job.encode() in body for body in written)
    assert any(TOKEN in token for token in receiver.tokens)
    assert "results sent by gate-" in cluster.run("status", job, *place).stdout
    wrong = cluster.run("submit", file, "--report-from", "manager", "--report", "graphs", *place)
    assert wrong.returncode == 2
    assert "the gates have no reporter 'graphs'; they have metrics" in wrong.stderr


@on_loop
async def test_a_stream_survives_the_owning_gate_and_ends_with_the_totals_of_the_result(
    cluster: Cluster,
) -> None:
    folder = cluster.directory.parent
    async with cluster.client() as client:
        job = await client.submit_job(cluster.paced(vus=4, duration="14s"), datacenter_count=2)
        until(lambda: len(streamed(folder, job)) > 2, what="the owner streams the job")
        cluster.kill(leader_of(cluster, job, among=["gate-1", "gate-2", "gate-3"]))
        seen = len(streamed(folder, job))
        until(lambda: len(streamed(folder, job)) > seen, what="the next owner streams the job")
        final = await client.wait_for_completion(job)
        until(
            lambda: any(line.get("is_final") for line in streamed(folder, job)),
            what="the stream ends",
        )
    counts = [requests_of(line) for line in streamed(folder, job) if line["type"] == "snapshot"]
    assert counts == sorted(counts)
    assert counts[-1] == sent(final.result)
