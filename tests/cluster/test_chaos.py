"""Seeded faults for a cluster under load: all checks hold."""

import os
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.client.cluster_file import ClusterFile
from hyperscale.lab.faults import FaultKind, make_plan, tiers_of
from hyperscale.lab.layout import ClusterShape, lay_out
from tests.lab.cluster import Cluster, running_cluster
from tests.lab.soak_report import cluster_report
from tests.lab.waiting import WAIT_S

_HERE = Path("lab")
ONE = lay_out(ClusterShape(), _HERE, _HERE / "secret")
MANY = lay_out(ClusterShape(gates=3, datacenters=2, workers=2), _HERE, _HERE / "secret")
CLUSTERS = 2  # that the soak runs side by side


@given(st.sampled_from([ONE, MANY]), st.integers(0, 10**6), st.floats(2.0, 120.0))
def test_a_fault_plan_follows_from_its_seed_and_leaves_a_majority(
    cluster: ClusterFile, seed: int, duration_s: float
) -> None:
    plan = make_plan(seed, cluster, duration_s)
    assert plan == make_plan(seed, cluster, duration_s)
    for fault in plan:
        assert 0 < fault.at_s < duration_s
        ongoing = [f for f in plan if f.at_s <= fault.at_s < f.at_s + f.away_s]
        failed = [f.name for f in ongoing if f.name in cluster.datacenters]
        assert len(failed) <= 1
        down = {node for other in ongoing for node in other.nodes}
        for tier in tiers_of(cluster):
            is_failed = cluster.node(tier.nodes[0]).datacenter in failed
            assert is_failed or len(down.intersection(tier.nodes)) <= tier.down_max


@pytest.mark.parametrize("cluster", [ONE, MANY], ids=["managers", "gates"])
def test_fault_plans_have_every_kind_of_fault(cluster: ClusterFile) -> None:
    faults = [fault for seed in range(20) for fault in make_plan(seed, cluster, 20.0)]
    assert {fault.kind for fault in faults} == set(FaultKind)
    nodes = {node.id for node in cluster.nodes}
    whole = set(cluster.datacenters if cluster.gates else ())
    assert {fault.name for fault in faults} == nodes | whole


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [0, 4, 8])
def test_all_checks_hold_under_chaos(cluster: Cluster, seed: int) -> None:
    done = cluster.command(
        *("chaos", "--dir", str(cluster.directory), "--seed", str(seed), "--duration", "8s")
    )
    stdout, stderr = done.communicate(timeout=150)
    assert (done.returncode, stderr) == (0, ""), stdout


# The first fault of each plan, which is one of a manager.
@pytest.mark.parametrize(("seed", "trouble"), [(3, "paused, "), (2, "killed")])
def test_interrupted_chaos_restarts_all_nodes_and_cancels_its_job(
    cluster: Cluster, seed: int, trouble: str
) -> None:
    where = ("--dir", str(cluster.directory))
    chaos = cluster.command("chaos", *where, "--seed", str(seed), "--duration", "60s")
    assert chaos.stdout is not None
    while f" {trouble}" not in (line := chaos.stdout.readline()):
        assert line, "it has ended"
    name = line.split()[2]
    chaos.send_signal(signal.SIGINT)
    for line in chaos.stdout:
        if "interrupted" in line:  # the nodes are brought back although more signals follow
            chaos.send_signal(signal.SIGINT)
    _, stderr = chaos.communicate(timeout=WAIT_S)
    # The last signal may hit a process that is about to end.
    assert chaos.returncode in (130, -signal.SIGINT)
    assert stderr in ("", "hyperscale: interrupted\n")
    stat = Path(f"/proc/{cluster.node(name).pid}/stat").read_text()
    assert stat.rpartition(")")[2].split()[0] in "RSD"
    live = cluster.run("jobs", "--live", *where)
    assert (live.returncode, live.stdout.count("running")) == (0, 0), live.stderr


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_all_checks_hold_for_many_seeds(tmp_path: Path) -> None:
    """Fifty seeds, or `HYPERSCALE_CHAOS_SEEDS`, on two clusters of 3 managers and 4 workers."""
    count = int(os.environ.get("HYPERSCALE_CHAOS_SEEDS", "50"))
    seeds = range(1000, 1000 + count)
    with ThreadPoolExecutor(CLUSTERS) as pool:
        halves = [
            pool.submit(try_seeds, tmp_path / f"lab-{number}", seeds[number::CLUSTERS])
            for number in range(CLUSTERS)
        ]
        tried = sorted(outcome for half in halves for outcome in half.result())
    title = f"chaos, {count} seeds on 3 managers and 4 workers"
    cluster_report().write(title, *(line for _, line, _ in tried))
    broken = [said for _, _, said in tried if said]
    assert not broken, "\n".join(broken)


def try_seeds(directory: Path, seeds: Sequence[int]) -> list[tuple[int, str, str]]:
    """Run chaos with each seed; return the seed, its facts, and the output of a failed run."""
    tried = []
    with running_cluster(directory, "--workers", "4") as cluster:
        for seed in seeds:
            done = cluster.command(
                *("chaos", "--dir", str(cluster.directory), "--seed", str(seed)),
                *("--duration", "20s"),
            )
            stdout, stderr = done.communicate(timeout=400)
            facts = [line.removeprefix("held    ") for line in stdout.splitlines()]
            kept = [line for line in facts if line.startswith(("the job", "requests", "BROKEN"))]
            line = f"seed {seed}: exit {done.returncode}; {'; '.join(kept)}"
            tried.append((seed, line, f"{stdout}\n{stderr}" if done.returncode else ""))
            cluster.heal()
    return tried
