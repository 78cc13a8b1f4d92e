"""The membership machine: events and the time in, effects out.

How a node is found dead:

    silence   probe -> indirect probes -> SUSPECT -> (witnesses shorten it) -> last look -> DEAD
    refused   its session ended and its address refuses connections, or another life answers
              there -> DEAD, here and, by gossip, everywhere

Nobody dies of hearsay alone: that another member found a node silent makes this one suspect it
and look for itself. Hearsay of a *refused* node is enough, because a process that is gone does
not come back in the same life.

`Membership` is what others see, and holds the rounds; asking is `prober`'s, believing
`rumours`', judging `judge`'s. Owns no clock, socket, task or lock.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from hyperscale.errors import InvariantError
from hyperscale.membership.audit_log import AuditLog
from hyperscale.membership.awareness import Awareness
from hyperscale.membership.context import LocalIdentity, MembershipContext
from hyperscale.membership.events import (
    AddressChanged,
    DatagramReceived,
    DialAnswered,
    DialRefused,
    DropSession,
    KeepSession,
    LeaveCompleted,
    LeaveRequested,
    Member,
    MemberDiscovered,
    MembershipEffect,
    MembershipEvent,
    MemberState,
    MetadataChanged,
    PushPullCompleted,
    PushPullFailed,
    PushPullRequested,
    ReplyToPushPull,
    SendDatagram,
    StartPushPull,
    Tick,
)
from hyperscale.membership.formulas import push_pull_s
from hyperscale.membership.gossip import GossipQueue
from hyperscale.membership.lifecycle import MemberLifecycle
from hyperscale.membership.member_table import MemberRecord, MemberTable
from hyperscale.membership.messages import (
    METADATA_BYTES_MAX,
    Ack,
    ClaimedState,
    Gossip,
    IndirectAck,
    MemberSnapshot,
    MemberUpdate,
    Nack,
    Ping,
    PingRequest,
    View,
)
from hyperscale.membership.prober import Prober
from hyperscale.membership.settings import MembershipConfig
from hyperscale.membership.timers import TimerKind
from hyperscale.membership.update_merger import UpdateMerger

__all__ = ["LocalIdentity", "Membership"]

_SYNC_AGAIN_S = 5.0
_SYNC_RETRY_S = 2.0
_WATCH_MOST = 16
_PURSUED_MOST = 8


class Membership:
    """One node's view of its cluster."""

    def __init__(
        self, identity: LocalIdentity, config: MembershipConfig, *, rng: Random, now_s: float
    ) -> None:
        self.station = MembershipContext(identity, config, rng=rng, now_s=now_s)
        self.roster: MemberTable = self.station.roster
        self.prober = Prober(self.station)
        self.judge = MemberLifecycle(self.station, self.prober)
        self.rumours = UpdateMerger(self.station, self.judge, self.prober)
        self._config = config
        self._rng = rng
        self._deadlines = self.station.deadlines
        self._watching: dict[str, tuple[int, str]] = {}
        self._events: dict[type, Callable[[Any], None]] = {
            DatagramReceived: self._on_received,
            Tick: self._on_tick,
            MemberDiscovered: self._on_contact,
            PushPullCompleted: self._on_synced,
            PushPullRequested: self._on_sync_asked,
            PushPullFailed: self._on_sync_failed,
            DialRefused: self._on_refused,
            DialAnswered: self._on_answered,
            MetadataChanged: self._on_describe,
            AddressChanged: self._on_move,
            LeaveRequested: self._on_leave,
        }
        self._timers: dict[TimerKind, Callable[[Any], None]] = {
            TimerKind.PROBE_ROUND: self._probe_round,
            TimerKind.GOSSIP_ROUND: self._gossip_round,
            TimerKind.SYNC_ROUND: self._sync_round,
            TimerKind.DEAD_ROUND: self._dead_round,
            TimerKind.GONE_ROUND: self._gone_round,
            TimerKind.DEAD_SYNC_ROUND: self._dead_sync_round,
            TimerKind.GREET: self._greet_due,
            TimerKind.FORGET: self.judge.forget_due,
            TimerKind.LEAVE: self._leave_due,
            TimerKind.RELAY: self.prober.relay_due,
            TimerKind.PROBE: self._probe_due,
            TimerKind.SUSPICION: self.judge.look,
            TimerKind.LOOK: self.judge.look,
        }
        self.station.set(TimerKind.PROBE_ROUND, None, rng.random() * config.probe_interval_s)
        self.station.set(TimerKind.SYNC_ROUND, None, rng.random() * config.push_pull_s)

    # What others see.

    @property
    def node(self) -> str:
        return self.station.node

    @property
    def incarnation(self) -> int:
        return self.station.incarnation

    @property
    def awareness(self) -> Awareness:
        return self.station.awareness

    @property
    def audit(self) -> AuditLog:
        return self.station.audit

    @property
    def gossip(self) -> GossipQueue:
        return self.station.gossip

    @property
    def is_leaving(self) -> bool:
        return self.station.is_leaving

    def handle(self, event: MembershipEvent, *, now_s: float) -> list[MembershipEffect]:
        """Everything that follows from one event."""
        station = self.station
        effects: list[MembershipEffect] = []
        station.effects = effects
        # Late is what passed since a deadline that was missed and since anything was handled:
        # the packets that waited come one by one, the stall before them counts once.
        late_s = now_s - max(self._deadlines.next_s, station.now_s)
        station.now_s = now_s
        if late_s > self._config.stall_s:
            self.judge.stalled(late_s)
        self._events[type(event)](event)
        return effects

    def wake_at_s(self) -> float:
        """When a `Tick` is wanted."""
        return self._deadlines.next_s

    def members(self) -> list[Member]:
        """Every member this node knows, itself included."""
        return [
            self.station.own_member(),
            *(peer.member() for peer in self.roster.peers.values()),
        ]

    def member(self, node: str) -> Member | None:
        """What is known of one of them; None if nobody of that name was ever seen."""
        if node == self.station.node:
            return self.station.own_member()
        peer = self.roster.get(node)
        return None if peer is None else peer.member()

    def state_of(self, node: str) -> MemberState | None:
        peer = self.roster.get(node)
        return None if peer is None else peer.state

    # Rounds.

    def _on_tick(self, _: Tick) -> None:
        pop_due, timers, now_s = self._deadlines.pop_due, self._timers, self.station.now_s
        while (due := pop_due(now_s)) is not None:
            timers[due[0]](due[1])

    def _probe_round(self, _: None) -> None:
        """One living member at random, the successors on the ring, and whom this node accuses."""
        station, config = self.station, self._config
        every_s = config.probe_interval_s * station.awareness.multiplier
        station.set(TimerKind.PROBE_ROUND, None, every_s)
        if station.is_leaving:
            return
        targets = {p.node: p for p in self.roster.successors(config.watched, _WATCH_MOST)}
        target = self.roster.next_target()
        if target is not None:
            targets[target.node] = target
        pursued = 0
        for peer in self.judge.suspects.values():
            if peer.suspicion is not None and station.node in peer.suspicion.witnesses:
                targets[peer.node] = peer
                pursued += 1
                if pursued == _PURSUED_MOST:
                    break
        for peer in targets.values():
            self.prober.probe(peer)
        if self.judge.ring_changed:
            self._keep_watch()

    def _keep_watch(self) -> None:
        """Sessions with whom the ring gives this node to watch."""
        self.judge.ring_changed = False
        duties = self.roster.stream_duties(self._config.watched, self.station.role)
        wanted = {peer.node: peer for peer in duties}
        for node in [node for node in self._watching if node not in wanted]:
            del self._watching[node]
            self.station.effects.append(DropSession(node))
        for node, peer in wanted.items():
            where = (peer.incarnation, peer.stream_address)
            if self._watching.get(node) != where:
                self._watching[node] = where
                self.station.effects.append(KeepSession(node, *where))

    def _gossip_round(self, _: None) -> None:
        station = self.station
        if not len(station.gossip):
            return
        targets = self.roster.sample(self._config.gossip_fanout)
        if not targets:
            return  # whoever enters next starts it again
        datagram = Gossip(station.sender, station.news(len(targets)))
        station.effects += [SendDatagram(peer.address, datagram) for peer in targets]
        if len(station.gossip):
            station.set(TimerKind.GOSSIP_ROUND, None, self._config.gossip_interval_s)

    def _sync_round(self, _: None) -> None:
        station = self.station
        every_s = push_pull_s(self._config.push_pull_s, len(self.roster))
        station.set(TimerKind.SYNC_ROUND, None, every_s)
        partners = [peer for peer in self.roster.living if station.may_dial(peer)]
        if partners and not station.is_leaving:
            self._sync_with(self._rng.choice(partners))

    def _dead_round(self, _: None) -> None:
        """A silent member may only have been behind a cut: ask one of them, in turn."""
        self._ask_dead(self.roster.silent, TimerKind.DEAD_ROUND, self._config.reprobe_silent_s)

    def _gone_round(self, _: None) -> None:
        self._ask_dead(self.roster.gone, TimerKind.GONE_ROUND, self._config.reprobe_gone_s)

    def _ask_dead(self, dead: dict[str, None], timer: TimerKind, every_s: float) -> None:
        if not dead or self.station.is_leaving:
            return
        self.station.set(timer, None, every_s * (0.8 + 0.4 * self._rng.random()))
        node = next(iter(dead))
        del dead[node]
        dead[node] = None  # to the end of the line
        self.prober.greet(self.roster.peers[node])

    def _dead_sync_round(self, _: None) -> None:
        if not self.roster.silent or self.station.is_leaving:
            return
        self.station.set(TimerKind.DEAD_SYNC_ROUND, None, self._config.sync_dead_s)
        dead = [self.roster.peers[node] for node in self.roster.silent]
        dead = [peer for peer in dead if self.station.may_dial(peer)]
        if dead:
            self._sync_with(self._rng.choice(dead))

    def _greet_due(self, node: str) -> None:
        peer = self.roster.get(node)
        if peer is not None and peer.state is MemberState.UNCONFIRMED:
            self.prober.greet_again(peer)

    def _probe_due(self, sequence: int) -> None:
        silent = self.prober.overdue(sequence)
        if silent is not None:
            self.judge.suspect(silent, self.station.node)

    # Datagrams.

    def _on_received(self, event: DatagramReceived) -> None:
        datagram = event.datagram
        peer = self.rumours.hear(event.node, event.incarnation, datagram.sender)
        if peer is None:
            return
        for news in datagram.news:
            self.rumours.take(news)
        if self.roster.peers.get(event.node) is not peer:
            return  # unconfirmed, and it said goodbye with these very news
        if peer.state is MemberState.DEAD and peer.claim is ClaimedState.SILENT:
            self._reunite(peer)
        if isinstance(datagram, Ping):
            self.prober.on_ping(event, datagram, peer)
        elif isinstance(datagram, Ack):
            self._on_ack(event, datagram, peer)
        elif isinstance(datagram, Gossip):
            if peer.state is not MemberState.ALIVE:
                self.prober.tell(peer)
        elif isinstance(datagram, PingRequest):
            self.prober.on_ping_request(event, datagram)
        elif isinstance(datagram, IndirectAck):
            self._on_vouch(datagram)
        elif isinstance(datagram, Nack):
            self.prober.on_nack(event, datagram)

    def _on_ack(self, event: DatagramReceived, ack: Ack, peer: MemberRecord) -> None:
        answered = self.prober.on_ack(event, ack, peer)
        if answered is not None:
            self._learn_metadata(peer, ack.metadata_version, ack.metadata)
            self.judge.answered(answered)

    def _on_vouch(self, vouch: IndirectAck) -> None:
        peer = self.prober.on_vouch(vouch)
        if peer is None:
            return
        if vouch.refutation > peer.refutation:
            self.rumours.refuted(peer, vouch.refutation, peer.address, peer.stream_port)
        if peer.is_living:
            self.judge.answered(peer)

    def _reunite(self, peer: MemberRecord) -> None:
        """A silent member speaks: a cut has healed, and both sides know what the other missed."""
        if self.station.now_s - peer.synced_s > _SYNC_AGAIN_S and self.station.may_dial(peer):
            self._sync_with(peer)

    def _learn_metadata(self, peer: MemberRecord, version: int, metadata: bytes) -> None:
        if version > peer.metadata_version:
            peer.metadata_version, peer.metadata = version, metadata
            self.station.change(peer, peer.state)

    # Streams.

    def _on_refused(self, event: DialRefused) -> None:
        peer = self.roster.get(event.node)
        if peer is None or peer.incarnation != event.incarnation:
            return
        if event.address == peer.stream_address:  # else it has moved, and is not missed there
            self.judge.refused(peer)

    def _on_answered(self, event: DialAnswered) -> None:
        peer = self.roster.get(event.node)
        if peer is None or peer.incarnation != event.incarnation:
            return
        if event.by == peer.node and event.life <= peer.incarnation:
            if event.life < peer.incarnation:  # a new process, whose clock was set back
                self.prober.remind(peer, peer.address)
                return
            peer.heard_s = self.station.now_s
            self.prober.drop(peer)
            self.judge.answered(peer)
        elif event.address == peer.stream_address:
            # Another process has its port by now. Not even the clocks need to agree on that.
            self.judge.refused(peer)

    def _on_contact(self, event: MemberDiscovered) -> None:
        self.station.effects.append(StartPushPull(event.address, "", 0, self._view(is_join=True)))

    def _sync_with(self, peer: MemberRecord) -> None:
        peer.synced_s = self.station.now_s
        self.station.effects.append(
            StartPushPull(peer.stream_address, peer.node, peer.incarnation, self._view())
        )

    def _on_synced(self, event: PushPullCompleted) -> None:
        self._merge(event.node, event.incarnation, event.view)

    def _on_sync_failed(self, event: PushPullFailed) -> None:
        peer = self.roster.get(event.node)
        if peer is not None and peer.is_living:
            self.station.sync_soon(_SYNC_RETRY_S)

    def _on_sync_asked(self, event: PushPullRequested) -> None:
        answer = self._view()
        self._merge(event.node, event.incarnation, event.view)
        self.station.effects.append(ReplyToPushPull(event.token, answer))

    def _merge(self, node: str, incarnation: int, view: View) -> None:
        peer = self.rumours.hear(node, incarnation, view.sender)
        if peer is not None:
            self.judge.answered(peer)  # a stream is a two-way exchange
        for record in view.records:
            self.rumours.take(record.news)
            known = self.roster.get(record.news.node)
            if known is not None and known.incarnation == record.news.incarnation:
                self._learn_metadata(known, record.metadata_version, record.metadata)

    def _view(self, *, is_join: bool = False) -> View:
        station = self.station
        records = [MemberSnapshot(station.own_news(), station.metadata_version, station.metadata)]
        for peer in self.roster.peers.values():
            if peer.state is MemberState.UNCONFIRMED:
                continue  # rumours are not passed on as knowledge
            news = MemberUpdate(
                node=peer.node,
                incarnation=peer.incarnation,
                claim=peer.claim,
                refutation=peer.refutation,
                by="" if peer.claim is ClaimedState.ALIVE else station.accuser_of(peer),
                role=peer.role,
                address=peer.address,
                stream_port=peer.stream_port,
            )
            records.append(MemberSnapshot(news, peer.metadata_version, peer.metadata))
        return View(station.sender, tuple(records), is_join)

    # This node itself.

    def _on_describe(self, event: MetadataChanged) -> None:
        station = self.station
        if len(event.metadata) > METADATA_BYTES_MAX:
            raise InvariantError(
                f"metadata of {len(event.metadata)} bytes, at most {METADATA_BYTES_MAX} fit an ack",
                hint="send the rest over a stream",
            )
        if event.metadata != station.metadata:
            station.metadata = event.metadata
            station.metadata_version += 1

    def _on_move(self, event: AddressChanged) -> None:
        station = self.station
        if (event.address, event.stream_port) != (station.address, station.stream_port):
            station.address, station.stream_port = event.address, event.stream_port
            station.refutation += 1
            station.announce()

    def _on_leave(self, _: LeaveRequested) -> None:
        station = self.station
        if station.is_leaving:
            return
        station.is_leaving = True
        own = station.own_news()
        station.tell_others(own, urgent=True)
        farewell = Gossip(station.sender, (own,))
        for peer in self.roster.sample(4 * self._config.gossip_fanout):
            station.effects.append(SendDatagram(peer.address, farewell))
        station.effects += [DropSession(node) for node in self._watching]
        self._watching.clear()
        station.set(TimerKind.LEAVE, None, self._config.leave_s)

    def _leave_due(self, _: None) -> None:
        self.station.effects.append(LeaveCompleted())
