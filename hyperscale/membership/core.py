"""The membership machine: events and the time in, effects out.

How a node is found dead:

    silence   probe -> indirect probes -> SUSPECT -> (witnesses shorten it) -> last look -> DEAD
    refused   its session ended and its address refuses connections, or another life answers
              there -> DEAD, here and, by gossip, everywhere

Nobody dies of hearsay alone: that another member found a node silent makes this one suspect it
and look for itself. Hearsay of a *refused* node is enough, because a process that is gone does
not come back in the same life. All timers are deadlines in one heap; one method, `_mark_dead`,
makes a member dead. Owns no clock, socket, task or lock.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from msgspec import Struct

from hyperscale.errors import InvariantError
from hyperscale.membership.audit import Audit
from hyperscale.membership.awareness import Awareness
from hyperscale.membership.deadlines import Deadlines, Timer
from hyperscale.membership.events import (
    Answered,
    Changed,
    Contact,
    Describe,
    Dial,
    Died,
    Drain,
    Effect,
    Event,
    Gone,
    Leave,
    Member,
    Move,
    Reborn,
    Received,
    Refused,
    Send,
    State,
    Sync,
    SyncAnswer,
    SyncAsked,
    Synced,
    SyncFailed,
    Tick,
    Unwatch,
    Watch,
)
from hyperscale.membership.formulas import (
    UNCONFIRMED_S,
    backoff_s,
    confirmations_wanted,
    greeting_within_s,
    probe_timeout_s,
    push_pull_s,
    transmissions,
    verify_chance,
)
from hyperscale.membership.gossip import GossipQueue
from hyperscale.membership.members import Peer, Roster, outranks
from hyperscale.membership.messages import (
    FINAL_CLAIMS,
    METADATA_BYTES_MAX,
    Ack,
    Claim,
    Gossip,
    Nack,
    News,
    Ping,
    PingRequest,
    Record,
    Sender,
    View,
    Vouch,
)
from hyperscale.membership.probing import Probe, Probes, Relay, Stage
from hyperscale.membership.settings import MembershipConfig
from hyperscale.membership.suspicion import Suspicion
from hyperscale.wire.registry import SizeClass
from hyperscale.wire.roles import MAY_CONNECT, Role

_HEAD_BYTES = 240
"""Room in a datagram for everything that is not news or metadata: names of 64 bytes twice."""

_TELL_EVERY_S = 0.3
_EAGER_GREETINGS = 8
"""Before the wait between greetings grows: datagrams get lost, most newcomers are real."""
_SYNC_AGAIN_S = 5.0
_SYNC_RETRY_S = 2.0
_SYNC_AWAY_S = 0.5
_AWAY_S = 3.0
"""Whoever stood still for this long has missed news that nobody tells any more."""
_REBORN_AGAIN_S = 5.0
_DRAIN_S = 0.1
_WATCH_MOST = 16
_PURSUED_MOST = 8
_NACK_SHARE = 0.6
"""A relay says no after this share of the probe timeout, so that the asker hears it in time."""

_DEAD_STATE = {Claim.SILENT: State.DEAD, Claim.REFUSED: State.DEAD, Claim.LEFT: State.LEFT}


class Identity(Struct, frozen=True, kw_only=True):
    """Who this node is. The incarnation is the wall clock in milliseconds at process start."""

    node: str
    incarnation: int
    role: Role
    address: str
    stream_port: int = 0


class Membership:
    """One node's view of its cluster."""

    def __init__(
        self, identity: Identity, config: MembershipConfig, *, rng: Random, now_s: float
    ) -> None:
        self.node = identity.node
        self.role = identity.role
        self.incarnation = identity.incarnation
        self.refutation = 0
        self.awareness = Awareness()
        self.audit = Audit()
        self.roster = Roster(identity.node, rng)
        self.gossip = GossipQueue()
        self._address = identity.address
        self._stream_port = identity.stream_port
        self._config = config
        self._rng = rng
        self._probes = Probes()
        self._deadlines = Deadlines()
        self._suspects: dict[str, Peer] = {}
        self._at_address: dict[str, str] = {}
        self._watching: dict[str, int] = {}
        self._ring_changed = False
        self._metadata = b""
        self._metadata_version = 0
        self.is_leaving = False
        self._reborn_s = float("-inf")
        self._now_s = now_s
        self._effects: list[Effect] = []
        self._sender = self._make_sender()
        self._handlers: dict[type, Callable[[Any], None]] = {
            Received: self._on_received,
            Tick: self._on_tick,
            Contact: self._on_contact,
            Synced: self._on_synced,
            SyncAsked: self._on_sync_asked,
            SyncFailed: self._on_sync_failed,
            Refused: self._on_refused,
            Answered: self._on_answered,
            Describe: self._on_describe,
            Move: self._on_move,
            Leave: self._on_leave,
            Ping: self._on_ping,
            Ack: self._on_ack,
            PingRequest: self._on_ping_request,
            Vouch: self._on_vouch,
            Nack: self._on_nack,
        }
        self._timers: dict[Timer, Callable[[Any], None]] = {
            Timer.PROBE_ROUND: self._probe_round,
            Timer.GOSSIP_ROUND: self._gossip_round,
            Timer.SYNC_ROUND: self._sync_round,
            Timer.DEAD_ROUND: self._dead_round,
            Timer.GONE_ROUND: self._gone_round,
            Timer.DEAD_SYNC_ROUND: self._dead_sync_round,
            Timer.GREET: self._greet_due,
            Timer.FORGET: self._forget_due,
            Timer.LEAVE: self._leave_due,
            Timer.RELAY: self._relay_due,
            Timer.PROBE: self._probe_due,
            Timer.SUSPICION: self._suspicion_due,
            Timer.LOOK: self._look_due,
        }
        self._set(Timer.PROBE_ROUND, None, rng.random() * config.probe_interval_s)
        self._set(Timer.SYNC_ROUND, None, rng.random() * config.push_pull_s)

    # What others ask of it.

    def handle(self, event: Event, *, now_s: float) -> list[Effect]:
        """Everything that follows from one event."""
        effects: list[Effect] = []
        self._effects = effects
        # Late is what passed since a deadline that was missed and since anything was handled:
        # the packets that waited come one by one, the stall before them counts once.
        late_s = now_s - max(self._deadlines.next_at_s(), self._now_s)
        self._now_s = now_s
        if late_s > self._config.stall_s:
            self._stalled(late_s)
        self._handlers[type(event)](event)
        return effects

    def wake_at_s(self) -> float:
        """When a `Tick` is wanted."""
        return self._deadlines.next_at_s()

    def members(self) -> list[Member]:
        """Every member this node knows, itself included."""
        own = Member(
            node=self.node,
            incarnation=self.incarnation,
            refutation=self.refutation,
            role=self.role,
            address=self._address,
            stream_address=self._stream_address(),
            state=State.LEFT if self.is_leaving else State.ALIVE,
            since_s=0.0,
            metadata=self._metadata,
            metadata_version=self._metadata_version,
        )
        return [own, *(peer.member() for peer in self.roster.peers.values())]

    def state_of(self, node: str) -> State | None:
        peer = self.roster.get(node)
        return None if peer is None else peer.state

    @property
    def suspects(self) -> dict[str, Peer]:
        return self._suspects

    # Stalls.

    def _stalled(self, late_s: float) -> None:
        """This node stood still: what it did not hear in that time is held against nobody."""
        self.awareness.stalled(late_s)
        self.audit.add(self._now_s, "node.stalled", self.node, self.incarnation, f"{late_s:.3f} s")
        not_before_s = self._now_s + _DRAIN_S
        self._deadlines.shift(Timer.PROBE, late_s, not_before_s=not_before_s)
        most_s = self._config.stall_extension_max_s
        for peer in self._suspects.values():
            suspicion = peer.suspicion
            if suspicion is None or suspicion.extended_s >= most_s:
                continue
            suspicion.extend(late_s, most_s=most_s)
            for timer in (Timer.SUSPICION, Timer.LOOK):
                at_s = self._deadlines.at_s(timer, peer.node)
                if at_s is not None:
                    self._deadlines.set(timer, peer.node, max(at_s + late_s, not_before_s))
        if late_s > _AWAY_S:
            self._sync_soon(_SYNC_AWAY_S)
        self._effects.append(Drain(late_s))

    # Rounds.

    def _on_tick(self, _: Tick) -> None:
        pop_due, timers, now_s = self._deadlines.pop_due, self._timers, self._now_s
        while (due := pop_due(now_s)) is not None:
            timers[due[0]](due[1])

    def _probe_round(self, _: None) -> None:
        """One living member at random, the successors on the ring, and whom this node accuses."""
        config = self._config
        self._set(Timer.PROBE_ROUND, None, config.probe_interval_s * self.awareness.multiplier)
        if self.is_leaving:
            return
        targets = {p.node: p for p in self.roster.successors(config.watched, _WATCH_MOST)}
        target = self.roster.next_target()
        if target is not None:
            targets[target.node] = target
        pursued = 0
        for peer in self._suspects.values():
            if peer.suspicion is not None and self.node in peer.suspicion.witnesses:
                targets[peer.node] = peer
                pursued += 1
                if pursued == _PURSUED_MOST:
                    break
        for peer in targets.values():
            self._probe(peer)
        if self._ring_changed:
            self._keep_watch()

    def _gossip_round(self, _: None) -> None:
        if not self.gossip:
            return
        targets = self.roster.sample(self._config.gossip_fanout)
        if targets:
            datagram = Gossip(self._sender, self._news(len(targets)))
            for peer in targets:
                self._effects.append(Send(peer.address, datagram))
        if self.gossip:
            self._set(Timer.GOSSIP_ROUND, None, self._config.gossip_interval_s)

    def _sync_round(self, _: None) -> None:
        self._set(Timer.SYNC_ROUND, None, push_pull_s(self._config.push_pull_s, len(self.roster)))
        allowed = MAY_CONNECT[self.role]
        partners = [peer for peer in self.roster.living if peer.role in allowed]
        if partners and not self.is_leaving:
            self._sync_with(self._rng.choice(partners))

    def _sync_soon(self, within_s: float) -> None:
        """Something was missed, or an exchange failed: exchange views before it is due."""
        at_s = self._deadlines.at_s(Timer.SYNC_ROUND, None)
        if at_s is None or at_s > self._now_s + within_s:
            self._set(Timer.SYNC_ROUND, None, within_s * self._rng.random())

    def _dead_round(self, _: None) -> None:
        """A silent member may only have been behind a cut: ask one of them, in turn."""
        self._ask_dead(self.roster.silent, Timer.DEAD_ROUND, self._config.reprobe_silent_s)

    def _gone_round(self, _: None) -> None:
        self._ask_dead(self.roster.gone, Timer.GONE_ROUND, self._config.reprobe_gone_s)

    def _ask_dead(self, dead: dict[str, None], timer: Timer, every_s: float) -> None:
        if not dead or self.is_leaving:
            return
        self._set(timer, None, every_s * (0.8 + 0.4 * self._rng.random()))
        node = next(iter(dead))
        del dead[node]
        dead[node] = None  # to the end of the line
        self._greet(self.roster.peers[node])

    def _dead_sync_round(self, _: None) -> None:
        if not self.roster.silent or self.is_leaving:
            return
        self._set(Timer.DEAD_SYNC_ROUND, None, self._config.sync_dead_s)
        allowed = MAY_CONNECT[self.role]
        dead = [node for node in self.roster.silent if self.roster.peers[node].role in allowed]
        if dead:
            self._sync_with(self.roster.peers[self._rng.choice(dead)])

    # Probes.

    def _probe(self, peer: Peer) -> None:
        """Asks a living member, unless it is being asked already."""
        if self._probes.is_judging(peer.node):
            return
        probe = self._probes.add(peer.node, self._now_s, Stage.DIRECT)
        self._ping(peer, probe.sequence)
        self._set(Timer.PROBE, probe.sequence, self._patience_s(peer))

    def _patience_s(self, peer: Peer) -> float:
        base_s = self._config.probe_timeout_s * self.awareness.multiplier
        return probe_timeout_s(base_s, peer.rtt_s or 0.0)

    def _probe_due(self, sequence: int) -> None:
        probe = self._probes.by_sequence.get(sequence)
        if probe is None:
            return
        peer = self.roster.get(probe.node)
        if peer is not None and peer.is_living and probe.stage is Stage.DIRECT:
            self._go_indirect(peer, probe)
        elif peer is not None and peer.is_living and probe.stage is Stage.INDIRECT:
            self._probe_failed(peer, probe)
        else:
            self._probes.end(probe)

    def _go_indirect(self, peer: Peer, probe: Probe) -> None:
        """No answer: ask again, ask others to ask, and try its stream port."""
        probe.stage = Stage.INDIRECT
        self._ping(peer, probe.sequence)
        self._ask_relays(peer, probe)
        self._dial(peer)
        self._set(Timer.PROBE, probe.sequence, self._patience_s(peer))

    def _ask_relays(self, peer: Peer, probe: Probe) -> None:
        relays = self.roster.sample(self._config.indirect_probes, but=peer.node, healthy=True)
        probe.relays = len(relays)
        if not relays:
            return
        news = self._news(len(relays), about=peer)
        request = PingRequest(self._sender, probe.sequence, peer.node, peer.address, news)
        for relay in relays:
            self._effects.append(Send(relay.address, request))

    def _probe_failed(self, peer: Peer, probe: Probe) -> None:
        self._probes.end(probe)
        # Without relays nothing was learned about this node itself.
        self.awareness.nacks_missed(probe.relays - len(probe.nacks))
        self._suspect(peer, self.node)

    def _ping(self, peer: Peer, sequence: int) -> None:
        ping = Ping(
            self._sender,
            sequence,
            peer.node,
            peer.metadata_version,
            self._news(1, about=peer),
        )
        self._effects.append(Send(peer.address, ping))

    def _dial(self, peer: Peer) -> None:
        if peer.role in MAY_CONNECT[self.role]:
            self._effects.append(Dial(peer.node, peer.incarnation, peer.stream_address))

    def _greet(self, peer: Peer) -> None:
        """A ping to someone who is not a living member: it may answer, it need not."""
        peer.told_s = self._now_s
        probe = self._probes.add(peer.node, self._now_s, Stage.GREET)
        self._ping(peer, probe.sequence)
        self._set(Timer.PROBE, probe.sequence, 3.0)

    def _tell(self, peer: Peer) -> None:
        """Lets a member know at once what is said about it, so that it can refute."""
        if self._now_s - peer.told_s >= _TELL_EVERY_S:
            self._greet(peer)

    def _greet_due(self, node: str) -> None:
        peer = self.roster.get(node)
        if peer is None or peer.state is not State.UNCONFIRMED:
            return
        peer.greetings += 1
        wait_s = backoff_s(
            self._config.greet_first_s,
            self._config.greet_most_s,
            max(1, peer.greetings - _EAGER_GREETINGS),
            self._rng.random(),
        )
        self._set(Timer.GREET, node, wait_s)
        self._greet(peer)

    # Datagrams.

    def _on_received(self, event: Received) -> None:
        datagram = event.datagram
        peer = self._hear(event.node, event.incarnation, datagram.sender)
        if peer is None:
            return
        for news in datagram.news:
            self._on_news(news)
        if self.roster.get(peer.node) is not peer:
            return  # unconfirmed, and it said goodbye with these very news
        if type(datagram) is Gossip:
            if peer.state is not State.ALIVE:
                self._tell(peer)
            return
        self._handlers[type(datagram)](event)

    def _hear(self, node: str, incarnation: int, sender: Sender) -> Peer | None:
        """Something came from this life of a node: it lives, whether it hears us or not."""
        if node == self.node:
            if incarnation > self.incarnation:
                self._reborn(incarnation, "another process has this node's name")
            return None
        peer = self.roster.get(node)
        if peer is None or incarnation > peer.incarnation:
            own_words = News(
                node=node,
                incarnation=incarnation,
                claim=Claim.ALIVE,
                refutation=sender.refutation,
                role=sender.role,
                address=sender.address,
                stream_port=sender.stream_port,
            )
            self._on_news(own_words)
            peer = self.roster.get(node)
            if peer is None:
                return None  # the table is full
        elif incarnation < peer.incarnation:
            return None  # from an earlier life, long under way
        elif sender.refutation > peer.refutation and peer.claim not in FINAL_CLAIMS:
            self._refuted(peer, sender.refutation, sender.address, sender.stream_port)
        peer.heard_s = self._now_s
        if peer.state is State.UNCONFIRMED:
            self._tell(peer)
        elif peer.state is State.DEAD and peer.claim is Claim.SILENT:
            self._reunite(peer)
        return peer

    def _reunite(self, peer: Peer) -> None:
        """A silent member speaks: a cut has healed, and both sides know what the other missed."""
        if self._now_s - peer.synced_s > _SYNC_AGAIN_S and peer.role in MAY_CONNECT[self.role]:
            self._sync_with(peer)

    def _on_ping(self, event: Received) -> None:
        ping = event.datagram
        assert isinstance(ping, Ping)
        peer = self.roster.peers[event.node]
        metadata, version = b"", 0
        if ping.metadata_seen < self._metadata_version:
            metadata, version = self._metadata, self._metadata_version
        about = None if peer.state is State.ALIVE else peer
        news = self._news(1, about=about, taken_bytes=len(metadata))
        ack = Ack(self._sender, ping.sequence, version, metadata, news)
        self._effects.append(Send(event.source, ack))

    def _on_ack(self, event: Received) -> None:
        ack = event.datagram
        assert isinstance(ack, Ack)
        peer = self.roster.peers[event.node]
        relay = self._probes.relays.pop(ack.sequence, None)
        if relay is not None:
            self._deadlines.cancel(Timer.RELAY, ack.sequence)
            if relay.target == event.node:
                vouch = Vouch(
                    self._sender,
                    relay.asker_sequence,
                    event.node,
                    event.incarnation,
                    peer.refutation,
                    self._news(1),
                )
                self._effects.append(Send(relay.asker, vouch))
                self._confirm(peer)
            return
        probe = self._probes.by_sequence.get(ack.sequence)
        if probe is None or probe.node != event.node:
            return
        if probe.stage is Stage.DIRECT:
            self.awareness.probe_answered()
            rtt_s = self._now_s - probe.sent_s
            peer.rtt_s = rtt_s if peer.rtt_s is None else 0.8 * peer.rtt_s + 0.2 * rtt_s
        self._end_probe(probe)
        self._learn_metadata(peer, ack.metadata_version, ack.metadata)
        self._answered(peer)

    def _end_probe(self, probe: Probe) -> None:
        self._probes.end(probe)
        self._deadlines.cancel(Timer.PROBE, probe.sequence)

    def _answered(self, peer: Peer) -> None:
        """A two-way exchange with this life of a peer: whoever suspected it, this node does not."""
        self._confirm(peer)
        if peer.state is State.SUSPECT:
            self._clear(peer)

    def _on_ping_request(self, event: Received) -> None:
        request = event.datagram
        assert isinstance(request, PingRequest)
        target = self.roster.get(request.target)
        sequence = self._probes.add_relay(Relay(event.source, request.sequence, request.target))
        news = self._news(1, about=target)
        self._effects.append(
            Send(request.target_address, Ping(self._sender, sequence, request.target, 0, news))
        )
        self._set(Timer.RELAY, sequence, self._config.probe_timeout_s * _NACK_SHARE)

    def _relay_due(self, sequence: int) -> None:
        relay = self._probes.relays.pop(sequence, None)
        if relay is not None:
            nack = Nack(self._sender, relay.asker_sequence, self._news(1))
            self._effects.append(Send(relay.asker, nack))

    def _on_vouch(self, event: Received) -> None:
        vouch = event.datagram
        assert isinstance(vouch, Vouch)
        probe = self._probes.by_sequence.get(vouch.sequence)
        peer = self.roster.get(vouch.target)
        if probe is None or peer is None or probe.node != vouch.target:
            return
        if vouch.incarnation != peer.incarnation:
            return
        if vouch.refutation > peer.refutation and peer.claim not in FINAL_CLAIMS:
            self._refuted(peer, vouch.refutation, peer.address, peer.stream_port)
        self._end_probe(probe)
        self._answered(peer)

    def _on_nack(self, event: Received) -> None:
        nack = event.datagram
        assert isinstance(nack, Nack)
        probe = self._probes.by_sequence.get(nack.sequence)
        if probe is not None and probe.stage is Stage.INDIRECT:
            probe.nacks[event.node] = None

    # Claims.

    def _on_news(self, news: News) -> None:
        if news.node == self.node:
            self._on_news_of_self(news)
            return
        peer = self.roster.get(news.node)
        if peer is None:
            self._admit(news)
        elif news.claim is Claim.ALIVE:
            self._on_alive(peer, news)
        elif news.claim in FINAL_CLAIMS:
            self._on_final(peer, news)
        elif peer.claim in FINAL_CLAIMS:
            self._correct(peer, news)
        elif peer.is_living and news.incarnation == peer.incarnation:
            self._on_accusation(peer, news)

    def _admit(self, news: News) -> None:
        """Someone new is spoken of: unconfirmed until it answers, never judged before."""
        if not news.address or news.claim in FINAL_CLAIMS or news.claim is Claim.SILENT:
            return
        if len(self.roster.peers) >= self._config.members_max:
            self.audit.add(self._now_s, "member.refused", news.node, news.incarnation, "table full")
            return
        peer = Peer(news, self._now_s)
        self.roster.add(peer)
        self._await_confirmation(peer)
        self._tell_others(peer.news(Claim.ALIVE))
        self._change(peer, None)

    def _await_confirmation(self, peer: Peer) -> None:
        peer.state, peer.since_s, peer.greetings = State.UNCONFIRMED, self._now_s, 0
        within_s = greeting_within_s(len(self.roster))
        self._set(Timer.GREET, peer.node, within_s * self._rng.random())
        self._set(Timer.FORGET, peer.node, UNCONFIRMED_S.get(peer.role, 180.0))

    def _on_alive(self, peer: Peer, news: News) -> None:
        if not outranks(news, peer):
            if peer.claim in FINAL_CLAIMS:
                self._correct(peer, news)
            return
        if news.incarnation == peer.incarnation:
            self._refuted(peer, news.refutation, news.address, news.stream_port)
            return
        before = peer.state
        if peer.is_living:
            # Only a new process starts a new life: the old one is gone for certain.
            self._mark_dead(peer, Claim.REFUSED, is_from_gossip=True, is_replaced=True)
        self.roster.silent.pop(peer.node, None)
        self.roster.gone.pop(peer.node, None)
        peer.incarnation, peer.refutation = news.incarnation, news.refutation
        peer.claim, peer.role = Claim.ALIVE, news.role
        peer.metadata, peer.metadata_version, peer.rtt_s = b"", 0, None
        self._relocate(peer, news.address, news.stream_port)
        self._await_confirmation(peer)
        self._tell_others(peer.news(Claim.ALIVE))
        self._change(peer, before)

    def _refuted(self, peer: Peer, refutation: int, address: str, stream_port: int) -> None:
        """The peer has contradicted what was said about it, in the life we know it in."""
        before = peer.state
        peer.refutation, peer.claim = refutation, Claim.ALIVE
        if address:
            self._relocate(peer, address, stream_port)
        self.gossip.forget_suspicions(peer.node)
        self._tell_others(peer.news(Claim.ALIVE), urgent=True)
        if before is State.SUSPECT:
            self._clear(peer)
        elif before is State.DEAD:
            peer.state, peer.since_s = State.ALIVE, self._now_s
            self._deadlines.cancel(Timer.FORGET, peer.node)
            self._enter(peer)
            self.audit.add(self._now_s, "member.returned", peer.node, peer.incarnation)
            self._change(peer, before)

    def _relocate(self, peer: Peer, address: str, stream_port: int) -> None:
        if (address, stream_port) == (peer.address, peer.stream_port):
            return
        detail = f"{peer.address} -> {address}"
        self.audit.add(self._now_s, "member.moved", peer.node, peer.incarnation, detail)
        if self._at_address.get(peer.address) == peer.node:
            del self._at_address[peer.address]
        peer.address, peer.stream_port = address, stream_port
        if peer.is_living:
            self._occupy(peer)
            self._ring_changed = True
            self._watching.pop(peer.node, None)
            self._change(peer, peer.state)

    def _on_accusation(self, peer: Peer, news: News) -> None:
        if news.refutation < peer.refutation:
            return  # refuted already
        if news.refutation > peer.refutation:
            # It has refuted before, unheard by us, and is accused again.
            peer.refutation = news.refutation
            if peer.suspicion is not None:
                self._clear(peer)
        self._suspect(peer, news.by)
        if news.claim is Claim.SILENT and peer.suspicion is not None:
            # Hearsay of death is the strongest suspicion, and no more than that.
            peer.suspicion.condemn()
            self._await_verdict(peer.node, peer.suspicion)

    def _on_final(self, peer: Peer, news: News) -> None:
        if not outranks(news, peer):
            return
        peer.refutation = max(peer.refutation, news.refutation)
        peer.incarnation = news.incarnation
        if peer.is_living:
            self._mark_dead(peer, news.claim, is_from_gossip=True)
        elif peer.state is State.UNCONFIRMED:
            self._tell_others(news)
            self._forget(peer, "unconfirmed.removed")
        else:
            self._tell_others(news)
            self._mark_final(peer, news.claim)

    def _correct(self, peer: Peer, news: News) -> None:
        """Someone still speaks of a life that is over: say so again."""
        if news.incarnation == peer.incarnation and not self.gossip.is_telling(peer.node):
            self._tell_others(peer.news(peer.claim, self.node))

    def _mark_final(self, peer: Peer, claim: Claim) -> None:
        """A silent member turns out to be gone for good."""
        before = peer.state
        peer.claim, peer.state = claim, _DEAD_STATE[claim]
        self._bury(peer)
        if peer.state is not before:
            self._change(peer, before)

    def _on_news_of_self(self, news: News) -> None:
        if self.is_leaving or news.incarnation < self.incarnation:
            return
        if news.incarnation > self.incarnation:
            self._reborn(news.incarnation, "a later incarnation of this node is known")
        elif news.claim in FINAL_CLAIMS:
            self._reborn(news.incarnation, f"said to be {news.claim.name.lower()}")
        elif news.claim is not Claim.ALIVE and news.refutation >= self.refutation:
            self._refute(news)
        elif news.refutation > self.refutation:
            self.refutation = news.refutation + 1
            self._announce()

    def _refute(self, news: News) -> None:
        self.refutation = news.refutation + 1
        self.awareness.refuted()
        self.audit.add(
            self._now_s, "suspicion.refuted", self.node, self.incarnation, f"by {news.by}"
        )
        self._announce()
        if news.claim is Claim.SILENT:
            self._sync_soon(_SYNC_AWAY_S)  # thought dead: this node has been cut off
        accuser = self.roster.get(news.by)
        if accuser is not None and accuser.is_living:
            self._effects.append(Send(accuser.address, Gossip(self._sender, (self._own_news(),))))

    def _reborn(self, above: int, why: str) -> None:
        """Outranks a past that the clock did not outrank, or a death that was none."""
        if self._now_s - self._reborn_s < _REBORN_AGAIN_S:
            return
        self._reborn_s = self._now_s
        self.incarnation, self.refutation = above + 1, 0
        self.audit.add(self._now_s, "node.reborn", self.node, self.incarnation, why)
        self._effects.append(Reborn(self.incarnation))
        self._announce()

    def _announce(self) -> None:
        self._sender = self._make_sender()
        self._tell_others(self._own_news(), urgent=True)

    # Judging.

    def _suspect(self, peer: Peer, by: str) -> None:
        """Counts `by` as a witness that `peer` is silent."""
        config = self._config
        suspicion = peer.suspicion
        multiplier = self.awareness.multiplier
        if suspicion is not None:
            if suspicion.confirm(by, multiplier):
                self._tell_others(peer.news(Claim.SUSPECT, by))
                self._await_verdict(peer.node, suspicion)
            return
        # Whoever is suspected itself cannot be waited for as a witness.
        members = len(self.roster) - len(self._suspects)
        wanted = confirmations_wanted(members, config.confirmations)
        peer.suspicion = suspicion = Suspicion(
            by,
            now_s=self._now_s,
            min_s=config.suspicion_min_s,
            max_s=config.suspicion_max_s - config.last_look_s,
            wanted=wanted,
            multiplier=multiplier,
        )
        peer.state, peer.claim, peer.since_s = State.SUSPECT, Claim.SUSPECT, self._now_s
        self._suspects[peer.node] = peer
        self._ring_changed = True
        self._await_verdict(peer.node, suspicion)
        self.audit.add(self._now_s, "member.suspected", peer.node, peer.incarnation, f"by {by}")
        self._tell_others(peer.news(Claim.SUSPECT, by))
        self._change(peer, State.ALIVE)
        if by == self.node:
            self._tell(peer)
        elif self._rng.random() < verify_chance(members, wanted):
            self._probe(peer)

    def _await_verdict(self, node: str, suspicion: Suspicion) -> None:
        # A deadline in the past would look as if this node had slept through it.
        if not suspicion.looks:
            at_s = max(suspicion.deadline_s, self._now_s)
            self._deadlines.set(Timer.SUSPICION, node, at_s)

    def _clear(self, peer: Peer) -> None:
        """A suspicion is over, and its subject alive."""
        self._end_suspicion(peer)
        peer.state, peer.claim, peer.since_s = State.ALIVE, Claim.ALIVE, self._now_s
        self._ring_changed = True
        self.audit.add(self._now_s, "suspicion.cleared", peer.node, peer.incarnation)
        self._change(peer, State.SUSPECT)

    def _end_suspicion(self, peer: Peer) -> None:
        peer.suspicion = None
        self._suspects.pop(peer.node, None)
        self._deadlines.cancel(Timer.SUSPICION, peer.node)
        self._deadlines.cancel(Timer.LOOK, peer.node)

    def _suspicion_due(self, node: str) -> None:
        self._look(self.roster.peers[node])

    def _look_due(self, node: str) -> None:
        self._look(self.roster.peers[node])

    def _look(self, peer: Peer) -> None:
        """The last look: before this node condemns, it asks for itself, several times over."""
        suspicion = peer.suspicion
        if suspicion is None:
            raise InvariantError(f"a last look at {peer.node}, which is not suspected")
        config = self._config
        if suspicion.looks == config.last_look_pings:
            self._mark_dead(peer, Claim.SILENT, is_from_gossip=False)
            return
        suspicion.looks += 1
        probe = self._probes.add(peer.node, self._now_s, Stage.LOOK)
        self._ping(peer, probe.sequence)
        if suspicion.looks == 1:
            self._dial(peer)
        elif suspicion.looks == 2:
            self._ask_relays(peer, probe)
        self._set(Timer.PROBE, probe.sequence, config.last_look_s)
        self._set(Timer.LOOK, peer.node, config.last_look_s / config.last_look_pings)

    def _mark_dead(
        self, peer: Peer, claim: Claim, *, is_from_gossip: bool, is_replaced: bool = False
    ) -> None:
        """The one place where a living member stops being one. Fires each death once."""
        if not peer.is_living:
            raise InvariantError(f"{peer.node} is {peer.state} and cannot die")
        before = peer.state
        self._end_suspicion(peer)
        self._probes.end_judging(peer.node)
        self.roster.exit(peer)
        if self._at_address.get(peer.address) == peer.node:
            del self._at_address[peer.address]
        peer.state, peer.claim, peer.since_s = _DEAD_STATE[claim], claim, self._now_s
        self._ring_changed = True
        self._bury(peer)
        what = "member.left" if claim is Claim.LEFT else "member.died"
        informed = "gossip" if is_from_gossip else "own evidence"
        self.audit.add(
            self._now_s, what, peer.node, peer.incarnation, f"{claim.name.lower()}, {informed}"
        )
        if not is_replaced:
            self._tell_others(peer.news(claim, self.node))
        if claim is not Claim.LEFT:
            self._effects.append(Died(peer.member(), claim, is_from_gossip))
        self._change(peer, before)

    def _bury(self, peer: Peer) -> None:
        """Remembers the dead: to ask again, and not to believe old news of them."""
        self.roster.silent.pop(peer.node, None)
        self.roster.gone.pop(peer.node, None)
        self._set(Timer.FORGET, peer.node, self._config.tombstone_s)
        if peer.claim is Claim.SILENT:
            if not self.roster.silent:
                self._set(Timer.DEAD_ROUND, None, self._config.reprobe_silent_s)
                self._set(Timer.DEAD_SYNC_ROUND, None, self._config.sync_dead_s)
            self.roster.silent[peer.node] = None
        elif peer.claim is Claim.REFUSED:
            if not self.roster.gone:
                self._set(Timer.GONE_ROUND, None, self._config.reprobe_gone_s)
            self.roster.gone[peer.node] = None

    def _forget_due(self, node: str) -> None:
        peer = self.roster.get(node)
        if peer is None or peer.is_living:
            return
        was = "unconfirmed.removed" if peer.state is State.UNCONFIRMED else "tombstone.removed"
        self._forget(peer, was)

    def _forget(self, peer: Peer, what: str) -> None:
        self.roster.remove(peer)
        self._deadlines.cancel(Timer.GREET, peer.node)
        self._deadlines.cancel(Timer.FORGET, peer.node)
        self.audit.add(self._now_s, what, peer.node, peer.incarnation)

    # Confirming.

    def _confirm(self, peer: Peer) -> None:
        """A two-way exchange: from here on the peer is a member, and may be judged."""
        if peer.state is not State.UNCONFIRMED:
            return
        peer.state, peer.since_s = State.ALIVE, self._now_s
        self._deadlines.cancel(Timer.GREET, peer.node)
        self._deadlines.cancel(Timer.FORGET, peer.node)
        self._enter(peer)
        self.audit.add(self._now_s, "member.confirmed", peer.node, peer.incarnation)
        self._change(peer, State.UNCONFIRMED)

    def _enter(self, peer: Peer) -> None:
        self.roster.enter(peer)
        self._ring_changed = True
        self._occupy(peer)
        if self.gossip:
            self._start_gossip()

    def _occupy(self, peer: Peer) -> None:
        """One address, one process: an older one that was there is gone."""
        other = self.roster.get(self._at_address.get(peer.address, ""))
        self._at_address[peer.address] = peer.node
        if (
            other is not None
            and other is not peer
            and other.is_living
            and other.incarnation < peer.incarnation
        ):
            self._mark_dead(other, Claim.REFUSED, is_from_gossip=False)
            self._at_address[peer.address] = peer.node

    def _on_refused(self, event: Refused) -> None:
        peer = self.roster.get(event.node)
        if peer is None or peer.incarnation != event.incarnation:
            return
        if event.address != peer.stream_address:
            return  # it has moved since; that nobody answers there any more says nothing
        if peer.is_living:
            self._mark_dead(peer, Claim.REFUSED, is_from_gossip=False)
        elif peer.state is State.DEAD and peer.claim is Claim.SILENT:
            self._mark_final(peer, Claim.REFUSED)
            self._tell_others(peer.news(Claim.REFUSED, self.node))

    def _on_answered(self, event: Answered) -> None:
        peer = self.roster.get(event.node)
        if peer is None or peer.incarnation != event.incarnation:
            return
        peer.heard_s = self._now_s
        sequence = self._probes.end_judging(peer.node)
        if sequence is not None:
            self._deadlines.cancel(Timer.PROBE, sequence)
        self._answered(peer)

    def _keep_watch(self) -> None:
        """Sessions with whom the ring gives this node to watch."""
        self._ring_changed = False
        wanted = {
            peer.node: peer for peer in self.roster.stream_duties(self._config.watched, self.role)
        }
        for node in [node for node in self._watching if node not in wanted]:
            del self._watching[node]
            self._effects.append(Unwatch(node))
        for node, peer in wanted.items():
            if self._watching.get(node) != peer.incarnation:
                self._watching[node] = peer.incarnation
                self._effects.append(Watch(node, peer.incarnation, peer.stream_address))

    # Whole views.

    def _on_contact(self, event: Contact) -> None:
        self._effects.append(Sync(event.address, "", 0, self._view(is_join=True)))

    def _sync_with(self, peer: Peer) -> None:
        peer.synced_s = self._now_s
        self._effects.append(Sync(peer.stream_address, peer.node, peer.incarnation, self._view()))

    def _on_synced(self, event: Synced) -> None:
        self._merge(event.node, event.incarnation, event.view)

    def _on_sync_failed(self, event: SyncFailed) -> None:
        peer = self.roster.get(event.node)
        if peer is not None and peer.is_living:
            self._sync_soon(_SYNC_RETRY_S)

    def _on_sync_asked(self, event: SyncAsked) -> None:
        answer = self._view()
        self._merge(event.node, event.incarnation, event.view)
        self._effects.append(SyncAnswer(event.token, answer))

    def _merge(self, node: str, incarnation: int, view: View) -> None:
        peer = self._hear(node, incarnation, view.sender)
        if peer is not None:
            self._answered(peer)  # a stream is a two-way exchange
        for record in view.records:
            self._on_news(record.news)
            known = self.roster.get(record.news.node)
            if known is not None and known.incarnation == record.news.incarnation:
                self._learn_metadata(known, record.metadata_version, record.metadata)

    def _view(self, *, is_join: bool = False) -> View:
        records = [Record(self._own_news(), self._metadata_version, self._metadata)]
        for peer in self.roster.peers.values():
            if peer.state is State.UNCONFIRMED:
                continue  # rumours are not passed on as knowledge
            by = ""
            if peer.suspicion is not None:
                by = next(iter(peer.suspicion.witnesses))
            news = News(
                node=peer.node,
                incarnation=peer.incarnation,
                claim=peer.claim,
                refutation=peer.refutation,
                by=by,
                role=peer.role,
                address=peer.address,
                stream_port=peer.stream_port,
            )
            records.append(Record(news, peer.metadata_version, peer.metadata))
        return View(self._sender, tuple(records), is_join)

    # This node itself.

    def _on_describe(self, event: Describe) -> None:
        if len(event.metadata) > METADATA_BYTES_MAX:
            raise InvariantError(
                f"metadata of {len(event.metadata)} bytes, at most {METADATA_BYTES_MAX} fit an ack",
                hint="send the rest over a stream",
            )
        if event.metadata != self._metadata:
            self._metadata = event.metadata
            self._metadata_version += 1

    def _on_move(self, event: Move) -> None:
        if (event.address, event.stream_port) != (self._address, self._stream_port):
            self._address, self._stream_port = event.address, event.stream_port
            self.refutation += 1
            self._announce()

    def _on_leave(self, _: Leave) -> None:
        if self.is_leaving:
            return
        self.is_leaving = True
        own = self._own_news()
        self._tell_others(own, urgent=True)
        farewell = Gossip(self._sender, (own,))
        for peer in self.roster.sample(4 * self._config.gossip_fanout):
            self._effects.append(Send(peer.address, farewell))
        self._set(Timer.LEAVE, None, self._config.leave_s)
        for node in self._watching:
            self._effects.append(Unwatch(node))
        self._watching.clear()

    def _leave_due(self, _: None) -> None:
        self._effects.append(Gone())

    def _own_news(self) -> News:
        return News(
            node=self.node,
            incarnation=self.incarnation,
            claim=Claim.LEFT if self.is_leaving else Claim.ALIVE,
            refutation=self.refutation,
            role=self.role,
            address=self._address,
            stream_port=self._stream_port,
        )

    def _make_sender(self) -> Sender:
        return Sender(self._address, self.role, self.refutation, self._stream_port)

    def _stream_address(self) -> str:
        if not self._stream_port:
            return self._address
        return f"{self._address.rpartition(':')[0]}:{self._stream_port}"

    # Small things.

    def _set(self, timer: Timer, ident: object, in_s: float) -> None:
        self._deadlines.set(timer, ident, self._now_s + in_s)

    def _learn_metadata(self, peer: Peer, version: int, metadata: bytes) -> None:
        if version > peer.metadata_version:
            peer.metadata_version, peer.metadata = version, metadata
            self._change(peer, peer.state)

    def _change(self, peer: Peer, before: State | None) -> None:
        self._effects.append(Changed(peer.member(), before))

    def _tell_others(self, news: News, *, urgent: bool = False) -> None:
        self.gossip.put(news, urgent=urgent)
        self._start_gossip()

    def _start_gossip(self) -> None:
        if self._deadlines.at_s(Timer.GOSSIP_ROUND, None) is None:
            wait_s = self._config.gossip_interval_s * self._rng.random()
            self._set(Timer.GOSSIP_ROUND, None, wait_s)

    def _news(
        self, copies: int, *, about: Peer | None = None, taken_bytes: int = 0
    ) -> tuple[News, ...]:
        """What fits of the news; first of all what concerns the receiver (Lifeguard's buddy)."""
        room = min(self._config.news_bytes_max, int(SizeClass.DATAGRAM) - _HEAD_BYTES - taken_bytes)
        first: tuple[News, ...] = ()
        if self.is_leaving:
            first = (self._own_news(),)
            room -= _ABOUT_BYTES
        elif about is not None and about.claim is not Claim.ALIVE:
            by = self.node
            if about.suspicion is not None:
                by = next(iter(about.suspicion.witnesses))
            first = (about.news(about.claim, by),)
            room -= _ABOUT_BYTES
        if not self.gossip or room < _ABOUT_BYTES:
            return first
        limit = transmissions(len(self.roster), self._config.transmit_factor)
        return first + self.gossip.take(room, limit=limit, copies=copies)


_ABOUT_BYTES = 170
