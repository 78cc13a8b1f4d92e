"""A second node of a living name is refused, wherever it comes from; the living one keeps on."""

import json
import shutil
import signal

import pytest

from tests.lab.command import run
from tests.lab.manager_tier import ManagerTier
from tests.lab.nodes import NodeCluster, NodeProcess, wait_for_view
from tests.lab.ports import free_port
from tests.lab.waiting import WAIT_S, until


def ended(node: NodeProcess) -> tuple[int, str]:
    """Wait until a node has ended by itself; return its exit code and its output."""
    return node.process.wait(WAIT_S), node.output()


def assert_untouched(tier: ManagerTier, number: int) -> None:
    """Assert that m1 is the node of this number still, alive and ready."""
    assert [row.state for row in tier.told("m0").nodes if row.name == "m1"] == ["active"]
    assert tier.told("m1").number == number
    assert tier.nodes["m1"].get("/readyz")[0] == 200
    assert not tier.nodes["m1"].seen("incarnation.raised")
    for other in ("m0", "m2"):
        assert "m1" in tier.nodes[other].living()
        assert not tier.nodes[other].seen("member.died")
    tier.wait_equal()


@pytest.mark.parametrize("has_copy", [False, True], ids=["empty directory", "copied directory"])
def test_a_second_manager_of_a_living_name_is_refused(cluster: NodeCluster, has_copy: bool) -> None:
    tier = ManagerTier(cluster, 3)
    number = tier.told("m1").number
    directory = cluster.directory / "second"
    if has_copy:
        shutil.copytree(tier.data("m1"), directory)
    for seed in (tier.addresses[0], tier.addresses[1]):  # a third node, the holder itself
        second = cluster.start("manager", "m1", "--data-dir", str(directory), "--seed", seed)
        code, output = ended(second)
        assert code == 3, output
        assert f"the name 'm1' is taken by a living manager at {tier.addresses[1]}" in output or (
            f"the name 'm1' is taken by this manager at {tier.addresses[1]}" in output
        )
        assert "--node-id" in output
        assert "Traceback" not in output
    assert_untouched(tier, number)


def test_a_second_worker_of_a_living_name_is_refused(cluster: NodeCluster) -> None:
    first, worker = cluster.form(1, 1)
    seed = ("--seed", first.address)
    second = cluster.start("worker", "w0", *seed, "--data-dir", "second", "--cores", "1")
    code, output = ended(second)
    assert code == 3, output
    assert f"the name 'w0' is taken by a living worker at {worker.address}" in output
    assert "w0" in first.living()
    assert not first.seen("member.died")
    # A manager cannot have the name of a worker, either.
    code, output = ended(cluster.start("manager", "w0", *seed, "--data-dir", "third"))
    assert code == 3, output
    assert "taken by a living worker" in output


def test_a_killed_node_restarts_from_its_directory_at_once_at_another_port(
    cluster: NodeCluster,
) -> None:
    tier = ManagerTier(cluster, 3)
    number = tier.told("m1").number
    tier.kill("m1")
    tier.ports["m1"] = free_port()
    tier.start("m1")
    tier.wait_ready("m1")
    assert tier.told("m1").number == number


def test_a_node_that_was_replaced_while_it_was_frozen_says_so_and_ends(
    cluster: NodeCluster,
) -> None:
    manager, frozen = cluster.form(1, 1)
    frozen.signal(signal.SIGSTOP)
    second = cluster.start(
        *("worker", "w0", "--seed", manager.address, "--data-dir", "second", "--cores", "1")
    )
    # While the first one is only silent, the second one waits for the name.
    until(lambda: second.seen("name.uncertain"), what="the second worker waits for the name")
    second.wait_listening()
    wait_for_view([manager, second])
    frozen.signal(signal.SIGCONT)
    code, output = ended(frozen)
    assert code == 3, output
    assert f"the name 'w0' is taken by a living worker at {second.address}" in output
    assert second.get("/readyz")[0] == 200


@pytest.mark.parametrize("role", ["manager", "worker"])
def test_a_node_of_another_datacenter_is_refused_by_name(cluster: NodeCluster, role: str) -> None:
    home = cluster.start("manager", "m0", "--datacenter", "ams").wait_listening()
    stray = cluster.start(role, "stray", "--datacenter", "fra", "--seed", home.address)
    stray.wait_listening()
    until(lambda: stray.seen("discovery.warned"), what="the stray node logs the refusal")
    told = str(stray.seen("discovery.warned")[0]["detail"])
    assert "wrong datacenter" in told
    assert f"{role} stray, is of 'fra'" in told
    assert "manager m0, of 'ams'" in told
    refused = {"reason": "datacenter"}
    until(lambda: home.seen("peer.refused", **refused), what="the manager logs the refusal")
    assert not home.living()


def test_a_data_directory_of_another_datacenter_is_refused(cluster: NodeCluster) -> None:
    tier = ManagerTier(cluster, 1, flags=("--datacenter", "ams"))
    assert tier.nodes["m0"].stop() == 0
    code, output = ended(tier.start("m0", "--datacenter", "fra"))
    assert code == 2, output
    assert "belongs to the ledger of datacenter 'ams', and this node is of 'fra'" in output


def test_a_new_manager_waits_for_approval_where_it_is_asked_for(cluster: NodeCluster) -> None:
    tier = ManagerTier(cluster, 3, flags=("--ledger-admit", "approve"))  # founders need none
    newcomer = tier.start("m3").wait_listening()

    def why_not_ready() -> list[str]:
        reasons: list[str] = json.loads(newcomer.get("/readyz")[1])["why_not"]
        return reasons

    waits = "waits for approval: hyperscale ledger members approve m3"
    until(lambda: why_not_ready() == [waits], what="the new manager waits")
    connect = ("--connect", tier.addresses[0])
    listed = run("ledger", "groups", *connect, cwd=cluster.directory)
    assert "pending" in listed.stdout
    added = run("ledger", "members", "add", "m3", *connect, cwd=cluster.directory)
    assert added.code == 3
    assert "approve m3" in added.stderr
    approved = run("ledger", "members", "approve", "m3", *connect, cwd=cluster.directory)
    assert approved.code == 0, approved.stderr
    tier.wait_ready("m3")
