"""Jobs on three managers and three workers, compared with the counts of the target."""

import asyncio
import json
import signal
from importlib import import_module
from pathlib import Path

import jsonschema
import pytest

from hyperscale.client.submission import JobSubmission
from hyperscale.client.updates import (
    JobStatusPush,
    WindowedStatsPush,
    WorkflowResultPush,
)
from hyperscale.errors import InputError
from hyperscale.reporting.results import RunStatus
from tests.lab.cluster import Cluster, cut, sent, status_is
from tests.lab.loops import on_loop
from tests.lab.waiting import WAIT_S

SCHEMA = Path(__file__).parents[2] / "hyperscale/reporting/schema.json"


def test_a_job_reports_what_the_target_counted(cluster: Cluster, tmp_path: Path) -> None:
    file = cluster.paced(vus=6, duration="3s")
    done = cluster.run(
        *("submit", str(file), "--dir", str(cluster.directory)), "--json", "r.json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "r.json").read_text())
    jsonschema.validate(result, json.loads(SCHEMA.read_text()))
    step = result["workflows"][0]["steps"][0]
    counts = cluster.counts()
    assert step["sent"] - step["cut"] <= counts["total"] <= step["sent"]
    assert counts["connections"]["total"] == 6
    assert result["job_id"].startswith("default.")
    assert result["datacenters"] == ["default"]
    assert (result["attempts"], result["segments"], result["gaps"]) == (3, [], [])
    assert result["workflows"][0]["workers"] == ["worker-1", "worker-2", "worker-3"]
    assert [row["worker"] for row in result["usage"]] == ["worker-1", "worker-2", "worker-3"]
    assert all(row["cpu"] > 0 and row["memory_bytes"] > 1_000_000 for row in result["usage"])
    assert len(list(tmp_path.glob("hyperscale-results/*/report.html"))) == 1
    again = cluster.run(
        *("results", result["job_id"], "--dir", str(cluster.directory), "--json", "-")
    )
    assert again.returncode == 0
    assert json.loads(again.stdout)["workflows"] == result["workflows"]
    unwritten = cluster.run(
        *("results", result["job_id"], "--dir", str(cluster.directory), "--json", "/dev/full")
    )
    assert unwritten.returncode == 3
    assert "cannot write /dev/full" in unwritten.stderr
    status = cluster.run("status", result["job_id"], "--dir", str(cluster.directory))
    assert f"{result['workflows'][0]['sent']:,}" in status.stdout


@on_loop
async def test_callbacks_get_progress_results_and_the_end(cluster: Cluster) -> None:
    statuses: list[JobStatusPush] = []
    progress: list[WindowedStatsPush] = []
    results: list[WorkflowResultPush] = []

    async def on_result(push: WorkflowResultPush) -> None:
        await asyncio.sleep(0)
        results.append(push)

    def on_progress(push: WindowedStatsPush) -> None:
        progress.append(push)
        raise ValueError("a callback's own trouble")

    async with cluster.client() as client:
        job = await client.submit_job(
            cluster.write(
                """
                class First(Workflow):
                    vus = 2
                    duration = "1s"

                    @step()
                    async def get(self, url: URL = "URL_/delay/20") -> HTTPResponse:
                        return await self.client.http.get(url)

                @depends("First")
                class Second(Workflow):
                    vus = 2
                    duration = "1s"

                    @step()
                    async def get(self, url: URL = "URL_/delay/20") -> HTTPResponse:
                        return await self.client.http.get(url)
                """
            ),
            on_status_update=statuses.append,
            on_progress_update=on_progress,
            on_workflow_result=on_result,
        )
        streamed = [push.workflow_id async for push in client.stream_workflow_results(job)]
        replayed = [push.workflow_id async for push in client.stream_workflow_results(job)]
        final = await client.wait_for_completion(job, timeout="60s")
        while not (statuses and statuses[-1].is_final):
            await asyncio.sleep(0.01)
    assert streamed == replayed == ["First", "Second"]
    assert (final.status, final.datacenter, final.exit_code) == ("completed", "default", 0)
    assert 0 <= cluster.counts()["total"] - final.total_completed <= cut(final.result)
    assert [push.workflow_id for push in results] == ["First", "Second"]
    assert [push.status for push in statuses][-1] == "completed"
    counts = [push.completed_count for push in progress if push.workflow_name == "First"]
    assert counts == sorted(counts)


@on_loop
async def test_the_same_key_is_the_same_job(cluster: Cluster) -> None:
    file = cluster.paced(vus=1, duration="1s")
    other = cluster.paced(vus=2, duration="1s")
    async with cluster.client("manager-1") as one, cluster.client("manager-3") as another:
        first = await one.submit_job(file, key="nightly")
        assert await another.submit_job(JobSubmission(file=file, key="nightly")) == first
        with pytest.raises(InputError, match="was used for another submission"):
            await another.submit_job(other, key="nightly")
        final = await another.wait_for_completion(first)
    assert final.result.status is RunStatus.COMPLETED
    assert cluster.counts()["total"] <= sent(final.result)


@on_loop
async def test_classes_of_two_modules_are_sent_together(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("alpha", "beta"):
        file = cluster.paced(vus=1, duration="1s", name=name.title())
        (tmp_path / f"{name}_load.py").write_text(file.read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    alpha, beta = import_module("alpha_load").Alpha, import_module("beta_load").Beta()
    beta.vus = 2
    async with cluster.client() as client:
        job = await client.submit_job([alpha, (["tagged"], beta)], test_name="both")
        final = await client.wait_for_completion(job)
    assert final.status == "completed", final.errors
    assert [(w.name, w.vus, w.tags) for w in final.workflow_results] == [
        ("Alpha", 1, []),
        ("Beta", 2, ["tagged"]),
    ]


def test_output_of_user_code_reaches_the_client(cluster: Cluster, tmp_path: Path) -> None:
    file = cluster.write(
        """
        class Talk(Workflow):
            vus = 1
            duration = "2s"

            @setup(per="executor")
            async def hello(self) -> None:
                print("hello from far away")

            @step()
            async def get(self, url: URL = "URL_/delay/20") -> HTTPResponse:
                return await self.client.http.get(url)
        """
    )
    done, where = cluster.run_undisturbed(
        *("submit", str(file), "--dir", str(cluster.directory), "--out", "out"), inside=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "hello from far away" in done.stdout
    assert "hello from far away" in (where / "out" / "output.log").read_text()


# --- cancelling --------------------------------------------------------------------------


@on_loop
async def test_a_job_is_cancelled_through_any_manager(cluster: Cluster) -> None:
    async with cluster.client() as client:
        job = await client.submit_job(cluster.paced(duration="60s"))
        await status_is(client, job, "running")
        waiting = await client.submit_job(cluster.paced(duration="60s"))
        await status_is(client, waiting, "queued")
    for name in ("manager-1", "manager-2", "manager-3"):
        async with cluster.client(name) as client:
            reply = await client.cancel_job(waiting, "not needed")
            assert reply.accepted or reply.status == "cancelled"
            reply = await client.cancel_job(job, "wrong place")
            assert reply.accepted or reply.status == "cancelled"
    async with cluster.client() as client:
        final = await client.wait_for_completion(job)
        never = await client.wait_for_completion(waiting)
        reply = await client.cancel_job(job)  # a second cancel is harmless, also after the end
        assert reply.accepted or reply.status == "cancelled"
    assert (final.status, never.status) == ("cancelled", "cancelled")
    assert "wrong place" in final.reason
    assert never.total_completed == 0
    total = cluster.counts()["total"]
    assert sent(final.result) - cut(final.result) <= total <= sent(final.result)


def test_cancel_prints_the_status_of_the_job(cluster: Cluster) -> None:
    where = ("--dir", str(cluster.directory))
    flags = ("--detach", "--json", "r.json", *where)
    job = cluster.run("submit", str(cluster.paced(duration="60s")), *flags)
    assert job.returncode == 0, job.stderr
    name = job.stdout.strip()
    assert f"hyperscale watch {name}" in job.stderr  # the command that writes the results
    for _ in range(2):  # a second cancel is harmless
        cancelled = cluster.run("cancel", name, "--reason", "enough", *where)
        assert cancelled.returncode == 0, cancelled.stderr
    watched = cluster.run("watch", name, *where)
    assert watched.returncode == 3
    assert "enough" in watched.stdout
    assert name in cluster.run("jobs", *where).stdout
    assert "cancelled" in cluster.run("status", name, *where).stdout


# --- mistakes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("results", "default.1-aaaaaaaaaaaaaaaaaaaa"), "there is no job"),
        (("watch", "default.1-aaaaaaaaaaaaaaaaaaaa"), "there is no job"),
        (("cancel", "default.999-aaaaaaaaaaaaaaaaaaaa"), "there is no job"),
        (("status", "nonsense"), "there is no job"),
        (("drain", "worker-9"), "has no manager and no worker"),
    ],
)
def test_an_unknown_job_or_node_is_an_input_error(
    cluster: Cluster, arguments: tuple[str, ...], message: str
) -> None:
    done = cluster.run(*arguments, "--dir", str(cluster.directory))
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_a_client_that_is_refused_says_why(cluster: Cluster, tmp_path: Path) -> None:
    secret = tmp_path / "other.secret"
    secret.touch(mode=0o600)
    secret.write_text("another secret of enough length\n")
    manager = cluster.node("manager-1").tcp
    wrong = cluster.run("jobs", "--manager", manager, "--secret-file", str(secret))
    assert wrong.returncode == 2
    assert "secret" in wrong.stderr
    nobody = cluster.run("jobs", "--manager", "127.0.0.1:1", "--manager", "127.0.0.1:2")
    assert nobody.returncode == 3
    assert "127.0.0.1:1 (connection refused)" in nobody.stderr
    assert "127.0.0.1:2 (connection refused)" in nobody.stderr
    nowhere = cluster.run("jobs", "--dir", str(tmp_path))
    assert nowhere.returncode == 2
    assert "cluster up" in nowhere.stderr


def test_a_missing_module_is_named_before_a_job_is_submitted(
    cluster: Cluster, tmp_path: Path
) -> None:
    file = tmp_path / "broken.py"
    file.write_text("import no_such_module\n")
    done = cluster.run("submit", str(file), "--dir", str(cluster.directory))
    assert done.returncode == 2
    assert "no_such_module" in done.stderr


def test_a_workflow_that_raises_in_setup_fails_with_its_reason(cluster: Cluster) -> None:
    file = cluster.write(
        """
        class Bad(Workflow):
            vus = 1
            duration = "2s"

            @setup(per="executor")
            async def prepare(self) -> None:
                raise RuntimeError("no database here")

            @step()
            async def get(self, url: URL = "URL_/delay/20") -> HTTPResponse:
                return await self.client.http.get(url)
        """
    )
    done = cluster.run("submit", str(file), "--dir", str(cluster.directory))
    assert done.returncode == 3
    assert "no database here" in done.stdout


@on_loop
async def test_a_job_that_waits_for_cores_shows_it_and_times_out(cluster: Cluster) -> None:
    async with cluster.client() as client:
        running = await client.submit_job(cluster.paced(duration="60s"))
        await status_is(client, running, "running")
        waiting = await client.submit_job(cluster.paced())
        impatient = await client.submit_job(cluster.paced(), dispatch_timeout="2s")
        await status_is(client, waiting, "queued")
        assert "number 1 in the queue" in (await client.get_job_status(waiting)).message
        final = await client.wait_for_completion(impatient)
        for job in (waiting, running):
            await client.cancel_job(job)
            await client.wait_for_completion(job)
    assert (final.status, final.exit_code) == ("timeout", 3)
    assert "no cores within 2 s: Load " in final.reason


@on_loop
async def test_a_job_has_a_time_limit(cluster: Cluster) -> None:
    async with cluster.client() as client:
        job = await client.submit_job(cluster.paced(duration="60s"), timeout="2s")
        final = await client.wait_for_completion(job)
    assert (final.status, final.exit_code) == ("timeout", 3)
    assert "timeout of 2 s" in final.reason


def test_a_job_keeps_running_when_its_watch_is_interrupted(cluster: Cluster) -> None:
    where = ("--dir", str(cluster.directory))
    file = cluster.paced(duration="60s")
    watch = cluster.command("submit", str(file), "--ui", "ci", "--watch", *where)
    assert watch.stdout is not None
    job = watch.stdout.readline().split()[1]
    while " started " not in (line := watch.stdout.readline()):
        assert line, "it has ended"
    watch.send_signal(signal.SIGINT)
    _, stderr = watch.communicate(timeout=WAIT_S)
    assert watch.returncode == 130
    assert f"job {job} continues" in stderr
    assert "running" in cluster.run("status", job, *where).stdout
    assert cluster.run("cancel", job, *where).returncode == 0
    assert cluster.run("watch", job, *where).returncode == 3


def test_a_step_that_holds_the_loop_is_named_while_the_job_runs_and_in_its_results(
    cluster: Cluster, tmp_path: Path
) -> None:
    file = cluster.write(
        """
        class Shop(Workflow):
            vus = 6
            duration = "4s"

            @step()
            async def browse(self, url: URL = "URL_/delay/20") -> HTTPResponse:
                return await self.client.http.get(url)

            @step("browse")
            async def pay(self, url: URL = "URL_/delay/20") -> HTTPResponse:
                time.sleep(0.05)
                return await self.client.http.get(url)
        """
    )
    done = cluster.run(
        *("submit", str(file), "--dir", str(cluster.directory)), "--json", "r.json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    warned = [line for line in done.stdout.splitlines() if "  warning: " in line]
    assert any("Shop: step `pay` blocks for" in line for line in warned), done.stdout
    workflow = json.loads((tmp_path / "r.json").read_text())["workflows"][0]
    assert not workflow["loop_held"]  # the kernel knows when responses came
    assert [step["held_seconds"] > 0 for step in workflow["steps"]] == [False, True]
    assert "step `pay` blocks for" in workflow["warnings"][0]
