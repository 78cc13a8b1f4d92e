"""The membership core: events and the time in, effects out.

How a member is found dead:

    silence   probe -> indirect probe -> SUSPECT -> (confirmations shorten it) -> final probes
              -> DEAD
    refused   its session ended and its address refuses connections, or another incarnation
              answers there -> DEAD, on this node and, by gossip, on every node

Gossip alone kills no silent member: a verdict of another member makes this node suspect the
member and probe it. Gossip about a *refused* member is enough, because a process that has ended
does not return in the same incarnation.

`Membership` dispatches events and runs the periodic rounds. Probes belong to `prober`, updates
to `update_merger`, states to `lifecycle`, table exchange to `push_pull`, names that two processes
use to `name_claims`. No clock, socket, task or lock.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from hyperscale.errors import InvariantError
from hyperscale.membership import events
from hyperscale.membership.context import MembershipContext
from hyperscale.membership.events import Member, MemberState
from hyperscale.membership.lifecycle import MemberLifecycle
from hyperscale.membership.local_node import LocalIdentity
from hyperscale.membership.member_table import MemberRecord
from hyperscale.membership.messages import (
    METADATA_BYTES_MAX,
    Ack,
    ClaimedState,
    Gossip,
    IndirectAck,
    Nack,
    Ping,
    PingRequest,
)
from hyperscale.membership.name_claims import NameClaims
from hyperscale.membership.prober import Prober
from hyperscale.membership.push_pull import PushPullExchange
from hyperscale.membership.settings import MembershipConfig
from hyperscale.membership.timers import TimerKind
from hyperscale.membership.update_merger import UpdateMerger
from hyperscale.sansio.core import Tick

_PROBES_PER_ROUND_MAX = 16
_OWN_SUSPECTS_PER_ROUND_MAX = 8


class Membership:
    """One node's view of its cluster."""

    def __init__(
        self, identity: LocalIdentity, config: MembershipConfig, *, rng: Random, now_s: float
    ) -> None:
        self.context = MembershipContext(identity, config, rng=rng, now_s=now_s)
        self.local = self.context.local
        self.table = self.context.table
        self.awareness = self.context.awareness
        self.counts = self.context.counts
        self.prober = Prober(self.context)
        self.lifecycle = MemberLifecycle(self.context, self.prober)
        self.names = NameClaims(self.context, self.lifecycle)
        self.merger = UpdateMerger(self.context, self.lifecycle, self.prober, self.names)
        self.push_pull = PushPullExchange(self.context, self.lifecycle, self.merger)
        self._config = config
        self._timers = self.context.timers
        self.sessions: dict[str, tuple[int, str]] = {}  # node -> incarnation, stream address
        self._event_handlers: dict[type, Callable[[Any], None]] = {
            events.DatagramReceived: self._on_datagram,
            Tick: self._on_tick,
            events.MemberDiscovered: self.push_pull.on_discovered,
            events.PushPullCompleted: self.push_pull.on_completed,
            events.PushPullRequested: self.push_pull.on_requested,
            events.PushPullFailed: self.push_pull.on_failed,
            events.DialRefused: self._on_dial_refused,
            events.DialAnswered: self._on_dial_answered,
            events.MetadataChanged: self._on_metadata_changed,
            events.AddressChanged: self._on_address_changed,
            events.LeaveRequested: self._on_leave_requested,
            events.NameClaimed: self.names.on_claimed,
            events.HolderVerified: self.merger.on_verified,
        }
        self.timer_handlers: dict[TimerKind, Callable[[Any], None]] = {
            TimerKind.PROBE_ROUND: self._probe_round,
            TimerKind.GOSSIP_ROUND: self._gossip_round,
            TimerKind.PUSH_PULL_ROUND: self.push_pull.round,
            TimerKind.SILENT_ROUND: self._silent_round,
            TimerKind.REFUSED_ROUND: self._refused_round,
            TimerKind.SILENT_PUSH_PULL_ROUND: self.push_pull.silent_round,
            TimerKind.CONTACT: self._contact_due,
            TimerKind.FORGET: self.lifecycle.forget_due,
            TimerKind.LEAVE: self._leave_due,
            TimerKind.RELAY: self.prober.relay_timed_out,
            TimerKind.PROBE: self._probe_timed_out,
            TimerKind.SUSPICION: self.lifecycle.probe_finally,
            TimerKind.FINAL_PROBE: self.lifecycle.probe_finally,
        }
        first_probe_s = rng.random() * config.probe_interval_s
        self.context.set_timer(TimerKind.PROBE_ROUND, None, first_probe_s)
        first_push_pull_s = rng.random() * config.push_pull_s
        self.context.set_timer(TimerKind.PUSH_PULL_ROUND, None, first_push_pull_s)

    # The core's interface.

    def handle(
        self, event: events.MembershipEvent, *, now_s: float
    ) -> list[events.MembershipEffect]:
        """Take one event; return its effects, in order."""
        context = self.context
        effects: list[events.MembershipEffect] = []
        context.effects = effects
        # A stall lasts from the first missed timer, or the last event, until now. Datagrams that
        # waited arrive one by one; the stall before them counts once.
        due_s = self._timers.next_s
        late_s = 0.0 if due_s is None else now_s - max(due_s, context.now_s)
        context.now_s = now_s
        if late_s > self._config.stall_s:
            self.lifecycle.extend_for_stall(late_s)
        self._event_handlers[type(event)](event)
        return effects

    def wake_at_s(self) -> float | None:
        """Return when the core needs a `Tick`."""
        return self._timers.next_s

    # Reads.

    def members(self) -> list[Member]:
        """Return every member this node knows, itself first."""
        return [self.local.member(), *(peer.member() for peer in self.table.peers.values())]

    def member(self, node: str) -> Member | None:
        """Return one member; None if this node does not know it."""
        peer = self.local if node == self.local.node else self.table.peers.get(node)
        return None if peer is None else peer.member()

    def state_of(self, node: str) -> MemberState | None:
        """Return the state of another member; None if this node does not know it."""
        peer = self.table.peers.get(node)
        return None if peer is None else peer.state

    # Rounds and timers.

    def _on_tick(self, _: Tick) -> None:
        pop_due, handlers, now_s = self._timers.pop_due, self.timer_handlers, self.context.now_s
        while (due := pop_due(now_s)) is not None:
            handlers[due[0]](due[1])

    def _probe_round(self, _: None) -> None:
        """Probe one random member, the successors on the ring, and this node's own suspects."""
        context, config = self.context, self._config
        every_s = config.probe_interval_s * context.awareness.multiplier
        context.set_timer(TimerKind.PROBE_ROUND, None, every_s)
        if self.local.is_leaving:
            return
        successors = self.table.successors(config.ring_successors, _PROBES_PER_ROUND_MAX)
        targets = {peer.node: peer for peer in successors}
        target = self.table.next_target()
        if target is not None:
            targets[target.node] = target
        own_suspects = 0
        for peer in self.lifecycle.suspects.values():
            if peer.suspicion is not None and self.local.node in peer.suspicion.witnesses:
                targets[peer.node] = peer
                own_suspects += 1
                if own_suspects == _OWN_SUSPECTS_PER_ROUND_MAX:
                    break
        for peer in targets.values():
            self.prober.probe(peer)
        if self.lifecycle.ring_changed:
            self._choose_sessions()

    def _choose_sessions(self) -> None:
        """Keep sessions with the members that the ring assigns to this node, and no others."""
        self.lifecycle.ring_changed = False
        role = self.local.role
        targets = self.table.session_targets(self._config.ring_successors, role)
        wanted = {peer.node: peer for peer in targets}
        for node in [node for node in self.sessions if node not in wanted]:
            del self.sessions[node]
            self.context.effects.append(events.DropSession(node))
        for node, peer in wanted.items():
            process = (peer.incarnation, peer.stream_address)
            if self.sessions.get(node) != process:
                self.sessions[node] = process
                self.context.effects.append(events.KeepSession(node, *process))

    def _gossip_round(self, _: None) -> None:
        context = self.context
        if not len(context.gossip):
            return
        targets = self.table.sample(self._config.gossip_fanout)
        if not targets:
            return  # the next member that enters the table starts gossip again
        datagram = Gossip(self.local.sender, context.updates(len(targets)))
        context.effects += [events.SendDatagram(peer.address, datagram) for peer in targets]
        if len(context.gossip):
            context.set_timer(TimerKind.GOSSIP_ROUND, None, self._config.gossip_interval_s)

    def _silent_round(self, _: None) -> None:
        self._contact_dead(self.table.silent, TimerKind.SILENT_ROUND, self._config.reprobe_silent_s)

    def _refused_round(self, _: None) -> None:
        self._contact_dead(
            self.table.refused, TimerKind.REFUSED_ROUND, self._config.reprobe_refused_s
        )

    def _contact_dead(self, dead: dict[str, None], kind: TimerKind, every_s: float) -> None:
        """Ping the next of the dead members, in turn: it may only have been unreachable."""
        context = self.context
        if not dead or self.local.is_leaving:
            return
        context.set_timer(kind, None, every_s * (0.8 + 0.4 * context.rng.random()))
        node = next(iter(dead))
        del dead[node]
        dead[node] = None  # to the end of the order
        self.prober.contact(self.table.peers[node])

    def _contact_due(self, node: str) -> None:
        peer = self.table.peers.get(node)
        if peer is not None and peer.state is MemberState.UNCONFIRMED:
            self.prober.retry_contact(peer)

    def _probe_timed_out(self, sequence: int) -> None:
        silent = self.prober.timed_out(sequence)
        if silent is not None:
            self.lifecycle.suspect(silent, self.local.node)

    # Datagrams.

    def _on_datagram(self, event: events.DatagramReceived) -> None:
        datagram = event.datagram
        peer = self.merger.heard_from(event.node, event.incarnation, datagram.sender)
        if peer is None:
            return
        for update in datagram.updates:
            self.merger.merge(update)
        if self.table.peers.get(event.node) is not peer:
            return  # an unconfirmed member that announced its leave with these updates
        if peer.state is MemberState.DEAD and peer.claim is ClaimedState.SILENT:
            self.push_pull.reunite(peer)
        if isinstance(datagram, Ping):
            self.prober.on_ping(event, datagram, peer)
        elif isinstance(datagram, Ack):
            self._on_ack(event, datagram, peer)
        elif isinstance(datagram, Gossip):
            if peer.state is not MemberState.ALIVE:
                self.prober.notify(peer)
        elif isinstance(datagram, PingRequest):
            self.prober.on_ping_request(event, datagram)
        elif isinstance(datagram, IndirectAck):
            self._on_indirect_ack(datagram)
        elif isinstance(datagram, Nack):
            self.prober.on_nack(event, datagram)

    def _on_ack(self, event: events.DatagramReceived, ack: Ack, peer: MemberRecord) -> None:
        answered = self.prober.on_ack(event, ack, peer)
        if answered is not None:
            self.push_pull.merge_metadata(peer, ack.metadata_version, ack.metadata)
            self.lifecycle.confirm(answered)

    def _on_indirect_ack(self, ack: IndirectAck) -> None:
        peer = self.prober.on_indirect_ack(ack)
        if peer is None:
            return
        if ack.refutation > peer.refutation:
            self.merger.refuted(peer, ack.refutation, peer.address, peer.stream_port)
        if peer.is_living:
            self.lifecycle.confirm(peer)

    # Dials.

    def _on_dial_refused(self, event: events.DialRefused) -> None:
        peer = self.table.peers.get(event.node)
        if peer is None or peer.incarnation != event.incarnation:
            return
        if event.address == peer.stream_address:  # else the member has moved since the dial
            self.lifecycle.mark_refused(peer)

    def _on_dial_answered(self, event: events.DialAnswered) -> None:
        peer = self.table.peers.get(event.node)
        if peer is None or peer.incarnation != event.incarnation:
            return
        if event.by == peer.node and event.life <= peer.incarnation:
            if event.life < peer.incarnation:  # a new process whose clock was set back
                self.prober.notify_earlier_incarnation(peer, peer.address)
                return
            self.prober.drop(peer)
            self.lifecycle.confirm(peer)
        elif event.address == peer.stream_address:
            # Another process listens on its port, whatever the clocks say about incarnations.
            self.lifecycle.mark_refused(peer)

    # This node itself.

    def _on_metadata_changed(self, event: events.MetadataChanged) -> None:
        if len(event.metadata) > METADATA_BYTES_MAX:
            raise InvariantError(
                f"metadata of {len(event.metadata)} bytes, at most {METADATA_BYTES_MAX} fit an ack",
                hint="send the rest over a stream",
            )
        self.local.describe(event.metadata)

    def _on_address_changed(self, event: events.AddressChanged) -> None:
        local = self.local
        if (event.address, event.stream_port) != (local.address, local.stream_port):
            local.relocate(event.address, event.stream_port)
            self.context.broadcast_local()

    def _on_leave_requested(self, _: events.LeaveRequested) -> None:
        context = self.context
        if self.local.is_leaving:
            return
        self.local.leave()
        context.broadcast_local()
        leave = Gossip(self.local.sender, (self.local.full_update(),))
        for peer in self.table.sample(4 * self._config.gossip_fanout):
            context.effects.append(events.SendDatagram(peer.address, leave))
        context.effects += [events.DropSession(node) for node in self.sessions]
        self.sessions.clear()
        context.set_timer(TimerKind.LEAVE, None, self._config.leave_s)

    def _leave_due(self, _: None) -> None:
        self.context.effects.append(events.LeaveCompleted())
