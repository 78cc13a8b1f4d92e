"""Nodes at both ends of a link that is cut and mended; twenty nodes in the soak."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hyperscale.wire.cluster_secret import make_secret
from tests.lab.network import NetLab, Side, why_not
from tests.lab.nodes import NodeCluster, NodeProcess, deaths, wait_for_view, wall_s
from tests.lab.soak_report import Report
from tests.lab.waiting import until

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it is all there")

HASTY = ("--membership-suspicion-min-s", "2s", "--membership-suspicion-max-s", "4s")


@pytest.fixture
def net() -> Iterator[NetLab]:
    with NetLab(seed=1) as lab:
        yield lab


class Halves:
    """A cluster with half of its nodes at each end of the link."""

    def __init__(self, cluster: NodeCluster, net: NetLab, *flags: str) -> None:
        self._cluster = cluster
        self._net = net
        self._flags = flags
        self._environment = {"HYPERSCALE_SECRET": make_secret()}
        self.a: list[NodeProcess] = []
        self.b: list[NodeProcess] = []

    @property
    def nodes(self) -> list[NodeProcess]:
        return [*self.a, *self.b]

    def form(self, managers: int, workers: int) -> None:
        """Start nodes on both sides; their only seed is on the first side."""
        first = self._start(self._net.a, "manager", "ma0").wait_listening()
        self.a.append(first)
        for half, side, letter in ((self.a, self._net.a, "a"), (self.b, self._net.b, "b")):
            wanted = [("manager", f"m{letter}{n}") for n in range(managers)]
            wanted += [("worker", f"w{letter}{n}") for n in range(workers)]
            known = {node.name for node in self.nodes}
            for role, name in wanted:
                if name not in known:
                    half.append(self._start(side, role, name, "--seed", first.address))
        for node in self.nodes:
            node.wait_listening()
        wait_for_view(self.nodes)

    def _start(self, side: Side, role: str, name: str, *flags: str) -> NodeProcess:
        return self._cluster.start(
            role,
            name,
            *("--host", side.address),
            *flags,
            *self._flags,
            wrap=("ip", "netns", "exec", side.name),
            environment=self._environment,
        )

    def cut_until_dead(self) -> None:
        """Cut the link until each half has declared the other half dead."""
        self._net.cut()
        for half, other in ((self.a, self.b), (self.b, self.a)):
            gone = {node.name for node in other}
            until(
                lambda half=half, gone=gone: all(
                    node.states()[name] == "dead" for node in half for name in gone
                ),
                what="each half has declared the other half dead",
            )

    def mend(self) -> float:
        """Mend the link; return the seconds until all nodes see all others alive."""
        at_s = time.time()
        self._net.mend()
        wait_for_view(self.nodes)
        returned = [
            wall_s(event["time"])
            for node in self.nodes
            for event in node.read()
            if event["event"] in ("member.returned", "member.confirmed", "suspicion.cleared")
        ]
        return max(returned) - at_s


def test_two_halves_of_a_partition_merge_again(tmp_path: Path, net: NetLab) -> None:
    with NodeCluster(tmp_path) as cluster:
        halves = Halves(cluster, net, *HASTY)
        halves.form(1, 1)
        halves.cut_until_dead()
        for half in (halves.a, halves.b):
            wait_for_view(half)
        halves.mend()
        for node in halves.nodes:
            assert {event["evidence"] for event in node.seen("member.died")} == {"silent"}


def test_no_member_is_declared_dead_over_a_slow_lossy_link(tmp_path: Path, net: NetLab) -> None:
    with NodeCluster(tmp_path) as cluster:
        halves = Halves(cluster, net)
        halves.form(1, 1)
        net.link(delay_s=0.05, jitter_s=0.02, loss=0.2)
        time.sleep(8)  # the fault
        net.link()
        wait_for_view(halves.nodes)
        assert not deaths(halves.nodes)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_partition_of_twenty_nodes_heals_in_time(
    tmp_path: Path, net: NetLab, report: Report
) -> None:
    healed_s = []
    with NodeCluster(tmp_path) as cluster:
        halves = Halves(cluster, net)
        halves.form(2, 8)
        for _ in range(3):
            halves.cut_until_dead()
            healed_s.append(halves.mend())
        # Names contain the half: ma0, wb3.
        across, within = 0, 0
        for node in halves.nodes:
            for event in node.seen("member.died"):
                if event["member"][1] == node.name[1]:
                    within += 1
                else:
                    across += 1
    report.write(
        "partition, 20 nodes, 10 at each end",
        "seconds from the mending of the link to one view: "
        + " ".join(f"{each:.2f}" for each in healed_s),
        f"{across} deaths across the cut, {within} within a half; wanted: one view within 15 s",
    )
    assert not within
    assert max(healed_s) <= 15.0


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_twenty_nodes_stay_alive_over_a_lossy_link(
    tmp_path: Path, net: NetLab, report: Report
) -> None:
    with NodeCluster(tmp_path) as cluster:
        halves = Halves(cluster, net)
        halves.form(2, 8)
        net.link(delay_s=0.05, jitter_s=0.02, loss=0.2)
        time.sleep(120)  # the fault
        net.link()
        wait_for_view(halves.nodes)
        suspicions = sum(len(node.seen("member.suspected")) for node in halves.nodes)
        report.write(
            "a fifth of the packets lost, 20 nodes, 10 at each end",
            f"120 s of 50-70 ms delay and 20 % loss each way: {len(deaths(halves.nodes))} deaths, "
            f"{suspicions} suspicions, everyone alive at the end",
        )
        assert not deaths(halves.nodes)
