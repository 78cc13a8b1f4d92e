"""Runs the ledger core of a node: its timer, its store, its messages to and from peers.

Everything that arrives between two turns of the event loop goes into one pass of the core, so
that messages, proposals and disk writes travel in batches. The loop never waits for the disk:
the store's writer thread signals on a descriptor. A store, core or hook that fails ends the node.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from typing import Any, Final

from msgspec import Struct

from hyperscale._native import LedgerError, LedgerOutdatedError, LedgerStore
from hyperscale.errors import InvariantError, RunError
from hyperscale.ledger.core import MANAGEMENT, LedgerCore
from hyperscale.ledger.core_events import (
    AnnounceEntries,
    AnnounceLeadership,
    AnnounceRestore,
    AnnounceTopology,
    AnswerRequests,
    BatchEnded,
    DropMessages,
    GroupRole,
    LedgerEffect,
    LedgerEvent,
    MessagesReceived,
    PeerUnreachable,
    ProposalResult,
    RecordsProposed,
    ReportMismatch,
    SendMessages,
    SendSnapshotOffer,
)
from hyperscale.ledger.messages import RaftMessages, pieces
from hyperscale.ledger.records import Record
from hyperscale.ledger.replica import AppliedEntry, Replica
from hyperscale.ledger.server.tier_peers import TierPeers
from hyperscale.sansio.driver import CoreDriver
from hyperscale.sansio.tasks import TaskSupervisor
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import QueueFullError

_UNSENT_MAX = 64
"""As many proposals do not wait for the end of the event loop's turn."""
_MESSAGE_BYTES: Final = 8 * 1024 * 1024

_OUTDATED_HINT = (
    "it was restored from a backup and may have forgotten votes: move it away, and this node "
    "joins as a new one"
)

_log = logging.getLogger("hyperscale.ledger")


class LedgerHooks(Struct, kw_only=True):
    """Callbacks for what happens in the ledger. None may wait; one that raises ends the node."""

    leading: list[Callable[[int, int], None]] = []
    """This node leads this group in this term, and has applied everything before it."""
    following: list[Callable[[int], None]] = []
    applied: list[Callable[[AppliedEntry], None]] = []
    topology: list[Callable[[], None]] = []
    snapshot_offered: list[Callable[[SendSnapshotOffer], None]] = []
    restored: list[Callable[[int], None]] = []
    """A snapshot replaced the replica of this group."""


class PendingRequests:
    """Futures of proposals and reads, by token, and of readers that wait for an index."""

    def __init__(self) -> None:
        self.futures: dict[int, asyncio.Future[Any]] = {}
        """Proposals and linearizable reads. A request that is given up removes its own."""
        self._indexes: dict[int, list[tuple[int, asyncio.Future[None]]]] = {}

    async def until_applied(self, replica: Replica, index: int) -> None:
        """Return when a replica has applied an index."""
        if replica.applied < index:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._indexes.setdefault(replica.group, []).append((index, future))
            await future

    def answer(self, answers: Iterable[tuple[int, ProposalResult | None]]) -> None:
        for token, result in answers:
            future = self.futures.pop(token, None)
            if future is not None and not future.done():
                future.set_result(result)

    def wake_applied(self, replicas: Mapping[int, Replica]) -> None:
        """Wake the readers whose index has been applied."""
        for group, waiting in list(self._indexes.items()):
            replica = replicas.get(group)
            for index, future in waiting:
                if replica is not None and index <= replica.applied and not future.done():
                    future.set_result(None)
            self._indexes[group] = [each for each in waiting if not each[1].done()]
            if not self._indexes[group]:
                del self._indexes[group]

    def cancel(self) -> None:
        """Cancel every request that waits."""
        readers = [future for each in self._indexes.values() for _, future in each]
        for future in (*self.futures.values(), *readers):
            future.cancel()


class DriverState(Enum):
    RUNNING = auto()
    FAILED = auto()
    """The core, a hook or the disk failed; the node ends."""
    CLOSED = auto()


class LedgerDriver:
    """A running ledger core. Made when the node knows its ledger and its number in it."""

    def __init__(
        self,
        ledger_id: str,
        core: LedgerCore,
        store: LedgerStore,
        peers: TierPeers,
        tasks: TaskSupervisor,
    ) -> None:
        self.id = ledger_id
        self.core = core
        self.store = store
        self.peers = peers
        self.tasks = tasks
        self.hooks = LedgerHooks()
        self.requests = PendingRequests()
        self.mismatches_total = 0
        self.names: dict[int, str] = {}
        """Node ids of numbers, as heard from peers: the topology may not have them yet."""
        self._state = DriverState.RUNNING
        self._loop = asyncio.get_running_loop()
        self._batch: asyncio.Handle | None = None
        self._unsent: list[tuple[int, int, Record]] = []  # proposals for the next batch
        self._passed = asyncio.Event()
        self._driver: CoreDriver[LedgerEvent, LedgerEffect] = CoreDriver(
            core,
            self._perform,
            clock=self._loop.time,
            on_failure=self._fail,
            before_tick=self.end_batch_soon,
        )

    @property
    def is_open(self) -> bool:
        return self._state is not DriverState.CLOSED

    def start(self) -> None:
        self._loop.add_reader(self.store.fileno(), self._end_batch)
        self._driver.arm()
        self.end_batch_soon()

    async def close(self) -> None:
        """Stop, write what is queued, and release the data directory."""
        if self._state is DriverState.CLOSED:
            return
        has_failed = self._state is DriverState.FAILED
        self._state = DriverState.CLOSED
        self._loop.remove_reader(self.store.fileno())
        self._driver.stop()
        if self._batch is not None:
            self._batch.cancel()
        self.requests.cancel()
        if not has_failed:  # a failed disk can write nothing more
            await asyncio.to_thread(self.store.close)

    def _fail(self, error: BaseException) -> None:
        self._state = DriverState.FAILED
        if isinstance(error, LedgerOutdatedError):
            error = RunError(str(error), hint=_OUTDATED_HINT)
        elif isinstance(error, LedgerError):
            error = RunError(str(error), hint="the node stops; its groups go on without it")
        self.tasks.fail(error)

    # -- events ---------------------------------------------------------------------------

    def feed(self, event: LedgerEvent) -> None:
        """Queue one event for the core's next pass, at the end of the event loop's turn."""
        self._driver.feed(event)
        self.end_batch_soon()

    def propose(self, group: int, record: Record) -> "tuple[int, asyncio.Future[ProposalResult]]":
        """Queue a proposal. Return its token and a future of what becomes of it."""
        token = self.core.proposals.new_token()
        future = self.requests.futures[token] = self._loop.create_future()
        self._unsent.append((token, group, record))
        if len(self._unsent) >= _UNSENT_MAX:
            self._end_batch()  # followers write these while this node reads what else arrived
        elif self._batch is None:
            self.end_batch_soon()
        return token, future

    def end_batch_soon(self) -> None:
        """Run a pass of the core at the end of the event loop's turn."""
        if self._batch is None:
            self._batch = self._loop.call_soon(self._end_batch)

    def _end_batch(self) -> None:
        if self._batch is not None:
            self._batch.cancel()
            self._batch = None
        if self._unsent:
            proposals, self._unsent = self._unsent, []
            self._driver.feed(RecordsProposed(proposals))
        self._driver.feed(BatchEnded(wall_ms()))
        self._passed.set()
        self.requests.wake_applied(self.core.replicas)

    async def until_durable(self, ticket: int) -> None:
        """Return when a crash can no longer undo this write."""
        # The core asks the store in each pass: asking it here as well would take away the signal.
        while self.core.disk.durable_ticket < ticket:
            self._passed.clear()
            await self._passed.wait()

    def receive(self, call: InboundCall, message: RaftMessages) -> None:
        if message.ledger != self.id:
            _log.warning("ledger.foreign", extra={"peer": call.peer.node_id})
            return
        self.names[message.sender] = call.peer.node_id
        self.feed(MessagesReceived(message.sender, message.packed))

    # -- effects --------------------------------------------------------------------------

    def _perform(self, effect: LedgerEffect) -> None:
        match effect:
            case SendMessages():
                self._send(effect.peer, effect.packed)
            case AnswerRequests():
                self.requests.answer(effect.answers)
            case AnnounceEntries():
                self._announce_entries(effect.entries)
            case SendSnapshotOffer():
                _call(self.hooks.snapshot_offered, effect)
            case ReportMismatch():
                self.mismatches_total += 1
                _log.error("ledger.mismatch", extra={"group": effect.group})
            case DropMessages():
                peer = "" if effect.sender is None else self.name_of(effect.sender)
                _log.warning("ledger.malformed: %s", effect.reason, extra={"peer": peer})
            case GroupRole():
                leader = "" if effect.leader is None else self.name_of(effect.leader)
                shown = {"group": effect.group, "term": effect.term, "leader": leader}
                _log.info("ledger.role", extra={**shown, "raft_role": effect.role.value})
            case AnnounceLeadership(term=None):
                _call(self.hooks.following, effect.group)
            case AnnounceLeadership():
                _call(self.hooks.leading, effect.group, effect.term)
            case AnnounceTopology():
                _call(self.hooks.topology)
            case AnnounceRestore() if effect.group != MANAGEMENT:
                _call(self.hooks.restored, effect.group)

    def _send(self, peer: int, packed: bytes) -> None:
        name = self.name_of(peer)
        connection = self.peers.connection(name) if name else None
        for piece in pieces(packed, _MESSAGE_BYTES):
            try:
                if connection is not None:
                    connection.send(RaftMessages(self.id, self.core.number, piece), at_once=True)
                    continue
            except QueueFullError:
                pass
            except InvariantError:  # larger than any message may be: others must not suffer
                _log.exception("ledger.unsendable", extra={"peer": name})
            # Not kept for later: consensus repeats what still matters.
            self._driver.feed(PeerUnreachable(peer))

    def _announce_entries(self, entries: list[AppliedEntry]) -> None:
        for hook in self.hooks.applied:
            for entry in entries:
                hook(entry)

    # -- names ----------------------------------------------------------------------------

    @property
    def own_name(self) -> str:
        return self.name_of(self.core.number)

    def name_of(self, number: int) -> str:
        """Return the node id of a number; empty if it is unknown."""
        return self.core.topology.name_of(number) or self.names.get(number, "")


def _call(hooks: list[Callable[..., None]], *arguments: object) -> None:
    for hook in hooks:
        hook(*arguments)


def wall_ms() -> int:
    """Return the wall clock, for dates and for display; never use it to measure a duration."""
    return time.time_ns() // 1_000_000
