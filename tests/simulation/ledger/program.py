"""One node of a simulated tier: a real ledger core on a crashable disk.

It does on virtual time what `hyperscale.ledger.server` does with sockets: batches, snapshot
transfer, forwarded commands, strong and session reads, and the maintenance of groups. Consensus
messages are datagrams here, so they get lost, duplicated, delayed and reordered.
"""

from collections.abc import Callable
from typing import Any

from hyperscale._native import LedgerError
from hyperscale.errors import HyperscaleError
from hyperscale.ledger.core import FOLLOWED, MANAGEMENT, TICK_S
from hyperscale.ledger.core_events import (
    AnswerRequests,
    BatchEnded,
    DropMessages,
    GroupRole,
    LeadershipTransferRequested,
    LedgerEffect,
    LedgerEvent,
    LedgerOpened,
    MessagesReceived,
    ReportMismatch,
    SendMessages,
    SendSnapshotOffer,
    SnapshotDelivered,
    SnapshotReceived,
)
from hyperscale.ledger.topology import (
    GroupDraining,
    GroupState,
    MigrationStarted,
    NodeJoined,
    NodeState,
    NodeStateChanged,
    encode_decision,
)
from hyperscale.sansio.core import Tick
from tests.simulation import network
from tests.simulation.kernel import Host
from tests.simulation.ledger.maintenance import Maintenance
from tests.simulation.ledger.observed import ObservedCore
from tests.simulation.ledger.pending_work import PendingWork
from tests.simulation.ledger.routing import CALL_S, UNKNOWN, Answer, Command, Router
from tests.simulation.ledger.tier import Tier

SNAPSHOT_S = 1.0

VOTE = b"\x08\x06\x10"
"""The first bytes of an encoded vote."""


def show(payload: Any) -> str:
    """Describe a datagram briefly."""
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
        self.router: Router | None = None
        self.roles: list[GroupRole] = []
        """Role changes that the monitor has not taken yet."""
        self._pending = PendingWork(host, self.store)
        self._pulling: set[int] = set()
        self._first_tick_at_s = host.world.now_s + TICK_S * host.world.rng.random()
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
        make_machine = self.tier.newer.get(self.host.address, self.tier.machine)
        core = self.tier.core(
            number,
            self.store,
            make_machine=lambda group: make_machine("sim", group),
            seed=self.host.world.rng.getrandbits(63),
            limits=self.tier.limits,
            images=self.store.images(),
            followed=int(self.store.meta.get(FOLLOWED, b"0")),
            first_tick_at_s=max(self._first_tick_at_s, now_s),
            observer=self.tier.observer,
        )
        self.core = core
        self.router = Router(
            self.host,
            core,
            self._pending,
            self.tier.observer,
            acks_early=self.tier.acks_early,
        )
        maintenance = Maintenance(
            self.host, self.tier, self.store, core, self._pending, self.router
        )
        self._feed(LedgerOpened())
        self._turn(now_s)
        if self.tier.manages:
            maintenance.begin()

    def _join(self, now_s: float) -> None:
        """Ask any node for a number until one answers, with a nonce that survives a restart."""
        if "nonce" not in self.store.meta:
            if not self.store.has_failed:
                self.store.put_meta("nonce", f"{self.host.address}.{self.host.life}".encode())
                self._sync()
            self._pending.after(0.02, lambda: self._join(now_s))
            return
        others = [a for a in self.tier.stores if a != self.host.address]
        target = self.host.world.rng.choice(sorted(others))
        nonce = self.store.meta["nonce"].decode()
        joined = NodeJoined(self.host.address, self.host.address, nonce)

        def told(answer: Answer) -> None:
            if answer[0] == "done" and not self.store.has_failed:
                number = answer[3].number
                self.store.put_meta("number", str(number).encode())
                self._sync()
                self._belong(number)
            else:
                self._pending.after(0.2, lambda: self._join(0.0))

        command = Command(MANAGEMENT, "", encode_decision(joined))
        self._pending.ask(target, ("op", command), told, CALL_S)

    def _belong(self, number: int) -> None:
        if "number" in self.store.meta:
            self._open(number, self.host.world.now_s)
        else:
            self._pending.after(0.01, lambda: self._belong(number))

    def datagram(self, source: str, payload: Any, now_s: float) -> None:
        kind, number, *rest = payload
        core, router = self.core, self.router
        if core is None or router is None:
            return
        router.heard_from[number] = source
        if kind == "raft":
            self._feed(MessagesReceived(number, rest[0]))
            self._turn(now_s)
        else:
            self._pull(source, *rest)

    def stream(self, event: Any, now_s: float) -> None:
        match event:
            case network.Asked(_, message, handle):
                self._asked(message, handle)
                self._turn(now_s)
            case network.Answered(token, _, message):
                self._pending.answered(token, message)
                self._turn(now_s)
            case network.Failed(token, _, refused):
                answer = ("refused", "connection refused", "") if refused else UNKNOWN
                self._pending.answered(token, answer)
                self._turn(now_s)

    def disk(self, token: Any, now_s: float) -> None:
        del token
        self._turn(now_s)

    def wake(self, now_s: float) -> None:
        self._pending.wake(now_s)
        tick_at_s = None if self.core is None else self.core.wake_at_s()
        if tick_at_s is not None and tick_at_s <= now_s:
            self._feed(Tick())
        self._turn(now_s)

    def wake_at_s(self) -> float:
        tick_at_s = None if self.core is None else self.core.wake_at_s()
        wakes_s = (tick_at_s, self._pending.wake_at_s())
        return min((at_s for at_s in wakes_s if at_s is not None), default=float("inf"))

    def _feed(self, event: LedgerEvent | Tick) -> None:
        assert self.core is not None
        for effect in self.core.handle(event, now_s=self.host.world.now_s):
            self._perform(effect)

    # -- the loop -------------------------------------------------------------------------

    def _turn(self, now_s: float) -> None:
        core = self.core
        if core is None or self._has_exited:
            self._sync()
            return
        try:
            self._feed(BatchEnded(self.host.wall_ms()))
            if self.router is not None:
                self.router.answer_sessions()
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

    def _perform(self, effect: LedgerEffect) -> None:
        assert self.core is not None
        assert self.router is not None
        match effect:
            case SendMessages(peer=peer, packed=packed):
                if VOTE in packed:
                    self.tier.observer.voted(self.core, packed)
                    self._maybe_crash()
                self._send(peer, ("raft", self.core_number, packed))
            case SendSnapshotOffer():
                self._offer(effect)
            case GroupRole():
                self.roles.append(effect)
                self.host.note("ROLE", effect)
            case AnswerRequests(answers=answers):
                self.router.answer(answers)
            case ReportMismatch(group=group):
                self.host.world.fail(
                    f"{self.host.address}: the replica of group {group} differs from its leader's"
                )
            case DropMessages(reason=reason):
                self.host.note("DROP", reason)  # for a node that lived here before

    def _maybe_crash(self) -> None:
        world, host, life = self.host.world, self.host, self.host.life
        if self.tier.crash_on_vote and world.rng.random() < self.tier.crash_on_vote:
            world.after(0.001, lambda: host.stop("crash") if host.life == life else None)
            world.after(0.003, lambda: host.start() if host.program is None else None)

    @property
    def core_number(self) -> int:
        return 0 if self.core is None else self.core.number

    def _send(self, peer: int, payload: Any) -> None:
        if self.router is not None and (address := self.router.address_of(peer)):
            self.host.send(address, payload)

    # -- snapshots ------------------------------------------------------------------------

    def _offer(self, offer: Any) -> None:
        assert self.core is not None
        self._send(offer.peer, ("offer", self.core_number, offer.group, offer.index, offer.message))
        self._pending.after(
            SNAPSHOT_S, lambda: self._feed(SnapshotDelivered(offer.group, offer.peer, False))
        )

    def _pull(self, source: str, group: int, index: int, message: bytes) -> None:
        if group in self._pulling:
            return
        self._pulling.add(group)

        def pulled(data: Any) -> None:
            self._pulling.discard(group)
            if isinstance(data, bytes) and self.core is not None:
                self._feed(SnapshotReceived(group, message, data))

        self._pending.ask(source, ("snapshot", group, index, self.core_number), pulled, SNAPSHOT_S)

    # -- answering ------------------------------------------------------------------------

    def _asked(self, message: Any, handle: Any) -> None:
        answer = self.host.answer
        router = self.router
        if router is None or self.store.has_failed:
            answer(handle, ("refused", "not ready", ""))
            return
        match message:
            case ("op", command):
                router.forwarded(command, lambda done: answer(handle, done))
            case ("routed", command):
                router.routed(command, lambda done: answer(handle, done))
            case ("read", group, job):
                router.read(group, job, lambda told: answer(handle, told))
            case ("session", group, index, job):
                router.session(group, index, job, lambda told: answer(handle, told))
            case ("snapshot", group, index, receiver):
                answer(handle, self._snapshot(group, index, receiver))
            case ("keep", rows):
                self._pending.keep(self.store.add_history(rows), lambda: answer(handle, True))

    def _snapshot(self, group: int, index: int, receiver: int) -> bytes | None:
        assert self.core is not None
        data = self.core.raft.snapshot_data(group, index)
        self._feed(SnapshotDelivered(group, receiver, data is not None))
        if self.tier.stale_snapshots and data is not None:
            return self._old_snapshots.setdefault(group, data)
        return data

    # -- what schedules tell it -----------------------------------------------------------

    def submit(self, key: str, body: bytes, told: Callable[[Answer], None]) -> None:
        """Commit a command in the group of its key, as if a client had sent it to this node."""
        self._commit(Command(-1, key, body), told)

    def decide(self, decision: Any) -> None:
        """Commit a decision of an operator."""
        self._commit(Command(MANAGEMENT, "", encode_decision(decision)), lambda _: None)

    def _commit(self, command: Command, told: Callable[[Answer], None]) -> None:
        if self.router is not None:
            self.router.routed(command, told)
            self._turn(self.host.world.now_s)
            self.host.settle()

    def move(self, source: int, target: int, every: int) -> None:
        """Move one in `every` key slots of a group to another group."""
        if self.core is not None:
            owners = self.core.topology.owners
            slots = [slot for slot, owner in enumerate(owners) if owner == source]
            self.decide(MigrationStarted(tuple(slots[::every]), source, target))

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
        """Drain a node."""
        number = None if self.core is None else self.core.topology.number_of(address)
        if number is not None:
            self.decide(NodeStateChanged(number, NodeState.DRAINING))

    def unfit(self, address: str) -> None:
        """Make a node unfit to lead."""
        self.tier.unfit.add(address)

    def transfer(self, group: int, position: int) -> None:
        """Transfer the leadership of a group, if this node leads it."""
        core = self.core
        if core is not None and core.is_leader(group):
            voters = core.raft.seats(group)[0]
            self._feed(LeadershipTransferRequested(group, voters[position % len(voters)]))
            self._turn(self.host.world.now_s)
            self.host.settle()

    def fail_disk(self) -> None:
        self.store.fail()
        if self.core is None:  # it would notice with its next write
            self.host.world.after(0.0, lambda: self.host.stop("exit"))
