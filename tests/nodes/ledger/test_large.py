"""More than a message holds: what a manager that was away is sent of logs and histories."""

import asyncio

from hyperscale.jobs.events import CancelRequested, encode
from hyperscale.ledger.messages import Done, Forwarded
from hyperscale.nodes.ledger.questions import CompactAsked, CompactTold
from hyperscale.plan import Plan
from tests.jobs.builders import submission, workflow
from tests.nodes.lab import Cluster, until
from tests.nodes.ledger.tier import Tier
from tests.nodes.ledger.writer import Forwarder, asked

GROUP = 1
LARGE = Plan(file="shop.py", workflows=(workflow("Load"),), warnings=("w" * 3_000_000,))


def submit_large(tier: Tier, via: str, count: int) -> None:
    """So many, of keys that are the group's."""

    async def submit() -> None:
        node = tier.names.index(via)
        async with Forwarder(tier.addresses) as forwarder:
            accepted = number = 0
            while accepted < count:
                event = submission(f"key-{number}", LARGE)
                command = Forwarded(GROUP, event.key, encode(event), hops=1)
                done = await forwarder.ask(node, command, Done)
                accepted += not done.refused
                number += 1

    asyncio.run(submit())


def commit_many(tier: Tier) -> None:
    """So many that a snapshot keeps none of what was before."""
    small = encode(CancelRequested(job=f"dc.{GROUP}-nobody", reason="x"))

    async def commit() -> None:
        async with Forwarder(tier.addresses) as forwarder:
            for _ in range(11):
                await asyncio.gather(*(forwarder.command(GROUP, "", small) for _ in range(100)))

    asyncio.run(commit())


def test_who_was_away_gets_a_log_larger_than_a_message(cluster: Cluster) -> None:
    tier = Tier(cluster)
    tier.wait_settled()
    leader = tier.leader_of(GROUP)
    away = next(name for name in tier.names if name != leader)
    tier.kill(away)
    submit_large(tier, leader, 7)
    tier.start(away)
    tier.wait_ready(away)
    tier.wait_settled()
    for node in tier.nodes.values():
        assert "over its class" not in node.output()


def test_who_was_away_gets_a_history_larger_than_a_message(cluster: Cluster) -> None:
    tier = Tier(cluster)
    tier.wait_settled()
    leader = tier.leader_of(GROUP)
    away = next(name for name in tier.names if name != leader)
    tier.kill(away)
    submit_large(tier, leader, 7)
    commit_many(tier)
    for name in tier.names:
        if name != away:
            asked(tier.addresses, CompactAsked(), CompactTold, tier.names.index(name))
    tier.start(away)
    until(lambda: "history.pulled" in tier.nodes[away].output(), what="the rows are here")
    for node in tier.nodes.values():
        assert "over its class" not in node.output()
