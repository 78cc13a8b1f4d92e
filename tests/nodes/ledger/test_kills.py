"""Managers killed and stopped at random under load: what was acknowledged is there, once."""

import random
import signal
import time
from pathlib import Path

import pytest

from tests.lab.ledger_clients import Load, losses, run
from tests.lab.manager_tier import ManagerTier
from tests.lab.nodes import NodeCluster
from tests.lab.soak_report import Report
from tests.lab.waiting import until

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


class Outcome:
    def __init__(self) -> None:
        self.kills = 0
        self.stops = 0
        self.longest_s = 0.0
        """Until the next commits after a fault, restarts of the process included."""


def torment(tier: ManagerTier, load: Load, rng: random.Random, kills: int, stops: int) -> Outcome:
    """One fault after the other, each under load and before all is caught up again."""
    outcome = Outcome()
    faults = [0] * kills + [1] * stops
    rng.shuffle(faults)
    while faults:
        began_s = time.monotonic()
        before = load.commits
        if faults.pop() == 1:
            node = tier.nodes[rng.choice(tier.names)]
            node.signal(signal.SIGSTOP)
            time.sleep(rng.uniform(1, 10))  # the fault itself
            node.signal(signal.SIGCONT)
            outcome.stops += 1
        else:
            # Mostly one, sometimes more than the group can spare: all that counts is on disk.
            count = rng.choices([1, 2, len(tier.names)], [8, 1, 1])[0]
            for name in rng.sample(tier.names, count):
                tier.kill(name)
                outcome.kills += 1
                tier.start(name)
        load.check()
        until(lambda before=before: load.commits >= before + 30, what="commits go on")
        tier.wait_ready()
        outcome.longest_s = max(outcome.longest_s, time.monotonic() - began_s)
        time.sleep(rng.uniform(0, 0.3))  # somewhere in the middle of something
    return outcome


def found_wrong(tier: ManagerTier, load: Load) -> list[str]:
    rows = run(lambda forwarder: forwarder.events(), tier.addresses)
    return losses(load.acknowledged, rows)


def test_nothing_acknowledged_is_lost_when_managers_are_killed(cluster: NodeCluster) -> None:
    tier = ManagerTier(cluster, flags=("--ledger-snapshot-entries", "500"))
    with Load(tier.addresses) as load:
        outcome = torment(tier, load, random.Random(15), kills=13, stops=0)
    load.check()
    assert outcome.kills >= 15
    tier.wait_equal()
    assert len(load.acknowledged) > 100
    assert not found_wrong(tier, load)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_nothing_is_lost_over_hundreds_of_kills(cluster: NodeCluster) -> None:
    tier = ManagerTier(cluster, flags=("--ledger-snapshot-entries", "2000"))
    began_s = time.monotonic()
    with Load(tier.addresses, clients=16) as load:
        outcome = torment(tier, load, random.Random(200), kills=175, stops=20)
    load.check()
    equal = tier.wait_equal()
    wrong = found_wrong(tier, load)
    Report(RESULTS / "soak-ledger-kills.txt").write(
        "three managers killed and stopped at random under load",
        f"{outcome.kills} SIGKILLs (one at a time, sometimes two or all three at once) and "
        f"{outcome.stops} SIGSTOPs of 1-10 s in {time.monotonic() - began_s:.0f} s; "
        "every node started again at once",
        f"{load.commits:,} commits acknowledged, of {len(load.acknowledged):,} jobs: "
        f"{len(wrong)} lost, changed or there twice",
        f"{len(equal.rows)} replicas of {len({row.group for row in equal.rows})} groups: "
        "all state hashes equal",
        f"longest time from a fault until the load went on and all nodes were ready: "
        f"{outcome.longest_s:.1f} s",
    )
    assert outcome.kills >= 200
    assert outcome.stops == 20
    assert not wrong, wrong[:20]
