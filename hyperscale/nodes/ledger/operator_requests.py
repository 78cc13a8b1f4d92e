"""Answers to operators: how the ledger is, what it holds, whether its replicas are equal.

Any node answers. What it does not have it asks of the nodes that do; what only a leader can do
goes to the leader.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from hyperscale.errors import HyperscaleError, InputError, RunError
from hyperscale.jobs.committed.keys import parse_job_id
from hyperscale.ledger.core import MANAGEMENT
from hyperscale.ledger.core_events import LeadershipTransferRequested, SnapshotRequested
from hyperscale.ledger.records import Surveyed, encode_record
from hyperscale.ledger.store import HistoryRow
from hyperscale.ledger.topology import (
    Decision,
    GroupState,
    LeaderWanted,
    NodeMarked,
    NodeState,
)
from hyperscale.nodes.ledger.ledger import STRONG, Freshness, Ledger, ReadLevel
from hyperscale.nodes.ledger.operator_messages import (
    ChangeMember,
    ChangeMemberReply,
    Compact,
    CompactReply,
    DigestRow,
    GetDigest,
    GetDigestReply,
    GetLedgerStatus,
    GetLedgerStatusReply,
    GroupRow,
    ListEvents,
    ListEventsReply,
    MoveRow,
    NodeRow,
    ReplicaRow,
    Verify,
    VerifyReply,
)
from hyperscale.nodes.ledger.peer_requests import OpenLedger
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.handlers import Handlers

EVENTS_MAX: Final = 10_000
_ANSWER_BYTES = 12 * 1024 * 1024
_ASK_S = 5.0


class OperatorRequests:
    """Answers operators about the ledger, and changes it for them."""

    def __init__(self, open_ledger: Callable[[], OpenLedger]) -> None:
        """`open_ledger` raises while the node has no ledger."""
        self._open_ledger = open_ledger

    def _ledger(self) -> Ledger:
        return self._open_ledger().ledger

    def answer(self, handlers: Handlers) -> None:
        handlers.add(GetLedgerStatus, self._told)
        handlers.add(ListEvents, self._events)
        handlers.add(ChangeMember, self._change)
        handlers.add(Compact, self._compact)
        handlers.add(Verify, self._verify)
        handlers.add(GetDigest, self._digest)

    # -- how it is ------------------------------------------------------------------------

    def _told(self, _call: InboundCall, _asked: GetLedgerStatus) -> GetLedgerStatusReply:
        ledger = self._ledger()
        topology = ledger.topology
        owned = Counter(topology.owners)

        def names(numbers: Iterable[int]) -> list[str]:
            return [ledger.driver.name_of(number) or str(number) for number in numbers]

        return GetLedgerStatusReply(
            ledger=ledger.driver.id,
            node=ledger.driver.own_name,
            number=ledger.core.number,
            replicas=[self._replica(ledger, group) for group in sorted(ledger.core.replicas)],
            nodes=[
                NodeRow(number=n.number, name=n.name, domain=n.domain, state=str(n.state))
                for n in topology.nodes.values()
            ],
            groups=[
                GroupRow(
                    group=group.number,
                    state=str(group.state),
                    voters=names(group.voters),
                    settled=names(group.settled),
                    leader=ledger.driver.name_of(group.leader),
                    slots=owned[group.number],
                    heir=group.heir,
                )
                for group in topology.groups.values()
            ],
            moves=[
                MoveRow(move=m.number, slots=len(m.slots), source=m.source, target=m.target)
                for m in topology.moves.values()
            ],
            awaited=topology.awaited,
            pending_bytes=ledger.store.pending_bytes,
            mismatches=ledger.driver.mismatches_total,
        )

    @staticmethod
    def _replica(ledger: Ledger, group: int) -> ReplicaRow:
        raft = ledger.core.raft
        _, term, role, leader, commit, *_ = raft.standing(group)
        voters, _, learners = raft.seats(group)
        entries, log_bytes = raft.log_size(group)
        return ReplicaRow(
            group=group,
            role=role,
            term=term,
            leader=ledger.driver.name_of(leader),
            commit=commit,
            applied=ledger.core.replicas[group].applied,
            entries=entries,
            log_bytes=log_bytes,
            voters=[ledger.driver.name_of(number) or str(number) for number in voters],
            learners=[ledger.driver.name_of(number) or str(number) for number in learners],
        )

    # -- what it holds --------------------------------------------------------------------

    async def _events(self, call: InboundCall, asked: ListEvents) -> ListEventsReply:
        ledger = self._ledger()
        if asked.of_groups:
            is_here = all(self._has_all(group) for group in asked.of_groups)
            if not is_here or not await _are_fresh(ledger, asked.of_groups):
                raise RunError("this node has not all of that history")
            return await self._own_events(ledger, asked)
        if asked.job:
            try:
                group = ledger.topology.heir_of(parse_job_id(asked.job).group)
            except InputError as error:
                raise RunError(str(error)) from error
            if group not in ledger.topology.groups:
                raise RunError(f"{asked.job}: there is no group {group} in this ledger")
            wanted = {group}
        else:
            groups_of = ledger.topology.groups.values()
            wanted = {g.number for g in groups_of if g.state is not GroupState.DESTROYED}
        mine = {group for group in wanted if self._has_all(group)}
        if not await _are_fresh(ledger, mine):
            return await self._events(call, asked)  # another group answers for one of them now
        told = [await self._own_events(ledger, asked)] if mine or not wanted else []
        told += await self._others_events(ledger, asked, wanted - mine, call.deadline_s)
        rows = {(row[1], row[2], row[0], row[4]): row for each in told for row in each.rows}
        ordered = sorted(rows.values(), key=lambda row: (row[3], row[1], row[2]))
        cut, has_more = _bounded(ordered, asked.limit)
        return ListEventsReply(cut, has_more or any(each.has_more for each in told))

    async def _own_events(self, ledger: Ledger, asked: ListEvents) -> ListEventsReply:
        """What this node has."""
        await ledger.driver.until_durable(ledger.core.disk.history_ticket)
        limit = max(1, min(asked.limit, EVENTS_MAX))
        rows = await asyncio.to_thread(
            ledger.store.history,
            job_id=asked.job or None,
            since_ms=asked.since_ms,
            limit=limit + 1,
        )
        return ListEventsReply(*_bounded(rows, limit))

    async def _others_events(
        self, ledger: Ledger, asked: ListEvents, groups: set[int], deadline_s: float
    ) -> list[ListEventsReply]:
        """From one voter of each group this node has no replica of."""
        told: list[ListEventsReply] = []
        for group in sorted(groups):
            passed_on = msgspec.structs.replace(asked, of_groups=(group,))
            why = "nobody votes in it"
            for name in ledger.voters_of(group):
                link = None if name == ledger.driver.own_name else ledger.peers.link(name)
                if link is None or ledger.peers.dead_for_s(name) is not None:
                    continue
                try:
                    told.append(await link.call(passed_on, ListEventsReply, deadline_s=deadline_s))
                    break
                except HyperscaleError as error:
                    why = str(error)
            else:
                raise RunError(f"group {group} cannot be asked for its history: {why}")
        return told

    def _has_all(self, group: int) -> bool:
        """Return True if this node may answer for a group's history by itself."""
        found = self._open_ledger()
        core = found.ledger.core
        if group not in core.replicas or not found.history.is_complete(group):
            return False
        return core.number in core.raft.seats(group)[0]

    # -- what it should do ----------------------------------------------------------------

    async def _change(self, call: InboundCall, asked: ChangeMember) -> ChangeMemberReply:
        ledger = self._ledger()
        topology = ledger.topology
        number = topology.number_of(asked.node)
        if number is None:
            known = sorted(n.name for n in topology.nodes.values() if n.state != NodeState.GONE)
            hint = f"its nodes are {', '.join(known)}"
            if asked.change == "add":
                hint = "a node joins by itself: start it with a --seed of this tier"
            return ChangeMemberReply(refused=f"{asked.node} takes no part in the ledger", hint=hint)
        match asked.change:
            case "add":
                told = await self._add(ledger, number, asked.node)
            case "drain":
                told = await drain(ledger, number, asked.node)
            case "remove":
                told = await self._remove(ledger, number, asked.node)
            case "promote" if asked.group > MANAGEMENT:
                done = f"{asked.node} is to lead group {asked.group}"
                told = await _decided(ledger, LeaderWanted(asked.group, number), done)
            case "promote":
                told = await self._promote(call, ledger, number, asked)
            case _:
                told = ChangeMemberReply(refused=f"there is no change called {asked.change!r}")
        return told

    @staticmethod
    async def _add(ledger: Ledger, number: int, name: str) -> ChangeMemberReply:
        if ledger.topology.nodes[number].state is NodeState.ACTIVE:
            return ChangeMemberReply(done=f"{name} takes part already")
        return await _decided(
            ledger, NodeMarked(number, NodeState.ACTIVE), f"{name} takes part again"
        )

    @staticmethod
    async def _remove(ledger: Ledger, number: int, name: str) -> ChangeMemberReply:
        if ledger.peers.dead_for_s(name) is None:
            return ChangeMemberReply(
                refused=f"{name} is alive", hint=f"'hyperscale drain {name}' takes its seats first"
            )
        done = f"{name} is gone for good; it can join as a new node"
        return await _decided(ledger, NodeMarked(number, NodeState.GONE), done)

    @staticmethod
    async def _promote(
        call: InboundCall, ledger: Ledger, number: int, asked: ChangeMember
    ) -> ChangeMemberReply:
        """Group 0 has no wish for a leader: whoever leads it hands it over, once."""
        raft = ledger.core.raft
        if ledger.core.is_leader(MANAGEMENT):
            if number not in raft.seats(MANAGEMENT)[0]:
                return ChangeMemberReply(
                    refused=f"{asked.node} does not vote in group {MANAGEMENT}"
                )
            ledger.driver.feed(LeadershipTransferRequested(MANAGEMENT, number))
            return ChangeMemberReply(done=f"{asked.node} is asked to lead group {MANAGEMENT}")
        leader = ledger.leader_of(MANAGEMENT)
        link = ledger.peers.link(leader) if leader not in ("", ledger.driver.own_name) else None
        if link is None or call.peer.role in ("manager", "gate"):
            return ChangeMemberReply(
                refused="nobody leads group 0 now", hint="try again in a moment"
            )
        return await link.call(asked, ChangeMemberReply, deadline_s=call.deadline_s)

    async def _compact(self, _call: InboundCall, _asked: Compact) -> CompactReply:
        ledger = self._ledger()
        taken = []
        for group in sorted(ledger.core.replicas):
            ledger.driver.feed(SnapshotRequested(group))
            taken.append((group, ledger.core.replicas[group].applied))
        return CompactReply(taken)

    # -- whether it is whole --------------------------------------------------------------

    async def _verify(self, call: InboundCall, _asked: Verify) -> VerifyReply:
        """One entry in each group makes all its replicas hash the same state."""
        ledger = self._ledger()
        groups = [MANAGEMENT]
        groups += [
            g.number for g in ledger.topology.groups.values() if g.state != GroupState.DESTROYED
        ]
        rows = await asyncio.gather(
            *(self._verify_group(ledger, group, call.deadline_s) for group in groups)
        )
        return VerifyReply([row for each in rows for row in each])

    async def _verify_group(self, ledger: Ledger, group: int, deadline_s: float) -> list[DigestRow]:
        left_s = max(deadline_s - asyncio.get_running_loop().time(), 0.1)
        survey = encode_record(Surveyed(0))
        try:
            done = await ledger.execute_record(group, survey, timeout_s=min(left_s / 2, _ASK_S))
        except HyperscaleError as error:
            return [DigestRow(group=group, index=0, node="", why_not=str(error))]
        names = ledger.voters_of(group)
        if group == MANAGEMENT:
            nodes = ledger.topology.nodes.values()
            names = [node.name for node in nodes if node.state is not NodeState.GONE]
        return list(
            await asyncio.gather(
                *(self._digest_of(ledger, name, group, done.index, left_s / 2) for name in names)
            )
        )

    async def _digest_of(
        self, ledger: Ledger, name: str, group: int, index: int, timeout_s: float
    ) -> DigestRow:
        asked = GetDigest(group, index)
        link = None if name == ledger.driver.own_name else ledger.peers.link(name)
        told = GetDigestReply(why_not="no way to it is known")
        if name == ledger.driver.own_name:
            told = await self._own_digest(ledger, asked, timeout_s)
        elif ledger.peers.dead_for_s(name) is not None:
            told = GetDigestReply(why_not="it is dead")
        elif link is not None:
            deadline_s = asyncio.get_running_loop().time() + timeout_s
            try:
                told = await link.call(asked, GetDigestReply, deadline_s=deadline_s)
            except HyperscaleError as error:
                told = GetDigestReply(why_not=str(error))
        return DigestRow(
            group=group, index=index, node=name, digest=told.digest.hex(), why_not=told.why_not
        )

    async def _digest(self, call: InboundCall, asked: GetDigest) -> GetDigestReply:
        left_s = max(call.deadline_s - asyncio.get_running_loop().time(), 0.1)
        return await self._own_digest(self._ledger(), asked, left_s * 0.9)

    @staticmethod
    async def _own_digest(ledger: Ledger, asked: GetDigest, timeout_s: float) -> GetDigestReply:
        replica = ledger.core.replicas.get(asked.group)
        if replica is None:
            return GetDigestReply(why_not="it has no replica")
        try:
            await ledger.fresh(
                asked.group, Freshness(ReadLevel.SESSION, asked.index), timeout_s=timeout_s
            )
        except HyperscaleError:
            return GetDigestReply(why_not=f"it has applied only {replica.applied}")
        digest = replica.surveys.get(asked.index)
        if digest is None:
            return GetDigestReply(why_not="it came there by a snapshot")
        return GetDigestReply(digest)


async def _are_fresh(ledger: Ledger, groups: Iterable[int]) -> bool:
    """Waits for all that is committed by now. False if one of the groups is not here any more:
    destroyed, or given to others."""
    try:
        await asyncio.gather(*(ledger.fresh(group, STRONG) for group in groups))
    except HyperscaleError:
        if all(group in ledger.core.replicas for group in groups):
            raise
        return False
    return True


async def drain(ledger: Ledger, number: int, name: str) -> ChangeMemberReply:
    """Has a node give up its seats, unless there is nobody to take them."""
    active = [n for n in ledger.topology.nodes.values() if n.state is NodeState.ACTIVE]
    if [n.number for n in active] == [number]:
        return ChangeMemberReply(
            refused=f"{name} is the only manager left", hint="start another one first"
        )
    done = f"{name} drains: its seats go to others"
    return await _decided(ledger, NodeMarked(number, NodeState.DRAINING), done)


async def _decided(ledger: Ledger, decision: Decision, done: str) -> ChangeMemberReply:
    reply = await ledger.decide(decision)
    if reply.refused:
        return ChangeMemberReply(refused=reply.refused)
    return ChangeMemberReply(done=done)


def _bounded(rows: list[HistoryRow], limit: int) -> tuple[list[HistoryRow], bool]:
    """As many of the first as one answer takes, and whether there are more."""
    size = 0
    for position, row in enumerate(rows):
        size += len(row[5]) + 200
        if position >= limit or (size > _ANSWER_BYTES and position):
            return rows[:position], True
    return rows, False
