"""Rates, stages, a mix and feeds hold for a job on three workers as a whole."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from hyperscale.reporting.results import RunStatus
from hyperscale.stats.attempt_results import GapResult
from tests.execution.server import CountingServer
from tests.lab.cluster import Cluster, running, users
from tests.lab.loops import on_loop
from tests.lab.waiting import until_async

STEP = """
    @step()
    async def page(self, url: URL = "URL_/delay/20") -> HTTPResponse:
        return await self.client.http.get(url)
"""


@on_loop
async def test_a_rate_and_stages_hold_for_the_job_as_a_whole(cluster: Cluster) -> None:
    file = cluster.write(f"""
class Rate(Workflow):
    rate = "100/s"
    duration = "2s"
    max_vus = 60
{STEP}
class Stages(Workflow):
    stages = [("1s", 9), ("1s", 9)]
    warmup = "500ms"
{STEP}""")
    async with cluster.client() as client:
        final = await client.wait_for_completion(await client.submit_job(file))
    rate, stages = final.result.workflows
    assert rate.arrivals == 200
    assert rate.sent == rate.arrivals - rate.dropped
    assert rate.service_ms.p50 is not None
    assert rate.iteration_ms.p50 is not None
    assert max(point.vus or 0 for point in stages.series) == 9
    assert stages.warmup_seconds == 0.5
    assert rate.sent + stages.sent < cluster.counts()["total"]  # the warm-up was sent, too


@on_loop
async def test_slots_of_all_workers_take_the_rows_of_a_feed_in_turn(cluster: Cluster) -> None:
    file = cluster.write("""
from hyperscale import Feed

class Fed(Workflow):
    vus = 6
    iterations = 60
    pages = Feed([{"path": f"/status/{status}"} for status in (200, 201, 202)])

    @step()
    async def page(self) -> HTTPResponse:
        return await self.client.http.get("URL_" + self.pages["path"])
""")
    async with cluster.client() as client:
        final = await client.wait_for_completion(await client.submit_job(file))
    (step,) = final.result.workflows[0].steps
    assert step.status_codes == {"200": 20, "201": 20, "202": 20}


BY_COLUMN = """
    @step()
    async def page(self, url: URL = rows.column("url")) -> HTTPResponse:
        return await self.client.http.get(url)
"""
BY_NAME = """
    @step()
    async def page(self) -> HTTPResponse:
        return await self.client.http.get(self.rows["url"])
"""


@pytest.mark.parametrize("step", [BY_COLUMN, BY_NAME], ids=["native", "python"])
@on_loop
async def test_rows_are_taken_once_or_named_in_gaps_although_a_worker_dies(
    cluster: Cluster, step: str
) -> None:
    with CountingServer() as server:
        file = cluster.write(f"""
from hyperscale import Feed

class Fed(Workflow):
    vus = 6
    duration = "60s"
    interval = "50ms"
    rows = Feed([{{"url": f"{server.url}/{{row}}"}} for row in range(600)], take="once")
{step}""")
        async with cluster.client() as client:
            job = await client.submit_job(file)
            await until_async(lambda: len(server.requests) >= 100, what="100 rows are used")
            cluster.kill("worker-1")
            final = await client.wait_for_completion(job, timeout=90)
        used = Counter(int(request.rpartition("/")[2]) for request in server.requests.elements())
    named = [row for gap in final.result.gaps for row in rows_of(gap)]
    assert final.result.status is RunStatus.COMPLETED
    assert set(used.values()) == {1}
    assert set(named) | set(used) == set(range(600))
    assert len(named) == len(set(named)) < 300
    assert {row % 3 for row in named} == {named[0] % 3}  # of the slot of the worker that died
    assert any("may have used rows" in warning for warning in final.result.warnings)


def rows_of(gap: GapResult) -> Iterator[int]:
    for rows in gap.rows:
        yield from range(rows.first, rows.first + rows.step * rows.count, rows.step)


@on_loop
async def test_a_lost_part_comes_back_at_its_place_in_the_stages(cluster: Cluster) -> None:
    file = cluster.write(f"""
class Ramp(Workflow):
    stages = [("2s", 12), ("14s", 12)]
{STEP}""")
    most = 0
    async with cluster.client() as client:
        job = await client.submit_job(file)
        watching = asyncio.create_task(client.wait_for_completion(job, timeout=90))
        is_killed = is_back = False
        while not watching.done():
            now = users(cluster)
            most = max(most, now)
            if now == 12 and not is_killed:
                is_killed = True
                cluster.kill("worker-1")
            elif is_killed and now == 12:
                is_back = True
            await asyncio.sleep(0.02)
        final = watching.result()
    (ramp,) = final.result.workflows
    assert final.result.status is RunStatus.COMPLETED
    assert (most, is_killed, is_back) == (12, True, True)
    assert [segment.worker for segment in final.result.segments] == ["worker-1"]
    assert max(point.vus or 0 for point in ramp.series) <= 12


@on_loop
async def test_arrivals_that_a_lost_part_missed_are_dropped(cluster: Cluster) -> None:
    file = cluster.write(f"""
class Rate(Workflow):
    rate = "60/s"
    duration = "12s"
    max_vus = 60
{STEP}""")
    async with cluster.client() as client:
        job = await client.submit_job(file)
        await running(client, cluster, job, 60)
        cluster.kill("worker-1")
        final = await client.wait_for_completion(job, timeout=90)
    (rate,) = final.result.workflows
    assert final.result.status is RunStatus.COMPLETED
    # Every arrival of the plan began, was dropped, or may have begun on the worker that died.
    unknown = sum(gap.requests_max for gap in final.result.gaps)
    assert rate.arrivals <= 720 <= rate.arrivals + unknown
    assert rate.dropped > 0
    assert cluster.counts()["total"] <= 720
