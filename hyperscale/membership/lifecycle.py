"""The state of each member: unconfirmed, alive, suspect, dead or left.

`MemberLifecycle` is the only writer of `MemberRecord.state`, and `TRANSITIONS` lists its moves.
Confirmations by other members shorten a suspicion; final probes over every path end it.
`mark_dead` is the one place where a living member dies, and reports each death once.
"""

from hyperscale.errors import InvariantError
from hyperscale.membership.context import MembershipContext
from hyperscale.membership.events import DrainSocket, MemberDied, MemberState
from hyperscale.membership.formulas import (
    UNCONFIRMED_S,
    confirmations_wanted,
    contact_within_s,
    verify_chance,
)
from hyperscale.membership.member_table import MemberRecord
from hyperscale.membership.messages import ClaimedState
from hyperscale.membership.prober import Prober
from hyperscale.membership.suspicion import Suspicion
from hyperscale.membership.timers import TimerKind

_DRAIN_S = 0.1
_MISSED_UPDATES_S = 3.0
"""After a stall this long the other members no longer gossip updates this node has missed."""

_STATE_OF = {
    ClaimedState.SILENT: MemberState.DEAD,
    ClaimedState.REFUSED: MemberState.DEAD,
    ClaimedState.LEFT: MemberState.LEFT,
}

TRANSITIONS: dict[MemberState, frozenset[MemberState]] = {
    # A new incarnation makes any member that is not living unconfirmed again.
    MemberState.UNCONFIRMED: frozenset({MemberState.UNCONFIRMED, MemberState.ALIVE}),
    MemberState.ALIVE: frozenset({MemberState.SUSPECT, MemberState.DEAD, MemberState.LEFT}),
    MemberState.SUSPECT: frozenset({MemberState.ALIVE, MemberState.DEAD, MemberState.LEFT}),
    MemberState.DEAD: frozenset({MemberState.UNCONFIRMED, MemberState.ALIVE, MemberState.LEFT}),
    MemberState.LEFT: frozenset({MemberState.UNCONFIRMED, MemberState.DEAD}),
}


class MemberLifecycle:
    """Confirms, suspects, buries and forgets members."""

    def __init__(self, context: MembershipContext, prober: Prober) -> None:
        self._context = context
        self._prober = prober
        self._table = context.table
        self._at_address: dict[str, str] = {}
        self.suspects: dict[str, MemberRecord] = {}
        self.ring_changed = False
        """True if the ring changed since the sessions were last chosen."""

    def _move(self, peer: MemberRecord, state: MemberState) -> None:
        """Change the state of a member."""
        if state not in TRANSITIONS[peer.state]:
            raise InvariantError(f"member {peer.node}: {peer.state} -> {state}")
        peer.state, peer.since_s = state, self._context.now_s

    # Unconfirmed and alive.

    def await_confirmation(self, peer: MemberRecord) -> None:
        """Make a new member, or a new incarnation, unconfirmed until it answers."""
        context = self._context
        self._move(peer, MemberState.UNCONFIRMED)
        peer.contact.attempts = 0
        within_s = contact_within_s(len(self._table))
        context.set_timer(TimerKind.CONTACT, peer.node, within_s * context.rng.random())
        context.set_timer(TimerKind.FORGET, peer.node, UNCONFIRMED_S.get(peer.role, 180.0))

    def confirm(self, peer: MemberRecord) -> None:
        """Record a two-way exchange: an unconfirmed member is alive, a suspect is cleared."""
        if peer.state is MemberState.UNCONFIRMED:
            self._move(peer, MemberState.ALIVE)
            self._context.timers.cancel(TimerKind.CONTACT, peer.node)
            self._context.timers.cancel(TimerKind.FORGET, peer.node)
            self._enter(peer)
            self._context.counts["member.confirmed"] += 1
            self._context.report_change(peer, MemberState.UNCONFIRMED)
        elif peer.state is MemberState.SUSPECT:
            self.clear(peer)

    def revive(self, peer: MemberRecord) -> None:
        """Make a dead member alive again: it has refuted its death."""
        before = peer.state
        self._move(peer, MemberState.ALIVE)
        self._context.timers.cancel(TimerKind.FORGET, peer.node)
        self._enter(peer)
        self._context.counts["member.returned"] += 1
        self._context.report_change(peer, before)

    def _enter(self, peer: MemberRecord) -> None:
        self._table.enter(peer)
        self.ring_changed = True
        self._occupy_address(peer)
        if len(self._context.gossip):
            self._context.start_gossip()

    def _occupy_address(self, peer: MemberRecord) -> None:
        """Register the address of a member. An older process at the same address has ended."""
        other = self._table.peers.get(self._at_address.get(peer.address, ""))
        if (
            other is not None
            and other is not peer
            and other.is_living
            and other.incarnation < peer.incarnation
        ):
            self.mark_dead(other, ClaimedState.REFUSED, is_from_gossip=False)
        self._at_address[peer.address] = peer.node

    def _vacate_address(self, peer: MemberRecord) -> None:
        if self._at_address.get(peer.address) == peer.node:
            del self._at_address[peer.address]

    def relocate(self, peer: MemberRecord, address: str, stream_port: int) -> None:
        """Change the address of a member."""
        if (address, stream_port) == (peer.address, peer.stream_port):
            return
        self._context.counts["member.moved"] += 1
        self._vacate_address(peer)
        peer.address, peer.stream_port = address, stream_port
        if peer.is_living:
            self._occupy_address(peer)
            self.ring_changed = True
            self._context.report_change(peer, peer.state)

    # Suspect.

    def suspect(self, peer: MemberRecord, by: str) -> None:
        """Suspect a living member, or count `by` as a witness of the suspicion."""
        context, config = self._context, self._context.config
        multiplier = context.awareness.multiplier
        suspicion = peer.suspicion
        if suspicion is not None:
            if suspicion.confirm(by, multiplier):
                context.broadcast(peer.update(ClaimedState.SUSPECT, by))
                self._schedule_verdict(peer.node, suspicion)
            return
        # Suspects cannot confirm, so they do not count.
        members = len(self._table) - len(self.suspects)
        wanted = confirmations_wanted(members, config.confirmations)
        suspicion = Suspicion(
            by,
            now_s=context.now_s,
            min_s=config.suspicion_min_s,
            max_s=config.suspicion_max_s - config.final_probe_s,
            wanted=wanted,
            multiplier=multiplier,
        )
        self._move(peer, MemberState.SUSPECT)
        peer.suspicion, peer.claim = suspicion, ClaimedState.SUSPECT
        self.suspects[peer.node] = peer
        self.ring_changed = True
        self._schedule_verdict(peer.node, suspicion)
        context.counts["member.suspected"] += 1
        context.broadcast(peer.update(ClaimedState.SUSPECT, by))
        context.report_change(peer, MemberState.ALIVE)
        if by == context.local.node:
            self._prober.notify(peer)
        elif context.rng.random() < verify_chance(members, wanted):
            self._prober.probe(peer)

    def suspect_strongly(self, peer: MemberRecord, by: str) -> None:
        """Suspect a member that `by` found dead: the shortest suspicion, but no verdict."""
        self.suspect(peer, by)
        if peer.suspicion is not None:
            peer.suspicion.shorten()
            self._schedule_verdict(peer.node, peer.suspicion)

    def _schedule_verdict(self, node: str, suspicion: Suspicion) -> None:
        # A deadline in the past would look as if this node had slept through it.
        if not suspicion.final_probes:
            at_s = max(suspicion.deadline_s, self._context.now_s)
            self._context.timers.set(TimerKind.SUSPICION, node, at_s)

    def clear(self, peer: MemberRecord) -> None:
        """End a suspicion: the member is alive."""
        self._end_suspicion(peer)
        self._move(peer, MemberState.ALIVE)
        peer.claim = ClaimedState.ALIVE
        self.ring_changed = True
        self._context.counts["suspicion.cleared"] += 1
        self._context.report_change(peer, MemberState.SUSPECT)

    def _end_suspicion(self, peer: MemberRecord) -> None:
        peer.suspicion = None
        self.suspects.pop(peer.node, None)
        self._context.timers.cancel(TimerKind.SUSPICION, peer.node)
        self._context.timers.cancel(TimerKind.FINAL_PROBE, peer.node)

    def probe_finally(self, node: str) -> None:
        """Send the next final probe of a suspect, or mark it dead after the last one."""
        peer = self._table.peers[node]
        suspicion, config = peer.suspicion, self._context.config
        if suspicion is None:
            raise InvariantError(f"final probe of member {node}, which is not suspected")
        if suspicion.final_probes == config.final_probe_pings:
            self.mark_dead(peer, ClaimedState.SILENT, is_from_gossip=False)
            return
        suspicion.final_probes += 1
        self._prober.probe_finally(peer, suspicion.final_probes)
        every_s = config.final_probe_s / config.final_probe_pings
        self._context.set_timer(TimerKind.FINAL_PROBE, node, every_s)

    def extend_for_stall(self, late_s: float) -> None:
        """Delay probes and suspicions by a stall of this node, in which it heard nothing."""
        context = self._context
        context.awareness.stalled(late_s)
        context.counts["node.stalled"] += 1
        not_before_s = context.now_s + _DRAIN_S
        context.timers.shift(TimerKind.PROBE, late_s, not_before_s=not_before_s)
        most_s = context.config.stall_extension_max_s
        for peer in self.suspects.values():
            suspicion = peer.suspicion
            if suspicion is None or suspicion.extended_s >= most_s:
                continue
            suspicion.extend(late_s, most_s=most_s)
            for kind in (TimerKind.SUSPICION, TimerKind.FINAL_PROBE):
                at_s = context.timers.at_s(kind, peer.node)
                if at_s is not None:
                    context.timers.set(kind, peer.node, max(at_s + late_s, not_before_s))
        if late_s > _MISSED_UPDATES_S:
            context.catch_up()
        context.effects.append(DrainSocket(late_s))

    # Dead and left.

    def mark_refused(self, peer: MemberRecord) -> None:
        """Mark a member dead whose process has certainly ended."""
        if peer.is_living:
            self.mark_dead(peer, ClaimedState.REFUSED, is_from_gossip=False)
        elif peer.state is MemberState.DEAD and peer.claim is ClaimedState.SILENT:
            self.mark_final(peer, ClaimedState.REFUSED)
            local = self._context.local.node
            self._context.broadcast(peer.update(ClaimedState.REFUSED, local))

    def mark_dead(
        self,
        peer: MemberRecord,
        claim: ClaimedState,
        *,
        is_from_gossip: bool,
        is_replaced: bool = False,
    ) -> None:
        """Make a living member dead or left. With `is_replaced` its new incarnation is known."""
        context, before = self._context, peer.state
        if not peer.is_living:
            raise InvariantError(f"member {peer.node} is {before} and cannot die")
        self._end_suspicion(peer)
        self._prober.drop(peer)
        self._table.exit(peer)
        self._vacate_address(peer)
        self._move(peer, _STATE_OF[claim])
        peer.claim = claim
        self.ring_changed = True
        self._bury(peer)
        what = "member.left" if claim is ClaimedState.LEFT else "member.died"
        context.counts[what] += 1
        if not is_replaced:  # else the update about the new incarnation outranks this one
            context.broadcast(peer.update(claim, context.local.node))
        if claim is not ClaimedState.LEFT:
            context.effects.append(MemberDied(peer.member(), claim, is_from_gossip))
        context.report_change(peer, before)

    def mark_final(self, peer: MemberRecord, claim: ClaimedState) -> None:
        """Record that the incarnation of a dead or left member has certainly ended."""
        before = peer.state
        peer.claim = claim
        if _STATE_OF[claim] is not before:
            self._move(peer, _STATE_OF[claim])
        self._bury(peer)
        if peer.state is not before:
            self._context.report_change(peer, before)

    def _bury(self, peer: MemberRecord) -> None:
        """Keep a tombstone, so that old updates are not believed, and schedule re-probes."""
        context, table, config = self._context, self._table, self._context.config
        table.silent.pop(peer.node, None)
        table.refused.pop(peer.node, None)
        context.set_timer(TimerKind.FORGET, peer.node, config.tombstone_s)
        if peer.claim is ClaimedState.SILENT:
            if not table.silent:
                context.set_timer(TimerKind.SILENT_ROUND, None, config.reprobe_silent_s)
                context.set_timer(TimerKind.SILENT_PUSH_PULL_ROUND, None, config.push_pull_silent_s)
            table.silent[peer.node] = None
        elif peer.claim is ClaimedState.REFUSED:
            if not table.refused:
                context.set_timer(TimerKind.REFUSED_ROUND, None, config.reprobe_refused_s)
            table.refused[peer.node] = None

    # Forgetting.

    def forget_due(self, node: str) -> None:
        """Remove a member that stayed unconfirmed, or whose tombstone has expired."""
        peer = self._table.peers.get(node)
        if peer is not None and not peer.is_living:
            unconfirmed = peer.state is MemberState.UNCONFIRMED
            self.forget(peer, "unconfirmed.removed" if unconfirmed else "tombstone.removed")

    def forget(self, peer: MemberRecord, what: str) -> None:
        """Remove a member from the table; `what` is the decision to count."""
        self._table.remove(peer)
        self._context.timers.cancel(TimerKind.CONTACT, peer.node)
        self._context.timers.cancel(TimerKind.FORGET, peer.node)
        self._context.counts[what] += 1
