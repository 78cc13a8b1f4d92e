"""Leaders killed: how long until the next commit. Nodes restarted: how long until they serve."""

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from hyperscale.jobs.committed.events import CancelRequested, encode
from hyperscale.ledger.server.operator_messages import Compact, CompactReply
from tests.lab.ledger_clients import Forwarder, Load, asked, losses, run
from tests.lab.manager_tier import ManagerTier
from tests.lab.nodes import NodeCluster
from tests.lab.soak_report import Report
from tests.lab.waiting import until

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "soak-ledger-failover.txt"
GROUP = 1
BODY = encode(CancelRequested(job="dc.1-nobody", reason="a command like any other"))


def next_commit_s(tier: ManagerTier, leader: str) -> float:
    """Kills the leader; seconds until a command is committed by the next one."""
    others = [number for number, name in enumerate(tier.names) if name != leader]

    async def through_another() -> float:
        async with Forwarder(tier.addresses) as forwarder:
            await forwarder.command(GROUP, "", BODY, via=others[0])
            await asyncio.to_thread(tier.kill, leader)
            killed_s = time.monotonic()
            await forwarder.command(GROUP, "", BODY, via=others[0])
            return time.monotonic() - killed_s

    return asyncio.run(through_another())


def test_a_tier_that_is_ready_can_lose_the_leader_of_a_group(cluster: NodeCluster) -> None:
    tier = ManagerTier(cluster)
    for name in tier.names:  # none is ready before, of group 0 too
        managing = next(row for row in tier.told(name).replicas if row.group == 0)
        assert sorted(managing.voters) == sorted(tier.names)
    tier.wait_settled()
    leader = tier.leader_of(GROUP)
    next_commit_s(tier, leader)
    assert tier.leader_of(GROUP) != leader


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_commits_go_on_soon_after_a_leader_is_lost(cluster: NodeCluster) -> None:
    tier = ManagerTier(cluster)
    times: list[float] = []
    for _ in range(20):
        tier.wait_settled()
        leader = tier.leader_of(GROUP)
        times.append(next_commit_s(tier, leader))
        tier.start(leader)
        tier.wait_ready()
        tier.wait_equal()
    times.sort()
    Report(RESULTS).write(
        "leader of a group killed, 20 times, three managers",
        "seconds until the next commit, through another node, at default timing:",
        "  " + " ".join(f"{each:.2f}" for each in times),
        f"wanted: 19 of 20 within 3 s, all within 5 s: "
        f"{sum(each <= 3 for each in times)} and {sum(each <= 5 for each in times)}",
    )
    assert sum(each <= 3.0 for each in times) >= 19
    assert times[-1] <= 5.0


def commit_many(tier: ManagerTier, count: int) -> None:
    async def commit() -> None:
        async with Forwarder(tier.addresses) as forwarder:
            left = count

            async def one() -> None:
                nonlocal left
                while left > 0:
                    left -= 1
                    await forwarder.command(GROUP, "", BODY)

            await asyncio.gather(*(one() for _ in range(500)))

    asyncio.run(commit())


def live_bytes(database: Path) -> int:
    """What the rows hold, without any of the file around them."""
    tables = {"log": "data", "snap": "data", "history": "data", "meta": "value"}
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return sum(
            connection.execute(
                f"SELECT COALESCE(SUM(LENGTH({column}) + 64), 0) FROM {table}"
            ).fetchone()[0]
            for table, column in tables.items()
        )


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("snapshots", ["10000", "1000000"])
def test_a_node_with_many_entries_serves_soon_after_a_restart(
    cluster: NodeCluster, snapshots: str
) -> None:
    """With snapshots as usual, and with none: the whole log is read and applied again."""
    tier = ManagerTier(cluster, 1, flags=("--ledger-snapshot-entries", snapshots))
    with Load(tier.addresses, clients=16, pause_s=0) as load:
        until(lambda: load.commits > 3_000, what="some jobs with a history")
    load.check()
    commit_many(tier, 100_000)
    tier.kill("m0")
    began_s = time.monotonic()
    tier.start("m0")
    tier.wait_ready()
    run(lambda forwarder: forwarder.command(GROUP, "", BODY), tier.addresses)
    serves_s = time.monotonic() - began_s
    assert not losses(load.acknowledged, run(lambda f: f.events(), tier.addresses))
    before_bytes = database_bytes(tier)
    asked(tier.addresses, Compact(), CompactReply, 0)
    commit_many(tier, 10)
    assert tier.nodes["m0"].stop() == 0
    database = tier.data("m0") / "ledger" / "ledger.db"
    with closing(sqlite3.connect(database)) as connection:
        # Beside it is a journal of at most 16 MiB, written over again and again.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    after_bytes, live = database_bytes(tier), live_bytes(database)
    Report(RESULTS).write(
        f"restart with 100,000 entries, a snapshot every {int(snapshots):,}",
        f"from the start of the process to its next commit: {serves_s:.2f} s (wanted: 5)",
        f"database {before_bytes / 1e6:.1f} MB, of which at most 16.8 MB are SQLite's journal; "
        f"after 'ledger snapshot', without the journal, {after_bytes / 1e6:.1f} MB; its rows hold "
        f"{live / 1e6:.1f} MB (wanted: below 2 x)",
    )
    assert serves_s <= 5.0
    assert after_bytes < 2 * live + 256 * 1024


def database_bytes(tier: ManagerTier) -> int:
    folder = tier.data("m0") / "ledger"
    return sum(path.stat().st_size for path in folder.iterdir() if path.name.startswith("ledger"))
