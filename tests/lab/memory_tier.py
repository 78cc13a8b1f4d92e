"""A small tier without faults or time: every message arrives at once, every write is synced."""

from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from hyperscale.jobs.committed.events import Reply, encode
from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.ledger.core import FOLLOWED, LedgerCore, LedgerLimits
from hyperscale.ledger.core_events import (
    AnnounceRestore,
    AnswerRequests,
    BatchEnded,
    LeadershipTransferRequested,
    LedgerEffect,
    LedgerEvent,
    LedgerOpened,
    MessagesReceived,
    ProposalResult,
    ReadRequested,
    RecordsProposed,
    ReportMismatch,
    SendMessages,
    SendSnapshotOffer,
    SnapshotDelivered,
    SnapshotReceived,
)
from hyperscale.ledger.machine import Machine
from hyperscale.ledger.records import MachineCommand, Record
from hyperscale.ledger.replica import AppliedEntry
from hyperscale.sansio.core import Tick
from tests.lab.job_builders import plan, submission, workflow
from tests.simulation.ledger.schedules import founded
from tests.simulation.ledger.store import CrashableStore

NOW_MS = 1_700_000_000_000
LIMITS = LedgerLimits(election_ticks=6, heartbeat_ticks=2)


class MemoryTier:
    """Cores by node number. Messages from and to `cut` nodes are dropped."""

    def __init__(
        self,
        nodes: int = 3,
        groups: int = 1,
        *,
        limits: LedgerLimits = LIMITS,
        machine: Callable[[str, int], Machine] = JobMachine,
    ) -> None:
        self.limits = limits
        self.machine = machine
        self.now_ms = NOW_MS
        self.cut: set[int] = set()
        self.stores: dict[int, CrashableStore] = {}
        self.cores: dict[int, LedgerCore] = {}
        self.answers: dict[int, ProposalResult | None] = {}
        """By token; None: a read may be answered."""
        self.effects: list[tuple[int, LedgerEffect]] = []
        self.skews_ms: Counter[int] = Counter()  # of the wall clocks of nodes
        self.origins_s: Counter[int] = Counter()  # of their monotonic clocks
        self.mismatches: Counter[int] = Counter()
        for number, store in enumerate(
            founded([f"n{n}" for n in range(nodes)], groups).values(), 1
        ):
            self.stores[number] = store
            self.start(number)
        self.settle()

    def start(self, number: int) -> LedgerCore:
        store = self.stores[number]
        core = LedgerCore(
            number,
            store,
            make_machine=lambda group: self.machine("dc", group),
            seed=Random(number * 1_000 + store.syncs).getrandbits(63),
            limits=self.limits,
            images=store.images(),
            followed=int(store.meta.get(FOLLOWED, b"0")),
        )
        self.cores[number] = core
        self.feed(number, LedgerOpened())
        return core

    def crash(self, number: int) -> None:
        self.stores[number].crash(keeps_sync=False)
        del self.cores[number]

    def settle(self, rounds: int = 200) -> None:
        """Run passes until no core sends a message."""
        for _ in range(rounds):
            busy = [self._turn(number) for number in tuple(self.cores)]
            if not any(busy):
                return

    def _turn(self, number: int) -> bool:
        core, store = self.cores[number], self.stores[number]
        is_busy = False
        for effect in core.handle(
            BatchEnded(self.now_ms + self.skews_ms[number]), now_s=self.clock_s(number)
        ):
            self.effects.append((number, effect))
            match effect:
                case AnswerRequests(answers=answers):
                    self.answers.update(answers)
                case ReportMismatch():
                    self.mismatches[number] += 1
                case SendMessages(peer=peer, packed=packed):
                    is_busy = True
                    if peer_is_there(self, peer, number):
                        self.feed(peer, MessagesReceived(number, packed))
                case SendSnapshotOffer():
                    is_busy = True
                    self._carry_snapshot(number, effect)
        if store.wants_sync:
            store.begin_sync()
            store.end_sync()
            is_busy = True
        return is_busy

    def _carry_snapshot(self, number: int, offer: SendSnapshotOffer) -> None:
        data = self.cores[number].raft.snapshot_data(offer.group, offer.index)
        arrives = peer_is_there(self, offer.peer, number) and data is not None
        if arrives and data is not None:
            self.feed(offer.peer, SnapshotReceived(offer.group, offer.message, data))
        self.feed(number, SnapshotDelivered(offer.group, offer.peer, arrives))

    @property
    def now_s(self) -> float:
        return self.now_ms / 1_000

    def clock_s(self, number: int) -> float:
        """Return the reading of a node's monotonic clock."""
        return self.now_s + self.origins_s[number]

    def feed(self, number: int, event: LedgerEvent | Tick) -> None:
        self.cores[number].handle(event, now_s=self.clock_s(number))

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.now_ms += 50
            for number in self.cores:
                self.feed(number, Tick())
            self.settle()

    def elect(self, group: int, number: int) -> LedgerCore:
        """Make a node the leader of a group."""
        core = self.cores[number]
        for _ in range(40):
            if group in core.leading:
                return core
            leader = next((c for c in self.cores.values() if c.is_leader(group)), None)
            if leader is not None and leader.number not in self.cut:
                self.feed(leader.number, LeadershipTransferRequested(group, number))
            else:
                core.raft.campaign(group)
            self.settle()
            self.tick(3)
        raise AssertionError(f"node {number} does not come to lead group {group}")

    def commit(self, number: int, group: int, body: bytes, key: str = "") -> Any:
        """Propose a command at a leader and return its result."""
        token = self.propose(number, group, body, key)
        self.settle()
        return self.answers.get(token)

    def propose(self, number: int, group: int, body: bytes, key: str = "") -> int:
        return self.propose_record(number, group, MachineCommand(0, key, body))

    def propose_record(self, number: int, group: int, record: Record) -> int:
        token = self.cores[number].proposals.new_token()
        self.feed(number, RecordsProposed([(token, group, record)]))
        return token

    def read(self, number: int, group: int) -> int:
        token = self.cores[number].proposals.new_token()
        self.feed(number, ReadRequested(token, group))
        return token

    def was_restored(self, number: int, group: int) -> bool:
        return (number, AnnounceRestore(group)) in self.effects

    def digests(self, group: int, numbers: Iterable[int] | None = None) -> set[bytes]:
        chosen = self.cores if numbers is None else numbers
        return {self.cores[number].replicas[group].digest() for number in chosen}


def peer_is_there(tier: MemoryTier, peer: int, number: int) -> bool:
    return peer in tier.cores and not {peer, number} & tier.cut


def submit(key: str, payload: str = "Load") -> bytes:
    return encode(submission(key, plan(workflow(payload))))


def reply_of(outcome: object) -> Reply:
    assert isinstance(outcome, AppliedEntry), outcome
    assert isinstance(outcome.reply, Reply), outcome
    return outcome.reply
