"""The ledger of one node: proposals, reads and forwarding over a running core.

Everything that arrives between two turns of the event loop goes into one turn of the core, so
that messages, proposals and disk writes travel in batches. The loop never waits for the disk:
the store's writer announces itself on a descriptor. A store that failed fails the node.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from hyperscale._native import LedgerError, LedgerStore
from hyperscale.errors import InvariantError, RunError
from hyperscale.ledger.core import (
    MANAGEMENT,
    AppliedEntry,
    Effects,
    LedgerCore,
    Standing,
    Superseded,
    Unknown,
)
from hyperscale.ledger.machine import Machine
from hyperscale.ledger.messages import ForwardCommand, RaftMessages, pieces
from hyperscale.ledger.replica import EntryResult
from hyperscale.ledger.topology import Topology
from hyperscale.nodes.ledger.errors import (
    NotLeaderError,
    OutcomeUnknownError,
    UnavailableError,
    WrongGroupError,
)
from hyperscale.nodes.ledger.peers import Peers
from hyperscale.nodes.ledger.transfer import Transfer
from hyperscale.nodes.metrics import DurationHistogram
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import OverloadedError, QueueFullError

TICK_S: Final = 0.05
_UNSENT_MAX = 64
_PACKED_BYTES = 8 * 1024 * 1024
"""So many proposals do not wait for the end of a turn of the event loop."""
_READ_AGAIN_S = 0.25
_COMMIT_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

_log = logging.getLogger("hyperscale.ledger")


class Committed(Struct, frozen=True):
    """A command that survives any minority of machines."""

    group: int
    index: int
    reply: bytes


class Read(Struct, frozen=True):
    """How fresh a local answer must be."""

    level: str = "strong"  # eventual, session, bounded or strong
    index: int = 0  # session: of the write to see
    bound_ms: int = 0


STRONG = Read("strong")


class Hooks(Struct, kw_only=True):
    """What a node does when its ledger moves. None of these may wait."""

    leading: list[Callable[[int, int], None]] = []
    """This node leads this group in this term, and has applied all before it."""
    following: list[Callable[[int], None]] = []
    applied: list[Callable[[AppliedEntry], None]] = []
    topology: list[Callable[[], None]] = []


class LocalLedger:
    """A running core. Made when the node knows its ledger and its number in it."""

    def __init__(self, ledger_id: str, core: LedgerCore, store: LedgerStore, peers: Peers) -> None:
        self.id = ledger_id
        self.core = core
        self.store = store
        self.peers = peers
        self.hooks = Hooks()
        self.commands: dict[int, int] = {}
        """Committed by this node as leader, by group."""
        self.commit_seconds = DurationHistogram(
            "ledger_commit_seconds", "From proposal to commit, on the leader", _COMMIT_BOUNDS_S
        )
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self._routes: dict[int, str] = {}
        self._answers: dict[int, asyncio.Future[EntryResult | Superseded | Unknown]] = {}
        self._reads: dict[int, asyncio.Future[None]] = {}
        self._applied_waiters: dict[int, list[tuple[int, asyncio.Future[None]]]] = {}
        self._leading: dict[int, int] = {}
        self._pulls: set[asyncio.Task[None]] = set()
        self._turn_handle: asyncio.Handle | None = None
        self._unsent = 0
        self._tick_handle: asyncio.TimerHandle | None = None
        self._written = asyncio.Event()
        self.transfer = Transfer(self)
        self.is_open = True
        self._loop.add_reader(store.fileno(), self._on_written)
        self._tick_at_s = self._loop.time()
        self._tick()

    # -- lifetime -------------------------------------------------------------------------

    async def close(self) -> None:
        """Stops, writes what is queued, and lets the data directory go."""
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self.store.fileno())
        for handle in (self._turn_handle, self._tick_handle):
            if handle is not None:
                handle.cancel()
        for task in tuple(self._pulls):
            task.cancel()
        if self._pulls:
            await asyncio.wait(self._pulls)
        waiting: list[asyncio.Future[None]] = [*self._reads.values()]
        waiting += [future for each in self._applied_waiters.values() for _, future in each]
        for future in waiting:
            future.cancel()
        for answer in self._answers.values():
            answer.cancel()
        if self.failed.done():
            return  # the disk failed: there is nothing it could still write
        await asyncio.to_thread(self.store.close)

    async def run(self) -> None:
        """Ends only by failing: a node does not go on without its disk."""
        self.transfer.resume()
        await self.failed

    def _fail(self, error: Exception) -> None:
        if not self.failed.done():
            _log.error("ledger.failed: %s", error)
            self.failed.set_exception(error)

    # -- the loop -------------------------------------------------------------------------

    def wake(self) -> None:
        """There is something for the core to do in this turn of the event loop."""
        if self._turn_handle is None:
            self._turn_handle = self._loop.call_soon(self._turn)

    def _tick(self) -> None:
        # After a stall one tick counts, not all that were missed: messages that would have
        # kept the leader in office are still waiting to be read.
        now_s = self._loop.time()
        self._tick_at_s = max(self._tick_at_s + TICK_S, now_s + TICK_S / 2)
        self._tick_handle = self._loop.call_at(self._tick_at_s, self._tick)
        self.core.tick(now_ms())
        self._turn()

    def _on_written(self) -> None:
        self._turn()

    def _turn(self) -> None:
        if self._turn_handle is not None:
            self._turn_handle.cancel()
            self._turn_handle = None
        self._unsent = 0
        if self.failed.done() or not self.is_open:
            return
        try:
            effects = self.core.turn(now_ms())
            if effects.topology_changed:
                self.core.follow_topology()
                self.wake()
        except LedgerError as error:
            self._fail(RunError(str(error), hint="the node stops; its group goes on without it"))
            return
        except Exception as error:  # noqa: BLE001  a bug of ours: told to whoever runs the node
            self._fail(error)
            return
        self._written.set()
        self._perform(effects)

    def _perform(self, effects: Effects) -> None:
        for peer, packed in effects.outbox:
            for piece in pieces(packed, _PACKED_BYTES):
                self._send(peer, RaftMessages(self.id, self.core.number, piece))
        for offer in effects.offers:
            self.transfer.offer(offer)
        self._answer(effects)
        for standing in effects.standings:
            self._stands(standing)
        for entry in effects.applied:
            _tell(self.hooks.applied, entry)
        if self._applied_waiters:
            self._wake_applied()
        for group in effects.mismatches:
            _log.error("ledger.mismatch", extra={"group": group})
        for group in effects.restored:
            if group != MANAGEMENT:
                self.transfer.has_skipped(group)
        if effects.topology_changed:
            _tell(self.hooks.topology)
        self._note_leading()

    def _answer(self, effects: Effects) -> None:
        for token, outcome in effects.answers:
            answer = self._answers.pop(token, None)
            if answer is not None and not answer.done():
                answer.set_result(outcome)
        for token in effects.reads:
            read = self._reads.pop(token, None)
            if read is not None and not read.done():
                read.set_result(None)

    def _stands(self, standing: Standing) -> None:
        _log.info(
            "ledger.standing",
            extra={
                "group": standing.group,
                "term": standing.term,
                "standing": standing.role,
                "leader": self.name_of(standing.leader),
            },
        )
        if not standing.is_leader and self._leading.pop(standing.group, None) is not None:
            _tell(self.hooks.following, standing.group)

    def _note_leading(self) -> None:
        """A leader acts only once an entry of its own term is applied: then all before it is."""
        for group in [group for group in self._leading if group not in self.core.replicas]:
            del self._leading[group]  # destroyed, or given to others
            _tell(self.hooks.following, group)
        for group, standing in self.core.standings.items():
            is_new = standing.is_leader and self._leading.get(group) != standing.term
            if is_new and self.core.replicas[group].term == standing.term:
                self._leading[group] = standing.term
                _tell(self.hooks.leading, group, standing.term)

    def _wake_applied(self) -> None:
        for group, waiters in list(self._applied_waiters.items()):
            replica = self.core.replicas.get(group)
            applied = -1 if replica is None else replica.applied
            for index, waiter in waiters:
                if index <= applied and not waiter.done():
                    waiter.set_result(None)
            left = [each for each in waiters if not each[1].done()]
            if left:
                self._applied_waiters[group] = left
            else:
                del self._applied_waiters[group]

    def spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        """Runs until it is done or the ledger closes."""
        task = self._loop.create_task(work)
        self._pulls.add(task)
        task.add_done_callback(self._pulls.discard)

    async def until_durable(self, ticket: int) -> None:
        """Returns when this write can no longer be undone by a crash."""
        # The core asks the store: whoever else did would take its announcement away.
        while self.core.durable < ticket:
            self._written.clear()
            await self._written.wait()

    # -- messages -------------------------------------------------------------------------

    @property
    def own_name(self) -> str:
        return self.name_of(self.core.number)

    def name_of(self, number: int) -> str:
        """The node of this number; empty if unknown."""
        return self.core.topology.name_of(number) or self._routes.get(number, "")

    def learn(self, number: int, name: str) -> None:
        """Who a number is, before the topology has come here."""
        self._routes[number] = name

    def _send(self, peer: int, message: Struct) -> None:
        name = self.name_of(peer)
        connection = self.peers.connection(name) if name else None
        if connection is not None:
            try:
                connection.send(message, at_once=True)
                return
            except QueueFullError:
                pass
            except InvariantError:  # larger than any message may be: others must not suffer
                _log.exception("ledger.unsendable", extra={"peer": name})
        # Not parked: consensus repeats itself, and old news would only crowd out new.
        self.core.raft.report_unreachable(peer)

    def received(self, call: InboundCall, message: RaftMessages) -> None:
        if message.ledger != self.id:
            _log.warning("ledger.foreign", extra={"peer": call.peer.node_id})
            return
        self.learn(message.sender, call.peer.node_id)
        try:
            self.core.received(message.sender, message.packed)
        except LedgerError as error:
            _log.warning("ledger.malformed: %s", error, extra={"peer": call.peer.node_id})
        self.wake()

    # -- commands -------------------------------------------------------------------------

    @property
    def topology(self) -> Topology:
        return self.core.topology

    def machine(self, group: int) -> Machine | None:
        """This node's replica; None where it has none."""
        replica = self.core.replicas.get(group)
        return None if replica is None else replica.machine

    def leading(self) -> Mapping[int, int]:
        """Groups this node leads and may act for, with their terms."""
        return self._leading

    def leader_of(self, group: int) -> str:
        """The node that leads a group, as far as this one knows; empty if it does not."""
        return self.name_of(self.core.leader_of(group))

    def lineage(self, group: int) -> list[int]:
        """The group, and those whose history it has to answer for."""
        topology = self.topology
        return [each for each in topology.groups if topology.heir_of(each) == group]

    def voters_of(self, group: int) -> list[str]:
        """The nodes that have a replica of a group, its wanted leader first."""
        if group == MANAGEMENT:
            return [self.name_of(number) for number in self.topology.nodes]
        record = self.topology.groups.get(self.topology.heir_of(group))
        if record is None:
            return []
        ordered = sorted(record.settled, key=lambda number: number != record.leader)
        return [name for number in ordered if (name := self.name_of(number))]

    async def propose(
        self, group: int, body: bytes, *, key: str = "", timeout_s: float = 5.0
    ) -> EntryResult:
        """Commit a command in a group this node leads; raise `NotLeaderError` if it does not."""
        result = await self.carry_out(ForwardCommand(group, key, body), timeout_s)
        if result.moved_to is not None:
            raise WrongGroupError(group, result.moved_to)
        return result

    async def carry_out(self, command: ForwardCommand, timeout_s: float) -> EntryResult:
        """Has a command committed here, in a group this node leads."""
        core = self.core
        group = command.group
        if not core.is_leader(group):
            raise self.not_leader(group)
        if core.is_full:
            raise OverloadedError("more waits for the disk than should", retry_after_s=0.1)
        begun_s = self._loop.time()
        if command.is_record:
            token = core.propose_encoded(group, command.body)
        else:
            token = core.propose_command(group, command.key, command.body)
        outcome = await self._answered(token, group, timeout_s)
        self.commit_seconds.observe(self._loop.time() - begun_s)
        self.commands[group] = self.commands.get(group, 0) + 1
        return outcome

    async def _answered(self, token: int, group: int, timeout_s: float) -> EntryResult:
        answer: asyncio.Future[EntryResult | Superseded | Unknown] = self._loop.create_future()
        self._answers[token] = answer
        self._unsent += 1
        if self._unsent < _UNSENT_MAX:
            self.wake()
        else:
            self._turn()  # followers write these down while this node reads what else has come
        expiry = self._loop.call_later(timeout_s, _expire, answer)
        try:
            outcome = await answer
        finally:
            expiry.cancel()
            self._answers.pop(token, None)
        if isinstance(outcome, Superseded):
            raise self.not_leader(group)
        if isinstance(outcome, Unknown):
            raise _unknown("this node fell behind its group")
        return outcome

    def not_leader(self, group: int) -> NotLeaderError:
        standing = self.core.standings.get(group)
        leader = self.leader_of(group)
        term = 0 if standing is None else standing.term
        return NotLeaderError(group, "" if leader == self.own_name else leader, term)

    # -- reads ----------------------------------------------------------------------------

    async def fresh(self, group: int, read: Read = STRONG, *, timeout_s: float = 5.0) -> None:
        """Returns when this node's replica may answer a read of this level."""
        if group not in self.core.replicas:
            raise InvariantError(f"this node has no replica of group {group}")
        try:
            async with asyncio.timeout(timeout_s):
                if read.level == "session":
                    await self._until_applied(group, read.index)
                elif read.level == "strong" or (
                    read.level == "bounded" and self.lag_ms(group) > read.bound_ms
                ):
                    await self._linearized(group)
        except TimeoutError:
            raise UnavailableError(
                f"group {group}: no fresh answer within {timeout_s:g} s",
                hint="more than half of its nodes must be up and reach each other",
            ) from None

    def lag_ms(self, group: int) -> float:
        """For how long this node may not have heard what was committed."""
        if self.core.is_leader(group):
            # Check-quorum deposes a leader that heard no majority for an election timeout.
            return self.core.limits.election_ticks * TICK_S * 2_000
        return self.core.raft.quiet_ticks(group) * TICK_S * 1_000

    async def _until_applied(self, group: int, index: int) -> None:
        if self.core.replicas[group].applied >= index:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._applied_waiters.setdefault(group, []).append((index, waiter))
        await waiter

    async def _linearized(self, group: int) -> None:
        read: asyncio.Future[None] = self._loop.create_future()
        tokens: list[int] = []
        try:
            while not read.done():
                tokens.append(self.core.read(group))
                self._reads[tokens[-1]] = read
                self.wake()
                # Asked of a leader that is none any more, nobody answers: ask again. Any answer
                # will do, as every question came after this began.
                await asyncio.wait([read], timeout=_READ_AGAIN_S)
            read.result()
        finally:
            for token in tokens:
                self._reads.pop(token, None)


def _tell(hooks: Sequence[Callable[..., None]], *arguments: object) -> None:
    """One who fails does not keep the others from hearing of it, nor the log from going on."""
    for hook in hooks:
        try:
            hook(*arguments)
        except Exception:  # noqa: BLE001  a bug of ours: told in the log, with where it was
            _log.exception("ledger.hook_failed")


def now_ms() -> int:
    """The wall clock, for stamps and for what people read: never for how long something took."""
    return time.time_ns() // 1_000_000


def _expire(answer: "asyncio.Future[EntryResult | Superseded | Unknown]") -> None:
    if not answer.done():
        answer.set_exception(_unknown("no quorum in time"))


def _unknown(why: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{why}; the command may have been carried out, or may still be",
        hint="repeat it with the same key",
    )
