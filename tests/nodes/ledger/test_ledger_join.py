"""Pledges: a node leaves the founding of the ledger to one other node."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hyperscale._native import LedgerStore
from hyperscale.ledger.messages import RequestPledge
from hyperscale.ledger.server.ledger_join import LedgerIdentity, LedgerJoin


class HandlersByType(dict[type, Callable[..., Any]]):
    """The handlers of messages, to be called without a connection."""

    add = dict.__setitem__


def test_nodes_that_ask_at_once_get_one_pledge_and_it_is_durable(tmp_path: Path) -> None:
    store = LedgerStore(tmp_path)
    identity = LedgerIdentity(store)
    handlers = HandlersByType()
    join = LedgerJoin(
        identity,
        SimpleNamespace(),
        name="m9",
        key="",
        domain="m9",
        scope="dc1",
        founders=3,
        approves=False,
        ledger=lambda: None,
    )
    join.answer(handlers)

    async def ask(name: str) -> tuple[bool, str]:
        call = SimpleNamespace(peer=SimpleNamespace(node_id=name))
        reply = await handlers[RequestPledge](call, RequestPledge())
        return reply.given, dict(store.meta()).get("pledged", b"").decode()

    async def scenario() -> list[tuple[bool, str]]:
        return await asyncio.gather(ask("m0"), ask("m1"), ask("m0"), ask("m1"))

    first, second, again, refused = asyncio.run(scenario())
    assert first == again == (True, "m0")
    assert (second[0], refused[0]) == (False, False)
    assert LedgerIdentity(store).pledged == "m0"
    store.close()
