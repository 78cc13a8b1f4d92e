"""One node's part in all its groups: proposals in, messages and writes out, entries applied.

A host feeds ticks, messages, proposals and the store's progress, then calls `turn` and does
what the returned `Effects` say. Consensus runs in native code, batched over all groups;
this module applies what was committed, answers who proposed it, takes snapshots, and opens and
closes groups as group 0 says. No socket, clock or task: the simulator runs it as it is.
"""

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from hyperscale._native import GroupImage, LedgerError, MultiRaft, Turn
from hyperscale.errors import InvariantError
from hyperscale.ledger.machine import Machine
from hyperscale.ledger.records import (
    Checked,
    Command,
    Record,
    decode_record,
    encode_record,
)
from hyperscale.ledger.replica import DIGEST_EVERY, EntryResult, Replica
from hyperscale.ledger.stamps import StampError, Stamps
from hyperscale.ledger.store import Store
from hyperscale.ledger.topology import GroupRecord, GroupState, Topology

MANAGEMENT: Final = 0
"""The group whose state is the topology."""
FOLLOWED: Final = "followed"
"""What the store is asked to remember for the next life: see `follow_topology`."""
_TOKEN_BITS = 48


class Limits(Struct, frozen=True, kw_only=True):
    """When snapshots are taken, and how much may wait."""

    election_ticks: int = 20
    heartbeat_ticks: int = 5
    snapshot_entries: int = 10_000
    snapshot_bytes: int = 64 * 1024 * 1024
    trailing_entries: int = 1_000
    pending_bytes: int = 8 * 1024 * 1024
    pending_proposals: int = 10_000


class Standing(Struct, frozen=True):
    """Where this node stands in a group."""

    group: int
    term: int
    role: str
    leader: int
    """Its number; 0: nobody known."""

    @property
    def is_leader(self) -> bool:
        return self.role == "leader"


class Superseded(Struct, frozen=True):
    """A proposal that will never be committed: another leader's log took its place."""


class Unknown(Struct, frozen=True):
    """A proposal that may have been committed: what followed it here was a snapshot."""


class SnapshotOffer(Struct, frozen=True):
    """A snapshot a peer needs; it gets the message and pulls the data."""

    peer: int
    group: int
    index: int
    message: bytes


class _Entry(NamedTuple):
    place: int
    term: int
    token: int
    data: bytes


class AppliedEntry(Struct, frozen=True):
    """A committed command that was applied to a group's state machine."""

    group: int
    index: int
    term: int
    event: object
    """The decoded command; None if it could not be decoded."""
    reply: object


class Effects(Struct):
    """What the host has to do after a turn."""

    outbox: list[tuple[int, bytes]] = field(default_factory=list)
    offers: list[SnapshotOffer] = field(default_factory=list)
    answers: list[tuple[int, EntryResult | Superseded | Unknown]] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    """Reads whose replica is fresh enough now."""
    standings: list[Standing] = field(default_factory=list)
    applied: list[AppliedEntry] = field(default_factory=list)
    restored: list[int] = field(default_factory=list)
    """Groups whose state was replaced by a snapshot: rows of their history may be missing."""
    mismatches: list[int] = field(default_factory=list)
    """Groups found to differ from their leader; a snapshot is on its way."""
    topology_changed: bool = False


class LedgerCore:
    """All groups this node takes part in."""

    def __init__(
        self,
        number: int,
        store: Store,
        *,
        make_machine: Callable[[int], Machine],
        slot_of: Callable[[str], int],
        seed: int,
        limits: Limits | None = None,
        images: Iterable[GroupImage] = (),
        followed: int = 0,
    ) -> None:
        self.number = number
        self.limits = limits or Limits()
        self.stamps = Stamps()
        self.replicas: dict[int, Replica] = {}
        self.standings: dict[int, Standing] = {}
        self.mismatches_total = 0
        self.ignored_stamps_total = 0
        self.durable = 0
        """The highest ticket no crash can undo, as of the last turn."""
        self.history_ticket = 0
        """Of the last rows given to the store."""
        self.raft = MultiRaft(number, seed, self.limits.election_ticks, self.limits.heartbeat_ticks)
        self._store = store
        self._make_machine = make_machine
        self.slot_of = slot_of
        self._now_ms = 0
        # Answers to a former life may still be under way: its tokens must be others.
        self._next_token = (number << _TOKEN_BITS) + (seed & ((1 << (_TOKEN_BITS - 1)) - 1))
        self._queued: dict[int, list[tuple[int, bytes]]] = {}
        self._waiting: dict[int, dict[int, int]] = {}  # group -> token -> term of the proposal
        self._writes: deque[tuple[int, int]] = deque()  # (ticket, batch number)
        self._reads: dict[int, list[tuple[int, int]]] = {}  # group -> (index, token)
        self._since_snapshot: dict[int, list[int]] = {}  # group -> [entries, bytes]
        self._astray: set[int] = set()  # groups whose replica must be replaced by the leader's
        self._followed = followed
        self._is_new = True
        self._refused: list[tuple[int, EntryResult | Superseded | Unknown]] = []
        for image in images:
            self._open(image)

    def end(self) -> None:
        """The last call. The native part must go on the thread that made it; left to the
        garbage collector, it would go on whichever happens to collect."""
        del self.raft

    # -- groups ---------------------------------------------------------------------------

    @property
    def topology(self) -> Topology:
        """Group 0's state as far as it has come here; empty before that."""
        replica = self.replicas.get(MANAGEMENT)
        if replica is None:
            return Topology()
        machine = replica.machine
        assert isinstance(machine, Topology)
        return machine

    def found(self, machine: Topology) -> None:
        """Begins a tier: this node is the only voter of group 0."""
        replica = Replica(MANAGEMENT, machine, self.slot_of)
        self._create(GroupImage.first(MANAGEMENT, [self.number], replica.snapshot()))

    def join(self, group: int) -> None:
        """Takes part in a group from nothing: its leader will send a snapshot."""
        self._create(GroupImage.empty(group))

    def _create(self, image: GroupImage) -> None:
        self._store.create(image)
        self._open(image)

    def _open(self, image: GroupImage) -> None:
        group = image.group
        machine = Topology() if group == MANAGEMENT else self._make_machine(group)
        replica = Replica(group, machine, self.slot_of)
        index, _, _, data = image.snapshot
        if data:
            replica.restore(index, data)
        self.replicas[group] = replica
        self._since_snapshot[group] = [0, 0]
        self.raft.open(image)

    def leave(self, group: int) -> None:
        """Takes part no longer, and forgets the group's log (its history stays)."""
        self.raft.close(group)
        self._astray.discard(group)
        del self.replicas[group]
        self.standings.pop(group, None)
        self._queued.pop(group, None)
        self._since_snapshot.pop(group)
        self._reads.pop(group, None)
        for token in self._waiting.pop(group, {}):
            self._refused.append((token, Unknown()))
        self._store.destroy(group)

    def follow_topology(self) -> None:
        """Opens the groups this node should vote in, leaves those it is out of.

        A node that restarts comes upon the topology of some time ago first. It must not act on
        that: it would leave groups it has come to vote in since, or begin groups anew that it
        has left, and forget what it promised in them. So it remembers how far it has followed.
        """
        replica = self.replicas.get(MANAGEMENT)
        if replica is None or replica.applied < self._followed:
            return
        changed = [
            record
            for record in self.topology.groups.values()
            if self._is_wanted(record) != (record.number in self.replicas)
        ]
        if changed:
            self._followed = replica.applied
            self._store.put_meta(FOLLOWED, str(self._followed).encode())
        for record in changed:
            group = record.number
            if group in self.replicas:
                self.leave(group)
            elif self.number in record.founders:
                born = Replica(group, self._make_machine(group), self.slot_of, record.slots)
                self._create(GroupImage.first(group, record.founders, born.snapshot()))
            else:
                self.join(group)

    def _is_wanted(self, record: GroupRecord) -> bool:
        is_seated = self.number in record.voters or self.number in record.settled
        return is_seated and record.state is not GroupState.DESTROYED

    def may_act(self, group: int) -> bool:
        """Whether this node leads a group and has applied all that was committed before it did."""
        standing = self.standings.get(group)
        return (
            standing is not None
            and standing.is_leader
            and self.replicas[group].term == standing.term
        )

    def is_leader(self, group: int) -> bool:
        standing = self.standings.get(group)
        return standing is not None and standing.is_leader

    def leader_of(self, group: int) -> int:
        """The number of the leader as this node knows it; 0: none, or no part in the group."""
        standing = self.standings.get(group)
        return 0 if standing is None else standing.leader

    # -- input ----------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether more waits for disk or quorum than should: refuse, and say when to retry."""
        waiting = sum(map(len, self._waiting.values())) + sum(map(len, self._queued.values()))
        return (
            waiting >= self.limits.pending_proposals
            or self._store.pending_bytes >= self.limits.pending_bytes
        )

    def token(self) -> int:
        self._next_token += 1
        return self._next_token

    def stamp(self) -> int:
        """For a record that is about to be proposed."""
        return self.stamps.next(self._now_ms)

    def propose(self, group: int, record: Record) -> int:
        """Queues a record for the next turn; its token comes back with the answer."""
        token = self.token()
        self._queued.setdefault(group, []).append((token, encode_record(record)))
        return token

    def propose_encoded(self, group: int, record: bytes) -> int:
        """The same for a record another node has encoded. Its stamp counts for nothing: time in a
        group is its leader's."""
        return self.propose(group, replace(decode_record(record), stamp=self.stamp()))

    def propose_command(self, group: int, key: str, body: bytes) -> int:
        return self.propose(group, Command(self.stamp(), key, body))

    def read(self, group: int) -> int:
        """Asks consensus from where on a read is linearizable; the token comes back when this
        node's replica is that far. Not answered while there is no leader: ask again."""
        token = self.token()
        self.raft.read_index(group, token)
        return token

    def received(self, sender: int, packed: bytes) -> None:
        """Messages of a peer; `LedgerError` if they are none."""
        self.raft.step(sender, packed)  # of groups that are not here it says so; nobody minds

    def received_snapshot(self, group: int, message: bytes, data: bytes) -> None:
        if group in self.replicas:
            self.raft.step_snapshot(group, message, data)

    def tick(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self.raft.tick()

    # -- output ---------------------------------------------------------------------------

    def turn(self, now_ms: int) -> Effects:
        """Does all that can be done now."""
        self._now_ms = now_ms
        effects = Effects(answers=self._refused, topology_changed=self._is_new)
        self._refused = []
        self._is_new = False  # from the first turn on: a crash may have come between a topology
        # and the groups it asks for
        self.durable = self._store.durable()
        while self._writes and self._writes[0][0] <= self.durable:
            self.raft.persisted(self._writes.popleft()[1])
        self._flush_queued(effects)
        while True:
            turn = self.raft.turn()
            self._take(turn, effects)
            if not turn.more and not self._queued:
                return effects
            self._flush_queued(effects)

    def _flush_queued(self, effects: Effects) -> None:
        queued, self._queued = self._queued, {}
        for group, entries in queued.items():
            if group not in self.replicas or not self.raft.propose(group, entries):
                effects.answers.extend((token, Superseded()) for token, _ in entries)
                continue
            waiting = self._waiting.setdefault(group, {})
            term = self.raft.standing(group)[1]
            for token, _ in entries:
                waiting[token] = term

    def _take(self, turn: Turn, effects: Effects) -> None:
        effects.outbox.extend(turn.outbox)
        effects.offers.extend(SnapshotOffer(*offer) for offer in turn.snapshots)
        if (write := turn.write) is not None:
            self._writes.append((self._store.write(write), write.number))
        for group, term, role, leader, _, _ in turn.standings:
            standing = Standing(group, term, role, leader)
            self.standings[group] = standing
            effects.standings.append(standing)
        for group, index, data in turn.restored:
            replica = self.replicas[group]
            replica.restore(index, data)
            self._since_snapshot[group] = [0, 0]
            self._astray.discard(group)
            effects.answers.extend((token, Unknown()) for token in self._waiting.pop(group, {}))
            effects.restored.append(group)
            effects.topology_changed |= group == MANAGEMENT
        if committed := turn.committed:
            for group, index, term, token, data, _ in committed:
                entry = _Entry(index, term, token, data)
                self._apply(self.replicas[group], entry, effects)
            self._keep_history()
        for group, token, index in turn.reads:
            self._reads.setdefault(group, []).append((index, token))
        self._answer_reads(effects)
        for group in self._astray:
            self._seek_repair(group)
        for group in turn.snapshots_wanted:
            self.take_snapshot(group)
        for group in {each[0] for each in committed}:
            entries, size = self._since_snapshot[group]
            if entries >= self.limits.snapshot_entries or size >= self.limits.snapshot_bytes:
                self.take_snapshot(group)

    def _apply(self, replica: Replica, entry: _Entry, effects: Effects) -> None:
        index, term, token, data = entry
        group = replica.group
        waiting = self._waiting.get(group)
        if waiting and term > replica.term:
            # A leader of a later term has spoken: what was proposed before and is not in its
            # log by now never will be.
            lost = [own for own, proposed in waiting.items() if proposed < term]
            for own in lost:
                del waiting[own]
                effects.answers.append((own, Superseded()))
        outcome = replica.apply(index, term, data)
        since = self._since_snapshot[group]
        since[0] += 1
        since[1] += len(data)
        if data:
            self._note(replica, outcome, effects)
        if waiting and waiting.get(token) == term:
            del waiting[token]
            effects.answers.append((token, outcome))
        if index % DIGEST_EVERY == 0 and self.is_leader(group):
            self.propose(group, Checked(self.stamp(), index, replica.digests[index]))

    def _note(self, replica: Replica, outcome: EntryResult, effects: Effects) -> None:
        group = replica.group
        try:
            self.stamps.observe(replica.last_ms << 16, self._now_ms)
        except StampError:
            self.ignored_stamps_total += 1
        if group == MANAGEMENT:
            effects.topology_changed = True
        if outcome.reply is not None:
            effects.applied.append(
                AppliedEntry(group, outcome.index, replica.term, outcome.event, outcome.reply)
            )
        if outcome.is_digest_different:
            self.mismatches_total += 1
            effects.mismatches.append(group)
            self._astray.add(group)

    def _seek_repair(self, group: int) -> None:
        """A replica that went astray must not lead, and needs the leader's state for its own."""
        if not self.is_leader(group):
            with suppress(LedgerError):  # no leader is known, or it was asked: tried again
                self.raft.request_snapshot(group)
            return
        voters = self.raft.seats(group)[0]
        others = [n for n, _, is_heard in self.raft.progress(group) if is_heard and n in voters]
        if voters == [self.number]:
            raise InvariantError(f"group {group}: its only voter is not what its log says")
        for number in others:
            if number != self.number:
                self.raft.transfer_leadership(group, number)
                return

    def _answer_reads(self, effects: Effects) -> None:
        for group, reads in self._reads.items():
            applied = self.replicas[group].applied
            effects.reads.extend(token for index, token in reads if index <= applied)
            reads[:] = [read for read in reads if read[0] > applied]

    def _keep_history(self) -> None:
        for replica in self.replicas.values():
            if replica.history:
                self.history_ticket = self._store.add_history(replica.history)
                replica.history = []

    def take_snapshot(self, group: int) -> None:
        """Keeps the state of now and lets the log before it go."""
        replica = self.replicas[group]
        image, keep_from = self.raft.compact(
            group, replica.applied, replica.snapshot(), self.limits.trailing_entries
        )
        self._store.save_snapshot(group, image, keep_from)
        self._since_snapshot[group] = [0, 0]
