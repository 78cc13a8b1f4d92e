"""Jobs that do not complete: code that hangs or exits, time limits, cancellation.

Each has a readable reason, leaves nothing running, and its cores serve the next job.
"""

import asyncio
from pathlib import Path
from textwrap import indent

import pytest

from hyperscale.client.client import HyperscaleClient
from hyperscale.client.updates import JobFinalResult
from tests.lab.cluster import Cluster, Notes, all_free, leader_of, status_is
from tests.lab.loops import on_loop
from tests.lab.processes import is_alive
from tests.lab.waiting import until

GET = """
    @step()
    async def get(self, url: URL = "URL_/delay/20") -> HTTPResponse:
        return await self.client.http.get(url)
"""


def misbehaving(
    cluster: Cluster,
    where: str,
    code: str,
    *,
    before: str = "",
    duration: str = "300ms",
    more: str = "",
) -> Path:
    """Write a test whose hook `where` runs this code; a step returns nothing."""
    is_step = where == "step"
    hook = "async def misbehave(self) -> " + ("HTTPResponse" if is_step else "None")
    return cluster.write(
        f"import os, resource, signal, sys\n{before}\n"
        f'class Bad(Workflow):\n    vus = 1\n    duration = "{duration}"\n{more}\n'
        f"    @{where}()\n    {hook}:\n{indent(code, ' ' * 8)}\n" + ("" if is_step else GET)
    )


def exception_of(final: JobFinalResult) -> int:
    """Return how many steps raised."""
    return sum(
        step.errors.get("exception", 0)
        for workflow in final.workflow_results
        for step in workflow.steps
    )


def reasons_of(final: JobFinalResult) -> list[str]:
    return [why.kind.value for workflow in final.workflow_results for why in workflow.reasons]


async def ended(client: HyperscaleClient, file: Path) -> JobFinalResult:
    return await client.wait_for_completion(await client.submit_job(file))


# --- code that does not let go -----------------------------------------------------------

HOG = """\
note("spins", str(os.getpid()))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True: pass"""


@on_loop
async def test_cores_of_user_code_that_hangs_or_exits_serve_the_next_job(
    cluster: Cluster, tmp_path: Path
) -> None:
    hogs = {where: Notes(tmp_path / where) for where in ("setup", "step", "teardown")}
    async with cluster.client() as client:
        fatal = await client.submit_job(misbehaving(cluster, "step", "os._exit(7)"))
        jobs = {
            where: await client.submit_job(misbehaving(cluster, where, HOG, before=notes.code))
            for where, notes in hogs.items()
        }
        spins = hogs["setup"]
        await asyncio.to_thread(until, lambda: spins.words("spins"), what="the setup spins")
        await client.cancel_job(jobs["setup"], "it never begins")
        ends = {where: await client.wait_for_completion(job) for where, job in jobs.items()}
        given_up = await client.wait_for_completion(fatal)
        following = await ended(client, cluster.paced(vus=3, duration="500ms"))
    assert (ends["setup"].status, ends["setup"].exit_code) == ("cancelled", 3)
    assert "it never begins" in ends["setup"].reason
    for where, blamed in (("step", "the code of the test"), ("teardown", "a teardown or")):
        assert (ends[where].status, ends[where].exit_code) == ("failed", 3)
        assert f"an executor of the part failed: {blamed}" in ends[where].reason
        assert "blocked the event loop" in ends[where].reason
    for where, notes in hogs.items():
        pids = notes.words("spins")
        assert len(pids) == 1, ends[where].result.segments  # it is not tried on another worker
        assert not is_alive(int(pids[0]))
    # Code that ends its executor is tried at most three times more, first on every other worker.
    assert (given_up.status, given_up.exit_code) == ("failed", 3)
    assert "given up after 4 attempts " in given_up.reason
    assert "exited with code 7" in given_up.reason
    tried = [segment.worker for segment in given_up.result.segments]
    assert sorted(tried[:3]) == ["worker-1", "worker-2", "worker-3"]
    assert len(tried) == 4
    assert following.status == "completed"
    assert len(following.workflow_results[0].workers) == 3


@on_loop
async def test_messages_of_several_workers_are_counted_together(cluster: Cluster) -> None:
    file = cluster.write(
        """
        class Bad(Workflow):
            vus = 6
            duration = "300ms"
            allow_failures = True

            @step()
            async def lost(self, url: URL = "URL_/status/404") -> HTTPResponse:
                return await self.client.http.get(url)

            @step("lost")
            async def raising(self) -> HTTPResponse:
                raise KeyError(f"cart {self.vu}")
        """
    )
    async with cluster.client() as client:
        final = await ended(client, file)
    (workflow,) = final.workflow_results
    assert (final.exit_code, len(workflow.workers)) == (0, 3)
    lost, raising = workflow.steps
    assert [(row.error, row.message, row.count) for row in lost.failures] == [
        ("status", "404 Not Found", lost.failed)
    ]
    (row,) = raising.failures
    assert (row.error, row.count) == ("exception", raising.failed)
    assert row.message.startswith("KeyError: 'cart ")
    assert row.sample is not None
    assert "raise KeyError" in row.sample.trace


FORK = """\
if not hasattr(type(self), "child"):
    type(self).child = os.fork()
    while not type(self).child: pass
    note("child", str(type(self).child))
return await self.client.http.get("URL_/delay/20")"""

ENDLESS = """\
def call(n): return call(n + 1)
call(0)"""

GREEDY = """\
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 27), -1))
heap = []
while True: heap.append(bytearray(1 << 24))"""


@on_loop
async def test_errors_of_user_code_are_reported_with_its_own_traceback(
    cluster: Cluster, tmp_path: Path
) -> None:
    notes = Notes(tmp_path / "notes")
    slow = "return await self.client.http.get('URL_/delay/5000')"
    limit = '    timeout = "100ms"'
    async with cluster.client() as client:
        forked, recursed, greedy, left, interrupted, timed_out = await asyncio.gather(
            ended(client, misbehaving(cluster, "step", FORK, before=notes.code)),
            ended(client, misbehaving(cluster, "step", ENDLESS)),
            ended(client, misbehaving(cluster, "step", GREEDY)),
            ended(client, misbehaving(cluster, "setup", "sys.exit(7)")),
            ended(client, misbehaving(cluster, "step", "raise KeyboardInterrupt")),
            ended(client, misbehaving(cluster, "step", slow, duration="2s", more=limit)),
        )
    assert forked.status == "completed", forked.reason
    (child,) = notes.words("child")
    until(lambda: not is_alive(int(child)), what="the forked process is gone")
    # A step that raises is a failed step, and so is a request that times out.
    for final in (recursed, greedy, interrupted):
        assert (final.status, final.exit_code) == ("completed", 1), final.reason
        assert reasons_of(final) == ["no_success", "raised"]
        assert exception_of(final) > 0
    assert (timed_out.status, timed_out.exit_code) == ("completed", 1)
    assert reasons_of(timed_out) == ["no_success"]
    where = (timed_out.job_id, "--dir", str(cluster.directory))
    shown = [cluster.run(command, *where) for command in ("status", "results")]
    assert [each.returncode for each in shown] == [0, 1]
    assert all("not one call succeeded" in each.stdout for each in shown)
    assert timed_out.workflow_results[0].steps[0].errors == {"timeout": timed_out.total_failed}
    assert timed_out.total_failed > 0
    assert (left.status, left.exit_code) == ("failed", 3)
    assert "Bad.misbehave failed: SystemExit: 7" in left.reason
    until(lambda: all_free(cluster), what="all cores are free")


# --- time limits -------------------------------------------------------------------------


@pytest.mark.soak
@on_loop
async def test_a_job_without_progress_ends_at_its_time_limit(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Setup hooks get two minutes. A step that waits forever gets the same time, and once more
    when it asks for it; a step that makes progress has the time of its workflow."""
    notes = Notes(tmp_path / "notes")
    stuck = misbehaving(cluster, "step", "await asyncio.sleep(1e6)", duration="10m")
    async with cluster.client() as client:
        spinning, waiting = await asyncio.gather(
            ended(client, misbehaving(cluster, "setup", HOG, before=notes.code)),
            ended(client, stuck),
        )
    assert (spinning.status, spinning.exit_code) == ("timeout", 3)
    assert "not prepared within 120 s: its setup hooks or imports" in spinning.reason
    assert (waiting.status, waiting.exit_code) == ("timeout", 3)
    assert "stuck: no action finished for 1" in waiting.reason
    assert (spinning.result.attempts, waiting.result.attempts) == (1, 1)
    until(lambda: all_free(cluster), what="all cores are free")


# --- cancelling --------------------------------------------------------------------------


@on_loop
async def test_a_queued_job_is_cancelled_while_its_leader_is_gone(cluster: Cluster) -> None:
    async with cluster.client() as client:
        busy = await client.submit_job(cluster.paced(duration="60s"))
        await status_is(client, busy, "running")
        queued = await client.submit_job(cluster.paced(duration="60s"))
        await status_is(client, queued, "queued")
        cluster.kill(leader_of(cluster, queued))
        for _ in range(2):
            reply = await client.cancel_job(queued, "not wanted")
            assert reply.accepted or reply.status == "cancelled"
        never = await client.wait_for_completion(queued)
        await client.cancel_job(busy)
        await client.wait_for_completion(busy)
    assert (never.status, never.total_completed) == ("cancelled", 0)
    assert "not wanted" in never.reason
    until(lambda: all_free(cluster), what="all cores are free")


@on_loop
async def test_a_cancelled_job_reports_it_and_an_ended_job_cannot_be_cancelled(
    cluster: Cluster,
) -> None:
    where = ("--dir", str(cluster.directory))
    async with cluster.client() as client:
        running = await client.submit_job(cluster.paced(vus=1, duration="60s"))
        short = await client.submit_job(cluster.paced(vus=1, duration="200ms"))
        await client.cancel_job(running, "enough of it")
        for _ in range(2):  # also after the job has ended
            final = await client.wait_for_completion(running)
            assert (final.status, final.reason) == ("cancelled", "enough of it")
            assert (await client.cancel_job(running, "again")).accepted
        await client.wait_for_completion(short)
    assert "enough of it" in cluster.run("status", running, *where).stdout
    late = cluster.run("cancel", short, *where)
    assert (late.returncode, late.stdout) == (3, "")
    assert late.stderr.endswith(f"hyperscale: job {short} had already ended: completed\n")
