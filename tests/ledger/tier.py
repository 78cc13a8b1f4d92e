"""A small tier without faults or time: every message arrives at once, every write is synced."""

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from hyperscale.jobs.committed.events import Reply, encode
from hyperscale.jobs.committed.keys import slot_of
from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.ledger.core import FOLLOWED, Effects, LedgerCore, Limits, Superseded, Unknown
from hyperscale.ledger.machine import Machine
from hyperscale.ledger.replica import EntryResult
from tests.jobs.builders import plan, submission, workflow
from tests.simulation.ledger.schedules import founded
from tests.simulation.ledger.store import CrashableStore

NOW_MS = 1_700_000_000_000
LIMITS = Limits(election_ticks=6, heartbeat_ticks=2)


class SmallTier:
    """Cores by number. `cut` nodes hear and say nothing."""

    def __init__(
        self,
        nodes: int = 3,
        groups: int = 1,
        *,
        limits: Limits = LIMITS,
        machine: Callable[[str, int], Machine] = JobMachine,
    ) -> None:
        self.limits = limits
        self.machine = machine
        self.now_ms = NOW_MS
        self.cut: set[int] = set()
        self.stores: dict[int, CrashableStore] = {}
        self.cores: dict[int, LedgerCore] = {}
        self.answers: dict[int, EntryResult | Superseded | Unknown] = {}
        self.reads: set[int] = set()
        self.effects: list[tuple[int, Effects]] = []
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
            slot_of=slot_of,
            seed=Random(number * 1_000 + store.syncs).getrandbits(63),
            limits=self.limits,
            images=store.images(),
            followed=int(store.meta.get(FOLLOWED, b"0")),
        )
        if 0 not in core.replicas:
            core.join(0)
        self.cores[number] = core
        return core

    def crash(self, number: int) -> None:
        self.stores[number].crash(keeps_sync=False)
        del self.cores[number]

    def settle(self, rounds: int = 200) -> None:
        """Until nobody has anything to say."""
        for _ in range(rounds):
            busy = [self._turn(number) for number in tuple(self.cores)]
            if not any(busy):
                return

    def _turn(self, number: int) -> bool:
        core, store = self.cores[number], self.stores[number]
        effects = core.turn(self.now_ms)
        if effects.topology_changed:
            core.follow_topology()
        self.effects.append((number, effects))
        self.answers.update(effects.answers)
        self.reads.update(effects.reads)
        is_busy = bool(effects.outbox or effects.offers or effects.topology_changed)
        for peer, packed in effects.outbox:
            if peer in self.cores and not {peer, number} & self.cut:
                self.cores[peer].received(number, packed)
        for offer in effects.offers:
            data = core.raft.snapshot_data(offer.group, offer.index)
            arrives = peer_is_there(self, offer.peer, number) and data is not None
            if arrives and data is not None:
                self.cores[offer.peer].received_snapshot(offer.group, offer.message, data)
            core.raft.report_snapshot(offer.group, offer.peer, arrives)
        if store.wants_sync:
            store.begin_sync()
            store.end_sync()
            is_busy = True
        return is_busy

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.now_ms += 50
            for core in self.cores.values():
                core.tick(self.now_ms)
            self.settle()

    def elect(self, group: int, number: int) -> LedgerCore:
        """Makes a node the leader of a group."""
        core = self.cores[number]
        for _ in range(40):
            if core.may_act(group):
                return core
            leader = next((c for c in self.cores.values() if c.is_leader(group)), None)
            if leader is not None and leader.number not in self.cut:
                leader.raft.transfer_leadership(group, number)
            else:
                core.raft.campaign(group)
            self.settle()
            self.tick(3)
        raise AssertionError(f"node {number} does not come to lead group {group}")

    def commit(self, number: int, group: int, body: bytes, key: str = "") -> Any:
        """Has something committed by a leader, and returns what became of it."""
        token = self.cores[number].propose_command(group, key, body)
        self.settle()
        return self.answers.get(token)

    def digests(self, group: int, numbers: Iterable[int] | None = None) -> set[bytes]:
        chosen = self.cores if numbers is None else numbers
        return {self.cores[number].replicas[group].digest() for number in chosen}


def peer_is_there(tier: SmallTier, peer: int, number: int) -> bool:
    return peer in tier.cores and not {peer, number} & tier.cut


def submit(key: str, payload: str = "Load") -> bytes:
    return encode(submission(key, plan(workflow(payload))))


def reply_of(outcome: object) -> Reply:
    assert isinstance(outcome, EntryResult), outcome
    assert isinstance(outcome.reply, Reply), outcome
    return outcome.reply
