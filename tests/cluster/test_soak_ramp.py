"""Soak tests of a ramp over three workers: users at the target follow the plan in every second.

Users are counted by their connections. The ramp does not go down: users that have left keep theirs
until the end.
"""

import asyncio
import os
import signal
import time

import pytest

from hyperscale.plan import StagePlan
from hyperscale.plan.shapes import Shape
from hyperscale.reporting.results import RunResult
from tests.lab.cluster import Cluster, assert_exact, users
from tests.lab.processes import is_alive
from tests.lab.soak_report import cluster_report

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

STAGES = [(5.0, 30), (5.0, 60), (20.0, 60)]
PLAN = Shape([StagePlan(duration_s=duration_s, target=target) for duration_s, target in STAGES])
DISTURBED_AT_S = 12.0
SKEW_S = 0.15  # the start is seen by sampling; parts start together within a few hundredths
BACK_WITHIN_S = {"nothing": 0.0, "killed": 5.0, "silent": 15.0}


def planned(second: int) -> tuple[float, float]:
    """Return the least and the most users that may be the peak of a second of the ramp."""
    begin_s, end_s = float(second), second + 1.0
    inner = [PLAN.users_at(begin_s + SKEW_S), PLAN.users_at(end_s - SKEW_S)]
    outer = [PLAN.users_at(max(0.0, begin_s - SKEW_S)), PLAN.users_at(end_s + SKEW_S)]
    return 0.98 * max(inner), 1.02 * max(outer)


async def peaks(cluster: Cluster, what: str) -> tuple[RunResult, list[int], float]:
    """Run the ramp and disturb a worker; return the result, the most users of each second, and how
    long after the disturbance all were back."""
    stages = ", ".join(f'("{duration_s:g}s", {target})' for duration_s, target in STAGES)
    file = cluster.write(f"""
class Ramp(Workflow):
    stages = [{stages}]

    @step()
    async def page(self, url: URL = "URL_/delay/50") -> HTTPResponse:
        return await self.client.http.get(url)
""")
    found: dict[int, int] = {}
    began_s, is_due, stopped, low_s = 0.0, what != "nothing", list[int](), DISTURBED_AT_S
    async with cluster.client() as client:
        job = await client.submit_job(file)
        watching = asyncio.create_task(client.wait_for_completion(job, timeout=120))
        while not watching.done():
            now, now_s = users(cluster), time.monotonic()
            began_s = began_s or (now_s if now else 0.0)
            if began_s:
                second = int(now_s - began_s)
                found[second] = max(found.get(second, 0), now)
                if DISTURBED_AT_S < now_s - began_s < PLAN.duration_s - SKEW_S and now < 60:
                    low_s = now_s - began_s
            if is_due and began_s and now_s - began_s >= DISTURBED_AT_S:
                is_due = False
                if what == "killed":
                    cluster.kill("worker-1")
                else:
                    stopped = cluster.pause("worker-1", executors=True)
            await asyncio.sleep(0.02)
        final = watching.result()
    for pid in stopped:
        if is_alive(pid):
            os.kill(pid, signal.SIGCONT)
    seen = [found.get(second, 0) for second in range(int(PLAN.duration_s))]
    return final.result, seen, low_s - DISTURBED_AT_S


@pytest.mark.parametrize("what", BACK_WITHIN_S)
def test_users_of_a_ramp_follow_the_plan(cluster: Cluster, what: str) -> None:
    result, seen, back_s = asyncio.run(peaks(cluster, what))
    low = [second for second, peak in enumerate(seen) if peak < planned(second)[0]]
    high = [second for second, peak in enumerate(seen) if peak > planned(second)[1]]
    cluster_report().write(
        f"a ramp to 60 users over three workers: {what} at {DISTURBED_AT_S:g} s",
        f"users at the target, by second: {' '.join(map(str, seen))}",
        f"seconds below 98 % of the plan: {low or 'none'}; above 102 %: {high or 'none'}; "
        f"all users back after {back_s:.1f} s",
    )
    assert result.status.value == "completed"
    assert_exact(cluster, result)
    assert not high
    assert all(second >= DISTURBED_AT_S - 1 for second in low)
    assert back_s <= BACK_WITHIN_S[what]
