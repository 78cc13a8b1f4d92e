"""Backups of a running ledger, and new ledgers of a backup or of one surviving disk."""

from pathlib import Path

from tests.lab import command
from tests.lab.ledger_clients import Acknowledged, Load, losses, run
from tests.lab.manager_tier import ManagerTier
from tests.lab.nodes import NodeCluster, NodeProcess
from tests.lab.waiting import until


def started(cluster: NodeCluster, name: str, directory: Path, *flags: str) -> NodeProcess:
    """A manager of the new ledger that is ready."""
    node = cluster.start("manager", name, "--data-dir", str(directory), *flags)
    node.wait_listening()
    until(lambda: node.get("/readyz")[0] == 200, what=f"{name} is ready")
    return node


def lost(node: NodeProcess, acknowledged: list[Acknowledged]) -> list[str]:
    return losses(acknowledged, run(lambda forwarder: forwarder.events(), [node.address]))


def test_a_backup_taken_under_load_has_everything_acknowledged_before(
    cluster: NodeCluster, tmp_path: Path
) -> None:
    tier = ManagerTier(cluster, 3)
    tier.wait_settled()
    old = tier.told("m0").ledger
    with Load(tier.addresses) as load:
        until(lambda: load.commits > 100, what="commits before the backup")
        before = [Acknowledged(each.key, each.job, list(each.kinds)) for each in load.acknowledged]
        taken = command.run(
            *("ledger", "backup", "--connect", tier.addresses[1], "--out", "b.backup"),
            cwd=tmp_path,
        )
        assert taken.code == 0, taken.stderr
        until(lambda: len(load.acknowledged) > len(before) + 10, what="the ledger goes on")
    load.check()
    for name in tier.names:
        tier.kill(name)
    restored = command.run("ledger", "restore", "b.backup", "--data-dir", "new/n0", cwd=tmp_path)
    assert restored.code == 0, restored.stderr
    again = command.run("ledger", "restore", "b.backup", "--data-dir", "new/n0", cwd=tmp_path)
    assert again.code == 2
    assert "exists already" in again.stderr

    node = started(cluster, "n0", tmp_path / "new" / "n0")
    assert not lost(node, before)
    status = command.run("ledger", "status", "--connect", node.address, "--json", cwd=tmp_path)
    assert old not in status.stdout
    jobs = command.run("jobs", "--manager", node.address, cwd=tmp_path)
    assert "running" not in jobs.stdout
    # Others join, and it is a ledger like any other.
    started(cluster, "n1", tmp_path / "new" / "n1", "--seed", node.address)
    with Load([node.address], tag="later") as load:
        until(lambda: load.commits > 30, what="commits of the new ledger")
    load.check()


def test_one_of_three_disks_is_enough_for_a_new_ledger(
    cluster: NodeCluster, tmp_path: Path
) -> None:
    tier = ManagerTier(cluster, 3)
    tier.wait_settled()
    with Load(tier.addresses) as load:
        until(lambda: load.commits > 100, what="commits")
    load.check()
    tier.wait_equal()  # the survivor has everything
    living = command.run(
        *("ledger", "recover", "--from", str(tier.data("m2")), "--data-dir", "new/n0", "--yes"),
        cwd=tmp_path,
    )
    assert living.code == 2
    assert "stop the other process" in living.stderr
    for name in tier.names:
        tier.kill(name)
    recovered = command.run(
        *("ledger", "recover", "--from", str(tier.data("m2")), "--data-dir", "new/n0", "--yes"),
        cwd=tmp_path,
    )
    assert recovered.code == 0, recovered.stderr
    assert "lost is what other nodes acknowledged" in recovered.stderr
    node = started(cluster, "n0", tmp_path / "new" / "n0")
    assert not lost(node, load.acknowledged)


def test_bad_input_of_a_recovery_is_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no backup")
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        (("restore", "missing", "--data-dir", "n"), "missing cannot be read: No such file"),
        (("restore", "text", "--data-dir", "n"), "text is not a backup"),
        (("restore", "text"), "--data-dir"),
        (("restore", "text", "--data-dir", "n", "--node-id", "a b"), "'a b' is no name"),
        (("recover", "--from", "empty", "--data-dir", "n", "--yes"), "it has no ledger"),
        (("recover", "--from", "missing", "--data-dir", "n", "--yes"), "it has no ledger"),
        (("backup", "--connect", "127.0.0.1:9"), "--out"),
    ):
        refused = command.run("ledger", *arguments, cwd=tmp_path)
        assert refused.code == 2, arguments
        assert message in refused.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "text"]
