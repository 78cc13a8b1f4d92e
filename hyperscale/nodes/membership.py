"""The membership and discovery cores on real sockets: events in, effects performed in order.

Owns the one timer of the cores, the sessions membership wants kept, and the short tasks that
dial, exchange views and ask DNS. Decides nothing: what an outcome means is the cores' to say.

Refused evidence is made here: a session that ends is dialled again at once, and only the
kernel's own refusal of the connection counts, or that someone else answers at that address.
"""

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, get_args

import msgspec

from hyperscale.config.addresses import format_address, split_address
from hyperscale.errors import InvariantError
from hyperscale.membership.core import Membership
from hyperscale.membership.discovery import (
    ContactMember,
    Discovery,
    DiscoveryEvent,
    DiscoveryTick,
    MemberDown,
    MemberUp,
    NameResolved,
    NameUnresolved,
    ProbeAddress,
    ProbeAnswered,
    ProbeFailed,
    ResolveName,
    WarnOperator,
)
from hyperscale.membership.events import (
    LIVING,
    AddressChanged,
    DatagramReceived,
    DialAnswered,
    DialMember,
    DialRefused,
    DrainSocket,
    DropSession,
    IncarnationRaised,
    KeepSession,
    LeaveCompleted,
    LeaveRequested,
    MemberChanged,
    MemberDied,
    MemberDiscovered,
    MembershipEvent,
    MemberState,
    PushPullCompleted,
    PushPullFailed,
    PushPullRequested,
    ReplyToPushPull,
    SendDatagram,
    StartPushPull,
    Tick,
)
from hyperscale.membership.messages import Datagram, View
from hyperscale.nodes.datagrams import Datagrams
from hyperscale.nodes.metrics import DurationHistogram
from hyperscale.nodes.turns import Turns
from hyperscale.sansio.tasks import TaskSupervisor
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.connection import Connection
from hyperscale.wire.errors import CallError, PeerProtocolError, RefusalReason
from hyperscale.wire.server import PeerServer

DIAL_S = 2.0
SYNC_S = 5.0
_WATCH_AGAIN_S = 2.0
_SETTLE_S = 0.1
_DATAGRAMS = frozenset(get_args(Datagram))
_DNS_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

Resolver = Callable[[str, float], Awaitable[NameResolved | NameUnresolved]]
"""Looks a name up, within so many seconds."""

_log = logging.getLogger("hyperscale.membership")


class MembershipDriver:
    """Runs the two cores of one node."""

    def __init__(
        self,
        core: Membership,
        discovery: Discovery,
        *,
        address: str,
        server: PeerServer,
        datagrams: Datagrams,
        tasks: TaskSupervisor,
        resolver: Resolver | None,
        on_change: Callable[[MemberChanged | MemberDied], None],
    ) -> None:
        self.core = core
        self.discovery = discovery
        self.counts: Counter[str] = Counter()
        self.deaths: Counter[str] = Counter()
        self.dns_lookups: Counter[str] = Counter()
        self.dns_duration = DurationHistogram(
            "hyperscale_discovery_dns_resolution_duration_seconds",
            "How long DNS lookups took",
            _DNS_BOUNDS_S,
        )
        self._address = address
        self._server = server
        self._resolver = resolver
        self._tasks = tasks
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        """Done when the farewell has been told."""
        self.datagrams = datagrams
        self._turns: Turns[MembershipEvent] = Turns(self._handle)
        self._is_leaving = False
        self._is_stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = float("inf")
        self._discovery_timer: asyncio.TimerHandle | None = None
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._dialling: set[str] = set()
        self._met: dict[str, str] = {}  # who answered at an address
        self._perform: dict[type, Callable[[Any], None]] = {
            SendDatagram: self._sent,
            MemberChanged: self._changed,
            MemberDied: self._died,
            StartPushPull: self._sync_wanted,
            ReplyToPushPull: self._sync_answered,
            DialMember: self._dial_wanted,
            KeepSession: self._watch_wanted,
            DropSession: self._unwatched,
            DrainSocket: self._drained,
            IncarnationRaised: self._reborn,
            LeaveCompleted: self._went,
        }

    # -- lifetime -------------------------------------------------------------------------

    def start(self) -> None:
        """From here on there is a member. The sockets are open."""
        self.datagrams.listen(self._received)
        self._arm()
        self._find(DiscoveryTick())

    def move(self, address: str) -> None:
        """This node is reached at another address from here on."""
        _log.info("node.moved", extra={"address": address, "was": self._address})
        self._address = address
        self.feed(AddressChanged(address))

    def leave(self) -> None:
        """Tells the others; `gone` follows."""
        self._is_leaving = True
        self._cancel_discovery()
        self.feed(LeaveRequested())

    def stop(self) -> None:
        """Take no more events; tasks may still be ending."""
        self._is_stopped = True
        self._cancel_discovery()
        if self._timer is not None:
            self._timer.cancel()

    def _fail(self, error: BaseException) -> None:
        self.stop()
        self._tasks.fail(error)

    # -- events ---------------------------------------------------------------------------

    def feed(self, event: MembershipEvent) -> None:
        """Hands one event to the core and performs what follows, in order."""
        if self._is_stopped:
            return
        try:
            if self._turns.take(event):
                self._arm()
        except Exception as error:  # noqa: BLE001  a bug of ours: told to whoever runs the node
            self._fail(error)

    def _handle(self, event: MembershipEvent) -> None:
        for effect in self.core.handle(event, now_s=time.monotonic()):
            self._perform[type(effect)](effect)

    def _received(self, source: str, node: str, incarnation: int, message: Any) -> None:
        """A datagram that opened."""
        if type(message) in _DATAGRAMS:
            self.feed(DatagramReceived(source, node, incarnation, message))
        else:
            self.counts["datagrams_unexpected"] += 1

    def asked(self, call: InboundCall, view: View) -> None:
        """Another member wants to exchange views; the core answers by `ReplyToPushPull`."""
        peer = call.peer
        self.feed(PushPullRequested(peer.node_id, peer.incarnation, view, call))

    def _arm(self) -> None:
        wake_at_s = self.core.wake_at_s()
        if self._is_stopped or wake_at_s == self._timer_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = wake_at_s
        delay_s = max(0.0, wake_at_s - time.monotonic())
        self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_s = None, float("inf")
        # Whatever waits in the socket was sent before now: nobody is judged before it is heard.
        self.datagrams.drain()
        self.feed(Tick())

    # -- effects --------------------------------------------------------------------------

    def _sent(self, effect: SendDatagram) -> None:
        self.datagrams.send(effect.address, effect.datagram)

    def _sync_wanted(self, effect: StartPushPull) -> None:
        self._tasks.spawn(self._sync(effect), f"sync:{effect.address}")

    def _sync_answered(self, effect: ReplyToPushPull) -> None:
        assert isinstance(effect.token, InboundCall)
        effect.token.reply(effect.view)

    def _dial_wanted(self, effect: DialMember) -> None:
        if effect.node not in self._dialling:
            self._dialling.add(effect.node)
            self._tasks.spawn(self._dial(effect), f"dial:{effect.address}")

    def _watch_wanted(self, effect: KeepSession) -> None:
        self._unwatched(effect)
        self._watches[effect.node] = self._tasks.spawn(
            self._watch(effect), f"watch:{effect.address}"
        )

    def _unwatched(self, effect: KeepSession | DropSession) -> None:
        task = self._watches.pop(effect.node, None)
        if task is not None:
            task.cancel()

    def _drained(self, effect: DrainSocket) -> None:
        self.counts["stalls"] += 1
        _log.info("node.stalled", extra={"late_s": round(effect.late_s, 3)})
        self.datagrams.drain()

    def _went(self, _: LeaveCompleted) -> None:
        if not self.gone.done():
            self.gone.set_result(None)

    def _changed(self, changed: MemberChanged) -> None:
        member, before = changed.member, changed.before
        if member.state is not before and member.state is not MemberState.DEAD:
            _log.info(
                _event_name(member.state, before),
                extra={
                    "member": member.node,
                    "member_role": str(member.role),
                    "address": member.address,
                    "incarnation": member.incarnation,
                    "was": "" if before is None else str(before),
                },
            )
        if member.state is MemberState.LEFT and before in LIVING:
            self.counts["leaves"] += 1
        if member.state is MemberState.ALIVE and before is not MemberState.SUSPECT:
            self._find(MemberUp(member.node, member.stream_address))
        elif member.state not in LIVING and before in LIVING:
            self._find(MemberDown(member.node))
        self._on_change(changed)

    def _died(self, died: MemberDied) -> None:
        self.deaths[died.evidence.name.lower()] += 1
        if died.is_from_gossip:
            self.counts["gossip_informed_deaths"] += 1
        _log.warning(
            "member.died",
            extra={
                "member": died.member.node,
                "incarnation": died.member.incarnation,
                "evidence": died.evidence.name.lower(),
                "source": "gossip" if died.is_from_gossip else "own",
            },
        )
        self._on_change(died)

    def _reborn(self, effect: IncarnationRaised) -> None:
        incarnation = effect.incarnation
        why = self.core.audit.entries[-1].detail
        _log.warning("node.reborn", extra={"incarnation": incarnation, "detail": why})
        self.datagrams.sealer.renew(incarnation)
        self._server.local = msgspec.structs.replace(self._server.local, incarnation=incarnation)

    # -- streams --------------------------------------------------------------------------

    async def _sync(self, effect: StartPushPull) -> None:
        try:
            async with asyncio.timeout(SYNC_S):
                connection = await self._connection(effect.node, effect.address)
                deadline_s = self._loop.time() + SYNC_S
                view = await connection.call(effect.view, View, deadline_s=deadline_s)
        except (PeerProtocolError, CallError, OSError) as error:
            self.counts["syncs_failed"] += 1
            _log.debug("sync.failed: %s", error, extra={"address": effect.address})
            self.feed(PushPullFailed(effect.node))
            return
        self.counts["syncs"] += 1
        peer = connection.peer
        self.feed(PushPullCompleted(peer.node_id, peer.incarnation, view))

    async def _connection(self, node: str, address: str) -> Connection:
        """The connection there is, or a new one."""
        found = self._server.connection_to(node or self._met.get(address, ""))
        return found or await self._server.dial(*split_address(address))

    async def _dial(self, effect: DialMember) -> None:
        try:
            await self._try_dial(effect.node, effect.incarnation, effect.address)
        finally:
            self._dialling.discard(effect.node)

    async def _try_dial(self, node: str, incarnation: int, address: str) -> Connection | None:
        """Connects and tells the core what it found; the connection if it is to that life."""
        try:
            async with asyncio.timeout(DIAL_S):
                connection = await self._server.dial(*split_address(address))
        except ConnectionRefusedError:
            self.feed(DialRefused(node, incarnation, address))
            return None
        except (PeerProtocolError, CallError, OSError) as error:
            _log.debug("dial.failed: %s", error, extra={"address": address, "member": node})
            if isinstance(error, PeerProtocolError) and error.reason is RefusalReason.LOOPED:
                own = self._server.local  # this node has that address by now
                self.feed(DialAnswered(node, incarnation, address, own.node_id, own.incarnation))
            return None
        peer = connection.peer
        self.feed(DialAnswered(node, incarnation, address, peer.node_id, peer.incarnation))
        found = (peer.node_id, peer.incarnation)
        return connection if found == (node, incarnation) else None

    async def _watch(self, watch: KeepSession) -> None:
        """Keeps a session; as soon as it ends, looks whether the process is still there."""
        node, incarnation = watch.node, watch.incarnation
        while True:
            connection = self._server.connection_to(node)
            if connection is None or connection.peer.incarnation != incarnation:
                connection = await self._try_dial(node, incarnation, watch.address)
            if connection is None:
                await asyncio.sleep(_WATCH_AGAIN_S)
                continue
            began_s = self._loop.time()
            await asyncio.wait([connection.gone])
            if self._loop.time() - began_s < _WATCH_AGAIN_S:
                await asyncio.sleep(_SETTLE_S)  # two dialled at once, or something is wrong there

    # -- discovery ------------------------------------------------------------------------

    def _find(self, event: DiscoveryEvent) -> None:
        """One step of discovery."""
        if self._is_stopped or self._is_leaving:
            return
        for effect in self.discovery.handle(event, now_s=time.monotonic()):
            match effect:
                case ProbeAddress(address, timeout_s):
                    self._tasks.spawn(self._probe(address, timeout_s), f"probe:{address}")
                case ResolveName(name, timeout_s):
                    self._tasks.spawn(self._resolve(name, timeout_s), f"resolve:{name}")
                case ContactMember(address):
                    self.feed(MemberDiscovered(address))
                case WarnOperator(text):
                    _log.warning("discovery.warned", extra={"detail": text})
        self._cancel_discovery()
        wake_at_s = self.discovery.wake_at_s()
        if wake_at_s < float("inf"):
            delay_s = max(0.0, wake_at_s - time.monotonic())
            self._discovery_timer = self._loop.call_later(delay_s, self._find, DiscoveryTick())

    async def _probe(self, address: str, timeout_s: float) -> None:
        host, port = split_address(address)
        try:
            async with asyncio.timeout(timeout_s):
                if await self._is_self(host, port):
                    self._met_self(address)
                    return
                connection = await self._server.dial(host, port)
        except PeerProtocolError as error:
            if error.reason is RefusalReason.LOOPED:  # by an address this node does not know it has
                self._met_self(address)
            else:
                self._find(ProbeFailed(address, str(error)))
        except (CallError, OSError) as error:
            _log.debug("probe.failed: %s", error, extra={"address": address})
            self._find(ProbeFailed(address))
        else:
            peer = connection.peer
            self._met[address] = peer.node_id
            self._find(ProbeAnswered(address, peer.node_id, peer.cluster, peer.environment))

    async def _is_self(self, host: str, port: int) -> bool:
        """Whether a seed is this node, by whatever name."""
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return any(format_address(*place[:2]) == self._address for *_, place in found)

    def _met_self(self, address: str) -> None:
        local = self._server.local
        self._find(ProbeAnswered(address, local.node_id, local.cluster, local.environment))

    async def _resolve(self, name: str, timeout_s: float) -> None:
        began_s = time.monotonic()
        if self._resolver is None:
            raise InvariantError(f"{name} is to be looked up, but there is no resolver")
        outcome = await self._resolver(name, timeout_s)
        self.dns_duration.observe(time.monotonic() - began_s)
        self.dns_lookups["error" if isinstance(outcome, NameUnresolved) else "success"] += 1
        self._find(outcome)

    def _cancel_discovery(self) -> None:
        if self._discovery_timer is not None:
            self._discovery_timer.cancel()
            self._discovery_timer = None


_EVENT_OF_RETURN = {
    MemberState.SUSPECT: "suspicion.cleared",
    MemberState.DEAD: "member.returned",
    MemberState.LEFT: "member.returned",
}


def _event_name(state: MemberState, before: MemberState | None) -> str:
    if state is MemberState.UNCONFIRMED:
        return "member.heard_of" if before is None else "member.restarted"
    if state is MemberState.ALIVE:
        return _EVENT_OF_RETURN.get(before or MemberState.UNCONFIRMED, "member.confirmed")
    return "member.suspected" if state is MemberState.SUSPECT else "member.left"
