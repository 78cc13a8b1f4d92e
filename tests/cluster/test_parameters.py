"""Parameters of jobs: they reach every attempt, and secrets leave nothing behind."""

import asyncio
from pathlib import Path

from hyperscale.client.client import HyperscaleClient
from hyperscale.reporting.results import RunResult, RunStatus
from tests.lab.cluster import Cluster, leader_of, running
from tests.lab.loops import on_loop
from tests.lab.waiting import WAIT_S, until

SECRET = "hunter2-hunter2"

# The target answers 401 to anything but the right credentials.
SHOP = """
from hyperscale import Param

base = Param("http://127.0.0.1:1")
token = Param(secret=True)

class Shop(Workflow):
    vus = Param(1)
    duration = Param("6s")

    @step()
    async def enter(self, url: URL = f"{base}/basic-auth/me/{token}") -> HTTPResponse:
        if self.context.setdefault("calls", 0) == 0:
            self.context["calls"] = 1
            print("entering with", token)
        await asyncio.sleep(0.02)
        return await self.client.http.get(url, auth=("me", token))
"""


def files_with_secret(cluster: Cluster) -> list[Path]:
    """Return the files of all nodes that contain the secret."""
    found = (path for path in cluster.directory.rglob("*") if path.is_file())
    return [path for path in found if SECRET.encode() in path.read_bytes()]


async def secrets_are_gone(cluster: Cluster) -> None:
    what = "every manager has deleted the secrets"
    await asyncio.to_thread(until, lambda: not files_with_secret(cluster), what=what)


async def result_of(client: HyperscaleClient, job: str) -> RunResult:
    async with asyncio.timeout(WAIT_S):
        await client.wait_for_completion(job)
    return await client.get_results(job)


@on_loop
async def test_a_new_attempt_gets_the_parameters_and_the_end_deletes_the_secrets(
    cluster: Cluster,
) -> None:
    params = {"base": cluster.url, "token": SECRET, "vus": 6}
    async with cluster.client() as client:
        job = await client.submit_job(cluster.write(SHOP), params=params)
        await running(client, cluster, job, 20)
        kept = files_with_secret(cluster)
        assert len(kept) >= 2, "most voters have them before the job is committed"
        assert {path.parent.name for path in kept} == {"secrets"}
        assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}
        cluster.kill("worker-1")
        cluster.kill(leader_of(cluster, job))
        result = await result_of(client, job)
        assert result.status is RunStatus.COMPLETED
        assert result.params == {**params, "token": "***", "duration": "6s"}
        [workflow] = result.workflows
        assert (workflow.vus, workflow.failed) == (6, 0)
        assert workflow.attempts > 3
        assert set(cluster.counts()["routes"]) == {"/basic-auth/{user}/{password}"}
        cluster.heal()
        await secrets_are_gone(cluster)


def test_commands_logs_and_the_ledger_never_show_a_secret(cluster: Cluster, tmp_path: Path) -> None:
    where = ("--dir", str(cluster.directory))
    flags = ("--set", f"base={cluster.url}", "--set", f"token={SECRET}", "--set", "duration=1s")
    file = str(cluster.write(SHOP))
    done = cluster.run("submit", file, *where, *flags, "--watch", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    job = done.stdout.split()[1]
    shown = [done.stdout, done.stderr]
    for command in (("status", job), ("jobs",), ("results", job, "--json", "-")):
        asked = cluster.run(*command, *where, cwd=tmp_path)
        assert asked.returncode == 0, asked.stderr
        shown += [asked.stdout, asked.stderr]
    shown += [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert [text for text in shown if SECRET in text] == []
    assert '"token":"***"' in (tmp_path / "out/results.json").read_text()
    assert "entering with ***" in done.stdout
    until(lambda: not files_with_secret(cluster), what="every manager has deleted the secrets")


@on_loop
async def test_secrets_of_a_repeated_or_cancelled_submission_are_deleted(cluster: Cluster) -> None:
    params = {"base": cluster.url, "token": SECRET, "duration": "10m"}
    async with cluster.client() as client:
        file = cluster.write(SHOP)
        job = await client.submit_job(file, params=params, key="once")
        assert await client.submit_job(file, params=params, key="once") == job
        await running(client, cluster, job, 1)
        await client.cancel_job(job)
        assert (await result_of(client, job)).status is RunStatus.CANCELLED
        await secrets_are_gone(cluster)
