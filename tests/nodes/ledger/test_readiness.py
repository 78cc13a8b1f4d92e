"""When a manager is ready: as a member of its ledger, with a leader of group 0 that it reaches."""

import json

from tests.lab.command import run
from tests.lab.manager_tier import ManagerTier
from tests.lab.nodes import NodeCluster
from tests.lab.waiting import until


def why_not_ready(tier: ManagerTier, name: str) -> list[str]:
    status, text = tier.nodes[name].get("/readyz")
    reasons: list[str] = json.loads(text)["why_not"]
    assert (status == 200) == (not reasons)
    return reasons


def test_a_manager_without_a_quorum_is_not_ready_until_it_is_back(cluster: NodeCluster) -> None:
    tier = ManagerTier(cluster, 3)
    for name in ("m1", "m2"):
        tier.kill(name)
    until(
        lambda: "the management group has no leader" in "".join(why_not_ready(tier, "m0")),
        what="a manager without a quorum is not ready",
    )
    until(lambda: tier.nodes["m0"].seen("ledger.not_ready"), what="the log says so")
    tier.start("m1").wait_listening()
    tier.wait_ready("m0", "m1")


def test_a_manager_that_was_removed_says_so_and_is_not_ready(cluster: NodeCluster) -> None:
    tier = ManagerTier(cluster, 3)
    connect = ("--connect", tier.addresses[0])
    refused = run("ledger", "members", "remove", "m2", *connect, cwd=cluster.directory)
    assert refused.code == 3
    assert "m2 is alive" in refused.stderr
    assert "--force" in refused.stderr
    forced = run("ledger", "members", "remove", "m2", "--force", *connect, cwd=cluster.directory)
    assert forced.code == 0, forced.stderr
    until(
        lambda: why_not_ready(tier, "m2") == ["was removed from its ledger"],
        what="the removed manager is not ready",
    )
    assert why_not_ready(tier, "m0") == []


def test_a_drain_that_would_leave_no_majority_is_refused_unless_forced(
    cluster: NodeCluster,
) -> None:
    tier = ManagerTier(cluster, 3)
    tier.kill("m2")
    until(lambda: "m2" not in tier.nodes["m0"].living(), what="the death of m2 is known")
    connect = ("--manager", tier.addresses[0], "--no-wait")
    refused = run("drain", "m1", *connect, cwd=cluster.directory)
    assert refused.code == 3
    assert "no majority would be left: m2 cannot be reached" in refused.stderr
    assert run("drain", "m1", "--force", *connect, cwd=cluster.directory).code == 0
