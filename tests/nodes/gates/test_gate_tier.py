"""Three gates: any of them answers, a job outlives its owner, a minority takes no jobs."""

import asyncio
from pathlib import Path

import pytest

from hyperscale import HyperscaleClient
from hyperscale.errors import RunError
from tests.conftest import RunningTarget
from tests.lab.cluster import cut, sent, status_is
from tests.nodes.gates.tiers import BOTH, Tiers, run_tiers, write_test


@pytest.mark.timeout(240)
def test_a_job_outlives_the_gate_that_owns_it_and_a_minority_of_gates_takes_no_jobs(
    tmp_path: Path, target: RunningTarget
) -> None:
    async def work(tiers: Tiers) -> None:
        await _one_key_through_all_gates_is_one_job(tiers, target)
        await _the_job_goes_on_without_its_owner(tiers, target)
        await _a_minority_refuses(tiers, target)

    run_tiers(tmp_path, work, gates=3)


async def _one_key_through_all_gates_is_one_job(tiers: Tiers, target: RunningTarget) -> None:
    test = write_test(tiers.directory, target.url, duration="2s")
    found = set()
    for gate in tiers.gates:
        async with HyperscaleClient(gate_tcp_addrs=[gate.address]) as client:
            found.add(await client.submit_job(test, target_datacenters=BOTH, key="one"))
    (job,) = found
    for gate in tiers.gates:
        async with HyperscaleClient(gate_tcp_addrs=[gate.address]) as client:
            final = await client.wait_for_completion(job, timeout=60)
            assert final.status == "completed"
            assert [row.job for row in (await client.get_jobs()).jobs] == [job]
            result = await client.get_results(job)
            total = target.counts()["total"]
            assert sent(result) - cut(result) <= total <= sent(result)


async def _the_job_goes_on_without_its_owner(tiers: Tiers, target: RunningTarget) -> None:
    before = target.counts()["total"]
    test = write_test(tiers.directory, target.url, duration="8s")
    job = await tiers.client.submit_job(test, target_datacenters=BOTH)
    await status_is(tiers.client, job, "running")
    owner = (await tiers.client.get_route(job)).by
    (gate,) = [gate for gate in tiers.gates if gate.node_id == owner]
    waiting = asyncio.create_task(tiers.client.wait_for_completion(job, timeout=90))
    await gate.graceful_shutdown()
    tiers.gates.remove(gate)
    final = await waiting
    assert final.status == "completed"
    total = target.counts()["total"] - before
    assert sent(final.result) - cut(final.result) <= total <= sent(final.result)
    assert {part.status for part in final.result.datacenter_results} == {"completed"}


async def _a_minority_refuses(tiers: Tiers, target: RunningTarget) -> None:
    test = write_test(tiers.directory, target.url, duration="1s")
    last, other = tiers.gates
    await other.graceful_shutdown()
    tiers.gates.remove(other)
    async with HyperscaleClient(gate_tcp_addrs=[last.address]) as client:
        with pytest.raises(RunError):
            await client.submit_job(test, target_datacenters=BOTH, submit_timeout=5)
    before = target.counts()["total"]
    shown = await tiers.hyperscale("submit", str(test), "--submit-timeout", "5s")
    assert shown.code == 3
    assert "too few gates are up to keep the bundle safe" in shown.stderr, shown.stderr
    assert "more than half of the managers or gates must be up" in shown.stderr
    assert target.counts()["total"] == before
