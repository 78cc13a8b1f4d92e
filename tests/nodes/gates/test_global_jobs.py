"""A gate and two datacenters in one program: jobs over both, with exact counts."""

import asyncio
from pathlib import Path

import pytest

from hyperscale import HyperscaleClient
from hyperscale.errors import InputError
from hyperscale.reporting.results import RunResult
from tests.conftest import RunningTarget
from tests.lab.cluster import cut, sent, status_is
from tests.nodes.gates.tiers import BOTH, Tiers, run_tiers, write_test


@pytest.mark.timeout(120)
def test_jobs_through_a_gate_run_in_both_datacenters_with_exact_counts(
    tmp_path: Path, target: RunningTarget
) -> None:
    async def work(tiers: Tiers) -> None:
        client = tiers.client
        assert await client.get_datacenters() == list(BOTH)
        await _counts_are_exact(client, target, tmp_path)
        await _a_cancel_ends_the_job_everywhere(tiers, target, tmp_path)
        await _what_cannot_run_is_refused(client, target, tmp_path)

    run_tiers(tmp_path, work)


async def _counts_are_exact(
    client: HyperscaleClient, target: RunningTarget, directory: Path
) -> None:
    test = write_test(directory, target.url)
    job = await client.submit_job(test, datacenter_count=2, key="once")
    again = await client.submit_job(test, datacenter_count=2, key="once")
    assert again == job
    final = await client.wait_for_completion(job, timeout=60)
    assert final.status == "completed"
    result = await client.get_results(job)
    assert sorted(result.datacenters) == list(BOTH)
    total = target.counts()["total"]
    assert sent(result) - cut(result) <= total <= sent(result)
    (load,) = result.workflows
    assert sorted(load.workers) == list(BOTH)
    assert load.cores == 2
    _each_datacenter_has_its_share(result)
    (row,) = [row for row in (await client.get_jobs()).jobs if row.job == job]
    assert row.status.value == "completed"


def _each_datacenter_has_its_share(result: RunResult) -> None:
    (load,) = result.workflows
    parts = result.datacenter_results
    assert [part.datacenter for part in parts] == result.datacenters
    assert {part.status for part in parts} == {"completed"}
    assert sum(part.workflows[0].vus for part in parts) == load.vus == 6
    for name in ("sent", "total", "ok", "failed", "cut", "iterations"):
        of_parts = [getattr(part.workflows[0], name) for part in parts]
        assert sum(of_parts) == getattr(load, name), name
    assert all(part.workflows[0].latency_ms.p99 is not None for part in parts)
    assert all(part.began_seconds is not None for part in parts)
    assert result.start_skew_ms is not None


async def _a_cancel_ends_the_job_everywhere(
    tiers: Tiers, target: RunningTarget, directory: Path
) -> None:
    client = tiers.client
    test = write_test(directory, target.url, duration="60s")
    job = await client.submit_job(test, target_datacenters=BOTH)
    await status_is(client, job, "running")
    async with asyncio.timeout(30.0):
        while target.counts()["connections"]["current"] < 6:
            await asyncio.sleep(0.05)
    assert (await client.cancel_job(job, "enough")).accepted
    final = await client.wait_for_completion(job, timeout=30)
    assert final.status == "cancelled"
    async with asyncio.timeout(30.0):
        while target.counts()["connections"]["current"]:
            await asyncio.sleep(0.05)


async def _what_cannot_run_is_refused(
    client: HyperscaleClient, target: RunningTarget, directory: Path
) -> None:
    test = write_test(directory, target.url)
    with pytest.raises(InputError, match="no datacenter is called 'south'") as unknown:
        await client.submit_job(test, target_datacenters=["south"])
    assert unknown.value.hint == "known datacenters: east, west"
    with pytest.raises(InputError, match="3 datacenters are wanted, but only 2 can run the job"):
        await client.submit_job(test, datacenter_count=3)
    few = write_test(directory, target.url, vus=1)
    with pytest.raises(InputError, match="Load has 1 virtual users, fewer than 2 datacenters"):
        await client.submit_job(few, datacenter_count=2)
