"""More than a message holds: what a manager that was away is sent of logs and histories."""

import asyncio

from hyperscale.jobs.committed.events import CancelRequested, encode
from hyperscale.ledger.messages import ForwardCommand, ForwardCommandReply
from hyperscale.ledger.server.operator_messages import Compact, CompactReply
from hyperscale.plan import Plan
from tests.lab.job_builders import submission, workflow
from tests.lab.ledger_clients import Forwarder, asked
from tests.lab.manager_tier import ManagerTier
from tests.lab.nodes import NodeCluster
from tests.lab.waiting import until

GROUP = 1
LARGE = Plan(file="shop.py", workflows=(workflow("Load"),), warnings=("w" * 3_000_000,))


def one_is_away(cluster: NodeCluster) -> tuple[ManagerTier, str, str]:
    """The tier, who leads the group, and who is away."""
    tier = ManagerTier(cluster)
    tier.wait_settled()
    leader = tier.leader_of(GROUP)
    away = next(name for name in tier.names if name != leader)
    tier.kill(away)
    return tier, leader, away


def submit_large(tier: ManagerTier, via: str, count: int) -> None:
    """So many, of keys that are the group's."""

    async def submit() -> None:
        node = tier.names.index(via)
        async with Forwarder(tier.addresses) as forwarder:
            accepted = number = 0
            while accepted < count:
                event = submission(f"key-{number}", LARGE)
                command = ForwardCommand(GROUP, event.key, encode(event), hops=1)
                done = await forwarder.ask(node, command, ForwardCommandReply)
                accepted += not done.refused
                number += 1

    asyncio.run(submit())


def commit(tier: ManagerTier, count: int, *, size: int, at_once: int) -> None:
    """Entries of the group that change nothing."""
    body = encode(CancelRequested(job=f"dc.{GROUP}-nobody", reason="x" * size))

    async def run() -> None:
        async with Forwarder(tier.addresses) as forwarder:
            for _ in range(0, count, at_once):
                await asyncio.gather(*(forwarder.command(GROUP, "", body) for _ in range(at_once)))

    asyncio.run(run())


def test_a_node_that_was_away_gets_a_log_larger_than_a_message(cluster: NodeCluster) -> None:
    tier, _, away = one_is_away(cluster)
    commit(tier, 50, size=600_000, at_once=1)
    tier.start(away)
    tier.wait_ready(away)
    tier.wait_equal()
    for node in tier.nodes.values():
        assert "over its class" not in node.output()


def test_a_node_that_was_away_gets_a_history_larger_than_a_message(cluster: NodeCluster) -> None:
    tier, leader, away = one_is_away(cluster)
    submit_large(tier, leader, 7)
    commit(tier, 1_100, size=1, at_once=100)  # a snapshot keeps none of what was before
    for name in tier.names:
        if name != away:
            asked(tier.addresses, Compact(), CompactReply, tier.names.index(name))
    tier.start(away)
    until(lambda: "history.fetched" in tier.nodes[away].output(), what="the rows are here")
    for node in tier.nodes.values():
        assert "over its class" not in node.output()
