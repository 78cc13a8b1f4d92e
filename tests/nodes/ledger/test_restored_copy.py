"""A manager whose data directory was restored from an older copy."""

import shutil

from tests.lab.ledger_clients import Load
from tests.lab.manager_tier import ManagerTier
from tests.lab.nodes import NodeCluster
from tests.lab.waiting import WAIT_S, until


def test_a_manager_restored_from_an_old_copy_is_refused_and_the_others_go_on(
    cluster: NodeCluster,
) -> None:
    tier = ManagerTier(cluster, 3)
    tier.wait_settled()
    tier.kill("m2")
    copy = cluster.directory / "copy"
    shutil.copytree(tier.data("m2"), copy)
    tier.start("m2")
    tier.wait_ready()
    with Load(tier.addresses) as load:
        until(lambda: load.commits > 200, what="commits that m2 acknowledges")
    tier.wait_equal()
    tier.kill("m2")
    shutil.rmtree(tier.data("m2"))
    copy.rename(tier.data("m2"))
    restored = tier.start("m2")
    assert restored.process.wait(WAIT_S) == 3
    said = restored.output()
    assert "hyperscale: the data directory is an older copy" in said
    assert "move it away" in said
    assert '"event":"node.failed"' in said
    assert "panicked" not in said
    with Load(tier.addresses[:2]) as load:
        until(lambda: load.commits > 20, what="the others go on")
    load.check()
    # With an empty directory it joins as a new manager.
    shutil.rmtree(tier.data("m2"))
    tier.start("m2")
    tier.wait_ready()
