"""Managers come, drain and go under load; keys stay keys, and jobs can be asked for."""

import asyncio
from typing import Any

from hyperscale.jobs.keys import parse_job_id
from hyperscale.nodes.ledger.questions import ChangeAsked, ChangeTold
from tests.jobs.builders import submission
from tests.nodes.lab import Cluster, Node, until
from tests.nodes.ledger.tier import Tier
from tests.nodes.ledger.writer import Forwarder, Load, asked, losses, run


def has_gone(tier: Tier, name: str, via: str) -> bool:
    told = tier.told(via)
    gone = [row.state == "gone" for row in told.nodes if row.name == name]
    return all(gone) and not any(name in (*r.voters, *r.learners) for r in told.replicas)


def change(tier: Tier, kind: str, name: str, via: str) -> ChangeTold:
    return asked(
        tier.addresses,
        ChangeAsked(change=kind, node=name),
        ChangeTold,
        tier.names.index(via),
    )


def test_adding_draining_and_removing_loses_nothing(cluster: Cluster) -> None:
    tier = Tier(cluster)
    with Load(tier.addresses[1:], clients=6) as load:  # not through the one that will go
        until(lambda: load.commits > 60, what="the load runs")
        tier.start("m3")
        tier.wait_ready("m3")
        until(
            lambda: len([row for row in tier.told("m1").groups if row.state == "active"]) == 4,
            what="a group for the new node",
        )
        assert change(tier, "drain", "m0", "m1").done
        until(lambda: has_gone(tier, "m0", "m1"), what="m0 is gone")
        before = load.commits
        assert tier.nodes["m0"].stop() == 0
        until(lambda: load.commits > before + 30, what="the load goes on without it")
        destroyed = [row.group for row in tier.told("m1").groups if row.state == "destroyed"]
        assert destroyed
        before = load.commits
        tier.kill("m3")
        until(lambda: load.commits > before + 60, what="the load goes on without the other")
        until(lambda: change(tier, "remove", "m3", "m1").done, what="a dead node is removed")
        until(lambda: has_gone(tier, "m3", "m1"), what="m3 is gone")
    load.check()
    survivors = tier.addresses[1:3]
    rows = run(lambda forwarder: forwarder.events(), survivors)
    assert not losses(load.acknowledged, rows)
    orphans = [a for a in load.acknowledged if parse_job_id(a.job).group in destroyed]
    assert orphans
    found = run(lambda forwarder: forwarder.events(orphans[0].job), survivors)
    assert next(row[4] for row in found) == "submitted"


async def submit_often(forwarder: Forwarder, key: str, nodes: int, times: int = 100) -> set[str]:
    """One key, many times at once, through all nodes."""
    told = await asyncio.gather(
        *(forwarder.commit(submission(key), via=number % nodes) for number in range(times))
    )
    assert all(reply.ok for _, reply in told)
    assert sum(not reply.was_duplicate for _, reply in told) <= 1
    return {reply.job for _, reply in told}


def test_one_key_is_one_job_whatever_happens(cluster: Cluster) -> None:
    """A hundred submissions at once, in peace, while a leader is killed, while a node drains."""
    tier = Tier(cluster)
    tier.wait_settled()

    async def play() -> dict[str, set[str]]:
        made: dict[str, set[str]] = {}
        async with Forwarder(tier.addresses) as forwarder:

            async def submit(name: str, nodes: int = 3) -> None:
                for number in range(4):
                    key = f"{name}-{number}"
                    made.setdefault(key, set()).update(
                        await submit_often(forwarder, key, nodes, 100 if number == 0 else 25)
                    )

            async def beside(work: Any, name: str, nodes: int) -> None:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(submit(name, nodes))
                    tasks.create_task(asyncio.to_thread(work))

            await submit("peace")

            def fail_over() -> Node:
                leader = tier.leader_of(1)
                tier.kill(leader)
                return tier.start(leader)

            await beside(fail_over, "failover", 3)
            await asyncio.to_thread(tier.wait_ready)
            await beside(lambda: change(tier, "drain", "m2", "m0"), "drain", 2)
            await asyncio.to_thread(until, lambda: has_gone(tier, "m2", "m0"), what="m2 is gone")
            for key in list(made):  # also of keys whose slots have moved since
                made[key] |= await submit_often(forwarder, key, 2, 4)
        return made

    made = asyncio.run(play())
    assert all(len(jobs) == 1 for jobs in made.values()), made
    rows = run(lambda forwarder: forwarder.events(), tier.addresses[:2])
    submitted = [row[0] for row in rows if row[4] == "submitted"]
    assert sorted(submitted) == sorted(job for jobs in made.values() for job in jobs)


def test_one_manager_alone_keeps_its_word(cluster: Cluster) -> None:
    """The same code with one voter: killed under load, nothing acknowledged is lost."""
    tier = Tier(cluster, 1, flags=("--ledger-snapshot-entries", "300"))
    with Load(tier.addresses, clients=4) as load:
        for _ in range(4):
            before = load.commits
            until(lambda before=before: load.commits > before + 60, what="the load runs")
            tier.kill("m0")
            tier.start("m0")
        until(lambda: load.commits > 300, what="it goes on")
    load.check()
    jobs = run(lambda forwarder: submit_often(forwarder, "only", 1), tier.addresses)
    assert len(jobs) == 1
    tier.wait_equal()
    assert not losses(load.acknowledged, run(lambda f: f.events(), tier.addresses))


def test_history_is_forgotten_in_time(cluster: Cluster) -> None:
    tier = Tier(cluster, 1)
    with Load(tier.addresses, clients=2) as load:
        until(lambda: load.commits > 30, what="there is a history")
    load.check()
    assert run(lambda forwarder: forwarder.events(), tier.addresses)
    assert tier.nodes["m0"].stop() == 0
    tier.start("m0", "--ledger-history-days", "0.000001")
    tier.wait_ready()
    until(
        lambda: not run(lambda forwarder: forwarder.events(), tier.addresses),
        what="what is older than a tenth of a second is gone",
    )
