"""Nodes of two versions in one cluster: upgrades and rollbacks, node by node, while a job runs.

The other version is an overlay of this one (`tests.lab.overlays`). All nodes are real processes.
"""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec import Struct

from hyperscale._native import Target
from hyperscale.client.client import HyperscaleClient
from hyperscale.client.cluster_connection import ask_node
from hyperscale.config.addresses import split_address
from hyperscale.config.loading import node_config
from hyperscale.jobs.agent.core import LEAVING
from hyperscale.ledger.server.operator_messages import (
    ChangeMember,
    ChangeMemberReply,
    GetLedgerStatus,
    GetLedgerStatusReply,
    ListEvents,
    ListEventsReply,
    MemberChange,
    Verify,
    VerifyReply,
)
from hyperscale.reporting.results import RunResult
from hyperscale.wire.versions import Version
from tests.lab.cluster import cut, gaps, sent
from tests.lab.command import HYPERSCALE
from tests.lab.loops import on_loop
from tests.lab.nodes import NodeCluster, NodeProcess
from tests.lab.overlays import NEWER, OLDER, UNGATED, Patches, make_overlay
from tests.lab.ports import free_port
from tests.lab.soak_report import cluster_report
from tests.lab.waiting import WAIT_S, until

_Reply = TypeVar("_Reply", bound=Struct)
MANAGERS = ("m0", "m1", "m2")
SETTINGS = (
    *("--ledger-upgrade-hold-s", "100000"),
    *("--ledger-snapshot-entries", "100", "--ledger-trailing-entries", "10"),
)
CORES = ("--cores", "1")
NEW = Version(0, 2)
TEST = """\
from hyperscale import Workflow, step
from hyperscale.testing import HTTPResponse, URL

class Load(Workflow):
    vus = 4
    duration = "{duration}"

    @step()
    async def get(self, url: URL = "{url}/delay/20") -> HTTPResponse:
        return await self.client.http.get(url)
"""


class MixedCluster:
    """Managers (m…), workers (w…) and gates (g…), each with this version or with an overlay."""

    def __init__(self, directory: Path, *names: str) -> None:
        self.directory = directory
        self.target = Target("127.0.0.1", 0, 1)
        self._cluster = NodeCluster(directory)
        self._overlays: dict[str, str] = {}
        self._ports = {name: free_port() for name in names}
        self._managers = [name for name in names if name.startswith("m")]
        self._gates = [name for name in names if name.startswith("g")]
        self.nodes: dict[str, NodeProcess] = {}

    def __enter__(self) -> "MixedCluster":
        self._cluster.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._cluster.__exit__(*error)
        self.target.stop()

    def add(self, name: str, patches: Patches) -> str:
        """Make an overlay; return its name."""
        self._overlays[name] = str(make_overlay(self.directory / f"version-{name}", patches))
        return name

    def start(self, name: str, version: str = "") -> NodeProcess:
        """Start a node with this version, or with an overlay."""
        tier = self._gates if name in self._gates else self._managers
        seeds = [f"127.0.0.1:{self._ports[each]}" for each in tier if each != name]
        only: tuple[str, ...] = CORES
        if name in tier:
            only = ("--founders", str(len(tier)), *SETTINGS)
        if name in self._managers:
            only += tuple(f"--gates-seeds=127.0.0.1:{self._ports[each]}" for each in self._gates)
        self.nodes[name] = self._cluster.start(
            {"m": "manager", "w": "worker", "g": "gate"}[name[0]],
            name,
            *("--port", str(self._ports[name]), "--data-dir", str(self.directory / name)),
            *(word for seed in seeds for word in ("--seed", seed)),
            *only,
            environment={"PYTHONPATH": self._overlays[version]} if version else None,
        )
        return self.nodes[name]

    def start_all(self, version: str = "") -> None:
        for name in self._ports:
            self.start(name, version)
        for name in self._ports:
            self.wait_ready(name)

    def wait_ready(self, name: str) -> None:
        self.nodes[name].wait_listening()
        until(lambda: self.nodes[name].get("/readyz")[0] == 200, what=f"{name} is ready")

    def switch(self, name: str, version: str = "") -> None:
        """Restart a node with another version; all other nodes have to stay."""
        assert self.nodes[name].stop() == 0
        self.start(name, version)
        self.wait_ready(name)
        self.assert_alive()

    def assert_alive(self) -> None:
        ended = {name: n.process.poll() for name, n in self.nodes.items()}
        assert set(ended.values()) == {None}, ended

    # -- commands ---------------------------------------------------------------------------

    def command(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a command against m0."""
        return subprocess.run(
            [*HYPERSCALE, *words, "--connect", self.nodes["m0"].address],
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

    def ask(self, request: Struct, reply: type[_Reply]) -> _Reply:
        """Ask m0 as a command would."""
        host, port = split_address(self.nodes["m0"].address)
        config = node_config("manager")
        return asyncio.run(ask_node(config, host, port, request, reply, timeout_s=WAIT_S))

    def wait_version(self, name: str, announced: Version) -> None:
        def has_announced() -> bool:
            status = self.ask(GetLedgerStatus(), GetLedgerStatusReply)
            versions = {node.name: node.version for node in status.nodes} | status.workers
            return versions.get(name) == announced

        until(has_announced, what=f"{name} announced {announced}")

    def are_replicas_equal(self) -> bool:
        """Compare all replicas by hash; they all have to answer."""
        digests: dict[int, set[str]] = {}

        def is_compared() -> bool:
            digests.clear()
            for row in self.ask(Verify(), VerifyReply).rows:
                digests.setdefault(row.group, set()).add(row.digest)
            return all("" not in each for each in digests.values())

        until(is_compared, what="all replicas of all groups answer")
        metric = "hyperscale_ledger_hash_mismatches_total"
        mismatches = [self.nodes[name].metric(metric) for name in self._managers]
        return not any(mismatches) and all(len(each) == 1 for each in digests.values())

    def lead(self, name: str, job: str) -> None:
        """Have a manager lead the group of a job."""
        group = int(job.rpartition(".")[2].partition("-")[0])
        promote = ChangeMember(change=MemberChange.PROMOTE, node=name, group=group)

        def leads() -> bool:
            self.ask(promote, ChangeMemberReply)
            leading = self.nodes[name].metric("hyperscale_ledger_is_leader", group=str(group))
            return leading == 1

        until(leads, what=f"{name} leads group {group}")

    def kinds(self, job: str) -> set[str]:
        """Return the kinds of the committed events of a job."""
        return {row[4] for row in self.ask(ListEvents(job=job), ListEventsReply).rows}

    # -- jobs -------------------------------------------------------------------------------

    def client(self) -> HyperscaleClient:
        """Return a client of the gates, or of the managers if there are no gates."""
        tier = self._gates or self._managers
        addresses = [f"127.0.0.1:{self._ports[name]}" for name in tier]
        return HyperscaleClient(
            () if self._gates else addresses,
            gate_tcp_addrs=addresses if self._gates else (),
            connect_timeout=20.0,
        )

    def test_file(self, duration: str) -> Path:
        path = self.directory / "load.py"
        url = f"http://{self.target.host}:{self.target.port}"
        path.write_text(TEST.format(duration=duration, url=url))
        return path

    def received(self) -> int:
        return int(json.loads(self.target.counts())["total"])

    def wait_load(self) -> None:
        """Wait until the target gets further requests."""
        before = self.received()
        until(lambda: self.received() > before + 50, what="the load continues")

    def assert_exact(self, result: RunResult) -> None:
        total = self.received()
        assert sent(result) - cut(result) <= total <= sent(result) + gaps(result)


@on_loop
async def test_a_manager_is_upgraded_and_rolled_back_under_a_job(tmp_path: Path) -> None:
    with MixedCluster(tmp_path, *MANAGERS, "w0") as mixed:
        newer = mixed.add("newer", NEWER)
        await asyncio.to_thread(mixed.start_all)
        async with mixed.client() as client:
            job = await client.submit_job(mixed.test_file("10m"))
            await asyncio.to_thread(_upgrade_and_roll_back, mixed, newer, job)
            await client.cancel_job(job, "upgraded")
            final = await client.wait_for_completion(job)
        assert final.status == "cancelled"
        mixed.assert_exact(final.result)
        assert (final.result.segments, final.result.gaps) == ([], [])  # no part began anew


def _upgrade_and_roll_back(mixed: MixedCluster, newer: str, job: str) -> None:
    mixed.wait_load()
    mixed.switch("m0", newer)
    mixed.lead("m0", job)
    mixed.wait_load()
    assert mixed.are_replicas_equal()
    mixed.wait_version("m0", NEW)
    assert "noted" not in mixed.kinds(job)  # an event that 0.1 does not know
    mixed.switch("m0")  # back again, on a disk that the newer version wrote
    mixed.wait_load()
    assert mixed.are_replicas_equal()


def test_an_older_node_is_refused_once_the_cluster_version_has_risen(tmp_path: Path) -> None:
    with MixedCluster(tmp_path, "m0", "w0") as mixed:
        newer = mixed.add("newer", NEWER)
        mixed.start("m0", newer)
        mixed.start("w0")
        mixed.wait_ready("m0")
        shown = mixed.command("ledger", "version").stdout
        assert "the cluster version is 0.2" in shown  # that of the founder
        refused = "worker w0: the node runs version 0.1, and the cluster version has risen to 0.2"
        until(lambda: refused in mixed.nodes["w0"].output(), what="w0 logs why it is refused")
        assert mixed.nodes["m0"].stop() == 0
        old = mixed.start("m0")
        assert old.process.wait(WAIT_S) == 2
        said = "this node runs version 0.1 of Hyperscale, and its cluster version has risen to 0.2"
        assert said in old.output()


@pytest.mark.soak
@on_loop
async def test_a_whole_cluster_is_upgraded_and_its_version_raised(tmp_path: Path) -> None:
    with MixedCluster(tmp_path, *MANAGERS, "w0", "w1") as mixed:
        newer = mixed.add("newer", NEWER)
        await asyncio.to_thread(mixed.start_all)
        async with mixed.client() as client:
            job = await client.submit_job(mixed.test_file("10m"))
            await asyncio.to_thread(_upgrade_and_raise, mixed, newer, job)
            await client.cancel_job(job, "upgraded")
            final = await client.wait_for_completion(job)
        mixed.assert_exact(final.result)


def _upgrade_and_raise(mixed: MixedCluster, newer: str, job: str) -> None:
    mixed.wait_load()
    for name in (*MANAGERS, "w0"):
        mixed.switch(name, newer)
        mixed.wait_version(name, NEW)
    refused = mixed.command("ledger", "version", "raise")
    assert (refused.returncode, "w1 runs version 0.1" in refused.stderr) == (3, True), refused
    mixed.switch("w1", newer)
    mixed.wait_version("w1", NEW)
    raised = mixed.command("ledger", "version", "raise")
    assert "the cluster version is 0.2" in raised.stdout, raised
    until(lambda: "noted" in mixed.kinds(job), what="what 0.2 brought is committed")
    assert mixed.are_replicas_equal()
    assert "0.2.0" in mixed.nodes["m0"].members_text()
    assert mixed.nodes["w0"].stop() == 0
    worker = mixed.start("w0")
    until(
        lambda: "the cluster version has risen to 0.2" in worker.output(),
        what="the older worker logs why it is refused",
    )


@pytest.mark.soak
@on_loop
async def test_gates_and_datacenters_are_upgraded_independently(tmp_path: Path) -> None:
    with MixedCluster(tmp_path, "g0", "m0", "w0") as mixed:
        newer = mixed.add("newer", NEWER)
        await asyncio.to_thread(mixed.start_all)
        await asyncio.to_thread(mixed.switch, "g0", newer)
        async with mixed.client() as client:
            await _run_through_gates(mixed, client)
        await asyncio.to_thread(mixed.switch, "g0")
        for name in ("m0", "w0"):
            await asyncio.to_thread(mixed.switch, name, newer)
        async with mixed.client() as client:
            await _run_through_gates(mixed, client)
        mixed.assert_alive()


async def _run_through_gates(mixed: MixedCluster, client: HyperscaleClient) -> None:
    mixed.target.reset()
    until_s = asyncio.get_running_loop().time() + WAIT_S
    while not any(row.health == "healthy" for row in await client.list_datacenters()):
        assert asyncio.get_running_loop().time() < until_s, "the datacenter has not registered"
        await asyncio.sleep(0.1)
    job = await client.submit_job(mixed.test_file("3s"))
    final = await client.wait_for_completion(job)
    assert final.status == "completed", final
    mixed.assert_exact(final.result)


@pytest.mark.soak
@on_loop
async def test_without_the_gate_replicas_of_two_versions_differ(tmp_path: Path) -> None:
    """The mutant: the newer version commits what the older one does not know."""
    with MixedCluster(tmp_path, *MANAGERS, "w0") as mixed:
        ungated = mixed.add("ungated", UNGATED)
        await asyncio.to_thread(mixed.start_all)
        async with mixed.client() as client:
            job = await client.submit_job(mixed.test_file("10m"))
            await asyncio.to_thread(mixed.wait_load)
            await asyncio.to_thread(mixed.switch, "m0", ungated)
            await asyncio.to_thread(mixed.lead, "m0", job)
            await asyncio.to_thread(
                until, lambda: not mixed.are_replicas_equal(), what="the replicas differ"
            )
            await client.cancel_job(job, "over")
    cluster_report().write(
        "upgrade: without the version gate",
        "a newer leader committed a kind of event that older managers do not know: replicas differ",
    )


@pytest.mark.soak
@pytest.mark.parametrize("pair", ["0.0 to 0.1", "0.1 to 0.2"])
@on_loop
async def test_every_node_is_upgraded_and_rolled_back_under_jobs_of_three_minutes(
    tmp_path: Path, pair: str
) -> None:
    with MixedCluster(tmp_path, *MANAGERS, "w0", "w1") as mixed:
        before = mixed.add("older", OLDER) if pair == "0.0 to 0.1" else ""
        after = "" if before else mixed.add("newer", NEWER)
        await asyncio.to_thread(mixed.start_all, before)
        lines = []
        async with mixed.client() as client:
            for number in (1, 2):
                mixed.target.reset()
                job = await client.submit_job(mixed.test_file("3m"))
                restarts = await asyncio.to_thread(_switch_all, mixed, before, after)
                final = await client.wait_for_completion(job)
                assert final.status == "completed"
                mixed.assert_exact(final.result)
                assert await asyncio.to_thread(mixed.are_replicas_equal)
                lines.append(f"job {number}: {restarts} restarts, {_summary(mixed, final.result)}")
        mixed.assert_alive()
    cluster_report().write(f"upgrade and rollback of every node, {pair}", *lines)


def _summary(mixed: MixedCluster, result: RunResult) -> str:
    reasons = {segment.reason for segment in result.segments}
    assert reasons == {LEAVING}, "a part begins anew only when its worker is restarted"
    return (
        f"the target received {mixed.received():,} requests, {sent(result):,} were reported, at "
        f"most {gaps(result):,} are in gaps; {len(result.segments)} attempts ended as their worker "
        "was restarted, none for another reason; replicas were equal after each restart; no node "
        "stopped"
    )


def _switch_all(mixed: MixedCluster, before: str, after: str) -> int:
    """Upgrade all nodes one by one and roll them back; return how many restarts that was."""
    mixed.wait_load()
    names = (*MANAGERS, "w0", "w1")
    for version in (after, before):
        for name in names:
            mixed.switch(name, version)
            mixed.wait_load()
            assert mixed.are_replicas_equal()
    return 2 * len(names)
