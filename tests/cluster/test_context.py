"""Values passed between workflows on a cluster, and results that survive absent managers.

User code notes what it sees, and when, in a file: all nodes are on one machine and share its
monotonic clock.
"""

import asyncio
import os
import signal
from pathlib import Path

from hyperscale.client.updates import WorkflowResultPush
from tests.lab.cluster import (
    Cluster,
    Notes,
    all_free,
    assert_exact,
    cut,
    leader_of,
    metric,
    running,
    sent,
    status_is,
    users,
)
from tests.lab.loops import on_loop
from tests.lab.waiting import WAIT_S, until


def told(cluster: Cluster) -> int:
    """Return how many times workers sent a result."""
    return sum(metric(cluster, "hyperscale_worker_results_sent_total"))


@on_loop
async def test_provided_values_reach_their_users_and_no_workflow_starts_early(
    cluster: Cluster, tmp_path: Path
) -> None:
    notes = Notes(tmp_path / "notes")
    file = cluster.write(
        notes.code
        + """
class Stock(Workflow):
    vus = 2
    duration = "500ms"

    @step()
    async def get(self, url: URL = "URL_/delay/20") -> HTTPResponse:
        return await self.client.http.get(url)

    @state("Shop")
    def parts(self) -> Provide[list[int]]:
        return [7]

    @teardown(per="executor")
    async def end(self) -> None:
        await asyncio.sleep(0.2)
        note("Stock ends")

class Login(Workflow):
    vus = 1
    duration = "5s"

    @action()
    async def login(self) -> None:
        self.context["session"] = "of Login"

    @state("Shop")
    def token(self) -> Provide[dict]:
        return {"text": "gr\\u00fc\\u00df", "blob": b"\\x00\\xff", "number": 2**60, "ratio": 0.1}

    @state("Shop")
    def secret(self) -> Provide[str]:
        return "under another name"

    @state()
    def hidden(self) -> Provide[str]:
        return "for nobody"

    @state("Bystander")
    def private(self) -> Provide[str]:
        return "not for Shop"

    @teardown(per="executor")
    async def end(self) -> None:
        note("Login ends")

@depends("Login")
class Bystander(Workflow):
    vus = 1
    duration = "5s"

    @action()
    async def look(self) -> None:
        self.context["session"] = "of Bystander"

    @state("Shop")
    def rumour(self) -> Provide[str]:
        return "unasked"

@depends("Stock", "Login")
class Shop(Workflow):
    vus = 3
    duration = "500ms"

    @state("Login")
    def take(
        self, token: dict = {}, other: str = "-", hidden: str = "-", private: str = "-",
        rumour: str = "-",
    ) -> Use[dict]:
        note("Shop begins")
        note("seen", repr((token, other, hidden, private, rumour)))

    @state("Stock")
    def count(self, parts: list[int] = []) -> Use[list[int]]:
        note("parts", repr(parts))

    @setup(per="executor")
    async def begin(self) -> None:
        note("context", repr(self.context.get("session")))

    @step()
    async def get(self, url: URL = "URL_/delay/20") -> HTTPResponse:
        return await self.client.http.get(url)
"""
    )
    async with cluster.client() as client:
        final = await client.wait_for_completion(await client.submit_job(file))
    assert (final.status, final.errors) == ("completed", ())
    found = {workflow.name: workflow for workflow in final.workflow_results}
    shops = len(found["Shop"].workers)
    token = {"text": "grüß", "blob": b"\x00\xff", "number": 2**60, "ratio": 0.1}
    assert notes.words("seen") == [repr((token, "-", "-", "-", "-"))] * shops
    assert notes.words("parts") == [repr([7] * len(found["Stock"].workers))] * shops
    assert notes.words("context") == [repr("of Login")] * shops
    begins = notes.times("Shop begins")
    ends = notes.times("Stock ends") + notes.times("Login ends")
    assert len(ends) == len(found["Stock"].workers) + 1
    assert max(ends) < min(begins)


CHAIN = """
class First(Workflow):
    vus = 1
    duration = "5s"

    @action()
    async def begin(self) -> None:
        note("First runs")

    @state("Middle", "Last")
    def token(self) -> Provide[str]:
        value = os.urandom(16).hex()
        note("gives", value)
        return value

@depends("First")
class Middle(Workflow):
    vus = 3
    duration = "4s"

    @state("First")
    def take(self, token: str = "") -> Use[str]:
        note("takes", token)

    @step()
    async def get(self, url: URL = "URL_/delay/20") -> HTTPResponse:
        return await self.client.http.get(url)

    @teardown(per="executor")
    async def end(self) -> None:
        note("Middle ends")

@depends("First", "Middle")
class Last(Workflow):
    vus = 3
    duration = "500ms"

    @state("First")
    def take(self, token: str = "") -> Use[str]:
        note("Last begins")
        note("takes", token)

    @step()
    async def get(self, url: URL = "URL_/delay/20") -> HTTPResponse:
        return await self.client.http.get(url)
"""


@on_loop
async def test_a_provided_value_survives_the_leader_and_its_workflow_is_not_repeated(
    cluster: Cluster, tmp_path: Path
) -> None:
    notes = Notes(tmp_path / "notes")
    async with cluster.client() as client:
        job = await client.submit_job(cluster.write("import os\n" + notes.code + CHAIN))
        await running(client, cluster, job, 10)
        cluster.kill(leader_of(cluster, job))
        final = await client.wait_for_completion(job)
    assert final.status == "completed", final.errors
    first, middle, last = final.workflow_results
    (value,) = notes.words("gives")
    assert notes.words("takes") == [value] * (len(middle.workers) + len(last.workers))
    assert len(notes.times("First runs")) == 1
    assert [w.attempts for w in (first, middle, last)] == [
        1,
        len(middle.workers),
        len(last.workers),
    ]
    assert max(notes.times("Middle ends")) < min(notes.times("Last begins"))
    assert_exact(cluster, final.result)


RECEIVER = """
import hashlib

class Giver(Workflow):
    vus = 1
    duration = "300ms"

    @action()
    async def begin(self) -> None:
        await asyncio.sleep(0.1)

    @state("Taker")
    def values(self) -> Provide[dict]:
        return {"token": os.urandom(24), "ids": [1, 2.5, None, True], "name": "Zoë", "empty": {}}

@depends("Giver")
class Taker(Workflow):
    vus = 6
    duration = "10m"

    @state("Giver")
    def take(self, values: dict = {}) -> Use[dict]:
        note("takes", hashlib.sha256(repr(values).encode()).hexdigest(), repr(sorted(values)))

    @step()
    async def get(self, url: URL = "URL_/delay/20") -> HTTPResponse:
        return await self.client.http.get(url)
"""


@on_loop
async def test_the_context_after_a_workers_death_is_the_same_byte_for_byte(
    cluster: Cluster, tmp_path: Path
) -> None:
    notes = Notes(tmp_path / "notes")
    async with cluster.client() as client:
        job = await client.submit_job(cluster.write("import os\n" + notes.code + RECEIVER))
        await running(client, cluster, job, 100)
        before = notes.words("takes")
        victim = (await client.get_job(job)).job.workflows[1].workers[0]
        cluster.kill(victim)
        await asyncio.to_thread(
            until, lambda: len(notes.words("takes")) > len(before), what="the part begins elsewhere"
        )
        await client.cancel_job(job, "seen")
        final = await client.wait_for_completion(job)
    (taken,) = set(notes.words("takes"))
    assert "'empty', 'ids', 'name', 'token'" in taken
    assert [segment.worker for segment in final.result.segments] == [victim]
    assert_exact(cluster, final.result)


@on_loop
async def test_a_result_is_delivered_after_all_managers_were_down_and_counts_once(
    cluster: Cluster,
) -> None:
    pushes: list[WorkflowResultPush] = []
    managers = [manager.pid for manager in cluster.file.managers]
    async with cluster.client() as client:
        # Long enough to stop the managers, short enough to end within its lease.
        file = cluster.paced(vus=3, duration="4s")
        job = await client.submit_job(file, on_workflow_result=pushes.append)
        await asyncio.to_thread(until, lambda: users(cluster) == 3, what="all parts have started")
        before = told(cluster)
        for pid in managers:
            os.kill(pid, signal.SIGSTOP)
        try:
            # The cores are free although no manager takes the result, which is sent again.
            await asyncio.to_thread(until, lambda: all_free(cluster), what="cores are free")
            await asyncio.to_thread(
                until, lambda: told(cluster) > before + 3, what="the result is sent again"
            )
        finally:
            for pid in managers:
                os.kill(pid, signal.SIGCONT)
        final = await client.wait_for_completion(job)
        async with asyncio.timeout(WAIT_S):
            while not pushes:
                await asyncio.sleep(0.01)
    assert final.status == "completed", final.errors
    assert [push.workflow_id for push in pushes] == ["Load"]
    assert_exact(cluster, final.result)
    assert (final.result.segments, final.result.gaps) == ([], [])
    assert sent(final.result) - cut(final.result) == final.total_completed


@on_loop
async def test_failed_workflows_make_a_job_partial_or_failed_and_free_their_cores(
    cluster: Cluster, tmp_path: Path
) -> None:
    notes = Notes(tmp_path / "notes")
    good = """
class Good(Workflow):
    vus = 1
    duration = "500ms"

    @step()
    async def get(self, url: URL = "URL_/delay/20") -> HTTPResponse:
        return await self.client.http.get(url)
"""
    bad = """
class Bad(Workflow):
    vus = 1
    duration = "5s"

    @action()
    async def login(self) -> None:
        note("Bad runs")
        raise ValueError("no such account")

@depends("Bad")
class After(Workflow):
    vus = 1
    duration = "5s"

    @action()
    async def work(self) -> None:
        note("After runs")
"""
    async with cluster.client() as client:
        mixed = await client.submit_job(cluster.write(notes.code + good + bad))
        both = await client.wait_for_completion(mixed)
        none = await client.wait_for_completion(
            await client.submit_job(cluster.write(notes.code + bad))
        )
        cancelled = await client.submit_job(cluster.paced(vus=2, duration="60s"))
        await status_is(client, cancelled, "running")
        await client.cancel_job(cancelled)
        assert (await client.wait_for_completion(cancelled)).status == "cancelled"
    assert (both.status, both.exit_code) == ("partial", 3)
    assert (none.status, none.exit_code) == ("failed", 3)
    for final in (both, none):
        error, after = final.errors
        assert error.startswith("Bad: ")
        assert "no such account" in error
        assert after == "After: dependency failed: Bad"
    assert (
        len(notes.times("Bad runs")) == 2
    )  # once in each job: a workflow that fails is not retried
    assert notes.times("After runs") == []
    until(lambda: all_free(cluster), what="all cores are free")
