"""The ledger as the rest of a node uses it: from any node, to whichever leads the group."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Final

from msgspec.structs import replace

from hyperscale.errors import RunError
from hyperscale.ledger.core import MANAGEMENT
from hyperscale.ledger.messages import (
    NOT_LEADER,
    UNKNOWN_GROUP,
    WRONG_GROUP,
    FetchHistory,
    FetchSnapshot,
    ForwardCommand,
    ForwardCommandReply,
    GetHistoryState,
    GetHistoryStateReply,
    OfferSnapshot,
    RaftMessages,
    TakeHistory,
    TakeHistoryReply,
)
from hyperscale.ledger.topology import (
    NO_GROUP,
    Decision,
    Verdict,
    decode_verdict,
    encode_decision,
)
from hyperscale.nodes.ledger.errors import (
    NotLeaderError,
    OutcomeUnknownError,
    UnavailableError,
)
from hyperscale.nodes.ledger.local_ledger import Committed, LocalLedger
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import CallError
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.messages import Chunk

HOPS_MAX: Final = 3
_RETRY_S = 0.05
_CONNECT_S = 0.25


class Ledger(LocalLedger):
    """A node's ledger, with the way to the groups it does not lead."""

    async def decide(self, decision: Decision, *, timeout_s: float = 5.0) -> Verdict:
        """Has group 0 decide something, from any node."""
        body = encode_decision(decision)
        done = await self.execute(MANAGEMENT, body, timeout_s=timeout_s)
        return decode_verdict(done.reply)

    async def execute(
        self, group: int, body: bytes, *, key: str = "", timeout_s: float = 5.0
    ) -> Committed:
        """Commits a command in any group, from any node.

        Goes on asking while the answer is "certainly not"; raises `OutcomeUnknownError` when it
        may have been carried out, `UnavailableError` when time is up and it was not.
        """
        return await self._routed(ForwardCommand(group, key, body), timeout_s)

    async def execute_record(
        self, group: int, record: bytes, *, timeout_s: float = 5.0
    ) -> Committed:
        """Commits one of the ledger's own records in any group."""
        return await self._routed(ForwardCommand(group, "", record, is_record=True), timeout_s)

    async def submit(self, key: str, body: bytes, *, timeout_s: float = 5.0) -> Committed:
        """Commits a command in the group that owns the slot of its key."""
        return await self._routed(ForwardCommand(-1, key, body), timeout_s)

    async def _routed(self, command: ForwardCommand, timeout_s: float) -> Committed:
        deadline_s = self._loop.time() + timeout_s
        hint = ""
        last = "no leader is known"
        group = command.group
        while (left_s := deadline_s - self._loop.time()) > 0:
            group = self._group_of(command)
            routed = replace(command, group=group, hops=command.hops + 1)
            done: ForwardCommandReply | None = None
            if command.group < 0 and group == NO_GROUP:
                last = "no group owns the slot of this key yet"
            elif self.core.is_leader(group):
                done = await self._here(routed, left_s)
            else:
                done = await self._ask(routed, hint, deadline_s)
                last = "no voter of it answers"
            if done is not None:
                if not done.refused:
                    return Committed(done.group, done.index, done.reply)
                last = done.refused.replace("_", " ")
            hint = "" if done is None or done.leader == hint else done.leader
            if not hint:  # else at once: it was told who leads
                await asyncio.sleep(min(_RETRY_S, max(0.0, deadline_s - self._loop.time())))
        raise UnavailableError(
            f"group {group} did not take the command in time: {last}",
            hint="more than half of its nodes must be up and reach each other",
        )

    def _group_of(self, command: ForwardCommand) -> int:
        if command.group < 0:
            return self._owner(command.key)
        return self.topology.heir_of(command.group)

    def _owner(self, key: str) -> int:
        return self.topology.owners[self.core.slot_of(key)]

    async def _ask(
        self, command: ForwardCommand, hint: str, deadline_s: float
    ) -> ForwardCommandReply | None:
        """Passes the command on; None if nobody could be reached, so nobody carried it out."""
        known = [hint, self.leader_of(command.group), *self.voters_of(command.group)]
        tried = {"", self.own_name}
        for name in known:
            link = None if name in tried else self.peers.link(name)
            tried.add(name)
            if link is None or self.peers.dead_for_s(name) is not None:
                continue
            # One that is not connected has most likely just died: others may know who leads now.
            is_there = self.peers.connection(name) is not None
            until_s = deadline_s if is_there else min(deadline_s, self._loop.time() + _CONNECT_S)
            try:
                return await link.call(command, ForwardCommandReply, deadline_s=until_s)
            except CallError as error:
                if not error.is_definite:
                    raise OutcomeUnknownError(
                        f"{name} was asked and did not answer: {error}",
                        hint="the command may have been carried out; repeat it with the same key",
                    ) from error
        return None

    async def forwarded(self, call: InboundCall, command: ForwardCommand) -> ForwardCommandReply:
        """Answers a node that does not lead the group of its command."""
        command = replace(command, group=self._group_of(command))
        left_s = max(call.deadline_s - self._loop.time(), 0.01)
        done = await self._here(command, left_s)
        if done.refused != NOT_LEADER or not done.leader or command.hops >= HOPS_MAX:
            return done
        onward = replace(command, hops=command.hops + 1)
        return await self._ask(onward, done.leader, call.deadline_s) or done

    async def _here(self, command: ForwardCommand, timeout_s: float) -> ForwardCommandReply:
        group = command.group
        try:
            outcome = await self.carry_out(command, timeout_s)
        except NotLeaderError as error:
            refused = NOT_LEADER if group in self.core.replicas else UNKNOWN_GROUP
            return ForwardCommandReply(group, refused=refused, leader=error.leader, term=error.term)
        if outcome.moved_to is not None:
            return ForwardCommandReply(group, refused=WRONG_GROUP, moved_to=outcome.moved_to)
        replica = self.core.replicas.get(group)
        if replica is None or outcome.reply is None:
            return ForwardCommandReply(group, outcome.index)
        return ForwardCommandReply(
            group, outcome.index, replica.machine.encode_reply(outcome.reply)
        )


def answer_ledger(handlers: Handlers, ledger: Callable[[], Ledger | None]) -> None:
    """Adds the messages of the ledger; nothing is answered before there is one."""

    def there() -> Ledger:
        found = ledger()
        if found is None or not found.is_open:
            raise RunError("this node has not joined its ledger yet")
        return found

    def raft(call: InboundCall, message: RaftMessages) -> None:
        found = ledger()
        if found is not None and found.is_open:
            found.received(call, message)

    async def offered(call: InboundCall, offer: OfferSnapshot) -> None:
        found = ledger()
        if found is not None and found.is_open:
            await found.transfer.pull_snapshot(call.peer.node_id, offer)

    async def forwarded(call: InboundCall, command: ForwardCommand) -> ForwardCommandReply:
        return await there().forwarded(call, command)

    async def snapshot(_call: InboundCall, asked: FetchSnapshot) -> AsyncGenerator[Chunk, None]:
        async for chunk in there().transfer.snapshot(asked):
            yield chunk

    async def history(_call: InboundCall, asked: FetchHistory) -> AsyncGenerator[Chunk, None]:
        async for chunk in there().transfer.history(asked):
            yield chunk

    async def given(call: InboundCall, given: TakeHistory) -> TakeHistoryReply:
        return await there().transfer.take_over(call.peer.node_id, given.group)

    def whole(_call: InboundCall, asked: GetHistoryState) -> GetHistoryStateReply:
        return GetHistoryStateReply(there().transfer.is_whole(asked.group))

    handlers.add(RaftMessages, raft)
    handlers.add(OfferSnapshot, offered)
    handlers.add(ForwardCommand, forwarded)
    handlers.add(FetchSnapshot, snapshot)
    handlers.add(FetchHistory, history)
    handlers.add(TakeHistory, given)
    handlers.add(GetHistoryState, whole)
