"""Managers whose wall clocks are ten minutes off, and jump: only dates are wrong."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.clock_shift import ShiftedClocks
from tests.lab.cluster import Cluster, assert_exact, leader_of, running, running_cluster
from tests.lab.loops import on_loop

TEN_MINUTES_S = 600
SHIFTS_S = {"manager-1": TEN_MINUTES_S, "manager-2": -TEN_MINUTES_S, "manager-3": 0}


@pytest.fixture(scope="module")
def clocks(tmp_path_factory: pytest.TempPathFactory) -> ShiftedClocks:
    made = ShiftedClocks(tmp_path_factory.mktemp("clocks") / "shifts")
    for manager, seconds in SHIFTS_S.items():
        made.shift(manager, seconds)
    return made


@pytest.fixture(scope="module")
def shifted(clocks: ShiftedClocks, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory: Path = tmp_path_factory.mktemp("cluster") / "lab"
    with running_cluster(directory, environment=clocks.environment) as cluster:
        yield cluster


@on_loop
async def test_wrong_clocks_that_jump_change_no_age_no_timeout_no_duration_and_no_gap(
    shifted: Cluster, clocks: ShiftedClocks
) -> None:
    began_s = time.monotonic()
    dates = set()
    async with shifted.client() as client:
        job = await client.submit_job(shifted.paced(vus=6, duration="10s"), timeout=120)
        await running(client, shifted, job, 100)
        # Every clock jumps, the leader dies, and then a worker: its gap counts across leaders.
        for manager, seconds in SHIFTS_S.items():
            clocks.shift(manager, -seconds or TEN_MINUTES_S)
        dates.add((await client.get_job(job)).job.submitted_ms)
        leader = leader_of(shifted, job)
        shifted.kill(leader)
        row = (await client.get_job(job)).job
        assert row.submitted_ago_s is not None
        assert 0 < row.submitted_ago_s <= time.monotonic() - began_s
        shifted.kill(row.workflows[0].workers[0])
        final = await client.wait_for_completion(job)
        ended = (await client.get_job(job)).job
        listed = {each.job: each for each in (await client.get_jobs()).jobs}
    took_s = time.monotonic() - began_s
    result = final.result
    assert final.status == "completed", final.reason
    assert_exact(shifted, result)
    assert 10.0 <= result.elapsed_seconds <= took_s
    assert all(0 <= gap.seconds <= took_s for gap in result.gaps)
    assert sum(gap.requests_max for gap in result.gaps) <= 6 * 51 * took_s
    assert ended.submitted_ago_s is not None
    assert ended.ended_ago_s is not None
    assert 0 <= ended.ended_ago_s < ended.submitted_ago_s <= took_s
    assert job in listed  # rows of ended jobs stay for ten minutes, which have not passed
    # The test is one of wrong clocks: at least one date is minutes off.
    ends = [ended.submitted_ms, ended.started_ms, ended.ended_ms, *dates]
    assert any(abs(at_ms / 1000 - time.time()) > TEN_MINUTES_S / 2 for at_ms in ends)


@on_loop
async def test_a_manager_that_restarts_with_a_clock_set_back_takes_part_again(
    shifted: Cluster, clocks: ShiftedClocks
) -> None:
    shifted.heal()
    clocks.shift("manager-3", -TEN_MINUTES_S)
    shifted.kill("manager-3")
    shifted.start("manager-3")
    shifted.wait_ready()
    async with shifted.client("manager-3") as client:
        job = await client.submit_job(shifted.paced(vus=3, duration="500ms"))
        final = await client.wait_for_completion(job)
    assert final.status == "completed"
    assert_exact(shifted, final.result)
