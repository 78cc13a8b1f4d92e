"""Managers come, drain and go under load; keys stay keys, and jobs can be asked for."""

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import pytest

from hyperscale.client.messages import ListJobs, ListJobsReply
from hyperscale.jobs.committed.keys import parse_job_id
from hyperscale.ledger.server.operator_messages import ChangeMember, ChangeMemberReply, MemberChange
from tests.lab.job_builders import submission
from tests.lab.ledger_clients import Forwarder, Load, asked, losses, run
from tests.lab.manager_tier import ManagerTier
from tests.lab.nodes import NodeCluster, NodeProcess
from tests.lab.soak_report import Report
from tests.lab.waiting import until

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "soak-ledger-changes.txt"


def has_gone(tier: ManagerTier, name: str, via: str) -> bool:
    told = tier.told(via)
    gone = [row.state == "gone" for row in told.nodes if row.name == name]
    return all(gone) and not any(name in (*r.voters, *r.learners) for r in told.replicas)


def change(tier: ManagerTier, kind: str, name: str, via: str) -> ChangeMemberReply:
    return asked(
        tier.addresses,
        ChangeMember(change=MemberChange(kind), node=name),
        ChangeMemberReply,
        tier.names.index(via),
    )


def groups_of(load: Load) -> set[int]:
    """Where the jobs are that were acknowledged so far."""
    return {parse_job_id(each.job).group for each in list(load.acknowledged)}


def test_adding_draining_and_removing_loses_nothing(cluster: NodeCluster) -> None:
    tier = ManagerTier(cluster)
    with Load(tier.addresses[1:], clients=6) as load:  # not through the one that will go
        until(lambda: load.commits > 60, what="the load runs")
        tier.start("m3")
        tier.wait_ready("m3")
        until(
            lambda: len([row for row in tier.told("m1").groups if row.state == "active"]) == 4,
            what="a group for the new node",
        )
        until(lambda: len(groups_of(load)) == 4, what="jobs in every group")
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
    told = asked(survivors, ListJobs(limit=100_000), ListJobsReply, 0)
    assert not told.missing
    assert {parse_job_id(view.job).group for view in told.jobs if view.ended_ms} >= set(destroyed)


async def submit_often(forwarder: Forwarder, key: str, nodes: int, times: int = 100) -> set[str]:
    """One key, many times at once, through all nodes."""
    told = await asyncio.gather(
        *(forwarder.commit(submission(key), via=number % nodes) for number in range(times))
    )
    assert all(reply.ok for _, reply in told)
    assert sum(not reply.was_duplicate for _, reply in told) <= 1
    return {reply.job for _, reply in told}


def test_one_key_makes_one_job_while_managers_come_and_go(cluster: NodeCluster) -> None:
    """A hundred submissions at once, in peace, while a leader is killed, while a node drains."""
    tier = ManagerTier(cluster)
    tier.wait_settled()

    async def play() -> tuple[dict[str, set[str]], list[Any]]:
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

            def fail_over() -> NodeProcess:
                leader = tier.leader_of(1)
                tier.kill(leader)
                return tier.start(leader)

            await beside(fail_over, "failover", 3)
            await asyncio.to_thread(tier.wait_ready)
            await beside(lambda: change(tier, "drain", "m2", "m0"), "drain", 2)
            await asyncio.to_thread(until, lambda: has_gone(tier, "m2", "m0"), what="m2 is gone")
            for key in list(made):  # also of keys whose slots have moved since
                made[key] |= await submit_often(forwarder, key, 2, 4)
        # Here, because a node ends with the thread that started it.
        async with Forwarder(tier.addresses[:2]) as forwarder:
            return made, await forwarder.events()

    made, rows = asyncio.run(play())
    assert all(len(jobs) == 1 for jobs in made.values()), made
    submitted = [row[0] for row in rows if row[4] == "submitted"]
    assert sorted(submitted) == sorted(job for jobs in made.values() for job in jobs)


def test_a_single_manager_keeps_what_it_acknowledged_over_a_kill(cluster: NodeCluster) -> None:
    """The same code with one voter: killed under load, nothing acknowledged is lost."""
    tier = ManagerTier(cluster, 1, flags=("--ledger-snapshot-entries", "300"))
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


def test_history_older_than_history_days_is_deleted(cluster: NodeCluster) -> None:
    tier = ManagerTier(cluster, 1)
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


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_tier_is_replaced_node_by_node(cluster: NodeCluster) -> None:
    """A manager joins, another drains and is stopped, or dies and is removed; again and again."""
    tier = ManagerTier(cluster)
    rng = random.Random(8)
    present = list(tier.names)
    began_s = time.monotonic()
    drained = removed = 0
    with Load(tier.addresses[:1], clients=6) as load:  # through the one that stays
        for number in range(3, 15):
            name = f"m{number}"
            tier.start(name)
            tier.wait_ready(name)
            leaver = rng.choice([each for each in present if each != "m0"])
            if number % 3:
                assert change(tier, "drain", leaver, "m0").done
                drained += 1
            else:
                tier.kill(leaver)
                until(
                    lambda leaver=leaver: change(tier, "remove", leaver, "m0").done,
                    what=f"{leaver} is removed",
                )
                removed += 1
            until(lambda leaver=leaver: has_gone(tier, leaver, "m0"), what=f"{leaver} is gone")
            if tier.nodes[leaver].process.poll() is None:
                assert tier.nodes[leaver].stop() == 0
            present.remove(leaver)
            present.append(name)
            before = load.commits
            until(lambda before=before: load.commits > before + 60, what="the load goes on")
            load.check()
    load.check()
    tier.wait_equal("m0")
    survivors = [tier.addresses[tier.names.index(name)] for name in present]
    wrong = losses(load.acknowledged, run(lambda f: f.events(), survivors))
    groups = tier.told("m0").groups
    destroyed = {row.group for row in groups if row.state == "destroyed"}
    orphans = [a.job for a in load.acknowledged if parse_job_id(a.job).group in destroyed]
    asked_for = run(lambda forwarder: _all_known(forwarder, orphans[::10]), survivors)
    Report(RESULTS).write(
        "a tier of three managers replaced node by node under load",
        f"12 managers joined, {drained} were drained and stopped, {removed} killed and removed, in "
        f"{time.monotonic() - began_s:.0f} s",
        f"{load.commits:,} commits acknowledged, of {len(load.acknowledged):,} jobs: "
        f"{len(wrong)} lost, changed or there twice; all state hashes equal",
        f"{len(destroyed)} groups were destroyed; of their {len(orphans):,} jobs "
        f"{len(orphans[::10]):,} were asked for: {asked_for:,} are known",
    )
    assert not wrong, wrong[:10]
    assert asked_for == len(orphans[::10])


async def _all_known(forwarder: Forwarder, jobs: list[str]) -> int:
    return sum([bool(await forwarder.events(job)) for job in jobs])
