"""Clusters of real processes, started by `hyperscale cluster up`, and a target server that counts.

The target is in this process: what it counts is the truth the results are compared with.
"""

import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from textwrap import dedent
from typing import Any
from urllib.request import urlopen

from hyperscale._native import Target
from hyperscale.client.client import HyperscaleClient
from hyperscale.client.cluster_file import ClusterFile, ClusterNode, read_cluster
from hyperscale.client.messages import ListWorkersReply, WorkerRow
from hyperscale.lab.cluster import NodeRunningError, restart_node
from hyperscale.lab.node_processes import children_of
from hyperscale.lab.readiness import nodes_not_ready
from hyperscale.reporting.results import RunResult
from tests.lab.command import HYPERSCALE
from tests.lab.loops import run_in_thread
from tests.lab.processes import is_alive
from tests.lab.waiting import WAIT_S, until

HEADER = """\
import asyncio
import time
from hyperscale import Workflow, action, check, depends, setup, state, step, teardown, Provide, Use
from hyperscale.testing import HTTPResponse, URL
"""


class _Unshuffled(Random):
    """Leaves a list in its order."""

    def shuffle(self, x: Any) -> None:
        pass


class Cluster:
    """A running local cluster and a target server in this process."""

    def __init__(self, directory: Path, *, host: str = "127.0.0.1") -> None:
        self.directory = directory
        self.target = Target(host, 0, 1)
        self._files = 0

    @property
    def url(self) -> str:
        return f"http://{self.target.host}:{self.target.port}"

    @property
    def file(self) -> ClusterFile:
        return read_cluster(self.directory)

    def node(self, name: str) -> ClusterNode:
        return self.file.node(name)

    # -- nodes ----------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        row = self.node(name)
        os.kill(row.pid, signal.SIGKILL)
        until(lambda: not is_alive(row.pid), what=f"{name} is gone")

    def start(self, name: str) -> None:
        until(lambda: self._starts(name), what=f"{name} can be started again")

    def _starts(self, name: str) -> bool:
        """Return False while a process that was killed has threads that still end."""
        try:
            restart_node(self.directory, name)
        except NodeRunningError:
            return False
        return True

    def pause(self, name: str, *, executors: bool = False) -> list[int]:
        pids = [self.node(name).pid]
        if executors:
            pids += children_of(pids[0])
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        return pids

    def heal(self) -> None:
        """Restart and resume all nodes, end all jobs, and reset the target's counts."""
        for row in self.file.nodes:
            if is_alive(row.pid):
                for pid in [*children_of(row.pid), row.pid]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)
            else:
                self.start(row.id)
        self.wait_ready()
        run_in_thread(self._end_all_jobs())
        self.target.reset()

    def wait_ready(self) -> None:
        """Wait until all nodes are ready and the allocator knows the cores of every worker."""
        until(lambda: not run_in_thread(nodes_not_ready(self.file)), what="all nodes are ready")
        run_in_thread(self._wait_for_workers(lambda row: row.cores > 0))

    async def _end_all_jobs(self) -> None:
        """Cancel the jobs that a failed test left, and wait until all cores are free."""
        async with self.client() as client:
            for row in (await client.get_jobs(live_only=True)).jobs:
                await client.cancel_job(row.job, "its test is over")
        await self._wait_for_workers(lambda row: row.free == row.cores)

    async def _wait_for_workers(self, is_as_wanted: Callable[[WorkerRow], bool]) -> None:
        for name in self.file.datacenters:
            await self._wait_for_workers_of(name, is_as_wanted)

    async def _wait_for_workers_of(
        self, datacenter: str, is_as_wanted: Callable[[WorkerRow], bool]
    ) -> None:
        names = {row.id for row in self.file.workers if row.datacenter == datacenter}
        managers = [row.id for row in self.file.managers if row.datacenter == datacenter]
        reply = ListWorkersReply()
        try:
            async with asyncio.timeout(WAIT_S), self.client(*managers) as client:
                while True:
                    reply = await client.get_workers()
                    living = [row for row in reply.workers if row.state == "alive"]
                    wanted = {row.worker for row in living if is_as_wanted(row)}
                    if names <= wanted and not reply.unknown:
                        return
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"the workers did not reach the wanted state: {reply}") from None

    def wait_led(self) -> dict[int, int]:
        """Wait until each group is led by its preferred leader; return the terms of the groups.

        After a node came back, leaders change once more: its groups are given back to it."""
        terms: dict[int, int] = {}

        def are_led_as_wanted() -> bool:
            told = self._ledger_status()
            terms.update(_terms(told))
            led = {replica["group"]: replica["leader"] for replica in told["replicas"]}
            return all(led.get(group["group"]) == group["leader"] for group in told["groups"])

        until(are_led_as_wanted, what="each group is led by its preferred leader")
        return terms

    def _ledger_status(self) -> dict[str, Any]:
        done = self.run("ledger", "status", "--json", "--dir", str(self.directory))
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    # -- tests ----------------------------------------------------------------------------

    def write(self, body: str) -> Path:
        """Write a test file; `URL_` in it becomes the URL of the target."""
        self._files += 1
        path = self.directory.parent / f"test_{self._files}.py"
        path.write_text(HEADER + dedent(body).replace("URL_", self.url))
        return path

    def paced(self, *, vus: int = 6, duration: str = "5s", name: str = "Load") -> Path:
        """Write a test file whose virtual users wait 20 ms for each answer."""
        return self.write(
            f"""
            class {name}(Workflow):
                vus = {vus}
                duration = "{duration}"

                @step()
                async def get(self, url: URL = "URL_/delay/20") -> HTTPResponse:
                    return await self.client.http.get(url)
            """
        )

    def client(self, *nodes: str, in_order: bool = False) -> HyperscaleClient:
        """Return a client that knows the gates, or all managers if there are no gates, or the named
        gates or managers; `in_order` asks them in order."""
        if not nodes:
            return HyperscaleClient(directory=self.directory, connect_timeout=20.0)
        found = self.file
        named = [found.node(name) for name in nodes]
        addresses = [node.tcp for node in named]
        are_gates = all(node in found.gates for node in named)
        return HyperscaleClient(
            () if are_gates else addresses,
            gate_tcp_addrs=addresses if are_gates else (),
            connect_timeout=20.0,
            settings={"security": {"secret_file": found.secret_file}},
            rng=_Unshuffled() if in_order else None,
        )

    def counts(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.target.counts())
        return found

    def per_second(self) -> dict[int, int]:
        """Return how many requests the target received in each second of its clock."""
        return {int(second): count for second, count in self.counts()["seconds"].items()}

    def command(self, *arguments: str, cwd: Path | None = None) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*HYPERSCALE, *arguments],
            cwd=cwd or self.directory.parent,
            env={**os.environ, "COLUMNS": "120", "CI": "true"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
        with self.command(*arguments, cwd=cwd) as process:
            try:
                stdout, stderr = process.communicate(timeout=WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)

    def run_undisturbed(
        self, *arguments: str, inside: Path
    ) -> "tuple[subprocess.CompletedProcess[str], Path]":
        """Run a command; run it again if a group changed its leader, which loses user output.

        Return the outcome and the directory in which the command ran."""
        for number in itertools.count():
            cwd = inside / f"try-{number}"
            cwd.mkdir()
            before = self.wait_led()
            done = self.run(*arguments, cwd=cwd)
            if _terms(self._ledger_status()) == before:
                break
        return done, cwd


def _terms(status: dict[str, Any]) -> dict[int, int]:
    return {replica["group"]: replica["term"] for replica in status["replicas"]}


def users(cluster: Cluster) -> int:
    """Return how many virtual users are connected to the target."""
    return int(cluster.counts()["connections"]["current"])


def sent(result: RunResult) -> int:
    return sum(step.sent for workflow in result.workflows for step in workflow.steps)


def cut(result: RunResult) -> int:
    return sum(step.cut for workflow in result.workflows for step in workflow.steps)


def gaps(result: RunResult) -> int:
    return sum(gap.requests_max for gap in result.gaps)


async def status_is(client: HyperscaleClient, job: str, *statuses: str) -> str:
    """Wait until the job has one of these statuses."""
    async with asyncio.timeout(WAIT_S):
        while True:
            push = await client.get_job_status(job)
            if push.status in statuses:
                return push.status
            await asyncio.sleep(0.05)


def leader_of(cluster: Cluster, job: str, *, among: Sequence[str] = ()) -> str:
    """Return the manager or gate whose metrics say that it leads the job's group; wait until there
    is one. Of all that clients talk to, or of the nodes that are named."""
    group = job.rpartition(".")[2].partition("-")[0]
    leading = f'hyperscale_ledger_is_leader{{group="{group}"}} 1'
    found: list[str] = []

    def leads(node: ClusterNode) -> bool:
        try:
            metrics: bytes = urlopen(f"http://{node.http}/metrics").read()
        except OSError:  # it is down
            return False
        return leading in metrics.decode()

    nodes = [cluster.node(name) for name in among] or cluster.file.entrances

    def is_found() -> bool:
        found.extend(node.id for node in nodes if leads(node))
        return bool(found)

    until(is_found, what=f"group {group} has a leader")
    return found[0]


async def running(client: HyperscaleClient, cluster: Cluster, job: str, requests: int) -> None:
    """Wait until the target received requests of the job and managers say that it runs."""
    what = f"the target has seen {requests} requests"
    await asyncio.to_thread(until, lambda: cluster.counts()["total"] > requests, what=what)
    await status_is(client, job, "running", "completed")


def assert_exact(cluster: Cluster, result: RunResult) -> None:
    total = cluster.counts()["total"]
    assert sent(result) - cut(result) <= total <= sent(result) + gaps(result)


class Notes:
    """Lines that user code wrote to a file with `note(...)`, each with its time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.code = (
            f"def note(*words):\n    with open({str(path)!r}, 'a') as file:\n"
            "        file.write(f\"{time.monotonic()} {' '.join(words)}\\n\")\n"
        )

    def lines(self) -> list[tuple[float, str]]:
        rows = self._path.read_text().splitlines() if self._path.exists() else []
        return [(float(when), what) for when, _, what in (row.partition(" ") for row in rows)]

    def words(self, start: str) -> list[str]:
        return [
            what.removeprefix(start).strip()
            for _, what in self.lines()
            if what[: len(start)] == start
        ]

    def times(self, what: str) -> list[float]:
        return [when for when, words in self.lines() if words == what]


def metric(cluster: Cluster, name: str) -> list[int]:
    """Return the value of a metric on each worker."""
    found = []
    for worker in cluster.file.workers:
        metrics = urlopen(f"http://{worker.http}/metrics").read().decode()
        match = re.search(rf"^{name} (\d+)", metrics, re.MULTILINE)
        assert match is not None
        found.append(int(match[1]))
    return found


def all_free(cluster: Cluster) -> bool:
    """Return True if every core of every worker is free."""
    return metric(cluster, "hyperscale_worker_cores_free") == [1] * len(cluster.file.workers)


@contextlib.contextmanager
def running_cluster(
    directory: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """Run `hyperscale cluster up` with these arguments and further variables; check that no process
    stays."""
    said = directory.parent / f"{directory.name}.out"
    with said.open("w") as output:
        process = subprocess.Popen(
            [*HYPERSCALE, "cluster", "up", "--dir", str(directory), *arguments],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
            start_new_session=True,
        )
    cluster = Cluster(directory)
    try:
        until(
            lambda: said.read_text().startswith("ready") or process.poll() is not None,
            what="the cluster is ready",
        )
        assert process.poll() is None, said.read_text()
        yield cluster
    finally:
        cluster.target.stop()
        nodes = [row.pid for row in read_cluster(directory).nodes]
        process.send_signal(signal.SIGINT)
        try:
            process.wait(40)
        finally:
            process.kill()
            process.wait()
        left = [pid for pid in nodes if is_alive(pid)]
        assert not left, f"processes are left: {left}"
