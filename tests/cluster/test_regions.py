"""Three regions, each with a gate and a datacenter, over links that are slow, lossy or cut."""

import asyncio
import os
import time
from collections.abc import Iterator

import pytest

from hyperscale.client.updates import JobFinalResult
from tests.lab.cluster import Cluster, assert_exact, cut, gaps, leader_of, running, sent, users
from tests.lab.loops import on_loop
from tests.lab.network import why_not
from tests.lab.soak_report import gates_report
from tests.lab.split_cluster import Regions, SplitCluster, region_cluster
from tests.lab.waiting import until

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it is all there")

VUS = 6
ALL = ["dc1", "dc2", "dc3"]
BETWEEN_S = 0.04  # one way: 80 ms there and back
MANAGERS = int(os.environ.get("HYPERSCALE_REGION_MANAGERS", "1"))
WORKERS = int(os.environ.get("HYPERSCALE_REGION_WORKERS", "1"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SplitCluster]:
    directory = tmp_path_factory.mktemp("regions") / "lab"
    with region_cluster(directory, Regions(3, MANAGERS, WORKERS)) as cluster:
        yield cluster


@pytest.fixture
def regions(shared: SplitCluster) -> SplitCluster:
    """Yield the cluster with 80 ms between regions and no jobs."""
    shared.heal()
    shared.net.link(delay_s=BETWEEN_S)
    return shared


def facts(cluster: Cluster, final: JobFinalResult) -> str:
    result = final.result
    skew = "unknown" if result.start_skew_ms is None else f"{result.start_skew_ms:.0f} ms"
    return (
        f"{final.status}, reported {sent(result):,} ({cut(result)} cut), "
        f"target {cluster.counts()['total']:,}, gaps up to {gaps(result):,}, start skew {skew}"
    )


@on_loop
async def test_counts_are_exact_over_80_ms_between_regions(regions: SplitCluster) -> None:
    async with regions.client() as client:
        job = await client.submit_job(regions.paced(vus=VUS, duration="5s"), target_datacenters=ALL)
        final = await client.wait_for_completion(job, timeout=90)
    assert final.status == "completed", final.reason
    assert_exact(regions, final.result)
    assert gaps(final.result) == 0
    assert regions.counts()["connections"]["total"] == VUS


@pytest.mark.timeout(240)
@on_loop
async def test_a_region_that_was_cut_off_delivers_its_result_after_the_cut(
    regions: SplitCluster,
) -> None:
    async with regions.client() as client:
        job = await client.submit_job(regions.paced(vus=VUS, duration="8s"), target_datacenters=ALL)
        await running(client, regions, job, 100)
        regions.net.isolate(regions.side_of("dc3-manager-1"))
        await asyncio.to_thread(until, lambda: not users(regions), what="the load is over")
        regions.net.mend()
        final = await client.wait_for_completion(job, timeout=120)
    assert final.status == "completed", final.reason
    assert_exact(regions, final.result)
    assert gaps(final.result) == 0
    assert regions.counts()["connections"]["total"] == VUS


@pytest.mark.timeout(240)
@on_loop
async def test_a_cancel_reaches_a_region_that_is_cut_off_from_its_owner(
    regions: SplitCluster,
) -> None:
    async with regions.client() as client:
        job = await client.submit_job(
            regions.paced(vus=VUS, duration="120s"), target_datacenters=ALL
        )
        await running(client, regions, job, 100)
        regions.net.isolate(regions.side_of("dc3-manager-1"))
        others = [f"gate-{number}" for number in (1, 2)]
        async with regions.client(*others) as near:
            assert (await near.cancel_job(job, "enough")).accepted
            await asyncio.to_thread(
                until, lambda: users(regions) == VUS // 3, what="two regions have stopped"
            )
            regions.net.mend()
            final = await near.wait_for_completion(job, timeout=120)
    assert final.status == "cancelled"
    assert users(regions) == 0
    assert_exact(regions, final.result)


# -- soaks ------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.timeout(1200)
@on_loop
async def test_start_skew_and_percentiles_over_80_ms(regions: SplitCluster) -> None:
    lines = []
    skews_ms: list[float] = []
    for _ in range(3):
        regions.target.reset()
        async with regions.client() as client:
            job = await client.submit_job(
                regions.paced(vus=VUS, duration="10s"), target_datacenters=ALL
            )
            final = await client.wait_for_completion(job, timeout=120)
        assert final.status == "completed", final.reason
        assert_exact(regions, final.result)
        assert gaps(final.result) == 0
        assert final.result.start_skew_ms is not None
        skews_ms.append(final.result.start_skew_ms)
        lines.append(facts(regions, final))
    title = f"3 regions of 1 gate, {MANAGERS} managers, {WORKERS} workers, 80 ms between them"
    gates_report().write(title, *lines)
    assert min(skews_ms) <= 50.0  # a busy machine adds to it


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("end", ["datacenter", "owner"])
@on_loop
async def test_a_link_is_cut_for_two_minutes(regions: SplitCluster, end: str) -> None:
    """Cut a region off whose gate does not own the job, or the region of the owner."""
    async with regions.client() as client:
        job = await client.submit_job(
            regions.paced(vus=VUS, duration="60s"), target_datacenters=ALL
        )
        await running(client, regions, job, 100)
        owner = leader_of(regions, job)
        names = [gate.id for gate in regions.file.gates]
        cut_off = owner if end == "owner" else next(name for name in names if name != owner)
        number = cut_off.rpartition("-")[2]
        others = [name for name in names if name != cut_off]
        began_s = time.monotonic()
        regions.net.isolate(regions.side_of(cut_off))
        took_s = 0.0
        if end == "owner":
            await asyncio.to_thread(leader_of, regions, job, among=others)
            took_s = time.monotonic() - began_s
        await asyncio.sleep(max(0.0, 120.0 - (time.monotonic() - began_s)))
        regions.net.mend()
        mended_s = time.monotonic()
        final = await client.wait_for_completion(job, timeout=240)
    ended_s = time.monotonic() - mended_s
    counted = {each.datacenter for each in final.result.datacenter_results}
    gates_report().write(
        f"a region cut off for 2 minutes, with {'the owner' if end == 'owner' else 'another gate'}",
        facts(regions, final),
        *([f"next owner after {took_s:.1f} s"] if took_s else []),
        f"dc{number} was cut off; the job ended {ended_s:.1f} s after the link was mended",
    )
    assert final.status == "completed", final.reason
    assert counted == set(ALL)
    assert_exact(regions, final.result)
    assert gaps(final.result) == 0
    assert regions.counts()["connections"]["total"] == VUS


@pytest.mark.soak
@pytest.mark.timeout(1200)
@on_loop
async def test_health_follows_a_cut_after_13_and_43_seconds(regions: SplitCluster) -> None:
    times: dict[str, float] = {}
    async with regions.client("gate-1") as client:
        regions.net.isolate(regions.side_of("dc3-manager-1"))
        began_s = time.monotonic()
        while "unreachable" not in times and time.monotonic() < began_s + 90:
            rows = {row.datacenter: row.reachability for row in await client.list_datacenters()}
            times.setdefault(rows["dc3"], time.monotonic() - began_s)
            assert {rows["dc1"], rows["dc2"]} == {"reachable"}
            await asyncio.sleep(0.1)
        regions.net.mend()
        mended_s = time.monotonic()
        while {row.datacenter: row for row in await client.list_datacenters()}[
            "dc3"
        ].reachability != "reachable":
            assert time.monotonic() < mended_s + 60
            await asyncio.sleep(0.1)
        back_s = time.monotonic() - mended_s
    gates_report().write(
        "a datacenter that is cut off, as a gate sees it",
        f"suspected after {times['suspected']:.1f} s, unreachable after "
        f"{times['unreachable']:.1f} s, reachable {back_s:.1f} s after the link was mended",
    )
    assert 11.0 <= times["suspected"] <= 15.0
    assert 41.0 <= times["unreachable"] <= 45.0


@pytest.mark.soak
@pytest.mark.timeout(1800)
@on_loop
async def test_ten_minutes_of_300_ms_and_5_percent_loss_suspect_nothing(
    regions: SplitCluster,
) -> None:
    minutes = float(os.environ.get("HYPERSCALE_LOSSY_MINUTES", "10"))
    regions.net.link(delay_s=0.15, loss=0.05)
    seen: dict[str, int] = {}
    logs = [regions.directory / "logs" / f"{gate.id}.log" for gate in regions.file.gates]
    before = [len(log.read_text()) for log in logs]
    deadline_s = time.monotonic() + minutes * 60
    async with regions.client() as client:
        while time.monotonic() < deadline_s:
            for row in await client.list_datacenters():
                seen[row.reachability] = seen.get(row.reachability, 0) + 1
            await asyncio.sleep(1.0)
    regions.net.link(delay_s=BETWEEN_S)
    fresh = [log.read_text()[start:] for log, start in zip(logs, before, strict=True)]
    suspected = sum(text.count('"reachability":"suspected"') for text in fresh)
    dead = sum(text.count('"event":"member.died"') for text in fresh)
    gates_report().write(
        f"300 ms and 5 % loss between regions for {minutes:g} minutes",
        f"answers about datacenters: {seen}; datacenters suspected {suspected} times, gates "
        f"declared dead {dead} times",
    )
    assert set(seen) == {"reachable"}
    assert (suspected, dead) == (0, 0)
