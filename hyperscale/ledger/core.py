"""The groups of one node: proposals and messages in, messages, writes and applied entries out.

Proposals, reads and messages only queue. `BatchEnded` runs one pass over all groups: consensus in
native code, then the entries it committed are applied, proposers and readers answered, snapshots
taken, and groups opened or left as the topology of group 0 says. The core has no socket, clock
or task: the simulator runs it unchanged.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct, field

from hyperscale._native import (
    GroupImage,
    LedgerBrokenError,
    LedgerError,
    LedgerOutdatedError,
    MultiRaft,
    Turn,
)
from hyperscale.errors import InvariantError
from hyperscale.ledger.core_events import (
    AnnounceEntries,
    AnnounceLeadership,
    AnnounceRestore,
    AnnounceTopology,
    AnswerRequests,
    BatchEnded,
    DropMessages,
    GroupEvent,
    GroupRole,
    LeadershipTransferRequested,
    LedgerEffect,
    LedgerEvent,
    LedgerOpened,
    MessagesReceived,
    PeerUnreachable,
    ProposalFailure,
    ProposalResult,
    RaftRole,
    ReadRequested,
    RecordsProposed,
    ReportMismatch,
    SendMessages,
    SendSnapshotOffer,
    SnapshotDelivered,
    SnapshotReceived,
    SnapshotRequested,
    VoterChangeRequested,
)
from hyperscale.ledger.group_clock import GroupClocks, TimeSource
from hyperscale.ledger.machine import Machine
from hyperscale.ledger.proposals import ProposalQueue
from hyperscale.ledger.records import (
    EntryClock,
    MachineCommand,
    Record,
    StateDigest,
    encode_record,
)
from hyperscale.ledger.replica import DIGEST_EVERY, AppliedEntry, LogSize, Replica
from hyperscale.ledger.store import DiskWrites, LedgerDisk
from hyperscale.ledger.topology import Topology
from hyperscale.sansio.core import Tick

MANAGEMENT: Final = 0
"""The group whose state is the topology."""
FOLLOWED: Final = "followed"
"""Key in the store's meta: the index of group 0 up to which groups were opened and left."""
TICK_S: Final = 0.05


class LedgerLimits(Struct, frozen=True, kw_only=True):
    """When elections start and snapshots are taken, and how much may wait."""

    election_ticks: int = 20
    heartbeat_ticks: int = 5
    snapshot_entries: int = 10_000
    snapshot_bytes: int = 64 * 1024 * 1024
    trailing_entries: int = 1_000
    pending_bytes: int = 8 * 1024 * 1024
    pending_proposals: int = 10_000


CommittedEntry = tuple[int, int, int, int, bytes, object]
"""Group, index, term, token, data, and the voters from then on if the entry changed them."""


class PassOutput(Struct):
    """The effects of one pass, collected by kind."""

    sends: list[LedgerEffect] = field(default_factory=list)
    answers: list[tuple[int, ProposalResult | None]] = field(default_factory=list)
    changes: list[LedgerEffect] = field(default_factory=list)
    """What happened to groups, before the entries of the pass are announced."""
    entries: list[AppliedEntry] = field(default_factory=list)
    led_now: dict[int, int] = field(default_factory=dict)
    is_topology_new: bool = False

    def fail(self, tokens: Iterable[int], failure: ProposalFailure) -> None:
        self.answers.extend((token, failure) for token in tokens)

    def effects(self) -> list[LedgerEffect]:
        effects = self.sends
        if self.answers:
            effects.append(AnswerRequests(self.answers))
        effects += self.changes
        if self.entries:
            effects.append(AnnounceEntries(self.entries))
        if self.is_topology_new:
            effects.append(AnnounceTopology())
        effects += [AnnounceLeadership(group, term) for group, term in self.led_now.items()]
        return effects


class LedgerCore:
    """All groups of one node."""

    def __init__(
        self,
        number: int,
        store: LedgerDisk,
        *,
        make_machine: Callable[[int], Machine],
        seed: int,
        limits: LedgerLimits | None = None,
        images: Iterable[GroupImage] = (),
        followed: int = 0,
        first_tick_at_s: float = 0.0,
    ) -> None:
        self.limits = limits or LedgerLimits()
        self.clock = EntryClock()
        self.group_clocks = GroupClocks()
        self.topology = Topology()
        """The state of group 0 as far as this node has applied it."""
        self.replicas: dict[int, Replica] = {}
        self.roles: dict[int, GroupRole] = {}
        self.leading: dict[int, int] = {}
        """Groups this node leads, with their terms, once it has applied an entry of its term and
        with it everything that was committed before."""
        self.raft = MultiRaft(number, seed, self.limits.election_ticks, self.limits.heartbeat_ticks)
        """For reads only, outside of this class."""
        self.proposals = ProposalQueue(number, seed)
        self.disk = DiskWrites(store)
        self._make_machine = make_machine
        self._differing: set[int] = set()  # groups whose replica must be replaced by the leader's
        self._followed = followed
        # A crash may have come between a topology and the groups it asks for: look at it again.
        self._is_topology_new = True
        self._tick_at_s = first_tick_at_s
        for image in images:
            self._open(image)

    def end(self) -> None:
        """Free the native core. Call it last, on the thread that made the core: the garbage
        collector might free it on another."""
        del self.raft

    # -- reads ----------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """The number of this node in its ledger."""
        return self.raft.node

    def is_leader(self, group: int) -> bool:
        role = self.roles.get(group)
        return role is not None and role.is_leader

    def leader_of(self, group: int) -> int | None:
        """Return the number of the leader as this node knows it."""
        role = self.roles.get(group)
        return None if role is None else role.leader

    def time_ms(self, group: int, now_s: float) -> int:
        """Return the time of a group: milliseconds since it was created (`group_clock`)."""
        if group not in self.replicas:
            return 0  # what is proposed to a group that was left fails
        clock = self.group_clocks.get(group)
        if clock.source is TimeSource.NOTHING:
            self._observe_time(group, 0)
        return clock.read_ms(now_s)

    def wake_at_s(self) -> float | None:
        return self._tick_at_s

    # -- events ---------------------------------------------------------------------------

    def handle(self, event: LedgerEvent | Tick, *, now_s: float) -> list[LedgerEffect]:
        self.group_clocks.now_s = now_s
        match event:
            case BatchEnded():
                return self._run_pass(event.wall_ms)
            case MessagesReceived():
                try:
                    self.raft.step(event.sender, event.packed)  # skips groups that are not here
                except (LedgerOutdatedError, LedgerBrokenError):
                    raise  # not the fault of the message: this node must stop
                except LedgerError as error:
                    return [DropMessages(event.sender, str(error))]
            case RecordsProposed():
                for token, group, record in event.proposals:
                    self._queue(token, group, record)
            case Tick():
                self.raft.tick()
                # After a stall one tick counts, not all that were missed: messages that would
                # have kept the leader in office still wait to be read.
                self._tick_at_s = max(self._tick_at_s + TICK_S, now_s + TICK_S / 2)
            case LedgerOpened(topology=topology):
                if MANAGEMENT not in self.replicas:
                    founders = [] if topology is None else [self.number]
                    self._create(MANAGEMENT, founders, topology)
            case PeerUnreachable():
                self.raft.report_unreachable(event.peer)
            case _ if event.group in self.replicas:
                return self._handle_group_event(event)
        return []

    def _handle_group_event(self, event: GroupEvent) -> list[LedgerEffect]:
        group = event.group
        match event:
            case ReadRequested():
                self.raft.read_index(group, event.token)
            case SnapshotReceived():
                try:
                    self.raft.step_snapshot(group, event.message, event.data)
                except LedgerBrokenError:
                    raise
                except LedgerError as error:
                    return [DropMessages(None, str(error))]
            case SnapshotDelivered():
                self.raft.report_snapshot(group, event.peer, event.arrived)
            case LeadershipTransferRequested():
                self.raft.transfer_leadership(group, event.target)
            case VoterChangeRequested():
                self.raft.configure(
                    group, voters=event.voters, learners=event.learners, removed=event.removed
                )
            case SnapshotRequested():
                self._take_snapshot(group)
        return []

    def _queue(self, token: int, group: int, record: Record) -> None:
        """Stamp a record and queue it for the next pass."""
        record.stamp = self.clock.next()
        if isinstance(record, MachineCommand):
            record.time_ms = self.time_ms(group, self.group_clocks.now_s)
        self.proposals.queued.setdefault(group, []).append((token, encode_record(record)))

    # -- groups ---------------------------------------------------------------------------

    def _create(
        self,
        group: int,
        founders: Sequence[int],
        machine: Machine | None = None,
        key_slots: Iterable[int] = (),
    ) -> None:
        """Create a group as one of its founders, or empty: its leader will send a snapshot."""
        image = GroupImage.empty(group)
        if self.number in founders:
            first = machine or self._make_machine(group)
            replica = Replica(group, first, key_slots)
            image = GroupImage.first(group, founders, replica.snapshot())
        self.disk.store.create(image)
        self._open(image)

    def _open(self, image: GroupImage) -> None:
        group = image.group
        machine = self.topology if group == MANAGEMENT else self._make_machine(group)
        replica = Replica(group, machine)
        index, _, _, data = image.snapshot
        if data:
            replica.restore(index, data)
        self.replicas[group] = replica
        self.group_clocks.open(group, image.entries[-1][0] if image.entries else index)
        self.raft.open(image)

    def _leave(self, group: int, out: PassOutput) -> None:
        """Close a group and destroy its log; its history stays."""
        self.raft.close(group)
        self._differing.discard(group)
        del self.replicas[group]
        self.group_clocks.close(group)
        self.roles.pop(group, None)
        self._stop_leading(group, out)
        self.proposals.reads.pop(group, None)
        out.fail(self.proposals.waiting.pop(group, ()), ProposalFailure.UNKNOWN)
        self.disk.store.destroy(group)

    def _follow_topology(self, out: PassOutput) -> bool:
        """Open the groups this node should vote in and leave the others. Return True if any
        was opened or left.

        A node that restarts applies an old topology first. Acting on it, the node would leave
        groups it has joined since, or create groups anew that it has left, and forget its votes
        there. So the index up to which the topology was followed is kept on disk.
        """
        if not self._is_topology_new:
            return False
        self._is_topology_new = False
        out.is_topology_new = True
        replica = self.replicas.get(MANAGEMENT)
        if replica is None or replica.applied < self._followed:
            return False
        changed = [
            record
            for record in self.topology.groups.values()
            if (self.number in record.all_voters) != (record.number in self.replicas)
        ]
        if changed:
            self._followed = replica.applied
            self.disk.store.put_meta(FOLLOWED, str(self._followed).encode())
        for record in changed:
            group = record.number
            if group in self.replicas:
                self._leave(group, out)
            else:
                self._create(group, record.founders, key_slots=record.key_slots)
        return bool(changed)

    # -- one pass -------------------------------------------------------------------------

    def _run_pass(self, wall_ms: int) -> list[LedgerEffect]:
        """Do everything that can be done now, for all groups."""
        self.clock.now_ms = wall_ms
        self.disk.confirm(self.raft)
        out = PassOutput()
        has_more = True
        while has_more:
            self._propose_queued(out)
            turn = self.raft.turn()
            self._take(turn, out)
            has_more = turn.more or bool(self.proposals.queued) or self._follow_topology(out)
        self.proposals.is_full = (
            len(self.proposals) >= self.limits.pending_proposals
            or self.disk.store.pending_bytes >= self.limits.pending_bytes
        )
        return out.effects()

    def _propose_queued(self, out: PassOutput) -> None:
        queued, self.proposals.queued = self.proposals.queued, {}
        for group, entries in queued.items():
            if group in self.replicas and self.raft.propose(group, entries):
                term = self.raft.standing(group)[1]
                waiting = self.proposals.waiting.setdefault(group, {})
                waiting.update(dict.fromkeys([token for token, _ in entries], term))
            else:
                out.fail((token for token, _ in entries), ProposalFailure.SUPERSEDED)

    def _take(self, turn: Turn, out: PassOutput) -> None:
        """Take over what one turn of the native core decided."""
        out.sends += [SendMessages(peer, packed) for peer, packed in turn.outbox]
        out.sends += [SendSnapshotOffer(*offer) for offer in turn.snapshots]
        if (write := turn.write) is not None:
            self.disk.write(write)
        for group, term, role, leader, _, _ in turn.standings:
            self.roles[group] = GroupRole(group, term, RaftRole(role), leader or None)
            out.changes.append(self.roles[group])
            if role != RaftRole.LEADER or self.leading.get(group) != term:
                self._stop_leading(group, out)
        for group, index, data in turn.restored:
            self.replicas[group].restore(index, data)
            self._observe_time(group, index)
            self._differing.discard(group)
            out.fail(self.proposals.waiting.pop(group, ()), ProposalFailure.UNKNOWN)
            out.changes.append(AnnounceRestore(group))
            self._is_topology_new |= group == MANAGEMENT
        committed = turn.committed
        for entry in committed:
            self._apply(entry, out)
        changed = {each[0] for each in committed}
        self.disk.add_history(self.replicas[group] for group in changed)
        self._is_topology_new |= MANAGEMENT in changed
        for group, token, index in turn.reads:
            self.proposals.reads.setdefault(group, []).append((index, token))
        for group, reads in self.proposals.reads.items():
            applied = self.replicas[group].applied
            out.answers += [(token, None) for index, token in reads if index <= applied]
            reads[:] = [read for read in reads if read[0] > applied]
        for group in self._differing:
            self._repair(group)
        limits = self.limits
        wanted = set(turn.snapshots_wanted)
        for group in changed:
            replica = self.replicas[group]
            is_long = replica.log.entries >= limits.snapshot_entries
            if is_long or replica.log.bytes >= limits.snapshot_bytes:
                wanted.add(group)
        for group in wanted:
            self._take_snapshot(group)

    def _apply(self, committed: CommittedEntry, out: PassOutput) -> AppliedEntry:
        group, index, term, token, data, _ = committed
        replica = self.replicas[group]
        if term > replica.term:
            lost = self.proposals.take_superseded(group, term)
            out.fail(lost, ProposalFailure.SUPERSEDED)
            role = self.roles.get(group)
            if role is not None and role.is_leader and role.term == term:
                self.leading[group] = out.led_now[group] = term
        before_ms, before_time_ms = replica.last_ms, replica.time_ms
        entry = replica.apply(index, term, data)
        if replica.last_ms != before_ms:
            self.clock.observe_ms(replica.last_ms)
        if replica.time_ms != before_time_ms:
            self._observe_time(group, index)
        if entry.reply is not None:
            out.entries.append(entry)
        elif entry.is_digest_different:
            out.changes.append(ReportMismatch(group))
            self._differing.add(group)
        waiting = self.proposals.waiting.get(group)
        if waiting and waiting.get(token) == term:
            del waiting[token]
            out.answers.append((token, entry))
        if index % DIGEST_EVERY == 0 and self.is_leader(group):
            digest = StateDigest(0, index, replica.digests[index])
            self._queue(self.proposals.new_token(), group, digest)
        return entry

    def _observe_time(self, group: int, index: int) -> None:
        replica = self.replicas[group]
        age_s = (self.clock.now_ms - replica.last_ms) / 1000
        self.group_clocks.applied(group, index, replica.time_ms, age_s=age_s)

    def _stop_leading(self, group: int, out: PassOutput) -> None:
        was_announced = out.led_now.pop(group, None) is None
        if self.leading.pop(group, None) is not None and was_announced:
            out.changes.append(AnnounceLeadership(group, None))

    def _repair(self, group: int) -> None:
        """Have a replica that differs from the others replaced: it must not lead, and needs a
        snapshot of the leader."""
        if not self.is_leader(group):
            with suppress(LedgerError):  # no leader is known, or it was asked: tried again
                self.raft.request_snapshot(group)
            return
        voters = self.raft.seats(group)[0]
        if voters == [self.number]:
            raise InvariantError(
                f"group {group}: the state of its only voter is not what its log says"
            )
        for number, _, is_heard in self.raft.progress(group):
            if is_heard and number in voters and number != self.number:
                self.raft.transfer_leadership(group, number)
                return

    def _take_snapshot(self, group: int) -> None:
        """Write a snapshot of a group and drop the log before it."""
        replica = self.replicas[group]
        image, keep_from = self.raft.compact(
            group, replica.applied, replica.snapshot(), self.limits.trailing_entries
        )
        self.disk.store.save_snapshot(group, image, keep_from)
        replica.log = LogSize()
