"""The ledger as the rest of a node uses it: from any node, to whichever leads the group."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Final

from hyperscale.errors import RunError
from hyperscale.ledger.core import MANAGEMENT
from hyperscale.ledger.messages import (
    NOT_LEADER,
    UNKNOWN_GROUP,
    WRONG_GROUP,
    Chunk,
    Done,
    Forwarded,
    HistoryAsked,
    HistoryGiven,
    HistoryKept,
    HistoryRows,
    RaftMessages,
    SnapshotAsked,
    SnapshotOffered,
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
    WrongGroupError,
)
from hyperscale.nodes.ledger.service import Committed, LocalLedger
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import CallError
from hyperscale.wire.serving import Handlers

HOPS_MAX: Final = 3
_RETRY_S = 0.05


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
        deadline_s = self._loop.time() + timeout_s
        return await self._routed(group, key, body, deadline_s, hops=0)

    async def submit(self, key: str, body: bytes, *, timeout_s: float = 5.0) -> Committed:
        """Commits a command in the group that owns the slot of its key."""
        return await self.execute(-1, body, key=key, timeout_s=timeout_s)

    async def _routed(
        self, group: int, key: str, body: bytes, deadline_s: float, *, hops: int
    ) -> Committed:
        asked = group
        hint = ""
        last = "no leader is known"
        while (left_s := deadline_s - self._loop.time()) > 0:
            group = self._owner(key) if asked < 0 else self.topology.heir_of(asked)
            if asked < 0 and group == NO_GROUP:
                last = "no group owns the slot of this key yet"
            elif self.core.is_leader(group):
                try:
                    return await self.propose(group, body, key=key, timeout_s=left_s)
                except (NotLeaderError, WrongGroupError) as error:
                    last = str(error)
            elif hops < HOPS_MAX:
                done = await self._ask(Forwarded(group, key, body, hops + 1), hint, deadline_s)
                if done is not None and not done.refused:
                    return Committed(done.group, done.index, done.reply)
                hint = done.leader if done is not None else ""
                last = done.refused if done is not None else "no voter of it answers"
                if hint:
                    continue  # at once: it was told who leads
            await asyncio.sleep(min(_RETRY_S, max(0.0, deadline_s - self._loop.time())))
        raise UnavailableError(
            f"group {group} did not take the command in time: {last}",
            hint="more than half of its nodes must be up and reach each other",
        )

    def _owner(self, key: str) -> int:
        return self.topology.owners[self.core.slot_of(key)]

    async def _ask(self, command: Forwarded, hint: str, deadline_s: float) -> Done | None:
        """Passes the command on; None if nobody could be reached, so nobody carried it out."""
        own = self.name_of(self.core.number)
        known = [hint, self.leader_of(command.group), *self.voters_of(command.group)]
        tried = {"", own}
        for name in known:
            link = None if name in tried else self.peers.link(name)
            tried.add(name)
            if link is None or self.peers.dead_for_s(name) is not None:
                continue
            try:
                return await link.call(command, Done, deadline_s=deadline_s)
            except CallError as error:
                if not error.is_definite:
                    raise OutcomeUnknownError(
                        f"{name} was asked and did not answer: {error}",
                        hint="the command may have been carried out; repeat it with the same key",
                    ) from error
        return None

    async def forwarded(self, call: InboundCall, command: Forwarded) -> Done:
        group = self._owner(command.key) if command.group < 0 else command.group
        left_s = call.deadline_s - self._loop.time()
        try:
            outcome = await self._propose(group, command.key, command.body, max(left_s, 0.01))
        except NotLeaderError as error:
            if group not in self.core.replicas:
                return Done(group, refused=UNKNOWN_GROUP)
            return Done(group, refused=NOT_LEADER, leader=error.leader, term=error.term)
        if outcome.moved_to >= 0:
            return Done(group, refused=WRONG_GROUP, moved_to=outcome.moved_to)
        return Done(group, outcome.index, outcome.reply)


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

    async def offered(call: InboundCall, offer: SnapshotOffered) -> None:
        found = ledger()
        if found is not None and found.is_open:
            await found.transfer.pull_snapshot(call.peer.node_id, offer)

    async def forwarded(call: InboundCall, command: Forwarded) -> Done:
        return await there().forwarded(call, command)

    async def snapshot(_call: InboundCall, asked: SnapshotAsked) -> AsyncGenerator[Chunk, None]:
        async for chunk in there().transfer.snapshot(asked):
            yield chunk

    async def history(_call: InboundCall, asked: HistoryAsked) -> HistoryRows:
        return await there().transfer.history(asked)

    async def given(_call: InboundCall, given: HistoryGiven) -> HistoryKept:
        return await there().transfer.keep_history(given)

    handlers.add(RaftMessages, raft)
    handlers.add(SnapshotOffered, offered)
    handlers.add(Forwarded, forwarded)
    handlers.add(SnapshotAsked, snapshot)
    handlers.add(HistoryAsked, history)
    handlers.add(HistoryGiven, given)
