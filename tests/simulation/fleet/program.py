"""A node that does nothing but be a member: the shell around the membership and discovery cores.

It does in the simulator what `hyperscale.nodes` does with sockets: seals (here: names the
sender), dials, keeps sessions, exchanges views. Decisions are all the cores'.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from hyperscale.membership.core import Membership
from hyperscale.membership.discovery import (
    ContactMember,
    Discovery,
    DiscoveryConfig,
    DiscoveryEffect,
    MemberDown,
    MemberUp,
    ProbeAddress,
    ProbeAnswered,
    ProbeFailed,
)
from hyperscale.membership.events import (
    LIVING,
    DatagramReceived,
    DialAnswered,
    DialMember,
    DialRefused,
    DropSession,
    KeepSession,
    LeaveCompleted,
    LeaveRequested,
    MemberChanged,
    MemberDied,
    MemberDiscovered,
    MembershipEffect,
    MemberState,
    PushPullCompleted,
    PushPullFailed,
    PushPullRequested,
    ReplyToPushPull,
    SendDatagram,
    StartPushPull,
)
from hyperscale.membership.local_node import LocalIdentity
from hyperscale.membership.messages import IndirectAck, PingRequest
from hyperscale.membership.settings import MembershipConfig
from hyperscale.sansio.core import Tick
from hyperscale.wire.roles import Role
from tests.simulation import network
from tests.simulation.kernel import Host

_DIAL_WITHIN_S = 2.0
_RETRY_S = 2.0
_DISCOVERED_S = 12.0

CoreFactory = Callable[..., Membership]


@dataclass
class FleetConfig:
    """What all nodes of a fleet have in common."""

    membership: MembershipConfig = field(default_factory=MembershipConfig)
    core: CoreFactory = Membership
    roles: dict[str, Role] = field(default_factory=dict)
    seeds: list[str] = field(default_factory=list)
    rejoin: bool = True
    """False: discovery stands still once it has found members, so that only membership itself
    heals cuts."""
    drains: bool = True
    """Before timers fire the socket is emptied, as the stall guard wants it."""
    isolation: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Cluster and environment of hosts that are not of ("sim", "test")."""


def show(payload: Any) -> str:
    """A datagram in short: what it is, and the news on it."""
    node, _, datagram = payload
    news = " ".join(
        f"{n.node}+{n.refutation}:{n.claim.name.lower()}{'/' + n.by if n.by else ''}"
        for n in datagram.updates
    )
    kind = type(datagram).__name__
    about = f" {datagram.target}" if isinstance(datagram, PingRequest | IndirectAck) else ""
    sequence = getattr(datagram, "sequence", "")
    return f"{kind} {sequence}{about} by {node}+{datagram.sender.refutation} [{news}]"


class MemberProgram:
    """One process of a fleet."""

    def __init__(self, host: Host, config: FleetConfig) -> None:
        self.host = host
        self.config = config
        name = host.disk.read("node")
        if name is None:
            name = f"{host.address}.{host.life}"
            host.disk.write("node", name)
            host.disk.sync()
        self.node: str = name
        self.role = config.roles[host.address]
        self.changes: list[MemberChanged | MemberDied] = []
        self.last = "start"
        self.core = config.core(
            LocalIdentity(
                node=self.node,
                incarnation=host.wall_ms(),
                role=self.role,
                address=host.address,
            ),
            config.membership,
            rng=Random(host.world.rng.getrandbits(64)),
            now_s=host.world.now_s,
        )
        self.cluster, self.environment = config.isolation.get(host.address, ("sim", "test"))
        self.discovery = Discovery(
            self.node,
            host.address,
            DiscoveryConfig(
                cluster=self.cluster, environment=self.environment, seeds=tuple(config.seeds)
            ),
            rng=Random(host.world.rng.getrandbits(64)),
            now_s=host.world.now_s,
        )
        self._discovers = True
        self._discover_at_s: float | None = host.world.now_s
        self._started_s = host.world.now_s
        self._retries: dict[str, float] = {}
        self._watched: dict[str, KeepSession] = {}
        self._sessions: set[Any] = set()
        self._handle = self.core.handle

    # Kernel side.

    def start(self, now_s: float) -> None:
        self._find(Tick(), now_s)

    def datagram(self, source: str, payload: Any, now_s: float) -> None:
        self.last = "datagram"
        node, incarnation, datagram = payload
        self._perform(
            self._handle(DatagramReceived(source, node, incarnation, datagram), now_s=now_s)
        )

    def stream(self, event: Any, now_s: float) -> None:
        self.last = "stream"
        match event:
            case network.Asked(_, ("hello",), handle):
                own = (self.node, self.core.local.incarnation, self.cluster, self.environment)
                self.host.answer(handle, own)
            case network.Asked(_, ("sync", node, incarnation, view), handle):
                asked = PushPullRequested(node, incarnation, view, handle)
                self._perform(self._handle(asked, now_s=now_s))
            case network.Answered(("sync", _, _), _, (node, incarnation, view)):
                self._perform(self._handle(PushPullCompleted(node, incarnation, view), now_s=now_s))
            case network.Answered(("probe",), source, (node, _, cluster, environment)):
                self._find(ProbeAnswered(source, node, cluster, environment), now_s)
            case network.Failed(("probe",), source, _):
                self._find(ProbeFailed(source), now_s)
            case network.Answered(("dial", node, incarnation), source, (found, life, _, _)):
                self._dialled(node, incarnation, source, found, life, now_s)
            case network.Failed(("sync", node, incarnation), source, refused):
                self._perform(self._handle(PushPullFailed(node), now_s=now_s))
                if refused and node:
                    self._perform(self._handle(DialRefused(node, incarnation, source), now_s=now_s))
            case network.Failed((("dial" | "watch"), node, incarnation), source, refused):
                if refused:
                    self._perform(self._handle(DialRefused(node, incarnation, source), now_s=now_s))
                if node in self._watched and event.token not in self._sessions:
                    self._retries[node] = now_s + _RETRY_S
            case network.Closed(("watch", node, incarnation) as session, source):
                self._sessions.discard(session)
                self.host.ask(
                    source, ("hello",), ("dial", node, incarnation), within_s=_DIAL_WITHIN_S
                )
            case network.Opened(session, _):
                self._sessions.add(session)
            case _:
                raise AssertionError(f"what is {event!r}?")

    def _dialled(
        self, node: str, incarnation: int, source: str, found: str, life: int, now_s: float
    ) -> None:
        answered = DialAnswered(node, incarnation, source, found, life)
        self._perform(self._handle(answered, now_s=now_s))
        is_there = (found, life) == (node, incarnation)
        if is_there and node in self._watched and ("watch", node, life) not in self._sessions:
            self._retries[node] = now_s + _RETRY_S

    def disk(self, token: Any, now_s: float) -> None:
        raise AssertionError("membership writes nothing that must be durable before it acts")

    def wake(self, now_s: float) -> None:
        if self.config.drains:
            self.host.drain()
        self.last = "wake"
        wake_at_s = self.core.wake_at_s()
        if wake_at_s is not None and wake_at_s <= now_s:
            self._perform(self._handle(Tick(), now_s=now_s))
        if self._discover_at_s is not None and self._discover_at_s <= now_s:
            self._find(Tick(), now_s)
        for node in [node for node, at_s in self._retries.items() if at_s <= now_s]:
            del self._retries[node]
            watch = self._watched.get(node)
            if watch is not None:
                self.host.open(watch.address, ("watch", node, watch.incarnation))

    def wake_at_s(self) -> float | None:
        times = [self.core.wake_at_s(), self._discover_at_s, *self._retries.values()]
        return min((at_s for at_s in times if at_s is not None), default=None)

    # What tests do to it.

    def leave(self) -> None:
        self._perform(self._handle(LeaveRequested(), now_s=self.host.world.now_s))
        self.host.world.monitor.after(self.host)
        self.host.settle()

    def stop_discovery(self) -> None:
        self._discovers = False
        self._discover_at_s = None

    # Core side.

    def _find(self, event: Any, now_s: float) -> None:
        """One step of discovery, unless it stands still by now."""
        if not self._discovers:
            return
        is_found = bool(self.core.table.living)
        if not self.config.rejoin and is_found and now_s > self._started_s + _DISCOVERED_S:
            self.stop_discovery()
            return
        effects: list[DiscoveryEffect] = self.discovery.handle(event, now_s=now_s)
        for effect in effects:
            if type(effect) is ProbeAddress:
                self.host.ask(effect.address, ("hello",), ("probe",), within_s=effect.timeout_s)
            elif type(effect) is ContactMember:
                self._perform(self._handle(MemberDiscovered(effect.address), now_s=now_s))
            else:
                self.host.note("WARN", effect)
        self._discover_at_s = self.discovery.wake_at_s()

    def _follow(self, change: MemberChanged) -> None:
        """Tells discovery who lives."""
        member, now_s = change.member, self.host.world.now_s
        if member.state is MemberState.ALIVE and change.before is not MemberState.SUSPECT:
            self._find(MemberUp(member.node, member.stream_address), now_s)
        elif member.state not in LIVING and change.before in LIVING:
            self._find(MemberDown(member.node), now_s)

    def _perform(self, effects: list[MembershipEffect]) -> None:
        host = self.host
        core = self.core
        for effect in effects:
            kind = type(effect)
            if kind is SendDatagram:
                host.send(effect.address, (self.node, core.local.incarnation, effect.datagram))
            elif kind is MemberChanged or kind is MemberDied:
                self.changes.append(effect)
                if kind is MemberChanged:
                    self._follow(effect)
                if host.world.trace is not None:
                    self._note(effect)
            elif kind is StartPushPull:
                request = ("sync", self.node, core.local.incarnation, effect.request)
                host.ask(effect.address, request, ("sync", effect.node, effect.incarnation))
            elif kind is ReplyToPushPull:
                host.answer(effect.token, (self.node, core.local.incarnation, effect.reply))
            elif kind is DialMember:
                token = ("dial", effect.node, effect.incarnation)
                host.ask(effect.address, ("hello",), token, within_s=_DIAL_WITHIN_S)
            elif kind is KeepSession:
                self._watched[effect.node] = effect
                host.open(effect.address, ("watch", effect.node, effect.incarnation))
            elif kind is DropSession:
                watch = self._watched.pop(effect.node, None)
                self._retries.pop(effect.node, None)
                if watch is not None:
                    self._sessions.discard(("watch", watch.node, watch.incarnation))
                    host.close(("watch", watch.node, watch.incarnation))
            elif kind is LeaveCompleted:
                host.world.after(0.0, lambda: host.stop("exit"))

    def _note(self, effect: MemberChanged | MemberDied) -> None:
        member = effect.member
        about = f"{member.node} {member.incarnation}+{member.refutation}"
        if isinstance(effect, MemberDied):
            how = "gossip" if effect.is_from_gossip else "own"
            self.host.note("DIED", f"{about} {effect.evidence.name} ({how})")
        else:
            self.host.note("CHANGED", f"{about} {effect.before} -> {member.state}")
