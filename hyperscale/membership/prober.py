"""Probes: pings, indirect probes through relays, dials, and their outcomes.

The prober sends probes and knows when an ack is overdue; `lifecycle` decides what a failed probe
means for a member.
"""

from enum import IntEnum

from msgspec import Struct

from hyperscale.membership.context import MembershipContext
from hyperscale.membership.events import DatagramReceived, DialMember, MemberState, SendDatagram
from hyperscale.membership.formulas import backoff_s, probe_timeout_s
from hyperscale.membership.member_table import MemberRecord
from hyperscale.membership.messages import Ack, Gossip, IndirectAck, Nack, Ping, PingRequest
from hyperscale.membership.timers import TimerKind

PROBES_MAX = 16_384
RELAYS_MAX = 4_096
_NOTIFY_EVERY_S = 0.3
_EAGER_ATTEMPTS = 8
"""Pings to an unconfirmed member before the wait between them grows: datagrams get lost."""
_CONTACT_TIMEOUT_S = 3.0
"""How long an ack to a contact ping is accepted."""
_NACK_SHARE = 0.6
"""A relay sends its nack after this share of the probe timeout, so that it arrives in time."""


class ProbeStage(IntEnum):
    """How far a probe has come, and what its failure means."""

    DIRECT = 0
    INDIRECT = 1  # relays were asked as well; a failure makes the member suspect
    FINAL = 2  # one of the final probes of a suspect before the verdict
    CONTACT = 3  # to a node that is no confirmed, living member; a failure means nothing


class Probe(Struct):
    """One probe of one node."""

    node: str
    sequence: int
    sent_s: float
    stage: ProbeStage
    relays: int = 0
    nacks: dict[str, None] = {}


class RelayedProbe(Struct, frozen=True):
    """A ping that this node sent on behalf of another member."""

    asker: str
    asker_sequence: int
    target: str


class ProbeTable:
    """Probes without an outcome yet. Bounded: the oldest is dropped for a new one."""

    def __init__(self) -> None:
        self._sequence = 0
        self.by_sequence: dict[int, Probe] = {}
        self._direct: dict[str, int] = {}
        self.relays: dict[int, RelayedProbe] = {}

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def is_probing(self, node: str) -> bool:
        """Return True if a probe is under way whose failure makes `node` suspect."""
        return node in self._direct

    def add(self, node: str, now_s: float, stage: ProbeStage) -> Probe:
        """Start a probe."""
        probe = Probe(node, self.next_sequence(), now_s, stage)
        if len(self.by_sequence) >= PROBES_MAX:
            self.end(self.by_sequence[next(iter(self.by_sequence))])
        self.by_sequence[probe.sequence] = probe
        if stage is ProbeStage.DIRECT:
            self._direct[node] = probe.sequence
        return probe

    def end(self, probe: Probe) -> None:
        """Remove a probe."""
        self.by_sequence.pop(probe.sequence, None)
        if self._direct.get(probe.node) == probe.sequence:
            del self._direct[probe.node]

    def end_direct(self, node: str) -> int | None:
        """Remove the probe whose failure would make `node` suspect; return its sequence number."""
        sequence = self._direct.pop(node, None)
        if sequence is not None:
            self.by_sequence.pop(sequence, None)
        return sequence

    def add_relay(self, relay: RelayedProbe) -> int:
        """Register a relayed probe; return the sequence number for its ping."""
        sequence = self.next_sequence()
        if len(self.relays) >= RELAYS_MAX:
            del self.relays[next(iter(self.relays))]
        self.relays[sequence] = relay
        return sequence


class Prober:
    """All probes of this node that are under way."""

    def __init__(self, context: MembershipContext) -> None:
        self._context = context
        self._probes = ProbeTable()

    def probe(self, peer: MemberRecord) -> None:
        """Probe a living member, unless a probe of it is under way."""
        if self._probes.is_probing(peer.node):
            return
        probe = self._probes.add(peer.node, self._context.now_s, ProbeStage.DIRECT)
        self._ping(peer, probe.sequence)
        self._context.set_timer(TimerKind.PROBE, probe.sequence, self._timeout_s(peer))

    def contact(self, peer: MemberRecord) -> None:
        """Ping a node that is not a living member; a missing ack has no consequence."""
        peer.contact.notified_s = self._context.now_s
        probe = self._probes.add(peer.node, self._context.now_s, ProbeStage.CONTACT)
        self._ping(peer, probe.sequence)
        self._context.set_timer(TimerKind.PROBE, probe.sequence, _CONTACT_TIMEOUT_S)

    def notify(self, peer: MemberRecord) -> None:
        """Ping a node at once with the claim about it, so that it can refute."""
        if not peer.contact.notified_within(_NOTIFY_EVERY_S, now_s=self._context.now_s):
            self.contact(peer)

    def notify_earlier_incarnation(self, peer: MemberRecord, address: str) -> None:
        """Send the newest known claim to an earlier incarnation of a node.

        Either its clock was set back or its datagram is late. It has to outrank the claim before
        any member believes it.
        """
        context = self._context
        if not peer.contact.notified_within(_NOTIFY_EVERY_S, now_s=context.now_s):
            peer.contact.notified_s = context.now_s
            known = peer.update(peer.claim, context.local.node)
            context.effects.append(SendDatagram(address, Gossip(context.local.sender, (known,))))

    def retry_contact(self, peer: MemberRecord) -> None:
        """Ping an unconfirmed member again and schedule the next ping."""
        context = self._context
        peer.contact.attempts += 1
        wait_s = backoff_s(
            context.config.contact_first_s,
            context.config.contact_max_s,
            max(1, peer.contact.attempts - _EAGER_ATTEMPTS),
            context.rng.random(),
        )
        context.set_timer(TimerKind.CONTACT, peer.node, wait_s)
        self.contact(peer)

    def probe_finally(self, peer: MemberRecord, number: int) -> None:
        """Send final probe `number` of a suspect; the first dials, the second asks relays."""
        probe = self._probes.add(peer.node, self._context.now_s, ProbeStage.FINAL)
        self._ping(peer, probe.sequence)
        if number == 1:
            self._dial(peer)
        elif number == 2:
            self._ask_relays(peer, probe)
        timeout_s = self._context.config.final_probe_s
        self._context.set_timer(TimerKind.PROBE, probe.sequence, timeout_s)

    def _ping(self, peer: MemberRecord, sequence: int) -> None:
        context = self._context
        updates = context.updates(1, about=peer)
        sender = context.local.sender
        ping = Ping(sender, sequence, peer.node, peer.metadata_version, updates)
        context.effects.append(SendDatagram(peer.address, ping))

    def _dial(self, peer: MemberRecord) -> None:
        if self._context.local.may_dial(peer):
            dial = DialMember(peer.node, peer.incarnation, peer.stream_address)
            self._context.effects.append(dial)

    def _timeout_s(self, peer: MemberRecord) -> float:
        context = self._context
        base_s = context.config.probe_timeout_s * context.awareness.multiplier
        return probe_timeout_s(base_s, peer.contact.rtt_s or 0.0)

    def timed_out(self, sequence: int) -> MemberRecord | None:
        """Move a probe whose timeout passed to its next stage.

        Return the member if the indirect probe has failed as well.
        """
        probe = self._probes.by_sequence.get(sequence)
        if probe is None:
            return None
        peer = self._context.table.peers.get(probe.node)
        if peer is not None and peer.is_living:
            if probe.stage is ProbeStage.DIRECT:
                self._probe_indirectly(peer, probe)
                return None
            if probe.stage is ProbeStage.INDIRECT:
                self._probes.end(probe)
                # Without relays the failure says nothing about the health of this node.
                self._context.awareness.nacks_missed(probe.relays - len(probe.nacks))
                return peer
        self._probes.end(probe)
        return None

    def _probe_indirectly(self, peer: MemberRecord, probe: Probe) -> None:
        probe.stage = ProbeStage.INDIRECT
        self._ping(peer, probe.sequence)
        self._ask_relays(peer, probe)
        self._dial(peer)
        self._context.set_timer(TimerKind.PROBE, probe.sequence, self._timeout_s(peer))

    def _ask_relays(self, peer: MemberRecord, probe: Probe) -> None:
        context = self._context
        relays = context.table.sample(context.config.indirect_probes, but=peer.node, healthy=True)
        probe.relays = len(relays)
        if relays:
            updates = context.updates(len(relays), about=peer)
            sender = context.local.sender
            request = PingRequest(sender, probe.sequence, peer.node, peer.address, updates)
            context.effects += [SendDatagram(relay.address, request) for relay in relays]

    def drop(self, peer: MemberRecord) -> None:
        """End the probe whose failure would make `peer` suspect."""
        sequence = self._probes.end_direct(peer.node)
        if sequence is not None:
            self._context.timers.cancel(TimerKind.PROBE, sequence)

    def on_ack(self, event: DatagramReceived, ack: Ack, peer: MemberRecord) -> MemberRecord | None:
        """Return the member if the ack belongs to a probe or a relayed probe of this node."""
        context = self._context
        relay = self._probes.relays.pop(ack.sequence, None)
        if relay is not None:
            context.timers.cancel(TimerKind.RELAY, ack.sequence)
            if relay.target != event.node:
                return None
            indirect_ack = IndirectAck(
                context.local.sender,
                relay.asker_sequence,
                event.node,
                event.incarnation,
                peer.refutation,
                context.updates(1),
            )
            context.effects.append(SendDatagram(relay.asker, indirect_ack))
            return peer
        probe = self._probes.by_sequence.get(ack.sequence)
        if probe is None or probe.node != event.node:
            return None
        if probe.stage is ProbeStage.DIRECT:
            context.awareness.probe_answered()
            rtt_s, known_s = context.now_s - probe.sent_s, peer.contact.rtt_s
            peer.contact.rtt_s = rtt_s if known_s is None else 0.8 * known_s + 0.2 * rtt_s
        self._end(probe)
        return peer

    def on_indirect_ack(self, ack: IndirectAck) -> MemberRecord | None:
        """Return the member that a relay has reached for this node."""
        probe = self._probes.by_sequence.get(ack.sequence)
        peer = self._context.table.peers.get(ack.target)
        if probe is None or peer is None or probe.node != ack.target:
            return None
        if ack.incarnation != peer.incarnation:
            return None
        self._end(probe)
        return peer

    def on_nack(self, event: DatagramReceived, nack: Nack) -> None:
        """Count the nack: the relay works and this node hears it."""
        probe = self._probes.by_sequence.get(nack.sequence)
        if probe is not None and probe.stage is ProbeStage.INDIRECT:
            probe.nacks[event.node] = None

    def _end(self, probe: Probe) -> None:
        self._probes.end(probe)
        self._context.timers.cancel(TimerKind.PROBE, probe.sequence)

    def on_ping(self, event: DatagramReceived, ping: Ping, peer: MemberRecord) -> None:
        """Answer a ping."""
        context, local = self._context, self._context.local
        metadata, version = b"", 0
        if ping.metadata_seen < local.metadata_version:
            metadata, version = local.metadata, local.metadata_version
        about = None if peer.state is MemberState.ALIVE else peer
        updates = context.updates(1, about=about, taken_bytes=len(metadata))
        ack = Ack(local.sender, ping.sequence, version, metadata, updates)
        context.effects.append(SendDatagram(event.source, ack))

    def on_ping_request(self, event: DatagramReceived, request: PingRequest) -> None:
        """Ping the target on behalf of the sender."""
        context = self._context
        target = context.table.peers.get(request.target)
        relay = RelayedProbe(event.source, request.sequence, request.target)
        sequence = self._probes.add_relay(relay)
        updates = context.updates(1, about=target)
        ping = Ping(context.local.sender, sequence, request.target, 0, updates)
        context.effects.append(SendDatagram(request.target_address, ping))
        nack_s = context.config.probe_timeout_s * _NACK_SHARE
        context.set_timer(TimerKind.RELAY, sequence, nack_s)

    def relay_timed_out(self, sequence: int) -> None:
        """Send a nack for a relayed probe whose target has not acked."""
        context = self._context
        relay = self._probes.relays.pop(sequence, None)
        if relay is not None and context.config.nacks:
            nack = Nack(context.local.sender, relay.asker_sequence, context.updates(1))
            context.effects.append(SendDatagram(relay.asker, nack))
