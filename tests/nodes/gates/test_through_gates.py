"""What users do through gates beside submitting: output, workers, members, drains, secrets."""

import asyncio
from pathlib import Path

import pytest

from hyperscale import HyperscaleClient
from tests.conftest import RunningTarget
from tests.lab.cluster import status_is
from tests.nodes.gates.tiers import BOTH, Tiers, run_tiers, write_test

PRINTING = """
from hyperscale import Param, Workflow, step
from hyperscale.testing import HTTPResponse

URL = {url!r}


class Load(Workflow):
    vus = 2
    duration = "2s"
    iterations = 2
    token = Param("", secret=True)

    @step()
    async def get(self) -> HTTPResponse:
        print(f"user {{self.vu}} has {{len(self.token)}} letters", flush=True)
        return await self.client.http.get(f"{{URL}}/headers", headers={{"x-token": self.token}})
"""


@pytest.mark.timeout(240)
def test_output_secrets_workers_members_and_drains_go_through_gates(
    tmp_path: Path, target: RunningTarget
) -> None:
    async def work(tiers: Tiers) -> None:
        await _output_and_secrets_arrive(tiers, target)
        await _a_late_datacenter_joins_for_the_remaining_time(tiers, target)
        await _nodes_of_datacenters_are_listed_and_drained(tiers)

    run_tiers(tmp_path, work)


async def _output_and_secrets_arrive(tiers: Tiers, target: RunningTarget) -> None:
    test = tiers.directory / "printing.py"
    test.write_text(PRINTING.format(url=target.url))
    job = await tiers.client.submit_job(
        test, target_datacenters=BOTH, params={"token": "s3cret-word"}
    )
    lines = []
    async for update in tiers.client.follow_job(job):
        lines += update.output
    said = {line.text.strip(): line.worker for line in lines}
    assert said == {"user 0 has 11 letters": "east/w-east", "user 1 has 11 letters": "west/w-west"}
    assert (await tiers.client.wait_for_completion(job, timeout=30)).status == "completed"
    files = [path for path in tiers.directory.glob("gate-*/ledger/*") if path.is_file()]
    assert files
    assert not any(b"s3cret-word" in path.read_bytes() for path in files)


async def _a_late_datacenter_joins_for_the_remaining_time(
    tiers: Tiers, target: RunningTarget
) -> None:
    west = tiers.managers["west"].address
    async with HyperscaleClient([west]) as local:
        # The only core of west is busy, so the part there waits for it.
        blocker = write_test(tiers.directory, target.url, vus=1, duration="60s")
        blocking = await local.submit_job(blocker)
        await status_is(local, blocking, "running")
        test = write_test(tiers.directory, target.url, duration="12s")
        job = await tiers.client.submit_job(test, target_datacenters=BOTH, start_timeout="1s")
        await status_is(tiers.client, job, "running")
        async for update in tiers.client.follow_job(job):
            if update.live is not None and update.live.elapsed_s > 4:
                break
        await local.cancel_job(blocking)
    final = await tiers.client.wait_for_completion(job, timeout=90)
    assert final.status == "completed", final.reason
    east, late = final.result.datacenter_results
    assert (east.datacenter, east.joined_late) == ("east", False)
    assert (late.datacenter, late.joined_late) == ("west", True)
    assert 0 < late.workflows[0].sent < east.workflows[0].sent
    assert late.began_seconds is not None
    assert late.began_seconds > 3


async def _nodes_of_datacenters_are_listed_and_drained(tiers: Tiers) -> None:
    rows = (await tiers.client.get_workers()).workers
    assert {(row.datacenter, row.worker) for row in rows} == {
        ("east", "w-east"),
        ("west", "w-west"),
    }
    shown = await tiers.hyperscale("workers")
    assert shown.code == 0, shown.stderr
    assert "DATACENTER" in shown.stdout
    shown = await tiers.hyperscale("members", "--datacenter", "east")
    assert shown.code == 0, shown.stderr
    assert "m-east" in shown.stdout
    assert "gate-1" in (await tiers.hyperscale("members")).stdout
    shown = await tiers.hyperscale("members", "--datacenter", "north")
    assert shown.code == 2
    assert "no datacenter is called 'north'" in shown.stderr
    shown = await tiers.hyperscale("drain", "w-east")
    assert shown.code == 0, shown.stderr
    assert "may be stopped" in shown.stdout
    async with asyncio.timeout(30.0):
        while True:
            rows = (await tiers.client.get_workers()).workers
            if {row.worker for row in rows if row.is_draining} == {"w-east"}:
                return
            await asyncio.sleep(0.1)
