"""Datacenters come and go: committed by the gates, drained, resumed, removed, and where jobs go."""

import asyncio
from pathlib import Path

import pytest

from hyperscale.errors import InputError, RunError
from hyperscale.gates.datacenters.registry import DatacenterState
from tests.conftest import RunningTarget
from tests.lab.cluster import status_is
from tests.nodes.gates.tiers import Tiers, run_tiers, until_healthy, write_test


@pytest.mark.timeout(180)
def test_datacenters_are_drained_resumed_and_removed_and_jobs_go_where_route_says(
    tmp_path: Path, target: RunningTarget
) -> None:
    test = write_test(tmp_path, target.url, duration="1s")

    async def work(tiers: Tiers) -> None:
        await _route_says_what_happens(tiers, test)
        await _a_drained_datacenter_gets_no_jobs(tiers, test)
        await _a_removed_datacenter_is_forgotten_until_it_is_resumed(tiers, test)

    run_tiers(tmp_path, work)


async def _route_says_what_happens(tiers: Tiers, test: Path) -> None:
    client = tiers.client
    said = await client.route_job(test, key="drawn")
    assert said.choice is not None
    job = await client.submit_job(test, key="drawn")
    assert (await client.wait_for_completion(job, timeout=60)).status == "completed"
    recorded = await client.get_route(job)
    assert recorded.choice is not None
    assert recorded.choice.primary == said.choice.primary
    assert {score.datacenter for score in recorded.choice.scores} == {"east", "west"}
    both = await client.route_job(test, datacenter_count=2)
    assert both.shares["east"]["Load"] + both.shares["west"]["Load"] == 6
    result = await client.get_results(job)
    assert tuple(result.datacenters) == said.choice.primary
    shown = await tiers.hyperscale("route", str(test), "--datacenters", "2", "--explain")
    assert shown.code == 0, shown.stderr
    assert "runs in" in shown.stdout
    assert "rank 1" in shown.stdout
    shown = await tiers.hyperscale("route", "--job", job, "--explain")
    assert shown.code == 0, shown.stderr
    assert said.choice.primary[0] in shown.stdout


async def _a_drained_datacenter_gets_no_jobs(tiers: Tiers, test: Path) -> None:
    client = tiers.client
    shown = await tiers.hyperscale("datacenters", "drain", "west")
    assert (shown.code, shown.stdout) == (0, "west gets no new jobs\n"), shown.stderr
    with pytest.raises(InputError, match="cannot run where it was asked to: west is drained"):
        await client.submit_job(test, target_datacenters=["west"])
    instead = await client.route_job(test, target_datacenters=["west"], fallback=True)
    assert instead.choice is not None
    assert instead.choice.primary == ("east",)
    await client.change_datacenter("east", DatacenterState.DRAINED)
    with pytest.raises(InputError, match="east is drained, west is drained"):
        await client.submit_job(test)
    shown = await tiers.hyperscale("submit", str(test))
    assert shown.code == 2
    assert "no datacenter can run the job: east is drained, west is drained" in shown.stderr
    for name in ("east", "west"):
        await client.change_datacenter(name, DatacenterState.ACTIVE)
    job = await client.submit_job(test, target_datacenters=["east", "west"])
    assert (await client.wait_for_completion(job, timeout=60)).status == "completed"


async def _a_removed_datacenter_is_forgotten_until_it_is_resumed(tiers: Tiers, test: Path) -> None:
    client = tiers.client
    shown = await tiers.hyperscale("datacenters", "drain", "north")
    assert shown.code == 2
    assert "no datacenter is called 'north'" in shown.stderr
    assert "known datacenters: east, west" in shown.stderr
    with pytest.raises(RunError, match="west answers and takes jobs"):
        await client.change_datacenter("west", DatacenterState.REMOVED)
    long = write_test(tiers.directory, "http://127.0.0.1:1", duration="60s")
    job = await client.submit_job(long, target_datacenters=["east", "west"])
    await status_is(client, job, "running")
    await client.change_datacenter("west", DatacenterState.REMOVED, force=True)
    await client.cancel_job(job)
    final = await client.wait_for_completion(job, timeout=60)
    assert final.status == "cancelled"
    parts = {part.datacenter: part.status for part in final.result.datacenter_results}
    assert parts["west"] in {"lost", "cancelled"}
    rows = {row.datacenter: row.state for row in await client.list_datacenters()}
    assert rows == {"east": "active", "west": "removed"}
    with pytest.raises(InputError, match="no datacenter is called 'west'"):
        await client.submit_job(test, target_datacenters=["west"])
    await client.change_datacenter("west", DatacenterState.ACTIVE)
    async with asyncio.timeout(60.0):
        await until_healthy(client, ("east", "west"))
