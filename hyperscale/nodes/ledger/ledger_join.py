"""How a node with an empty disk comes to its ledger: it joins one, or is part of founding it.

Whoever has a ledger lets others join. While nobody has one, the node of the smallest name asks
as many others as the tier is to begin with for a pledge: never to found another one, nor to
pledge to anyone else. A pledge is on disk before it is given, so two foundings would need one
node to have pledged twice.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable

from hyperscale._native import LedgerStore
from hyperscale.errors import HyperscaleError
from hyperscale.ledger.messages import (
    GetLedgerOfNode,
    GetLedgerOfNodeReply,
    RequestJoin,
    RequestJoinReply,
    RequestPledge,
    RequestPledgeReply,
)
from hyperscale.ledger.topology import Founded, NodeJoined, Topology
from hyperscale.nodes.ledger.ledger import Ledger
from hyperscale.nodes.ledger.tier_peers import TierPeers
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.handlers import Handlers

_LOOK_S = 0.25
_ASK_S = 2.0

_log = logging.getLogger("hyperscale.ledger")


class LedgerIdentity:
    """The ledger this node belongs to and its number there, as its disk has them."""

    def __init__(self, store: LedgerStore) -> None:
        self._store = store
        self._meta = {key: value.decode() for key, value in store.meta()}

    @property
    def ledger(self) -> str:
        return self._meta.get("ledger", "")

    @property
    def number(self) -> int:
        return int(self._meta.get("number", "0"))

    @property
    def pledged(self) -> str:
        return self._meta.get("pledged", "")

    async def nonce(self) -> str:
        """The name of this node's request to join, the same in every life of its process: a late
        one of the life before must not make it yet another node."""
        if "nonce" not in self._meta:
            await self._put(nonce=secrets.token_hex(8))
        return self._meta["nonce"]

    async def pledge(self, to: str) -> None:
        await self._put(pledged=to)

    async def belong(self, ledger: str, number: int) -> None:
        await self._put(number=str(number), ledger=ledger)

    async def _put(self, **values: str) -> None:
        tickets = [self._store.put_meta(key, value.encode()) for key, value in values.items()]
        while self._store.durable() < max(tickets):  # noqa: ASYNC110  once in a node's life
            await asyncio.sleep(0.002)
        self._meta.update(values)


class LedgerJoin:
    """Joins or founds a ledger, and answers other nodes that want to."""

    def __init__(
        self,
        identity: LedgerIdentity,
        peers: TierPeers,
        *,
        name: str,
        domain: str,
        founders: int,
        ledger: Callable[[], Ledger | None],
    ) -> None:
        self._identity = identity
        self._peers = peers
        self._name = name
        self._domain = domain
        self._founders = founders
        self._ledger = ledger
        self._is_founding = False

    def answer(self, handlers: Handlers) -> None:
        handlers.add(GetLedgerOfNode, self._where)
        handlers.add(RequestPledge, self._pledge)
        handlers.add(RequestJoin, self._join)

    # -- answering ------------------------------------------------------------------------

    def _where(self, _call: InboundCall, _asked: GetLedgerOfNode) -> GetLedgerOfNodeReply:
        return GetLedgerOfNodeReply(self._identity.ledger, self._identity.pledged)

    async def _pledge(self, call: InboundCall, _asked: RequestPledge) -> RequestPledgeReply:
        asker = call.peer.node_id
        own = self._identity
        if own.ledger or own.pledged not in {"", asker} or self._is_founding:
            return RequestPledgeReply(given=False)
        if not own.pledged:
            await own.pledge(asker)
        return RequestPledgeReply(given=own.pledged == asker)

    async def _join(self, call: InboundCall, asked: RequestJoin) -> RequestJoinReply:
        ledger = self._ledger()
        if ledger is None:
            return RequestJoinReply("", 0)
        joined = NodeJoined(call.peer.node_id, asked.domain, asked.nonce)
        reply = await ledger.decide(joined)
        return RequestJoinReply(ledger.driver.id, reply.number)

    # -- searching ------------------------------------------------------------------------

    async def found_or_join(self) -> Topology | None:
        """Returns when this node belongs to a ledger: the first topology if it founded it."""
        while True:
            living = [name for name in self._peers.living() if name != self._name]
            told = await asyncio.gather(*(self._ask(name) for name in living))
            for name, where in zip(living, told, strict=True):
                if where is not None and where.ledger and await self._try_join(name):
                    return None
            blank = [
                n for n, where in zip(living, told, strict=True) if where == GetLedgerOfNodeReply()
            ]
            if await self._try_found(blank):
                return self._first_topology()
            await asyncio.sleep(_LOOK_S)

    async def _ask(self, name: str) -> GetLedgerOfNodeReply | None:
        link = self._peers.link(name)
        if link is None:
            return None
        deadline_s = asyncio.get_running_loop().time() + _ASK_S
        try:
            return await link.call(GetLedgerOfNode(), GetLedgerOfNodeReply, deadline_s=deadline_s)
        except HyperscaleError:
            return None  # not there yet, or not any more: asked again soon

    async def _try_join(self, name: str) -> bool:
        link = self._peers.link(name)
        if link is None:
            return False
        nonce = await self._identity.nonce()
        deadline_s = asyncio.get_running_loop().time() + 3 * _ASK_S
        try:
            told = await link.call(
                RequestJoin(self._domain, nonce), RequestJoinReply, deadline_s=deadline_s
            )
        except HyperscaleError as error:
            _log.info("ledger.not_joined: %s", error, extra={"peer": name})
            return False
        if not told.number:
            return False
        await self._identity.belong(told.ledger, told.number)
        _log.info("ledger.joined", extra={"ledger": told.ledger, "number": told.number})
        return True

    async def _try_found(self, blank: list[str]) -> bool:
        own = self._identity
        others = self._founders - 1
        # Those who pledged to this node in an earlier try are no longer blank, so all living
        # ones are asked: whoever pledged to another says no.
        candidates = [name for name in self._peers.living() if name != self._name]
        if self._founders < 1 or len(candidates) < others or own.pledged not in {"", self._name}:
            return False
        if own.pledged != self._name and any(name < self._name for name in blank):
            return False  # theirs to found
        self._is_founding = True
        try:
            given = 0
            for name in candidates:
                given += await self._ask_pledge(name)
                if given >= others:
                    break
            if given < others:
                return False
            await own.pledge(self._name)
            await own.belong(secrets.token_hex(8), 1)
        finally:
            self._is_founding = False
        _log.info("ledger.founded", extra={"ledger": own.ledger})
        return True

    async def _ask_pledge(self, name: str) -> bool:
        link = self._peers.link(name)
        if link is None:
            return False
        deadline_s = asyncio.get_running_loop().time() + _ASK_S
        try:
            told = await link.call(RequestPledge(), RequestPledgeReply, deadline_s=deadline_s)
        except HyperscaleError:
            return False
        return told.given

    def _first_topology(self) -> Topology:
        topology = Topology()
        topology.decide(Founded(self._founders))
        topology.decide(NodeJoined(self._name, self._domain))
        return topology
