"""Asking: pings, relayed pings, and what became of them.

It knows how to ask and when an answer is overdue; what that means for a member is `judge`'s.
"""

from hyperscale.membership.context import MembershipContext
from hyperscale.membership.events import DatagramReceived, DialMember, MemberState, SendDatagram
from hyperscale.membership.formulas import backoff_s, probe_timeout_s
from hyperscale.membership.member_table import MemberRecord
from hyperscale.membership.messages import Ack, Gossip, IndirectAck, Nack, Ping, PingRequest
from hyperscale.membership.probe_table import Probe, ProbeStage, ProbeTable, RelayedProbe
from hyperscale.membership.timers import TimerKind

_TELL_EVERY_S = 0.3
_EAGER_GREETINGS = 8
"""Before the wait between greetings grows: datagrams get lost, most newcomers are real."""
_GREETING_S = 3.0
"""How long an answer to a greeting counts as one."""
_NACK_SHARE = 0.6
"""A relay says no after this share of the probe timeout, so that the asker hears it in time."""


class Prober:
    """All questions of this node that are under way."""

    def __init__(self, station: MembershipContext) -> None:
        self._station = station
        self._probes = ProbeTable()

    # Asking.

    def probe(self, peer: MemberRecord) -> None:
        """Asks a living member, unless it is being asked already."""
        if self._probes.is_judging(peer.node):
            return
        probe = self._probes.add(peer.node, self._station.now_s, ProbeStage.DIRECT)
        self._ping(peer, probe.sequence)
        self._station.set(TimerKind.PROBE, probe.sequence, self._patience_s(peer))

    def greet(self, peer: MemberRecord) -> None:
        """A ping to someone who is not a living member: it may answer, it need not."""
        peer.told_s = self._station.now_s
        probe = self._probes.add(peer.node, self._station.now_s, ProbeStage.GREET)
        self._ping(peer, probe.sequence)
        self._station.set(TimerKind.PROBE, probe.sequence, _GREETING_S)

    def tell(self, peer: MemberRecord) -> None:
        """Lets a node know at once what is said about it, so that it can refute."""
        if self._station.now_s - peer.told_s >= _TELL_EVERY_S:
            self.greet(peer)

    def remind(self, peer: MemberRecord, address: str) -> None:
        """An earlier life of a node speaks: its clock was set back, or this comes late. It must
        outrank what is known of it before anyone believes it."""
        station = self._station
        if station.now_s - peer.told_s >= _TELL_EVERY_S:
            peer.told_s = station.now_s
            known = peer.news(peer.claim, station.node)
            station.effects.append(SendDatagram(address, Gossip(station.sender, (known,))))

    def greet_again(self, peer: MemberRecord) -> None:
        """One more try at an unconfirmed peer, and the date of the next."""
        station = self._station
        peer.greetings += 1
        wait_s = backoff_s(
            station.config.greet_first_s,
            station.config.greet_most_s,
            max(1, peer.greetings - _EAGER_GREETINGS),
            station.rng.random(),
        )
        station.set(TimerKind.GREET, peer.node, wait_s)
        self.greet(peer)

    def look(self, peer: MemberRecord, turn: int) -> None:
        """One question of the last look; by stream and through relays as well."""
        probe = self._probes.add(peer.node, self._station.now_s, ProbeStage.LOOK)
        self._ping(peer, probe.sequence)
        if turn == 1:
            self._dial(peer)
        elif turn == 2:
            self._ask_relays(peer, probe)
        self._station.set(TimerKind.PROBE, probe.sequence, self._station.config.last_look_s)

    def _ping(self, peer: MemberRecord, sequence: int) -> None:
        station = self._station
        news = station.news(1, about=peer)
        ping = Ping(station.sender, sequence, peer.node, peer.metadata_version, news)
        station.effects.append(SendDatagram(peer.address, ping))

    def _dial(self, peer: MemberRecord) -> None:
        if self._station.may_dial(peer):
            dial = DialMember(peer.node, peer.incarnation, peer.stream_address)
            self._station.effects.append(dial)

    def _patience_s(self, peer: MemberRecord) -> float:
        station = self._station
        base_s = station.config.probe_timeout_s * station.awareness.multiplier
        return probe_timeout_s(base_s, peer.rtt_s or 0.0)

    # Overdue.

    def overdue(self, sequence: int) -> MemberRecord | None:
        """A probe's time is up. Whoever was asked every way there is, in vain, comes back."""
        probe = self._probes.by_sequence.get(sequence)
        if probe is None:
            return None
        peer = self._station.roster.get(probe.node)
        if peer is not None and peer.is_living:
            if probe.stage is ProbeStage.DIRECT:
                self._go_indirect(peer, probe)
                return None
            if probe.stage is ProbeStage.INDIRECT:
                self._probes.end(probe)
                # Without relays nothing was learned about this node itself.
                self._station.awareness.nacks_missed(probe.relays - len(probe.nacks))
                return peer
        self._probes.end(probe)
        return None

    def _go_indirect(self, peer: MemberRecord, probe: Probe) -> None:
        """No answer: ask again, ask others to ask, and try its stream port."""
        probe.stage = ProbeStage.INDIRECT
        self._ping(peer, probe.sequence)
        self._ask_relays(peer, probe)
        self._dial(peer)
        self._station.set(TimerKind.PROBE, probe.sequence, self._patience_s(peer))

    def _ask_relays(self, peer: MemberRecord, probe: Probe) -> None:
        station = self._station
        relays = station.roster.sample(station.config.indirect_probes, but=peer.node, healthy=True)
        probe.relays = len(relays)
        if relays:
            news = station.news(len(relays), about=peer)
            request = PingRequest(station.sender, probe.sequence, peer.node, peer.address, news)
            station.effects += [SendDatagram(relay.address, request) for relay in relays]

    def drop(self, peer: MemberRecord) -> None:
        """The question whose failure would be held against `peer` is settled otherwise."""
        sequence = self._probes.end_judging(peer.node)
        if sequence is not None:
            self._station.deadlines.cancel(TimerKind.PROBE, sequence)

    # Answers of others.

    def on_ack(self, event: DatagramReceived, ack: Ack, peer: MemberRecord) -> MemberRecord | None:
        """The peer, if this answers a question of ours."""
        station = self._station
        relay = self._probes.relays.pop(ack.sequence, None)
        if relay is not None:
            station.deadlines.cancel(TimerKind.RELAY, ack.sequence)
            if relay.target != event.node:
                return None
            vouch = IndirectAck(
                station.sender,
                relay.asker_sequence,
                event.node,
                event.incarnation,
                peer.refutation,
                station.news(1),
            )
            station.effects.append(SendDatagram(relay.asker, vouch))
            return peer
        probe = self._probes.by_sequence.get(ack.sequence)
        if probe is None or probe.node != event.node:
            return None
        if probe.stage is ProbeStage.DIRECT:
            station.awareness.probe_answered()
            rtt_s = station.now_s - probe.sent_s
            peer.rtt_s = rtt_s if peer.rtt_s is None else 0.8 * peer.rtt_s + 0.2 * rtt_s
        self._end(probe)
        return peer

    def on_vouch(self, vouch: IndirectAck) -> MemberRecord | None:
        """The peer a relay has reached for us."""
        probe = self._probes.by_sequence.get(vouch.sequence)
        peer = self._station.roster.get(vouch.target)
        if probe is None or peer is None or probe.node != vouch.target:
            return None
        if vouch.incarnation != peer.incarnation:
            return None
        self._end(probe)
        return peer

    def on_nack(self, event: DatagramReceived, nack: Nack) -> None:
        probe = self._probes.by_sequence.get(nack.sequence)
        if probe is not None and probe.stage is ProbeStage.INDIRECT:
            probe.nacks[event.node] = None

    def _end(self, probe: Probe) -> None:
        self._probes.end(probe)
        self._station.deadlines.cancel(TimerKind.PROBE, probe.sequence)

    # Questions of others.

    def on_ping(self, event: DatagramReceived, ping: Ping, peer: MemberRecord) -> None:
        station = self._station
        metadata, version = b"", 0
        if ping.metadata_seen < station.metadata_version:
            metadata, version = station.metadata, station.metadata_version
        about = None if peer.state is MemberState.ALIVE else peer
        news = station.news(1, about=about, taken_bytes=len(metadata))
        ack = Ack(station.sender, ping.sequence, version, metadata, news)
        station.effects.append(SendDatagram(event.source, ack))

    def on_ping_request(self, event: DatagramReceived, request: PingRequest) -> None:
        station = self._station
        target = station.roster.get(request.target)
        relay = RelayedProbe(event.source, request.sequence, request.target)
        sequence = self._probes.add_relay(relay)
        ping = Ping(station.sender, sequence, request.target, 0, station.news(1, about=target))
        station.effects.append(SendDatagram(request.target_address, ping))
        station.set(TimerKind.RELAY, sequence, station.config.probe_timeout_s * _NACK_SHARE)

    def relay_due(self, sequence: int) -> None:
        """The target has not answered: say so, it shows that this relay is well."""
        station = self._station
        relay = self._probes.relays.pop(sequence, None)
        if relay is not None and station.config.nacks:
            nack = Nack(station.sender, relay.asker_sequence, station.news(1))
            station.effects.append(SendDatagram(relay.asker, nack))
