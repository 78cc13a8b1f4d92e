"""Which workflows get cores, how many and when, on two workers of two cores each."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from hyperscale.client.client import HyperscaleClient
from hyperscale.client.updates import JobFinalResult
from hyperscale.errors import RunError
from hyperscale.reporting.exit_codes import ExitCode, exit_code_of_error
from tests.lab.cluster import Cluster, Notes, cut, running_cluster, sent, status_is, users
from tests.lab.command import run
from tests.lab.loops import on_loop
from tests.lab.waiting import WAIT_S, until

QUEUE_MAX = 3
ROUTES = ("/delay/{ms}", "/slow/{ms}/{n}")
DELAY, SLOW = "/delay/20", "/slow/20/2"  # the target counts them by route
SETTINGS = f"""
[queue]
max = {QUEUE_MAX}
age_s = 2
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("scheduling")
    (directory / "nodes.toml").write_text(SETTINGS)
    arguments = ("--workers", "2", "--cores", "2", "--config", str(directory / "nodes.toml"))
    with running_cluster(directory / "lab", *arguments) as cluster:
        yield cluster


def load(name: str, *, vus: int = 8, duration: str = "1s", path: str = DELAY, **more: str) -> str:
    """Return the source of a workflow; `depends` names its dependencies."""
    depends = more.pop("depends", "")
    lines = [f"@depends({depends})"] if depends else []
    lines += [f"class {name}(Workflow):", f"    vus = {vus}", f'    duration = "{duration}"']
    lines += [f'    {key} = "{value}"' for key, value in more.items()]
    lines += [
        "    @step()",
        f'    async def get(self, url: URL = "URL_{path}") -> HTTPResponse:',
        "        return await self.client.http.get(url)",
    ]
    return "\n".join([*lines, ""])


NOTED = """
    @setup(per="executor")
    async def begin(self) -> None:
        note(type(self).__name__, "begins")

    @teardown(per="executor")
    async def end(self) -> None:
        note(type(self).__name__, "ends")
"""


def cores(final: JobFinalResult) -> dict[str, int]:
    assert final.status == "completed", final.errors
    return {workflow.name: workflow.cores for workflow in final.workflow_results}


async def ended(client: HyperscaleClient, job: str) -> JobFinalResult:
    return await client.wait_for_completion(job, timeout="60s")


async def running_jobs(client: HyperscaleClient) -> dict[str, int]:
    """Return the cores of each job, from the attempts on the workers."""
    found: dict[str, int] = {}
    for row in (await client.get_workers()).workers:
        for held in row.attempts:
            found[held.job] = found.get(held.job, 0) + held.cores
    return found


async def becomes(look: Callable[[], Awaitable[object]], wanted: object) -> None:
    """Wait until the observed value is the wanted one."""
    seen: object = None
    try:
        async with asyncio.timeout(WAIT_S):
            while (seen := await look()) != wanted:
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"it stayed {seen}, not {wanted}") from None


def counted(cluster: Cluster, route: str) -> int:
    """Return how many requests the target received on one route."""
    return int(cluster.counts()["routes"][route]["GET"])


@on_loop
async def test_two_jobs_share_the_cores_and_each_reports_its_own_requests(cluster: Cluster) -> None:
    async with cluster.client() as client:
        files = [
            cluster.write(load("Load", vus=2, duration="60s", path=path)) for path in (DELAY, SLOW)
        ]
        jobs = await asyncio.gather(*map(client.submit_job, files))
        await becomes(lambda: running_jobs(client), dict.fromkeys(jobs, 2))
        await asyncio.to_thread(
            until, lambda: users(cluster) == 4, what="all virtual users are connected"
        )
        for job in jobs:
            await client.cancel_job(job)
        finals = [await ended(client, job) for job in jobs]
        await becomes(lambda: running_jobs(client), {})
    for final, route in zip(finals, ROUTES, strict=True):
        total = counted(cluster, route)
        assert sent(final.result) - cut(final.result) <= total <= sent(final.result)
    assert cluster.counts()["connections"]["peak"] == 4


@on_loop
async def test_a_workflow_gets_the_share_of_cores_of_its_priority(
    cluster: Cluster,
) -> None:
    """Of four cores, low gets 1, normal 1 to 3, high 3 to 4, and others up to all of them."""
    file = cluster.write(
        load("High", priority="high")
        + load("Low", priority="LOW")
        + load("Normal", priority="normal", depends='"High", "Low"')
        + load("Auto", path=SLOW, depends='"Normal"')
    )
    async with cluster.client() as client:
        final = await ended(client, await client.submit_job(file))
    assert cores(final) == {"High": 3, "Low": 1, "Normal": 3, "Auto": 4}
    # More cores than one worker has: both workers, and one merged result.
    auto = final.workflow_results[3]
    assert auto.workers == ["worker-1", "worker-2"]
    (step,) = auto.steps
    assert step.sent - step.cut <= counted(cluster, ROUTES[1]) <= step.sent


@on_loop
async def test_a_job_without_free_cores_shows_its_queue_position_and_runs_later(
    cluster: Cluster,
) -> None:
    where = ("--dir", str(cluster.directory))
    async with cluster.client() as client:
        first = await client.submit_job(cluster.write(load("First", vus=2, duration="60s")))
        await status_is(client, first, "running")
        file = cluster.write(load("High", priority="high"))
        second = await client.submit_job(
            file
        )  # its share is 3 of all 4 cores, not of the 2 free ones
        await status_is(client, second, "queued")
        watching = cluster.command("watch", second, "--ui", "ci", *where)
        why = "High needs 3 cores, and 2 of 4 are busy"
        place = f"waiting for cores, number 1 in the queue: {why}"

        async def message() -> str:
            return (await client.get_job_status(second)).message

        async def rows() -> list[tuple[str, int, str]]:
            jobs = (await client.get_jobs()).jobs
            return [
                (row.status.value, row.position, row.reason) for row in jobs if row.job == second
            ]

        await becomes(message, place)
        await becomes(rows, [("queued", 1, why)])
        status = await asyncio.to_thread(cluster.run, "status", second, *where)
        assert place in status.stdout
        workers = await asyncio.to_thread(cluster.run, "workers", *where)
        assert f"First of {first} on 2 cores" in workers.stdout
        assert watching.stdout is not None
        while place not in await asyncio.to_thread(watching.stdout.readline):
            assert watching.poll() is None
        await client.cancel_job(first)
        stdout, _ = await asyncio.to_thread(watching.communicate, timeout=60)
        final = await ended(client, second)
    assert cores(final)["High"] >= 3
    assert watching.returncode == 0
    assert "passed" in stdout


@on_loop
async def test_workflows_of_a_job_run_together_on_fewer_cores_and_other_jobs_wait(
    cluster: Cluster, tmp_path: Path
) -> None:
    notes = Notes(tmp_path / "notes")
    weighed = """
    @teardown(per="executor")
    async def end(self) -> None:
        note(type(self).__name__, str(os.getpriority(os.PRIO_PROCESS, 0)))
"""
    names = ["A", "B", "C", "D", "E"]
    source = "".join(load(name, vus=1, duration="60s") + weighed for name in names)
    source += load("Low", vus=1, duration="60s", priority="low") + weighed
    where = ("--dir", str(cluster.directory))
    async with cluster.client() as client:
        job = await client.submit_job(cluster.write("import os\n" + notes.code + source))
        await asyncio.to_thread(
            until, lambda: users(cluster) == 6, what="six workflows run on four cores"
        )
        rows = (await client.get_workers()).workers
        held = [each for row in rows for each in row.attempts]
        assert {row.worker: row.free for row in rows} == {"worker-1": 0, "worker-2": 0}
        assert sorted(each.is_shared for each in held) == [False] * 4 + [True] * 2
        other = await client.submit_job(cluster.write(load("Other", vus=1)))
        await status_is(client, other, "queued")
        status = await asyncio.to_thread(cluster.run, "status", job, *where)
        assert "4 shared" in status.stdout
        await client.cancel_job(job)
        final = await ended(client, job)
        assert (await ended(client, other)).status == "completed"
    assert {each.name: each.shared_cores for each in final.result.workflows} == dict.fromkeys(
        (*names, "Low"), 4
    )
    assert any("6 workflows on 4 cores" in text for text in final.result.warnings)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert {words.split()[0]: int(words.split()[1]) - own for _, words in notes.lines()} == {
        **dict.fromkeys(names, 10),
        "Low": 15,
    }


@on_loop
async def test_an_exclusive_workflow_runs_alone_among_many_small_jobs(
    cluster: Cluster, tmp_path: Path
) -> None:
    notes = Notes(tmp_path / "notes")
    small = cluster.write(notes.code + load("Small", vus=1, duration="1s") + NOTED)
    file = cluster.write(
        notes.code + load("Alone", vus=2, duration="1s", priority="exclusive") + NOTED
    )
    jobs: list[str] = []
    is_over = asyncio.Event()

    async def keep_coming() -> None:
        while not is_over.is_set():
            jobs.append(await client.submit_job(small))
            await status_is(client, jobs[-1], "running", "completed")

    async with cluster.client() as client:
        jobs.append(await client.submit_job(small))
        await status_is(client, jobs[0], "running", "completed")
        alone = await client.submit_job(file)
        stream = asyncio.create_task(keep_coming())
        last = await ended(client, alone)
        is_over.set()
        await stream
        finals = [last, *[await ended(client, job) for job in jobs]]
    assert all(final.status == "completed" for final in finals)
    begin, end = min(notes.times("Alone begins")), max(notes.times("Alone ends"))
    begun = sum(at_s < end for at_s in notes.times("Small begins"))
    assert begun == sum(at_s < begin for at_s in notes.times("Small ends"))


@on_loop
async def test_a_full_queue_refuses_a_new_job_but_not_a_repeated_one(
    cluster: Cluster,
) -> None:
    file = cluster.paced(vus=4, duration="60s")
    async with cluster.client("manager-1") as client, cluster.client("manager-3") as another:
        running = await client.submit_job(file)
        await status_is(client, running, "running")
        waiting = [await client.submit_job(file, key=f"k{n}") for n in range(QUEUE_MAX)]

        async def places() -> list[int]:
            # In any order: a new leader does not know how long a job has waited.
            rows = {row.job: row for row in (await another.get_jobs(live_only=True)).jobs}
            return sorted(rows[job].position for job in waiting if job in rows)

        async def by_command() -> tuple[int, str]:
            where = ("--submit-timeout", "5s", "--dir", str(cluster.directory))
            done = await asyncio.to_thread(cluster.run, "submit", str(file), "--detach", *where)
            if done.stdout:
                await client.cancel_job(done.stdout.strip())
            return done.returncode, done.stderr

        async def by_client() -> tuple[int, str]:
            try:
                await client.cancel_job(await another.submit_job(file, submit_timeout="5s"))
            except RunError as error:
                return exit_code_of_error(error), error.message
            return 0, ""

        await becomes(places, [1, 2, 3])
        assert await another.submit_job(file, key="k1") == waiting[1]
        for submitted in (by_command, by_client):
            # The job is accepted if the queue is unknown, as during a change of leaders.
            while (refused := await submitted())[0] == 0:
                await becomes(places, [1, 2, 3])
            assert refused[0] == ExitCode.RUN_FAILED
            assert "no room for another job: capacity exceeded: 3 workflows wait" in refused[1]
        for job in [*waiting, running]:
            await client.cancel_job(job)
        await ended(client, running)


def test_a_job_without_workers_fails_with_the_reason(cluster: Cluster, tmp_path: Path) -> None:
    for name in ("worker-1", "worker-2"):
        cluster.kill(name)
    done = cluster.run(
        *("submit", str(cluster.paced()), "--dir", str(cluster.directory)), cwd=tmp_path
    )
    assert done.returncode == 3
    assert "there are no workers that take work" in done.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[listen]\nport = 9100\n", "[listen] cannot be set"),
        ("[queue]\nmax = 0\n", "queue.max"),
        ("[queue]\nage = 3\n", "did you mean queue.age_s?"),
    ],
)
def test_settings_that_a_local_cluster_does_not_allow_are_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "nodes.toml").write_text(text)
    done = run("cluster", "up", "--dir", "lab", "--config", "nodes.toml", cwd=tmp_path)
    assert done.code == 2
    assert message in done.stderr
