"""The ledger as the rest of a node uses it: commands and reads on any group of the tier.

A command is committed by the leader of its group: here if this node leads it, else by forwarding
it to the node that does.
"""

import asyncio
from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hyperscale.errors import HyperscaleError, InvariantError, RunError
from hyperscale.ledger.core import MANAGEMENT, TICK_S, LedgerCore
from hyperscale.ledger.core_events import ProposalFailure, ProposalResult, ReadRequested
from hyperscale.ledger.group_clock import TimeSource
from hyperscale.ledger.machine import Machine
from hyperscale.ledger.messages import CommandRefusal, ForwardCommand, ForwardCommandReply
from hyperscale.ledger.records import (
    MachineCommand,
    Record,
    RequestAudited,
    decode_record,
    encode_record,
)
from hyperscale.ledger.replica import AppliedEntry, key_slot_of
from hyperscale.ledger.server.ledger_driver import LedgerDriver
from hyperscale.ledger.topology import (
    NO_GROUP,
    Decision,
    DecisionReply,
    NodeState,
    decode_decision_reply,
)
from hyperscale.telemetry.metrics import DurationHistogram
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import CallError, OverloadedError
from hyperscale.wire.link import PeerLink
from hyperscale.wire.versions import Version, admitted

HOPS_MAX: Final = 3
_RETRY_S = 0.05
_CONNECT_S = 0.25
_READ_AGAIN_S = 0.25
_COMMIT_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_QUORUM_HINT = "more than half of its voters must be up and reach each other"
_encode = msgspec.msgpack.Encoder().encode
_REFUSALS = {
    CommandRefusal.NOT_LEADER: "the node that was asked does not lead it",
    CommandRefusal.WRONG_GROUP: "the key slot of the key belongs to another group",
    CommandRefusal.UNKNOWN_GROUP: "the node that was asked has no replica of it",
}


class NotLeaderError(HyperscaleError):
    """This node does not lead the group; the command was certainly not committed."""

    def __init__(self, group: int, leader: str) -> None:
        who = f"{leader} leads it" if leader else "its leader is unknown"
        super().__init__(f"this node does not lead group {group}; {who}")
        self.leader = leader


class UnavailableError(RunError):
    """No leader or quorum was reached in time; the command was certainly not committed."""


class OutcomeUnknownError(RunError):
    """The command may or may not have been committed: repeat it with the same key."""


class ReadLevel(StrEnum):
    """How fresh the replica must be that answers a read."""

    EVENTUAL = "eventual"
    SESSION = "session"
    """The replica has applied the entry `index`."""
    BOUNDED = "bounded"
    """The replica is at most `bound_ms` behind."""
    STRONG = "strong"
    """Linearizable."""


class Freshness(Struct, frozen=True):
    """The level of a read and its bound."""

    level: ReadLevel = ReadLevel.STRONG
    index: int = 0
    bound_ms: int = 0


STRONG = Freshness()


class Ledger:
    """Commits commands in any group of the tier and makes reads of this node's replicas fresh."""

    def __init__(self, driver: LedgerDriver) -> None:
        self.driver = driver
        self.core: LedgerCore = driver.core
        self.topology = driver.core.topology
        self.store = driver.store
        self.peers = driver.peers
        self.hooks = driver.hooks
        self.commits: dict[int, int] = {}
        """Commands this node has committed as leader, by group."""
        self.commit_seconds = DurationHistogram(
            "hyperscale_ledger_commit_seconds",
            "Time from proposal to commit, on the leader",
            _COMMIT_BOUNDS_S,
        )
        self._loop = asyncio.get_running_loop()

    # -- topology -------------------------------------------------------------------------

    def machine(self, group: int) -> Machine | None:
        """Return the state machine of this node's replica; None if it has no replica."""
        replica = self.core.replicas.get(group)
        return None if replica is None else replica.machine

    def leader_of(self, group: int) -> str:
        """Return the node id of a group's leader as this node knows it; empty if unknown."""
        leader = self.core.leader_of(group)
        return "" if leader is None else self.driver.name_of(leader)

    def owner_of(self, key: str) -> int:
        """Return the group that owns the key slot of a key; `NO_GROUP` if none does yet."""
        return self.topology.owners[key_slot_of(key)]

    def answers_for(self, group: int) -> list[int]:
        """Return the groups whose history a group has: its own, and those it is the heir of."""
        topology = self.topology
        if group == MANAGEMENT:
            return [MANAGEMENT]
        return [each for each in topology.groups if topology.heir_of(each) == group]

    def voters_of(self, group: int) -> list[str]:
        """Return the nodes that have a replica of a group, its preferred leader first."""
        if group == MANAGEMENT:
            nodes = self.topology.nodes.values()
            return [node.name for node in nodes if node.state is not NodeState.GONE]
        record = self.topology.groups.get(self.topology.heir_of(group))
        if record is None:
            return []
        ordered = sorted(record.settled, key=lambda number: number != record.leader)
        return [name for number in ordered if (name := self.driver.name_of(number))]

    def living_peer(self, name: str) -> PeerLink | None:
        """Return a link to another node; None if the node is unknown, dead or this one."""
        if name in {"", self.driver.own_name} or self.peers.dead_for_s(name) is not None:
            return None
        return self.peers.link(name)

    @property
    def version(self) -> Version:
        """The cluster version: every member of the tier has it or a newer one."""
        return self.topology.version

    def encode(self, event: Struct, *, is_strict: bool = False) -> bytes:
        """Encode an event or a decision as every node of the tier understands it.

        Raise `AboveVersionError` for a kind, or with `is_strict` also for a field, that older nodes
        do not know while the cluster version has not risen."""
        return _encode(admitted(event, self.version, is_strict=is_strict))

    # -- commands in any group ------------------------------------------------------------

    async def decide(
        self, decision: Decision, *, audit: bytes = b"", timeout_s: float = 5.0
    ) -> DecisionReply:
        """Commit a decision in group 0."""
        body = self.encode(decision)
        done = await self.execute(MANAGEMENT, body, audit=audit, timeout_s=timeout_s)
        return decode_decision_reply(done.reply)

    async def execute(
        self, group: int, body: bytes, *, audit: bytes = b"", timeout_s: float = 5.0
    ) -> ForwardCommandReply:
        """Commit a command in a group; `audit` says who asked for it (`ledger.audit`).

        Retry while the answer is that it was certainly not committed. Raise
        `OutcomeUnknownError` if it may have been committed, `UnavailableError` if it was not
        committed in time.
        """
        command = ForwardCommand(group, "", body, version=self.version, audit=audit)
        return await self._route(command, timeout_s)

    async def note_request(self, audit: bytes, *, timeout_s: float = 5.0) -> None:
        """Commit who asked for what the ledger does not decide; raise if it cannot be committed."""
        record = encode_record(RequestAudited(0, audit))
        await self.execute_record(MANAGEMENT, record, timeout_s=timeout_s)

    async def execute_record(
        self, group: int, record: bytes, *, timeout_s: float = 5.0
    ) -> ForwardCommandReply:
        """Commit a record of the ledger itself in a group."""
        return await self._route(ForwardCommand(group, "", record, is_record=True), timeout_s)

    async def submit(
        self, key: str, body: bytes, *, audit: bytes = b"", timeout_s: float = 5.0
    ) -> ForwardCommandReply:
        """Commit a command in the group that owns the key slot of its key."""
        command = ForwardCommand(-1, key, body, version=self.version, audit=audit)
        return await self._route(command, timeout_s)

    async def _route(self, command: ForwardCommand, timeout_s: float) -> ForwardCommandReply:
        deadline_s = self._loop.time() + timeout_s
        hint, last, group = "", "no leader is known", command.group
        while (left_s := deadline_s - self._loop.time()) > 0:
            group = self._group_of(command)
            routed = replace(command, group=group, hops=command.hops + 1)
            reply: ForwardCommandReply | None = None
            if command.group < 0 and group == NO_GROUP:
                last = "no group owns the key slot of this key yet"
            elif self.core.is_leader(group):
                reply = await self._commit_or_refuse(routed, left_s)
            else:
                reply = await self._forward(routed, hint, deadline_s)
                last = "none of its voters answers"
            if reply is not None:
                if reply.refused is None:
                    return reply
                last = _REFUSALS[reply.refused]
            hint = "" if reply is None or reply.leader == hint else reply.leader
            if not hint:  # with a hint the leader is tried at once
                await asyncio.sleep(min(_RETRY_S, max(0.0, deadline_s - self._loop.time())))
        raise UnavailableError(
            f"group {group} did not commit the command in time: {last}", hint=_QUORUM_HINT
        )

    def _group_of(self, command: ForwardCommand) -> int:
        if command.group < 0:
            return self.owner_of(command.key)
        return self.topology.heir_of(command.group)

    async def _forward(
        self, command: ForwardCommand, hint: str, deadline_s: float
    ) -> ForwardCommandReply | None:
        """Forward a command; return None if no node was reached, so that none committed it."""
        candidates = [hint, self.leader_of(command.group), *self.voters_of(command.group)]
        for name in dict.fromkeys(candidates):
            if (link := self.living_peer(name)) is None:
                continue
            until_s = deadline_s
            if self.peers.connection(name) is None:
                # The node has probably just died; others may know a new leader.
                until_s = min(deadline_s, self._loop.time() + _CONNECT_S)
            try:
                return await link.call(command, ForwardCommandReply, deadline_s=until_s)
            except CallError as error:
                if not error.is_definite:
                    raise OutcomeUnknownError(
                        f"{name} did not answer a forwarded command: {error}",
                        hint="the command may have been committed; repeat it with the same key",
                    ) from error
        return None

    async def answer_forwarded(
        self, call: InboundCall, command: ForwardCommand
    ) -> ForwardCommandReply:
        """Commit a command for another node, or forward it to the leader this node knows."""
        if (group := self._group_of(command)) != command.group:
            command = replace(command, group=group)
        left_s = max(call.deadline_s - self._loop.time(), 0.01)
        reply = await self._commit_or_refuse(command, left_s)
        is_elsewhere = reply.refused is CommandRefusal.NOT_LEADER and reply.leader
        if not is_elsewhere or command.hops >= HOPS_MAX:
            return reply
        onward = replace(command, hops=command.hops + 1)
        return await self._forward(onward, reply.leader, call.deadline_s) or reply

    # -- commands in groups this node leads -----------------------------------------------

    async def propose(self, group: int, body: bytes, *, timeout_s: float = 5.0) -> AppliedEntry:
        """Commit a command in a group this node leads; raise `NotLeaderError` if it does not."""
        return await self._commit(ForwardCommand(group, "", body, version=self.version), timeout_s)

    async def _commit_or_refuse(
        self, command: ForwardCommand, timeout_s: float
    ) -> ForwardCommandReply:
        group = command.group
        try:
            result = await self._commit(command, timeout_s)
        except NotLeaderError as error:
            is_known = group in self.core.replicas
            refused = CommandRefusal.NOT_LEADER if is_known else CommandRefusal.UNKNOWN_GROUP
            return ForwardCommandReply(group, refused=refused, leader=error.leader)
        if result.is_key_foreign:
            return ForwardCommandReply(group, refused=CommandRefusal.WRONG_GROUP)
        replica = self.core.replicas.get(group)
        reply = b""
        if replica is not None and result.reply is not None:
            reply = replica.machine.encode_reply(result.reply)
        return ForwardCommandReply(group, result.index, reply)

    async def _commit(self, command: ForwardCommand, timeout_s: float) -> AppliedEntry:
        core = self.core
        group = command.group
        if not core.is_leader(group):
            raise self._not_leader(group)
        if core.proposals.is_full:
            raise OverloadedError("too many proposals wait for the disk", retry_after_s=0.1)
        record: Record = MachineCommand(
            0, command.key, command.body, version=command.version, audit=command.audit
        )
        if command.is_record:
            try:
                record = admitted(decode_record(command.body), self.version)
            except msgspec.MsgspecError as error:
                raise RunError(f"the record cannot be decoded: {error}") from error
        begun_s = self._loop.time()
        token, answer = self.driver.propose(group, record)
        expiry = self._loop.call_later(timeout_s, _expire, answer)
        try:
            result = await answer
        finally:
            expiry.cancel()
            self.driver.requests.futures.pop(token, None)
        if result is ProposalFailure.SUPERSEDED:
            raise self._not_leader(group)
        if isinstance(result, ProposalFailure):
            raise _outcome_unknown("a snapshot replaced this node's replica of the group")
        self.commit_seconds.observe(self._loop.time() - begun_s)
        self.commits[group] = self.commits.get(group, 0) + 1
        return result

    def _not_leader(self, group: int) -> NotLeaderError:
        leader = self.leader_of(group)
        return NotLeaderError(group, "" if leader == self.driver.own_name else leader)

    # -- reads of this node's replicas ----------------------------------------------------

    async def fresh(
        self, group: int, freshness: Freshness = STRONG, *, timeout_s: float = 5.0
    ) -> None:
        """Return when this node's replica may answer a read of this freshness."""
        replica = self.core.replicas.get(group)
        if replica is None:
            raise InvariantError(f"this node has no replica of group {group}")
        try:
            async with asyncio.timeout(timeout_s):
                match freshness.level:
                    case ReadLevel.SESSION:
                        await self.driver.requests.until_applied(replica, freshness.index)
                    case ReadLevel.BOUNDED if self.lag_ms(group) <= freshness.bound_ms:
                        pass
                    case ReadLevel.BOUNDED | ReadLevel.STRONG:
                        await self._linearize(group)
        except TimeoutError:
            raise UnavailableError(
                f"group {group}: no fresh answer within {timeout_s:g} s", hint=_QUORUM_HINT
            ) from None

    def time_ms(self, group: int) -> int:
        """Return the time of a group: milliseconds since it was created (`group_clock`)."""
        return self.core.time_ms(group, self._loop.time())

    def is_time_estimate(self, group: int) -> bool:
        """Return True if this node estimates the time of a group by the dates of entries."""
        return self.core.group_clocks.get(group).source is TimeSource.DATES

    def lag_ms(self, group: int) -> float:
        """Return for how long this node may not have heard of new commits."""
        if self.core.is_leader(group):
            # Check-quorum deposes a leader that heard no majority for an election timeout.
            return self.core.limits.election_ticks * TICK_S * 2_000
        return self.core.raft.quiet_ticks(group) * TICK_S * 1_000

    async def _linearize(self, group: int) -> None:
        read: asyncio.Future[None] = self._loop.create_future()
        futures = self.driver.requests.futures
        tokens: list[int] = []
        try:
            while not read.done():
                if group not in self.core.replicas:
                    raise UnavailableError(f"this node has left group {group}")
                tokens.append(self.core.proposals.new_token())
                futures[tokens[-1]] = read
                self.driver.feed(ReadRequested(tokens[-1], group))
                # A deposed leader never answers, so ask again. The answer to any of the requests
                # will do: each was made after this read began.
                await asyncio.wait([read], timeout=_READ_AGAIN_S)
            read.result()
        finally:
            for token in tokens:
                futures.pop(token, None)


def _expire(answer: asyncio.Future[ProposalResult]) -> None:
    if not answer.done():
        answer.set_exception(_outcome_unknown("no quorum in time"))


def _outcome_unknown(why: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{why}; the command may have been committed, or may still be",
        hint="repeat it with the same key",
    )
