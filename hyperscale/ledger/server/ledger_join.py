"""How a node with an empty disk gets a ledger: it joins one, or takes part in founding one.

A node that has a ledger lets others join it. While no node has one, the node with the smallest
node id asks the other founders for a pledge: never to found a ledger, nor to pledge to another
node. A pledge is durable before it is given, so two ledgers could be founded only if one node
had pledged twice. A node that crashes after it stored its ledger and before it stored group 0
gets group 0 at its next start.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct

from hyperscale._native import LedgerStore
from hyperscale.errors import HyperscaleError
from hyperscale.ledger.core_events import LedgerOpened
from hyperscale.ledger.messages import (
    GetLedgerOfNode,
    GetLedgerOfNodeReply,
    RequestJoin,
    RequestJoinReply,
    RequestPledge,
    RequestPledgeReply,
)
from hyperscale.ledger.server.ledger import Ledger
from hyperscale.ledger.server.tier_peers import TierPeers
from hyperscale.ledger.topology import Founded, NodeJoined, Topology
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.versions import CURRENT

_RETRY_S = 0.25
_CALL_S = 2.0

_FOUNDER = 1
"""The number of the node that founded the ledger."""

_log = logging.getLogger("hyperscale.ledger")

_Reply = TypeVar("_Reply", bound=Struct)


class LedgerIdentity:
    """The ledger this node belongs to and its number there, as its disk has them."""

    def __init__(self, store: LedgerStore) -> None:
        meta = {key: value.decode() for key, value in store.meta()}
        self.ledger = meta.get("ledger", "")
        self.number = int(meta.get("number", "0"))
        self.scope = meta.get("scope", "")
        self.pledged = meta.get("pledged", "")
        self._nonce = meta.get("nonce", "")
        self._store = store

    async def nonce(self) -> str:
        """Return the id of this node's request to join. It survives a restart: a late request of
        the process before must not get the node a second number."""
        if not self._nonce:
            self._nonce = secrets.token_hex(8)
            await self._put(nonce=self._nonce)
        return self._nonce

    async def pledge(self, to: str) -> None:
        """Return when the pledge is durable. No other node can get one from now on."""
        self.pledged = to
        await self._put(pledged=to)

    async def set_ledger(self, ledger: str, number: int, scope: str) -> None:
        await self._put(scope=scope, number=str(number), ledger=ledger)
        self.ledger, self.number, self.scope = ledger, number, scope

    async def _put(self, **values: str) -> None:
        tickets = [self._store.put_meta(key, value.encode()) for key, value in values.items()]
        while self._store.durable() < max(tickets):  # noqa: ASYNC110  only while a node joins
            await asyncio.sleep(0.002)


class LedgerJoin:
    """Joins or founds a ledger, and answers other nodes that want to."""

    def __init__(
        self,
        identity: LedgerIdentity,
        peers: TierPeers,
        *,
        name: str,
        key: str,
        domain: str,
        scope: str,
        founders: int,
        approves: bool,
        ledger: Callable[[], Ledger | None],
    ) -> None:
        """`scope` is that of a ledger this node founds; with `approves`, nodes that join through
        this one wait until an operator approves them."""
        self._identity = identity
        self._peers = peers
        self._name = name
        self._key = key
        self._domain = domain
        self._scope = scope
        self._founders = founders
        self._approves = approves
        self._ledger = ledger
        self._is_founding = False

    def answer(self, handlers: Handlers) -> None:
        handlers.add(GetLedgerOfNode, self._answer_ledger)
        handlers.add(RequestPledge, self._answer_pledge)
        handlers.add(RequestJoin, self._answer_join)

    # -- answering ------------------------------------------------------------------------

    def _answer_ledger(self, _call: InboundCall, _request: GetLedgerOfNode) -> GetLedgerOfNodeReply:
        return GetLedgerOfNodeReply(self._identity.ledger, self._identity.pledged)

    async def _answer_pledge(self, call: InboundCall, _asked: RequestPledge) -> RequestPledgeReply:
        asker = call.peer.node_id
        own = self._identity
        if own.ledger or own.pledged not in {"", asker} or self._is_founding:
            return RequestPledgeReply(given=False)
        await own.pledge(asker)  # again, if it was given already: its write may be under way
        return RequestPledgeReply(given=True)

    async def _answer_join(self, call: InboundCall, request: RequestJoin) -> RequestJoinReply:
        ledger = self._ledger()
        if ledger is None:
            return RequestJoinReply("", 0)
        joined = NodeJoined(
            name=call.peer.node_id,
            domain=request.domain,
            nonce=request.nonce,
            key=call.peer.key,
            is_approved=not self._approves,
        )
        reply = await ledger.decide(joined)
        return RequestJoinReply(ledger.driver.id, reply.number, ledger.topology.scope)

    # -- searching ------------------------------------------------------------------------

    async def found_or_join(self) -> None:
        """Return when this node has joined or founded a ledger."""
        while True:
            others = [name for name in self._peers.living() if name != self._name]
            asked = (self._call(name, GetLedgerOfNode(), GetLedgerOfNodeReply) for name in others)
            replies = dict(zip(others, await asyncio.gather(*asked), strict=True))
            for name, reply in replies.items():
                if reply is not None and reply.ledger and await self._try_join(name):
                    return
            blank = [name for name in others if replies[name] == GetLedgerOfNodeReply()]
            if await self._try_found(blank):
                return
            await asyncio.sleep(_RETRY_S)

    def opening_event(self) -> LedgerOpened:
        """Return the event with which the core opens the ledger this node belongs to."""
        if self._identity.number != _FOUNDER:
            return LedgerOpened()
        topology = Topology()
        topology.decide(Founded(self._founders, self._scope, CURRENT))
        topology.decide(NodeJoined(self._name, self._domain, key=self._key))
        return LedgerOpened(topology)

    async def _call(
        self, name: str, request: Struct, reply_type: type[_Reply], timeout_s: float = _CALL_S
    ) -> _Reply | None:
        """Return None if a node does not answer: it has not started yet, or it is gone."""
        link = self._peers.link(name)
        if link is None:
            return None
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        try:
            return await link.call(request, reply_type, deadline_s=deadline_s)
        except HyperscaleError as error:
            _log.debug("ledger.not_answered: %s", error, extra={"peer": name})
            return None

    async def _try_join(self, name: str) -> bool:
        request = RequestJoin(self._domain, await self._identity.nonce())
        reply = await self._call(name, request, RequestJoinReply, 3 * _CALL_S)
        if reply is None or not reply.number:
            _log.info("ledger.not_joined", extra={"peer": name})
            return False
        await self._identity.set_ledger(reply.ledger, reply.number, reply.scope)
        _log.info("ledger.joined", extra={"ledger": reply.ledger, "number": reply.number})
        return True

    async def _try_found(self, blank: list[str]) -> bool:
        own = self._identity
        others = self._founders - 1
        # Nodes that pledged to this node in an earlier try are no longer blank, so all living
        # nodes are asked: a node that pledged to another one refuses.
        candidates = [name for name in self._peers.living() if name != self._name]
        if self._founders < 1 or len(candidates) < others or own.pledged not in {"", self._name}:
            return False
        if own.pledged != self._name and any(name < self._name for name in blank):
            return False  # a node with a smaller id founds it
        self._is_founding = True
        try:
            given = 0
            for name in candidates:
                reply = await self._call(name, RequestPledge(), RequestPledgeReply)
                given += reply is not None and reply.given
                if given >= others:
                    break
            if given < others:
                return False
            await own.pledge(self._name)
            await own.set_ledger(secrets.token_hex(8), _FOUNDER, self._scope)
        finally:
            self._is_founding = False
        _log.info("ledger.founded", extra={"ledger": own.ledger})
        return True
