"""When the cluster version rises, and which nodes are refused."""

import pytest

from hyperscale.ledger.cluster_version import VersionsSeen, decide_version, version_problem
from hyperscale.ledger.topology import (
    Founded,
    NodeJoined,
    NodeState,
    NodeStateChanged,
    Topology,
    VersionAgreed,
    VersionAnnounced,
    VersionRaised,
)
from hyperscale.wire.versions import Version

OLD, NEW = Version(1, 1), Version(1, 2)
HOLD_MS = 600_000


class Tier:
    """A topology of three nodes, and the decisions about its version as time passes."""

    def __init__(self) -> None:
        self.topology = Topology()
        self.topology.decide(Founded(3, "dc", OLD))
        for name in ("a", "b", "c"):
            self.topology.decide(NodeJoined(name, name))
        self.nodes = {1: OLD, 2: OLD, 3: OLD}
        self.workers = [OLD]
        self.now_ms = 0

    def pass_s(self, seconds: float) -> list[object]:
        """Take all decisions after a time; return them."""
        self.now_ms += round(seconds * 1000)
        taken: list[object] = []
        while decisions := self._decide():
            for decision in decisions:
                assert not self.topology.decide(decision, time_ms=self.now_ms).refused
                taken.append(decision)
        return taken

    def _decide(self) -> list[object]:
        seen = VersionsSeen(nodes=self.nodes, workers=self.workers)
        return decide_version(self.topology, seen, time_ms=self.now_ms, hold_ms=HOLD_MS)


@pytest.fixture
def tier() -> Tier:
    tier = Tier()
    tier.pass_s(1)
    return tier


def test_the_version_rises_after_the_hold_once_all_nodes_and_workers_announce_it(
    tier: Tier,
) -> None:
    tier.nodes = {1: NEW, 2: NEW}  # the third is down for its upgrade
    assert tier.pass_s(1) == [VersionAnnounced(1, NEW), VersionAnnounced(2, NEW)]
    tier.nodes[3] = NEW
    assert tier.pass_s(10_000) == [VersionAnnounced(3, NEW)]  # a worker is older
    tier.workers = [NEW]
    assert tier.pass_s(1) == [VersionAgreed(NEW)]
    assert tier.pass_s(599) == []
    assert tier.topology.version == OLD
    assert tier.pass_s(1) == [VersionRaised(NEW)]
    assert tier.topology.version == NEW


def test_a_rollback_within_the_hold_begins_the_hold_anew(tier: Tier) -> None:
    tier.nodes, tier.workers = dict.fromkeys((1, 2, 3), NEW), [NEW]
    tier.pass_s(1)
    tier.nodes[2] = OLD
    assert tier.pass_s(599) == [VersionAnnounced(2, OLD), VersionAgreed(OLD)]
    tier.nodes[2] = NEW
    assert tier.pass_s(1) == [VersionAnnounced(2, NEW), VersionAgreed(NEW)]
    assert tier.pass_s(599) == []
    assert tier.pass_s(1) == [VersionRaised(NEW)]


def test_a_node_that_is_away_counts_with_the_version_it_announced_last(tier: Tier) -> None:
    tier.nodes, tier.workers = {1: NEW, 2: NEW}, []
    tier.pass_s(1)
    assert tier.pass_s(10_000) == []
    assert "c runs version 1.1" in tier.topology.decide(VersionRaised(NEW)).refused
    assert not tier.topology.decide(VersionRaised(NEW, leaves_behind=(3,))).refused
    assert tier.topology.version == NEW


def test_a_node_that_was_removed_does_not_hold_the_version_back(tier: Tier) -> None:
    tier.nodes, tier.workers = {1: NEW, 2: NEW}, []
    tier.pass_s(1)
    tier.topology.decide(NodeStateChanged(3, NodeState.GONE))
    assert tier.pass_s(1) == [VersionAgreed(NEW)]


def test_the_version_never_falls(tier: Tier) -> None:
    tier.nodes, tier.workers = dict.fromkeys((1, 2, 3), NEW), []
    tier.pass_s(1)
    tier.pass_s(700)
    tier.nodes = dict.fromkeys((1, 2, 3), OLD)
    tier.pass_s(1)
    tier.pass_s(700)
    assert tier.topology.version == NEW
    assert tier.topology.decide(VersionRaised(OLD)).refused


def test_an_upgraded_topology_restores_from_its_snapshot(tier: Tier) -> None:
    tier.nodes = dict.fromkeys((1, 2, 3), NEW)
    tier.workers = []
    tier.pass_s(1)
    copy = Topology()
    copy.restore(tier.topology.snapshot())
    assert copy == tier.topology


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (Version(1, 1), "version 1.1, and the cluster version has risen to 1.2"),
        (Version(1, 4), "1.4, more than one minor version above the cluster version 1.2"),
        (Version(2, 2), "version 2.2, and the cluster version is 1.2"),
        (None, "announces no version, and the cluster version is 1.2"),
    ],
)
def test_a_node_that_does_not_fit_is_refused_naming_both_versions(
    version: Version | None, said: str
) -> None:
    problem = version_problem(version, NEW)
    assert problem is not None
    assert said in problem


@pytest.mark.parametrize("version", [NEW, Version(1, 3)])
def test_a_node_of_the_cluster_version_or_the_next_takes_part(version: Version) -> None:
    assert version_problem(version, NEW) is None
