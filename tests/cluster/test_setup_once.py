"""Setup and teardown of a workflow on a cluster, run once; and the numbers of users.

User code notes what it does in a file: all nodes are on one machine. Where a node has to die at a
certain point, user code waits there for a file that the test makes afterwards.
"""

from pathlib import Path

import pytest

from hyperscale import HyperscaleClient
from hyperscale.client.updates import JobFinalResult
from tests.lab.cluster import Cluster, Notes, assert_exact, leader_of
from tests.lab.loops import on_loop
from tests.lab.waiting import until_async

USERS = 12

ONCE = """
import os

async def gate(path):
    note(f"at {path}")
    while not os.path.exists(path):
        await asyncio.sleep(0.01)

class Shop(Workflow):
    vus = 12
    duration = "1s"
    interval = "200ms"

    @setup()
    async def open(self) -> None:
        note(f"setup {os.getppid()}")
        self.context["token"] = os.urandom(8).hex()
        await self.client.http.get("URL_/bytes/1")
        GATE_SETUP

    @setup(per="vu")
    async def login(self) -> None:
        note(f"login {self.vu} {self.context['token']}")
        GATE_LOGIN

    @step()
    async def buy(self, token: str, url: URL = "URL_/bytes/2") -> HTTPResponse:
        note(f"step {self.vu} {token}")
        return await self.client.http.get(url)

    @teardown()
    async def close(self) -> None:
        note(f"teardown {self.context['token']} {os.getppid()}")
        await self.client.http.get("URL_/bytes/3")
        GATE_TEARDOWN
"""


class Gates:
    """Places where user code waits until the test lets it go on."""

    def __init__(self, directory: Path, *closed: str) -> None:
        self._paths = {name: directory / f"{name}.open" for name in closed}

    def write(self, cluster: Cluster, notes: Notes) -> Path:
        code = ONCE
        for name in ("setup", "login", "teardown"):
            path = self._paths.get(name)
            code = code.replace(f"GATE_{name.upper()}", f'await gate("{path}")' if path else "pass")
        return cluster.write(notes.code + code)

    def open(self, name: str) -> None:
        self._paths[name].touch()


def assert_once(notes: Notes, *, users: int = USERS) -> str:
    """Check that context and numbers are those of one setup; return the token."""
    steps = [line.split() for line in notes.words("step")]
    (token,) = {token for _, token in steps}
    assert {int(vu) for vu, _ in steps} == set(range(users))
    assert {line.split()[1] for line in notes.words("login")} == {token}
    (torn_down,) = (line.split()[0] for line in notes.words("teardown"))
    assert torn_down == token
    return token


def worker_of(cluster: Cluster, note: str) -> str:
    """Return the worker whose executor wrote the note."""
    pid = int(note.rsplit(maxsplit=1)[-1])
    return next(row.id for row in cluster.file.nodes if row.pid == pid)


async def noted(notes: Notes, start: str) -> str:
    await until_async(lambda: notes.words(start), what=start)
    return notes.words(start)[0]


async def finished(client: HyperscaleClient, job: str) -> JobFinalResult:
    return await client.wait_for_completion(job, timeout="60s")


@on_loop
async def test_setup_runs_on_one_worker_all_users_have_its_context_and_teardown_runs_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    notes = Notes(tmp_path / "notes")
    async with cluster.client() as client:
        final = await finished(
            client, await client.submit_job(Gates(tmp_path).write(cluster, notes))
        )
    assert (final.status, final.errors) == ("completed", ())
    assert len(notes.words("setup")) == 1
    assert_once(notes)
    # Every user logged in once: no number was given twice.
    assert sorted(int(line.split()[0]) for line in notes.words("login")) == list(range(USERS))
    steps = {step.name: step for step in final.result.workflows[0].steps}
    assert (steps["open"].sent, steps["close"].sent) == (1, 1)
    assert_exact(cluster, final.result)


@pytest.mark.parametrize("gate", ["setup", "login"], ids=["before", "after"])
@on_loop
async def test_setup_runs_again_if_its_worker_dies_before_the_commit_and_never_after(
    cluster: Cluster, tmp_path: Path, gate: str
) -> None:
    notes, gates = Notes(tmp_path / "notes"), Gates(tmp_path, gate)
    async with cluster.client() as client:
        job = await client.submit_job(gates.write(cluster, notes))
        first = await noted(notes, "setup")
        await noted(notes, "at")
        cluster.kill(worker_of(cluster, first))
        gates.open(gate)
        final = await finished(client, job)
    assert (final.status, final.errors) == ("completed", ())
    assert len(notes.words("setup")) == (2 if gate == "setup" else 1)
    assert_once(notes)


@pytest.mark.parametrize("gate", ["setup", "login", "teardown"])
@on_loop
async def test_setup_and_teardown_run_once_if_the_leader_dies_meanwhile(
    cluster: Cluster, tmp_path: Path, gate: str
) -> None:
    notes, gates = Notes(tmp_path / "notes"), Gates(tmp_path, gate)
    async with cluster.client() as client:
        job = await client.submit_job(gates.write(cluster, notes))
        await noted(notes, "at")
        cluster.kill(leader_of(cluster, job))
        gates.open(gate)
        final = await finished(client, job)
    assert (final.status, final.errors) == ("completed", ())
    assert len(notes.words("setup")) == 1
    assert_once(notes)


@on_loop
async def test_a_teardown_whose_worker_dies_is_not_run_again_and_the_results_say_so(
    cluster: Cluster, tmp_path: Path
) -> None:
    notes, gates = Notes(tmp_path / "notes"), Gates(tmp_path, "teardown")
    async with cluster.client() as client:
        job = await client.submit_job(gates.write(cluster, notes))
        cluster.kill(worker_of(cluster, await noted(notes, "teardown")))
        gates.open("teardown")
        final = await finished(client, job)
    assert final.status == "completed"
    assert_once(notes)
    assert any(
        "Shop: teardown: it may not have run to its end" in each for each in final.result.warnings
    )


@on_loop
async def test_a_cancelled_job_is_torn_down(cluster: Cluster, tmp_path: Path) -> None:
    notes, gates = Notes(tmp_path / "notes"), Gates(tmp_path, "login")
    async with cluster.client() as client:
        job = await client.submit_job(gates.write(cluster, notes))
        await noted(notes, "at")
        await client.cancel_job(job)
        final = await finished(client, job)
    assert final.status == "cancelled"
    assert len(notes.words("setup")) == len(notes.words("teardown")) == 1
