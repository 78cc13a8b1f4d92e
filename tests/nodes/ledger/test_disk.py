"""Disks that fail, are full, are slow, are gone, or hold what they should not."""

import re
import shutil
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from hyperscale.nodes.ledger_service import open_store
from tests.lab.ledger_clients import Load, losses, run
from tests.lab.manager_tier import ManagerTier
from tests.lab.nodes import NodeCluster
from tests.lab.waiting import until

SHIM = Path(__file__).parent / "diskfault.c"


@pytest.fixture
def shim(tmp_path: Path) -> Path:
    """The library to preload."""
    built = tmp_path / "diskfault.so"
    subprocess.run(
        ["cc", "-O1", "-shared", "-fPIC", "-o", str(built), str(SHIM), "-ldl"], check=True
    )
    return built


class FaultyTier(ManagerTier):
    """Every node's disk can be told to fail."""

    def __init__(self, cluster: NodeCluster, shim: Path, size: int = 3) -> None:
        self._shim = shim
        super().__init__(cluster, size)

    def command(self, name: str) -> Path:
        return self.cluster.directory / f"{name}.fault"

    def start(self, name: str, *flags: str, **options: object) -> object:
        environment = {"LD_PRELOAD": str(self._shim), "DISKFAULT": str(self.command(name))}
        return super().start(name, *flags, environment=environment, **options)


@pytest.mark.parametrize(
    "fault",
    [
        "sync-eio",
        "write-enospc",
        pytest.param("sync-enospc", marks=pytest.mark.soak),
        pytest.param("write-eio", marks=pytest.mark.soak),
    ],
)
def test_a_failing_disk_stops_its_node_and_the_group_goes_on(
    cluster: NodeCluster, shim: Path, fault: str
) -> None:
    tier = FaultyTier(cluster, shim)
    with Load(tier.addresses, clients=4) as load:
        until(lambda: load.commits > 20, what="the load runs")
        victim = tier.leader_of(1)
        tier.command(victim).write_text(fault)
        code = tier.nodes[victim].process.wait(30)
        assert code not in (0, -signal.SIGKILL)
        before = load.commits
        until(lambda: load.commits > before + 30, what="the others go on")
        load.check()
        said = tier.nodes[victim].output()
        assert said.count('"node.failed"') == 1, said
        assert re.search(
            r"hyperscale: the ledger could not be written or read: .*(disk|full)", said
        )
        assert "Traceback" not in said
        # The disk is mended: the same node comes back with what it had.
        tier.command(victim).unlink()
        tier.start(victim)
        tier.wait_ready(victim)
    load.check()
    tier.wait_equal()
    assert not losses(load.acknowledged, run(lambda f: f.events(), tier.addresses))


def test_slow_syncs_delay_no_heartbeat(cluster: NodeCluster, shim: Path) -> None:
    """200 ms for every sync of every node: slower commits, no election, bounded memory."""
    tier = FaultyTier(cluster, shim)
    tier.wait_settled()
    terms = {row.group: row.term for row in tier.told("m0").replicas}
    before_bytes = {n: tier.nodes[n].metric("process_resident_memory_bytes") for n in tier.names}
    for name in tier.names:
        tier.command(name).write_text("slow 200")
    with Load(tier.addresses, clients=200, pause_s=0) as load:
        time.sleep(10)  # the fault itself
        pending = [tier.nodes[n].metric("hyperscale_ledger_pending_bytes") for n in tier.names]
    load.check()
    assert load.commits > 200
    assert {row.group: row.term for row in tier.told("m0").replicas} == terms
    assert max(pending) < 16 * 1024 * 1024
    for name in tier.names:
        tier.command(name).unlink()
        grown = tier.nodes[name].metric("process_resident_memory_bytes") - before_bytes[name]
        assert grown < 100 * 1024 * 1024, f"{name} grew by {grown:,.0f} bytes"
    tier.wait_equal()
    assert not losses(load.acknowledged, run(lambda f: f.events(), tier.addresses))


def test_a_second_process_on_the_same_directory_is_refused(cluster: NodeCluster) -> None:
    tier = ManagerTier(cluster, 1)
    other = cluster.start("manager", "m0", "--data-dir", str(tier.data("m0")))
    assert other.process.wait(30) == 2
    assert "another process uses the data directory" in other.output(), other.output()
    assert tier.nodes["m0"].get("/readyz")[0] == 200


def test_a_corrupt_database_is_refused(cluster: NodeCluster) -> None:
    tier = ManagerTier(cluster, 1)
    with Load(tier.addresses, clients=4) as load:
        until(lambda: load.commits > 200, what="there is something to damage")
    load.check()
    assert tier.nodes["m0"].stop() == 0
    database = tier.data("m0") / "ledger" / "ledger.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(database.read_bytes())
    for start in range(4096, len(content), 4096):
        content[start : start + 64] = b"\xa5" * 64
    database.write_bytes(content)
    node = tier.start("m0")
    code = node.process.wait(30)
    assert code not in (0, 1)
    said = node.output()
    assert re.search(r"corrupt|malformed|damaged", said), said
    assert "Traceback" not in said
    assert "ledger.db" in said or "ledger" in said


def test_a_node_that_lost_its_disk_joins_under_a_new_number(cluster: NodeCluster) -> None:
    tier = ManagerTier(cluster)
    tier.wait_settled()
    with Load(tier.addresses, clients=4) as load:
        until(lambda: load.commits > 50, what="the load runs")
        former = {row.name: row.number for row in tier.told("m0").nodes}
        tier.kill("m2")
        shutil.rmtree(tier.data("m2"))
        tier.start("m2")

        def is_back() -> bool:
            rows = {row.number: (row.name, row.state) for row in tier.told("m0").nodes}
            return rows.get(former["m2"]) == ("m2", "gone") and ("m2", "active") in rows.values()

        until(is_back, what="m2 is gone and there again")
        tier.wait_ready("m2")
        until(
            lambda: all(
                sorted(row.settled) == ["m0", "m1", "m2"] and {*map(str, former.values())} >= set()
                for row in tier.told("m0").groups
                if row.state == "active"
            ),
            what="it votes again",
        )
        assert tier.told("m2").number not in former.values()
    load.check()
    tier.wait_equal()
    assert not losses(load.acknowledged, run(lambda f: f.events(), tier.addresses))


def test_a_founder_that_crashed_before_it_stored_group_0_founds_the_same_ledger(
    cluster: NodeCluster,
) -> None:
    directory = cluster.directory / "hyperscale-data" / "m0" / "ledger"
    directory.parent.mkdir(parents=True)
    store = open_store(directory)
    stored = {"pledged": "m0", "scope": "default", "number": "1", "ledger": "abc"}
    for key, value in stored.items():
        store.put_meta(key, value.encode())
    store.close()
    del store  # releases the data directory
    tier = ManagerTier(cluster, 2)
    assert tier.told("m1").ledger == "abc"
    assert [node.name for node in tier.told("m1").nodes] == ["m0", "m1"]
    tier.wait_equal()
