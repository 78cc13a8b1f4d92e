"""Answers to operators: status, events, changes of members, snapshots, comparison of replicas.

Any node answers. It asks other nodes for what it does not have, and forwards to a leader what
only a leader can do.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from hyperscale.errors import HyperscaleError, InputError, RunError
from hyperscale.ledger.audit import audit_of
from hyperscale.ledger.core import MANAGEMENT
from hyperscale.ledger.core_events import LeadershipTransferRequested, RaftRole, SnapshotRequested
from hyperscale.ledger.records import DigestRequested, encode_record
from hyperscale.ledger.replica import HistoryRow, is_index
from hyperscale.ledger.server.ledger import STRONG, Freshness, Ledger, ReadLevel
from hyperscale.ledger.server.operator_messages import (
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
    MemberChange,
    MigrationRow,
    RaiseVersion,
    ReplicaRow,
    Verify,
    VerifyReply,
)
from hyperscale.ledger.server.peer_requests import OpenLedger
from hyperscale.ledger.store import position_of
from hyperscale.ledger.topology import (
    Decision,
    LeaderWanted,
    NodeRecord,
    NodeState,
    NodeStateChanged,
    VersionRaised,
)
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.roles import Role

EVENTS_MAX: Final = 10_000
_ANSWER_BYTES = 12 * 1024 * 1024
_ASK_S = 5.0


class OperatorRequests:
    """Answers operators about the ledger, and changes it for them."""

    def __init__(
        self, open_ledger: Callable[[], OpenLedger], group_of_job: Callable[[str], int]
    ) -> None:
        """`open_ledger` raises while the node has no ledger."""
        self._open_ledger = open_ledger
        self._group_of_job = group_of_job

    def _ledger(self) -> Ledger:
        return self._open_ledger().ledger

    def answer(self, handlers: Handlers) -> None:
        handlers.add(GetLedgerStatus, self._get_status)
        handlers.add(ListEvents, self.list_events)
        handlers.add(ChangeMember, self._change_member)
        handlers.add(RaiseVersion, self._raise_version)
        handlers.add(Compact, self._compact)
        handlers.add(Verify, self._verify)
        handlers.add(GetDigest, self._digest)

    # -- status -------------------------------------------------------------------------

    def _get_status(self, _call: InboundCall, _asked: GetLedgerStatus) -> GetLedgerStatusReply:
        ledger = self._ledger()
        topology = ledger.topology
        owned = Counter(topology.owners)
        return GetLedgerStatusReply(
            ledger=ledger.driver.id,
            node=ledger.driver.own_name,
            number=ledger.core.number,
            replicas=[_replica_row(ledger, group) for group in sorted(ledger.core.replicas)],
            nodes=list(topology.nodes.values()),
            groups=[
                GroupRow(
                    group=group.number,
                    state=group.state,
                    voters=_names(ledger, group.voters),
                    settled=_names(ledger, group.settled),
                    leader=ledger.driver.name_of(group.leader),
                    key_slots=owned[group.number],
                    heir=group.heir,
                )
                for group in topology.groups.values()
            ],
            migrations=[
                MigrationRow(
                    migration=number, key_slots=len(m.key_slots), source=m.source, target=m.target
                )
                for number, m in topology.migrations.items()
            ],
            awaited=topology.awaited,
            pending_bytes=ledger.store.pending_bytes,
            mismatches=ledger.driver.mismatches_total,
            version=topology.version,
            agreed=topology.agreed,
            agreed_for_s=max(0, ledger.time_ms(MANAGEMENT) - topology.agreed_ms) / 1000,
            workers=ledger.peers.worker_versions(),
        )

    # -- events --------------------------------------------------------------------------

    async def list_events(self, call: InboundCall, asked: ListEvents) -> ListEventsReply:
        """Return committed events of the whole tier."""
        ledger = self._ledger()
        if asked.of_groups:
            is_here = all(self._has_all(group) for group in asked.of_groups)
            if not is_here or not await _are_fresh(ledger, asked.of_groups):
                raise RunError("this node lacks events of these groups")
            return await self._own_events(ledger, asked)
        if is_index(asked.job):
            wanted = {MANAGEMENT, *(record.number for record in ledger.topology.live_groups())}
        elif asked.job:
            try:
                group = ledger.topology.heir_of(self._group_of_job(asked.job))
            except InputError as error:
                raise RunError(str(error)) from error
            if group not in ledger.topology.groups:
                raise RunError(f"{asked.job}: this ledger has no group {group}")
            wanted = {group}
        else:
            wanted = {record.number for record in ledger.topology.live_groups()}
        mine = {group for group in wanted if self._has_all(group)}
        if not await _are_fresh(ledger, mine):
            return await self.list_events(call, asked)  # one of them has an heir now
        replies = [await self._own_events(ledger, asked)] if mine or not wanted else []
        replies += await self._others_events(ledger, asked, wanted - mine, call.deadline_s)
        rows = {(row[1], row[2], row[0], row[4]): row for each in replies for row in each.rows}
        ordered = sorted(rows.values(), key=position_of)
        # Beyond the last row of an answer that has more, rows are missing.
        ends = [position_of(each.rows[-1]) for each in replies if each.has_more and each.rows]
        ordered = [row for row in ordered if not ends or position_of(row) <= min(ends)]
        cut, has_more = _bounded(ordered, asked.limit)
        return ListEventsReply(cut, has_more or any(each.has_more for each in replies))

    async def _own_events(self, ledger: Ledger, asked: ListEvents) -> ListEventsReply:
        """Read the events this node has."""
        await ledger.driver.until_durable(ledger.core.disk.history_ticket)
        limit = max(1, min(asked.limit, EVENTS_MAX))
        rows = await asyncio.to_thread(
            ledger.store.history,
            job_id=asked.job or None,
            since_ms=asked.since_ms,
            after=asked.after,
            limit=limit + 1,
        )
        return ListEventsReply(*_bounded(rows, limit))

    async def _others_events(
        self, ledger: Ledger, asked: ListEvents, groups: set[int], deadline_s: float
    ) -> list[ListEventsReply]:
        """Ask one voter of each group for its events."""
        replies: list[ListEventsReply] = []
        for group in sorted(groups):
            passed_on = msgspec.structs.replace(asked, of_groups=(group,))
            why = "none of its voters is up"
            for name in ledger.voters_of(group):
                if (link := ledger.living_peer(name)) is None:
                    continue
                try:
                    reply = await link.call(passed_on, ListEventsReply, deadline_s=deadline_s)
                except HyperscaleError as error:
                    why = str(error)
                else:
                    replies.append(reply)
                    break
            else:
                raise RunError(f"the events of group {group} are not available: {why}")
        return replies

    def _has_all(self, group: int) -> bool:
        """Return True if this node may answer for a group's history by itself."""
        found = self._open_ledger()
        core = found.ledger.core
        if group not in core.replicas or not found.history.is_complete(group):
            return False
        return core.number in core.raft.seats(group)[0]

    # -- changes ------------------------------------------------------------------------

    async def _change_member(self, call: InboundCall, asked: ChangeMember) -> ChangeMemberReply:
        ledger = self._ledger()
        nodes, name = ledger.topology.nodes, asked.node
        number = ledger.topology.number_of(name)
        if number is None:
            known = sorted(n.name for n in nodes.values() if n.state != NodeState.GONE)
            hint = f"the nodes of the ledger are {', '.join(known)}"
            if asked.change is MemberChange.ADD:
                hint = (
                    "a manager joins on its own: start 'hyperscale manager --seed HOST:PORT' with "
                    "the address of a manager of this cluster"
                )
            return ChangeMemberReply(refused=f"{name} is not a node of the ledger", hint=hint)
        forced = "forced" if asked.is_forced else ""
        audit = audit_of(call, asked.change.value, name, detail=forced)
        match asked.change:
            case MemberChange.ADD | MemberChange.APPROVE:
                return await _activate(ledger, nodes[number], asked.change, audit)
            case MemberChange.DRAIN:
                return await drain(ledger, number, name, is_forced=asked.is_forced, audit=audit)
            case MemberChange.REMOVE:
                if (refusal := _removal_refused(ledger, number, asked)) is not None:
                    return refusal
                decision: Decision = NodeStateChanged(number, NodeState.GONE)
                done = f"{name} is removed; it can join again as a new node"
            case MemberChange.PROMOTE:
                if asked.group <= MANAGEMENT:
                    return await self._promote(call, ledger, number, asked)
                decision = LeaderWanted(asked.group, number)
                done = f"{name} will lead group {asked.group}"
        return await _decided(ledger, decision, done, audit)

    @staticmethod
    async def _promote(
        call: InboundCall, ledger: Ledger, number: int, asked: ChangeMember
    ) -> ChangeMemberReply:
        """Have the leader of group 0, which has no preferred leader, transfer the leadership."""
        if ledger.core.is_leader(MANAGEMENT):
            if number not in ledger.core.raft.seats(MANAGEMENT)[0]:
                return ChangeMemberReply(
                    refused=f"{asked.node} is not a voter of group {MANAGEMENT}",
                    hint="the voters are those that 'hyperscale ledger status' shows, with the "
                    "connection flags of this command",
                )
            await ledger.note_request(audit_of(call, "promote", asked.node, detail="group 0"))
            ledger.driver.feed(LeadershipTransferRequested(MANAGEMENT, number))
            return ChangeMemberReply(done=f"group 0 is being handed over to {asked.node}")
        link = ledger.living_peer(ledger.leader_of(MANAGEMENT))
        if link is None or call.peer.role in (Role.MANAGER, Role.GATE):
            return ChangeMemberReply(
                refused="group 0 has no leader now", hint="repeat the command in a few seconds"
            )
        return await link.call(asked, ChangeMemberReply, deadline_s=call.deadline_s)

    async def _raise_version(self, call: InboundCall, asked: RaiseVersion) -> ChangeMemberReply:
        """Raise the cluster version to the highest that all nodes and living workers have."""
        ledger = self._ledger()
        await ledger.fresh(MANAGEMENT)
        topology, peers = ledger.topology, ledger.peers
        present = [n for n in topology.nodes.values() if n.state is not NodeState.GONE]
        away = [n for n in present if asked.is_forced and peers.dead_for_s(n.name) is not None]
        versions = {node.name: node.version for node in present if node not in away}
        versions.update(peers.worker_versions())
        oldest = min(versions, key=lambda name: versions[name])
        wanted = versions[oldest]
        if wanted <= topology.version:
            return ChangeMemberReply(
                refused=f"{oldest} runs version {wanted}, and the cluster version is "
                f"{topology.version} already",
                hint="upgrade every node first; --force gives up nodes that are dead",
            )
        left = tuple(node.number for node in away if node.version < wanted)
        done = f"the cluster version is {wanted}; older nodes are refused from now on"
        audit = audit_of(call, "raise version", str(wanted))
        return await _decided(ledger, VersionRaised(wanted, left), done, audit)

    async def _compact(self, call: InboundCall, _asked: Compact) -> CompactReply:
        ledger = self._ledger()
        await ledger.note_request(audit_of(call, "snapshot", ledger.driver.own_name))
        taken = []
        for group in sorted(ledger.core.replicas):
            ledger.driver.feed(SnapshotRequested(group))
            taken.append((group, ledger.core.replicas[group].applied))
        return CompactReply(taken)

    # -- verification -------------------------------------------------------------------

    async def _verify(self, call: InboundCall, _asked: Verify) -> VerifyReply:
        """Compare all replicas: one entry in each group has them hash the same state."""
        ledger = self._ledger()
        groups = [MANAGEMENT, *(record.number for record in ledger.topology.live_groups())]
        checks = (self._verify_group(ledger, group, call.deadline_s) for group in groups)
        return VerifyReply([row for rows in await asyncio.gather(*checks) for row in rows])

    async def _verify_group(self, ledger: Ledger, group: int, deadline_s: float) -> list[DigestRow]:
        left_s = max(deadline_s - asyncio.get_running_loop().time(), 0.1)
        request = encode_record(DigestRequested(0))
        try:
            done = await ledger.execute_record(group, request, timeout_s=min(left_s / 2, _ASK_S))
        except HyperscaleError as error:
            return [DigestRow(group=group, index=0, node="", why_not=str(error))]
        asked = GetDigest(group, done.index)
        names = ledger.voters_of(group)
        digests = (self._digest_of(ledger, name, asked, left_s / 2) for name in names)
        return await asyncio.gather(*digests)

    async def _digest_of(
        self, ledger: Ledger, name: str, asked: GetDigest, timeout_s: float
    ) -> DigestRow:
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        is_dead = ledger.peers.dead_for_s(name) is not None
        reply = GetDigestReply(why_not="it is dead" if is_dead else "its address is unknown")
        try:
            if name == ledger.driver.own_name:
                reply = await self._own_digest(ledger, asked, timeout_s)
            elif (link := ledger.living_peer(name)) is not None:
                reply = await link.call(asked, GetDigestReply, deadline_s=deadline_s)
        except HyperscaleError as error:
            reply = GetDigestReply(why_not=str(error))
        return DigestRow(
            group=asked.group,
            index=asked.index,
            node=name,
            digest=reply.digest.hex(),
            why_not=reply.why_not,
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
            return GetDigestReply(why_not=f"it has applied only {replica.applied} entries")
        digest = replica.requested_digests.get(asked.index)
        if digest is None:
            return GetDigestReply(why_not="a snapshot replaced its state")
        return GetDigestReply(digest)


def _names(ledger: Ledger, numbers: Iterable[int]) -> list[str]:
    return [ledger.driver.name_of(number) or str(number) for number in numbers]


def _replica_row(ledger: Ledger, group: int) -> ReplicaRow:
    raft = ledger.core.raft
    _, term, role, leader, commit, _ = raft.standing(group)
    voters, _, learners = raft.seats(group)
    entries, log_bytes = raft.log_size(group)
    return ReplicaRow(
        group=group,
        role=RaftRole(role),
        term=term,
        leader=ledger.driver.name_of(leader),
        commit=commit,
        applied=ledger.core.replicas[group].applied,
        entries=entries,
        log_bytes=log_bytes,
        voters=_names(ledger, voters),
        learners=_names(ledger, learners),
    )


async def _are_fresh(ledger: Ledger, groups: Iterable[int]) -> bool:
    """Wait until this node has applied everything committed by now. Return False if it has left
    one of the groups."""
    try:
        await asyncio.gather(*(ledger.fresh(group, STRONG) for group in groups))
    except HyperscaleError:
        if all(group in ledger.core.replicas for group in groups):
            raise
        return False
    return True


async def _activate(
    ledger: Ledger, node: NodeRecord, change: MemberChange, audit: bytes
) -> ChangeMemberReply:
    """Approve a pending node, or cancel the drain of a draining one."""
    if node.state is NodeState.ACTIVE:
        return ChangeMemberReply(done=f"{node.name} is active already")
    is_pending = node.state is NodeState.PENDING
    if is_pending is not (change is MemberChange.APPROVE):
        verb, state = ("approve", "waits for approval") if is_pending else ("add", "drains")
        return ChangeMemberReply(
            refused=f"{node.name} {state}",
            hint=f"'hyperscale ledger members {verb} {node.name}' makes it active",
        )
    done = f"{node.name} is approved" if is_pending else f"{node.name} is active again"
    return await _decided(ledger, NodeStateChanged(node.number, NodeState.ACTIVE), done, audit)


def _removal_refused(ledger: Ledger, number: int, asked: ChangeMember) -> ChangeMemberReply | None:
    """Return why a node is not removed; None if it is."""
    name = asked.node
    if ledger.topology.active() == [number]:
        return ChangeMemberReply(refused=f"{name} is the only active manager")
    if asked.is_forced or ledger.peers.dead_for_s(name) is not None:
        return None
    hint = (
        f"'hyperscale drain {name}', with the connection flags of this command, takes it out "
        "without losing a vote; --force removes it at once"
    )
    return ChangeMemberReply(refused=f"{name} is alive", hint=hint)


async def drain(
    ledger: Ledger, number: int, name: str, *, is_forced: bool = False, audit: bytes = b""
) -> ChangeMemberReply:
    """Drain a node, unless the others could commit nothing without it."""
    active = ledger.topology.active()
    if active == [number]:
        return ChangeMemberReply(
            refused=f"{name} is the only active manager",
            hint=f"start 'hyperscale manager --seed HOST:PORT' first, with the address of {name}",
        )
    left = [ledger.topology.nodes[each].name for each in active if each != number]
    living = [each for each in left if ledger.peers.dead_for_s(each) is None]
    if not is_forced and len(living) <= len(left) // 2:
        dead = ", ".join(sorted(set(left) - set(living)))
        return ChangeMemberReply(
            refused=f"without {name} no majority would be left: {dead} cannot be reached",
            hint="bring them back or remove them with 'hyperscale ledger members remove NODE'; "
            "--force drains all the same",
        )
    done = f"{name} drains: other managers take over its votes and leaderships"
    return await _decided(ledger, NodeStateChanged(number, NodeState.DRAINING), done, audit)


async def _decided(
    ledger: Ledger, decision: Decision, done: str, audit: bytes
) -> ChangeMemberReply:
    reply = await ledger.decide(decision, audit=audit)
    if reply.refused:
        return ChangeMemberReply(refused=reply.refused)
    return ChangeMemberReply(done=done)


def _bounded(rows: list[HistoryRow], limit: int) -> tuple[list[HistoryRow], bool]:
    """Return the first rows that fit into one answer, and whether there are more."""
    size = 0
    for position, row in enumerate(rows):
        size += len(row[5]) + 200
        if position >= limit or (size > _ANSWER_BYTES and position):
            return rows[:position], True
    return rows, False
