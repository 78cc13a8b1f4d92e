"""A worker is isolated from its managers and still reaches the target: its load is moved, never
doubled, and every request is counted once."""

import asyncio
import math
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from hyperscale.client.client import HyperscaleClient
from hyperscale.errors import RunError
from hyperscale.reporting.results import RunResult
from tests.lab.cluster import assert_exact, cut, gaps, leader_of, running, sent
from tests.lab.command import HYPERSCALE
from tests.lab.loops import on_loop
from tests.lab.network import End, why_not
from tests.lab.soak_report import cluster_report
from tests.lab.split_cluster import Split, SplitCluster, split_cluster

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it is all there")

VUS = 6
RATE = VUS * 50  # each virtual user waits 20 ms for each answer
MOST = VUS * 51  # requests at both ends of a second count
LAST = "worker-3"  # the worker beyond the link
DURATION_S = 40
OTHERS_END_S = 25.0  # no other part ends earlier after the cut
LOOK_S = 0.02  # between two samples of the connections

SMALL = Split(managers=(1, 0), workers=(1, 1))
ALONE = Split(managers=(3, 0), workers=(2, 1))
WITH_MANAGER = Split(managers=(2, 1), workers=(2, 1))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SplitCluster]:
    """Beyond the link there is one worker."""
    with split_cluster(tmp_path_factory.mktemp("alone") / "lab", ALONE) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def with_manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SplitCluster]:
    """Beyond the link there are one worker and one manager of three."""
    with split_cluster(tmp_path_factory.mktemp("with-manager") / "lab", WITH_MANAGER) as cluster:
        yield cluster


@dataclass(frozen=True)
class Seen:
    """The outcome of a job during which the link was cut."""

    result: RunResult
    leader: str
    users: tuple[tuple[float, int], ...]
    """Connected virtual users, by seconds since the cut. Unlike the number of requests, their
    number does not drop when the machine is busy."""

    @property
    def first_missing_s(self) -> float:
        """Return when a virtual user was first missing; 0 if none ever was."""
        return min(self._missing_s(), default=0.0)

    @property
    def restored_s(self) -> float:
        """Return from when on all virtual users were connected; 0 if they always were."""
        last_s = max(self._missing_s(), default=None)
        if last_s is None:
            return 0.0
        return min((at_s for at_s, _ in self.users if at_s > last_s), default=math.inf)

    @property
    def coarsest_s(self) -> float:
        """Return the longest time between two samples: the error of the other times."""
        instants = [at_s for at_s, _ in self.users]
        return max(later - at_s for at_s, later in pairwise(instants))

    def _missing_s(self) -> list[float]:
        return [at_s for at_s, users in self.users if users < VUS and at_s < OTHERS_END_S]

    def segments_of(self, worker: str) -> int:
        return sum(segment.worker == worker for segment in self.result.segments)


async def started(
    client: HyperscaleClient, cluster: SplitCluster, duration: str, leader: str, isolation: str
) -> str:
    """Submit a job that runs on all workers and, if given, is led by `leader`."""
    while True:
        cluster.target.reset()
        file = cluster.paced(vus=VUS, duration=duration)
        job = await client.submit_job(file, on_isolation=isolation)
        await running(client, cluster, job, 500)  # the job runs
        if not leader or leader_of(cluster, job) == leader:
            return job
        await client.cancel_job(job)
        await client.wait_for_completion(job)


async def through_a_cut(
    cluster: SplitCluster,
    *,
    seconds: float,
    to: End | None = None,
    on_isolation: str = "stop",
    leader: str = "",
) -> Seen:
    cluster.heal()
    near = [row.id for row in cluster.file.managers if row.id not in cluster.beyond()]
    async with cluster.client(*near) as client:
        job = await started(client, cluster, f"{DURATION_S}s", leader, on_isolation)
        led_by = leader_of(cluster, job)
        cut_s = time.monotonic()
        cluster.net.cut(to=to)
        users = []
        while (at_s := time.monotonic() - cut_s) < max(seconds, OTHERS_END_S):
            current = cluster.counts()["connections"]["current"]
            users.append((time.monotonic() - cut_s, current))
            if at_s >= seconds:
                cluster.net.mend()
            await asyncio.sleep(LOOK_S)
        cluster.net.mend()
        final = await client.wait_for_completion(job, timeout=120)
    assert final.status == "completed", final.reason
    return Seen(final.result, led_by, tuple(users))


def assert_never_more_than_asked(cluster: SplitCluster) -> None:
    assert max(cluster.per_second().values()) <= MOST
    assert cluster.counts()["connections"]["peak"] <= VUS


@on_loop
async def test_an_isolated_worker_is_replaced_and_no_request_counts_twice(
    tmp_path: Path,
) -> None:
    with split_cluster(tmp_path / "lab", SMALL) as cluster:
        async with cluster.client() as client:
            # The cut ends after the lease of the part beyond it.
            job = await client.submit_job(cluster.paced(vus=VUS, duration="9s"))
            await running(client, cluster, job, 20)
            cluster.net.cut()
            async for news in client.follow_job(job):
                if news.job.workflows[0].attempts == 3:
                    break
            cluster.net.mend()
            final = await client.wait_for_completion(job)
        assert final.status == "completed", final.reason
        assert_exact(cluster, final.result)
        assert_never_more_than_asked(cluster)
        assert [segment.worker for segment in final.result.segments] == ["worker-2"]
        assert [gap.worker for gap in final.result.gaps] == ["worker-2"]
        assert final.result.attempts == 3


# -- what takes long ----------------------------------------------------------------------


def lines_of(cluster: SplitCluster, seen: Seen) -> list[str]:
    result, counts, seconds = seen.result, cluster.counts(), cluster.per_second()
    fewest = min(users for _, users in seen.users)
    load = (
        f"{fewest} of {VUS} users from {seen.first_missing_s:.2f} s after the cut on, all again "
        f"after {seen.restored_s:.2f} s (each up to {seen.coarsest_s:.2f} s late; 10 s of silence "
        "count from the last answer, which comes each second)"
    )
    return [
        f"{result.status.value}, reported {sent(result):,} ({cut(result)} cut), target "
        f"{counts['total']:,}, gaps up to {gaps(result):,} in "
        f"{sum(gap.seconds for gap in result.gaps):.1f} s, attempts {result.attempts}, "
        f"{result.elapsed_seconds:.1f} s, led by {seen.leader}",
        f"{load if fewest < VUS else 'all users all the time'}; at most {max(seconds.values())} "
        f"requests in a second (asked {RATE}) and {counts['connections']['peak']} connections "
        f"(asked {VUS})",
        *(f"segment of {each.worker}: {each.reason}" for each in result.segments),
    ]


def soak(
    cluster: SplitCluster,
    title: str,
    *,
    seconds: float,
    to: End | None = None,
    on_isolation: str = "stop",
    leader: str = "",
) -> Seen:
    seen = asyncio.run(
        through_a_cut(cluster, seconds=seconds, to=to, on_isolation=on_isolation, leader=leader)
    )
    cluster_report().write(title, *lines_of(cluster, seen))
    assert_exact(cluster, seen.result)
    assert_never_more_than_asked(cluster)
    return seen


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("to", [None, "a", "b"])
def test_a_worker_isolated_for_half_a_minute_is_replaced_in_time(
    alone: SplitCluster, to: End | None
) -> None:
    what = {None: "", "a": ", it hears and is not heard", "b": ", it is heard and does not hear"}
    seen = soak(alone, f"a worker cut off for 30 s{what[to]}", seconds=30.0, to=to)
    assert seen.segments_of(LAST) == 1
    assert 0.0 < seen.restored_s <= 15.0


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_an_isolated_worker_that_may_continue_is_not_replaced(alone: SplitCluster) -> None:
    title = "a worker cut off for 30 s, on_isolation continue"
    seen = soak(alone, title, seconds=30.0, on_isolation="continue")
    assert not seen.result.segments
    assert sent(seen.result) == alone.counts()["total"]
    assert seen.restored_s == 0.0


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_an_isolation_shorter_than_the_lease_moves_no_part(alone: SplitCluster) -> None:
    seen = soak(alone, "a worker cut off for 4 s", seconds=4.0)
    assert (seen.result.segments, seen.result.gaps) == ([], [])
    assert seen.result.attempts == 3
    assert sent(seen.result) == alone.counts()["total"]
    assert seen.restored_s == 0.0


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("leader", ["manager-1", "manager-3"])
def test_a_worker_isolated_with_a_minority_manager_is_replaced_in_time(
    with_manager: SplitCluster, leader: str
) -> None:
    role = "the job's leader" if leader == "manager-3" else "a follower"
    title = f"a worker cut off for 30 s together with {role} of three managers"
    seen = soak(with_manager, title, seconds=30.0, leader=leader)
    assert seen.segments_of(LAST) == 1
    assert 0.0 < seen.restored_s <= 15.0


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_slow_lossy_link_changes_no_result(with_manager: SplitCluster) -> None:
    cluster = with_manager

    async def main() -> RunResult:
        cluster.heal()
        cluster.net.link(delay_s=0.05, loss=0.1)
        async with cluster.client() as client:
            job = await client.submit_job(cluster.paced(vus=VUS, duration="40s"))
            final = await client.wait_for_completion(job, timeout=120)
        cluster.net.link()
        assert final.status == "completed", final.reason
        return final.result

    result = asyncio.run(main())
    seconds = cluster.per_second()
    within = [seconds.get(at, 0) for at in range(min(seconds) + 1, max(seconds))]
    cluster_report().write(
        "50 ms of delay and 10 % loss each way, to one of three managers and one of three workers",
        f"{result.status.value}, reported {sent(result):,}, target {cluster.counts()['total']:,}, "
        f"attempts {result.attempts}, {result.elapsed_seconds:.1f} s; {min(within)} to "
        f"{max(within)} requests in a second (asked {RATE})",
    )
    assert_exact(cluster, result)
    assert_never_more_than_asked(cluster)
    assert (result.segments, result.gaps) == ([], [])
    assert sent(result) == cluster.counts()["total"]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_commands_work_over_a_slow_lossy_link(alone: SplitCluster) -> None:
    cluster = alone
    cluster.heal()
    cluster.net.link(delay_s=0.05, loss=0.1)
    lines = []

    def command(name: str, *arguments: str, code: int = 0) -> str:
        began_s = time.monotonic()
        process = cluster.net.b.popen(
            [*HYPERSCALE, name, *arguments, "--dir", str(cluster.directory)],
            cwd=cluster.directory.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        stdout, stderr = process.communicate(timeout=200)
        assert process.returncode == code, (name, stdout, stderr)
        lines.append(f"{name}: {time.monotonic() - began_s:.1f} s")
        return str(stdout)

    file = cluster.paced(vus=VUS, duration="5s")
    file.write_text("import large\n" + file.read_text())
    file.with_name("large.py").write_text("# nothing but this remark\n" * 40_000)
    job = command("submit", str(file), "--detach").strip()
    assert job in command("jobs")
    assert LAST in command("workers")
    command("status", job)
    command("watch", job)
    assert "passed in" in command("results", job)
    long_one = command("submit", str(cluster.paced(vus=VUS, duration="5m")), "--detach").strip()
    command("cancel", long_one, "--reason", "enough")
    command("watch", long_one, code=3)
    cluster.net.link()
    cluster_report().write(
        "commands over 50 ms of delay and 10 % loss each way, the first with a bundle of 1 MiB",
        "; ".join(lines),
    )


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_clients_find_the_majority(with_manager: SplitCluster) -> None:
    """The manager that is asked first is isolated with the minority, and stays silent."""
    cluster = with_manager
    took_s: dict[str, float] = {}

    async def main() -> None:
        cluster.heal()
        async with cluster.client() as before:
            job = await before.submit_job(cluster.paced(vus=VUS, duration="50s"))
            await running(before, cluster, job, 100)
        cluster.net.cut()
        for what in ("status", "cancel", "submit"):
            asked = ("manager-3", "manager-1", "manager-2")
            async with cluster.client(*asked, in_order=True) as client:
                began_s = time.monotonic()
                if what == "status":
                    assert (await client.get_job_status(job)).status == "running"
                elif what == "cancel":
                    assert (await client.cancel_job(job)).accepted
                else:
                    await client.submit_job(cluster.paced(vus=1, duration="1s"))
                took_s[what] = time.monotonic() - began_s
        async with cluster.client("manager-3") as client:
            with pytest.raises(RunError) as caught:
                await client.get_job_status(job)
        cluster.net.mend()
        async with cluster.client() as client:
            final = await client.wait_for_completion(job, timeout=60)
        assert final.status == "cancelled"
        assert_exact(cluster, final.result)
        cluster_report().write(
            "clients that ask a manager of the minority first",
            "; ".join(f"{what}: {seconds:.1f} s" for what, seconds in took_s.items()),
            f"one that knows no other is told: {caught.value.message}",
        )

    asyncio.run(main())
