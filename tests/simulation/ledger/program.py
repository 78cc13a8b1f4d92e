"""One node of a simulated tier: a real core on a crashable disk, and what a node does around it.

It does on virtual time what `hyperscale.nodes.ledger` does with sockets: turns, snapshots pulled
by whoever was offered one, commands passed on to whoever leads, strong and session reads, and
the steps of `stewardship`. Consensus messages are datagrams here, so they get lost, doubled,
late and out of order; the real links are kinder.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from hyperscale._native import LedgerError
from hyperscale.errors import HyperscaleError
from hyperscale.jobs.keys import slot_of
from hyperscale.jobs.machine import JobMachine
from hyperscale.ledger.core import (
    FOLLOWED,
    MANAGEMENT,
    Effects,
    LedgerCore,
    Limits,
    Superseded,
    Unknown,
)
from hyperscale.ledger.machine import Machine
from hyperscale.ledger.placement import Sight
from hyperscale.ledger.records import Record, decode_record, encode_record
from hyperscale.ledger.replica import Outcome
from hyperscale.ledger.stewardship import Bequeath, Commit, Decide, Request, Steps, Steward
from hyperscale.ledger.topology import (
    NO_GROUP,
    GroupDraining,
    GroupState,
    MoveBegun,
    NodeJoined,
    NodeMarked,
    NodeState,
    decode_verdict,
    encode_decision,
)
from tests.simulation import network
from tests.simulation.kernel import Host
from tests.simulation.ledger.observed import ObservedCore, Observer
from tests.simulation.ledger.store import CrashableStore

TICK_S = 0.05
PASS_S = 0.4
RETRY_S = 0.05
CALL_S = 1.5
SNAPSHOT_S = 1.0
READ_AGAIN_S = 0.25
HOPS_MAX = 3
DEAD_FACTOR = 200.0
"""A second without a process counts as so many: replacing a voter takes minutes."""

VOTE = b"\x08\x06\x10"
"""How the answer to a request for a vote begins, in the encoding of the consensus core."""

Answer = tuple[Any, ...]
"""("done", group, index, reply), ("refused", why, leader) or ("unknown",)."""
_UNKNOWN: Answer = ("unknown",)


@dataclass(slots=True)
class Command:
    """Something to be committed: a body for a machine, or one of the ledger's own records."""

    group: int
    key: str
    body: bytes
    is_record: bool = False
    hops: int = 0


@dataclass
class Tier:
    """What all nodes of a tier have in common."""

    stores: dict[str, CrashableStore]
    limits: Limits
    core: Callable[..., ObservedCore]
    observer: Observer
    machine: Callable[[str, int], Machine] = JobMachine
    sync_s: tuple[float, float] = (0.001, 0.004)
    slow_sync: float = 0.0
    """Share of syncs that take up to `slow_sync_s`."""
    slow_sync_s: float = 0.3
    down_since_s: dict[str, float] = field(default_factory=dict)
    unfit: set[str] = field(default_factory=set)
    stale_snapshots: bool = False
    acks_early: bool = False
    crash_on_vote: float = 0.0
    """Share of votes after which the voter crashes, to be back at once."""
    manages: bool = True
    """False: groups stay as they were founded."""


def show(payload: Any) -> str:
    """A datagram in short."""
    kind, number, *rest = payload
    if kind == "raft":
        return f"raft of {number}, {len(rest[0])} bytes"
    return f"offer of {number}: group {rest[0]} at {rest[1]}"


class LedgerProgram:
    """One process of a tier."""

    def __init__(self, host: Host, tier: Tier) -> None:
        self.host = host
        self.tier = tier
        self.store = tier.stores[host.address]
        if host.life > 1 and host.disk.read("kept") is None:
            self.store.wipe()  # the disk was lost, and a blank one took its place
        host.disk.write("kept", True)
        host.disk.sync()
        self.core: ObservedCore | None = None
        self.steward: Steward | None = None
        self.standings: list[Any] = []
        """Since the monitor last took them."""
        self._routes: dict[int, str] = {}
        self._answers: dict[int, Callable[[Outcome | Superseded | Unknown], None]] = {}
        self._reads: dict[int, Callable[[], None]] = {}
        self._sessions: list[tuple[int, int, Callable[[], None]]] = []
        self._calls: dict[int, Callable[[Any], None]] = {}
        self._pulling: set[int] = set()
        self._busy: dict[int, Steps] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._tick_at_s = host.world.now_s + TICK_S * host.world.rng.random()
        self._old_snapshots: dict[int, bytes] = {}
        self._has_exited = False

    # -- kernel side ----------------------------------------------------------------------

    def start(self, now_s: float) -> None:
        self.tier.down_since_s.pop(self.host.address, None)
        number = int(self.store.meta.get("number", b"0"))
        if number:
            self._open(number, now_s)
        else:
            self._join(now_s)

    def _open(self, number: int, now_s: float) -> None:
        core = self.tier.core(
            number,
            self.store,
            make_machine=lambda group: self.tier.machine("sim", group),
            slot_of=slot_of,
            seed=self.host.world.rng.getrandbits(63),
            limits=self.tier.limits,
            images=self.store.images(),
            followed=int(self.store.meta.get(FOLLOWED, b"0")),
            observer=self.tier.observer,
        )
        self.core = core
        self.steward = Steward(core, sight=self._sight, is_fit=self._is_fit, live_jobs=_live_jobs)
        if MANAGEMENT not in core.replicas:
            core.join(MANAGEMENT)
        self._turn(now_s)
        if self.tier.manages:
            self._after(PASS_S * self.host.world.rng.random(), self._pass)

    def _join(self, now_s: float) -> None:
        """Asks anyone for a number until there is one, under a name that outlives this process."""
        if "nonce" not in self.store.meta:
            if not self.store.has_failed:
                self.store.put_meta("nonce", f"{self.host.address}.{self.host.life}".encode())
                self._sync()
            self._after(0.02, lambda: self._join(now_s))
            return
        others = [a for a in self.tier.stores if a != self.host.address]
        target = self.host.world.rng.choice(sorted(others))
        nonce = self.store.meta["nonce"].decode()
        joined = NodeJoined(self.host.address, self.host.address, nonce)

        def told(answer: Answer) -> None:
            if answer[0] == "done" and not self.store.has_failed:
                number = decode_verdict(answer[3]).number
                self.store.put_meta("number", str(number).encode())
                self._sync()
                self._belong(number)
            else:
                self._after(0.2, lambda: self._join(0.0))

        command = Command(MANAGEMENT, "", encode_decision(joined))
        self._ask(target, ("op", command), told, CALL_S)

    def _belong(self, number: int) -> None:
        if "number" in self.store.meta:
            self._open(number, self.host.world.now_s)
        else:
            self._after(0.01, lambda: self._belong(number))

    def datagram(self, source: str, payload: Any, now_s: float) -> None:
        kind, number, *rest = payload
        core = self.core
        if core is None:
            return
        self._routes[number] = source
        if kind == "raft":
            try:
                core.received(number, rest[0])
            except LedgerError as error:
                if not str(error).startswith("malformed"):
                    self.host.world.fail(f"{self.host.address}: {error}")
                return  # for a node that lived here before
            self._turn(now_s)
        else:
            self._pull(source, *rest)

    def stream(self, event: Any, now_s: float) -> None:
        match event:
            case network.Asked(_, message, handle):
                self._asked(message, handle)
                self._turn(now_s)
            case network.Answered(token, _, message):
                if (told := self._calls.pop(token, None)) is not None:
                    told(message)
                self._turn(now_s)
            case network.Failed(token, _, refused):
                if (told := self._calls.pop(token, None)) is not None:
                    told(("refused", "nobody listens", "") if refused else _UNKNOWN)
                self._turn(now_s)

    def disk(self, token: Any, now_s: float) -> None:
        del token
        self._turn(now_s)

    def wake(self, now_s: float) -> None:
        while self._timers and self._timers[0][0] <= now_s:
            heappop(self._timers)[2]()
        if self._tick_at_s <= now_s:
            self._tick_at_s = max(self._tick_at_s + TICK_S, now_s + TICK_S / 2)
            if self.core is not None:
                self.core.tick(self.host.wall_ms())
        self._turn(now_s)

    def wake_at_s(self) -> float:
        return min(self._tick_at_s, self._timers[0][0]) if self._timers else self._tick_at_s

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._timers, (self.host.world.now_s + delay_s, self._count, action))

    # -- the loop -------------------------------------------------------------------------

    def _turn(self, now_s: float) -> None:
        core = self.core
        if core is None or self._has_exited:
            self._sync()
            return
        try:
            for _ in range(10):
                effects = core.turn(self.host.wall_ms())
                if effects.topology_changed:
                    core.follow_topology()
                self._perform(effects)
                if not effects.topology_changed:
                    break
        except LedgerError as error:
            if not self.store.has_failed:
                self.host.world.fail(f"{self.host.address}: {error}")
            self.host.note("EXIT", error)
            self._has_exited = True
            self.host.world.after(0.0, lambda: self.host.stop("exit"))
            return
        except HyperscaleError as error:
            self.host.world.fail(f"{self.host.address}: {error}")
        self._sync()

    def _sync(self) -> None:
        store, world, life = self.store, self.host.world, self.host.life
        if not store.wants_sync:
            return
        least_s, most_s = self.tier.sync_s
        delay_s = least_s + (most_s - least_s) * world.rng.random()
        if self.tier.slow_sync and world.rng.random() < self.tier.slow_sync:
            delay_s += self.tier.slow_sync_s * world.rng.random()
        store.begin_sync()

        def synced() -> None:
            if self.host.life != life or self.host.program is not self:
                return
            if not store.has_failed:
                store.end_sync()
            self.host.deliver("disk", self.host.address, None)

        world.after(delay_s, synced)

    def _perform(self, effects: Effects) -> None:
        for peer, packed in effects.outbox:
            if VOTE in packed and self.core is not None:
                self.tier.observer.voted(self.core, packed)
                self._maybe_crash()
            self._send(peer, ("raft", self.core_number, packed))
        for offer in effects.offers:
            self._offer(offer)
        self.standings.extend(effects.standings)
        for standing in effects.standings:
            self.host.note("STANDS", standing)
        for token, outcome in effects.answers:
            if (told := self._answers.pop(token, None)) is not None:
                told(outcome)
        for token in effects.reads:
            if (read := self._reads.pop(token, None)) is not None:
                read()
        if self._sessions:
            self._tell_sessions()
        if effects.mismatches:
            self.host.world.fail(
                f"{self.host.address}: replicas of {effects.mismatches} differ from their leaders"
            )

    def _maybe_crash(self) -> None:
        world, host, life = self.host.world, self.host, self.host.life
        if self.tier.crash_on_vote and world.rng.random() < self.tier.crash_on_vote:
            world.after(0.001, lambda: host.stop("crash") if host.life == life else None)
            world.after(0.003, lambda: host.start() if host.program is None else None)

    @property
    def core_number(self) -> int:
        return 0 if self.core is None else self.core.number

    def address_of(self, number: int) -> str:
        assert self.core is not None
        return self.core.topology.name_of(number) or self._routes.get(number, "")

    def _send(self, peer: int, payload: Any) -> None:
        if address := self.address_of(peer):
            self.host.send(address, payload)

    # -- snapshots ------------------------------------------------------------------------

    def _offer(self, offer: Any) -> None:
        assert self.core is not None
        raft = self.core.raft
        self._send(offer.peer, ("offer", self.core_number, offer.group, offer.index, offer.message))
        self._after(SNAPSHOT_S, lambda: raft.report_snapshot(offer.group, offer.peer, False))

    def _pull(self, source: str, group: int, index: int, message: bytes) -> None:
        if group in self._pulling:
            return
        self._pulling.add(group)

        def pulled(data: Any) -> None:
            self._pulling.discard(group)
            if isinstance(data, bytes) and self.core is not None:
                self.core.received_snapshot(group, message, data)

        self._ask(source, ("snapshot", group, index, self.core_number), pulled, SNAPSHOT_S)

    # -- answering ------------------------------------------------------------------------

    def _ask(
        self, address: str, message: Any, told: Callable[[Any], None], within_s: float
    ) -> None:
        self._count += 1
        self._calls[self._count] = told
        self.host.ask(address, message, self._count, within_s=within_s)

    def _asked(self, message: Any, handle: Any) -> None:
        answer = self.host.answer
        if self.core is None or self.store.has_failed:
            answer(handle, ("refused", "not ready", ""))
            return
        match message:
            case ("op", command):
                self._forwarded(command, lambda done: answer(handle, done))
            case ("routed", command):
                self._routed(command, lambda done: answer(handle, done))
            case ("read", group, job):
                self._read(group, job, lambda told: answer(handle, told))
            case ("session", group, index, job):
                self._session(group, index, job, lambda told: answer(handle, told))
            case ("snapshot", group, index, receiver):
                answer(handle, self._snapshot(group, index, receiver))
            case ("keep", rows):
                self._keep(self.store.add_history(rows), lambda: answer(handle, True))

    def _snapshot(self, group: int, index: int, receiver: int) -> bytes | None:
        assert self.core is not None
        data = self.core.raft.snapshot_data(group, index)
        self.core.raft.report_snapshot(group, receiver, data is not None)
        if self.tier.stale_snapshots and data is not None:
            return self._old_snapshots.setdefault(group, data)
        return data

    def _keep(self, ticket: int, then: Callable[[], None]) -> None:
        """Calls back once a write is durable."""
        if not self.store.has_failed and self.store.durable() >= ticket:
            then()
        else:
            self._after(0.005, lambda: self._keep(ticket, then))

    # -- commands -------------------------------------------------------------------------

    def _group_of(self, command: Command) -> int:
        assert self.core is not None
        if command.group < 0:
            return self.core.topology.owners[slot_of(command.key)]
        return self.core.topology.heir_of(command.group)

    def _here(self, command: Command, told: Callable[[Answer], None]) -> None:
        """Has it committed, if this node leads the group of the command."""
        core = self.core
        assert core is not None
        group = command.group
        if not core.is_leader(group):
            leader = self.address_of(core.leader_of(group))
            told(("refused", "not leader", leader if leader != self.host.address else ""))
            return
        if command.is_record:
            token = core.propose_encoded(group, command.body)
        else:
            token = core.propose_command(group, command.key, command.body)
        data = core._queued[group][-1][1]
        if self.tier.acks_early:
            outcome = Outcome(core.raft.standing(group)[4] + 1, _early_reply(core, group, data))
            self._committed(group, data, outcome, told)
            return
        self._answers[token] = lambda outcome: self._committed(group, data, outcome, told)

    def _committed(
        self,
        group: int,
        data: bytes,
        outcome: Outcome | Superseded | Unknown,
        told: Callable[[Answer], None],
    ) -> None:
        if isinstance(outcome, Superseded):
            told(("refused", "not leader", ""))
        elif isinstance(outcome, Unknown):
            told(_UNKNOWN)
        else:
            assert self.core is not None
            self.tier.observer.acknowledged(self.core, group, outcome, data)
            if outcome.moved_to >= 0:
                told(("refused", "wrong group", ""))
            else:
                told(("done", group, outcome.index, outcome.reply))

    def _forwarded(self, command: Command, told: Callable[[Answer], None]) -> None:
        """For another node: committed here, or passed on to the leader this node knows."""
        routed = _moved(command, self._group_of(command))

        def done(answer: Answer) -> None:
            if answer[:2] == ("refused", "not leader") and answer[2] and routed.hops < HOPS_MAX:
                onward = _moved(routed, routed.group)
                onward.hops += 1
                self._ask(answer[2], ("op", onward), told, CALL_S)
            else:
                told(answer)

        self._here(routed, done)

    def _routed(self, command: Command, told: Callable[[Answer], None]) -> None:
        """For a client: tries while the answer is a certain no."""
        deadline_s = self.host.world.now_s + CALL_S

        def once(hint: str) -> None:
            core = self.core
            assert core is not None
            group = self._group_of(command)
            if self.host.world.now_s > deadline_s:
                told(("refused", "no leader in time", ""))
            elif command.group < 0 and group == NO_GROUP:
                self._after(RETRY_S, lambda: once(""))
            elif core.is_leader(group):
                self._here(_moved(command, group), again)
            elif target := self._someone(group, hint):
                self._ask(target, ("op", _moved(command, group)), again, CALL_S)
            else:
                self._after(RETRY_S, lambda: once(""))

        def again(answer: Answer) -> None:
            if answer[0] == "refused":
                self._after(RETRY_S, lambda: once(answer[2]))
            else:
                told(answer)

        once("")

    def _someone(self, group: int, hint: str) -> str:
        core = self.core
        assert core is not None
        leader = self.address_of(core.leader_of(group))
        if group == MANAGEMENT:
            numbers = list(core.topology.nodes)
        else:
            record = core.topology.groups.get(group)
            numbers = [] if record is None else record.settled
        voters = [self.address_of(number) for number in numbers]
        self.host.world.rng.shuffle(voters)
        own = self.host.address
        return next((a for a in (hint, leader, *voters) if a and a != own), "")

    # -- reads ----------------------------------------------------------------------------

    def _read(self, group: int, job: str, told: Callable[[Answer], None]) -> None:
        core = self.core
        assert core is not None
        if group not in core.replicas:
            told(("refused", "no replica", ""))
            return
        is_done = False

        def ask() -> None:
            if is_done:
                return
            if group not in core.replicas:
                told(("refused", "no replica", ""))
                return
            self._reads[core.read(group)] = fresh
            self._after(READ_AGAIN_S, ask)

        def fresh() -> None:
            nonlocal is_done
            if not is_done:
                is_done = True
                self._tell_status(group, job, told)

        ask()

    def _session(self, group: int, index: int, job: str, told: Callable[[Answer], None]) -> None:
        assert self.core is not None
        if group not in self.core.replicas:
            told(("refused", "no replica", ""))
            return
        self._sessions.append((group, index, lambda: self._tell_status(group, job, told)))

    def _tell_sessions(self) -> None:
        assert self.core is not None
        replicas = self.core.replicas
        left = []
        for group, index, then in self._sessions:
            if group in replicas and replicas[group].applied >= index:
                then()
            elif group in replicas:
                left.append((group, index, then))
        self._sessions = left

    def _tell_status(self, group: int, job: str, told: Callable[[Answer], None]) -> None:
        assert self.core is not None
        replica = self.core.replicas.get(group)
        machine = None if replica is None else replica.machine
        found = machine.job(job) if isinstance(machine, JobMachine) else None
        told(("status", "none" if found is None else found.status.value))

    # -- stewardship ----------------------------------------------------------------------

    def _pass(self) -> None:
        assert self.steward is not None
        for group, steps in self.steward.duties().items():
            if group not in self._busy:
                self._busy[group] = steps
                self._advance(group, steps, None)
        self._after(PASS_S, self._pass)

    def _advance(self, group: int, steps: Steps, answer: Any) -> None:
        try:
            request = steps.send(answer)
        except StopIteration:
            self._busy.pop(group, None)
            return
        self.host.note("STEP", request)
        self._carry_out(request, lambda told: self._told(group, steps, told))

    def _told(self, group: int, steps: Steps, answer: Any) -> None:
        if isinstance(answer, tuple) and answer[0] != "done":
            steps.close()  # whoever leads then does it again
            self._busy.pop(group, None)
        else:
            self._advance(group, steps, answer)

    def _carry_out(self, request: Request, told: Callable[[Any], None]) -> None:
        match request:
            case Decide(decision=decision):
                self._routed(Command(MANAGEMENT, "", encode_decision(decision)), told)
            case Commit(group=group, record=record):
                self._routed(_record(group, record), told)
            case Bequeath(group=group):
                self._bequeath(group, told)

    def _bequeath(self, group: int, told: Callable[[Any], None]) -> None:
        core = self.core
        assert core is not None
        heir = core.topology.groups.get(core.topology.heir_of(core.topology.groups[group].heir))
        rows = [row for row in self.store.history.values() if row[1] == group]
        voters = [] if heir is None else [self.address_of(n) for n in heir.settled]
        waiting = [address for address in voters if address != self.host.address]

        def next_one(answer: Any) -> None:
            if answer is not True:
                told(False)
            elif waiting:
                self._ask(waiting.pop(), ("keep", rows), next_one, CALL_S)
            else:
                told(True)

        self._keep(core.history_ticket, lambda: next_one(True))

    def _sight(self) -> Sight:
        assert self.core is not None
        world, down = self.host.world, self.tier.down_since_s
        dead: dict[int, float] = {}
        for number, node in self.core.topology.nodes.items():
            if node.name in down:
                dead[number] = (world.now_s - down[node.name]) * DEAD_FACTOR
        unfit = frozenset(n for n in self.core.topology.nodes if not self._is_fit(n))
        leading = {group: self.core.leader_of(group) for group in self.core.topology.groups}
        return Sight(dead_s=dead, unfit=unfit, leading=leading)

    def _is_fit(self, number: int) -> bool:
        address = self.address_of(number)
        return address not in self.tier.unfit and address not in self.tier.down_since_s

    def submit(self, key: str, body: bytes, told: Callable[[Answer], None]) -> None:
        """Has something committed in the group of its key, as if a client had asked here."""
        self._routed(Command(-1, key, body), told)
        self._turn(self.host.world.now_s)
        self.host.settle()

    # -- what schedules tell it -----------------------------------------------------------

    def decide(self, decision: Any) -> None:
        """An operator, or placement with other things on its mind, wants something decided."""
        if self.core is not None:
            command = Command(MANAGEMENT, "", encode_decision(decision))
            self._routed(command, lambda _: None)
            self._turn(self.host.world.now_s)
            self.host.settle()

    def move(self, source: int, target: int, every: int) -> None:
        """Has one in `every` slots of a group moved to another."""
        if self.core is not None:
            owners = self.core.topology.owners
            slots = [slot for slot, owner in enumerate(owners) if owner == source]
            self.decide(MoveBegun(tuple(slots[::every]), source, target))

    def drain_group(self, group: int) -> None:
        if self.core is not None:
            active = [
                record.number
                for record in self.core.topology.groups.values()
                if record.state is GroupState.ACTIVE and record.number != group
            ]
            if active:
                self.decide(GroupDraining(group, active[0]))

    def drain(self, address: str) -> None:
        """Has a node drained."""
        number = None if self.core is None else self.core.topology.number_of(address)
        if number is not None:
            self.decide(NodeMarked(number, NodeState.DRAINING))

    def unfit(self, address: str) -> None:
        """A node should not lead for now."""
        self.tier.unfit.add(address)

    def transfer(self, group: int, position: int) -> None:
        """Gives a leadership away, if this node has it."""
        core = self.core
        if core is not None and core.is_leader(group):
            voters = core.raft.seats(group)[0]
            core.raft.transfer_leadership(group, voters[position % len(voters)])
            self._turn(self.host.world.now_s)
            self.host.settle()

    def fail_disk(self) -> None:
        self.store.fail()
        if self.core is None:  # it would notice with its next write
            self.host.world.after(0.0, lambda: self.host.stop("exit"))


def _moved(command: Command, group: int) -> Command:
    return Command(group, command.key, command.body, command.is_record, command.hops)


def _record(group: int, record: Record) -> Command:
    return Command(group, "", encode_record(record), is_record=True)


def _live_jobs(machine: Machine) -> int:
    assert isinstance(machine, JobMachine)
    return sum(1 for _ in machine.jobs())


def _early_reply(core: LedgerCore, group: int, data: bytes) -> bytes:
    """What the machine would say now."""
    replica, record = core.replicas[group], decode_record(data)
    before = replica.machine.snapshot()
    reply = replica.machine.apply(0, core._now_ms, getattr(record, "body", b"")).reply
    replica.machine.restore(before)
    return reply
