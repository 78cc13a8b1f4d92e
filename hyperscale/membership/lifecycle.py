"""Judging: who is confirmed, suspected, dead. The only writer of a peer's state.

A suspicion grows with witnesses and ends in a last look: several questions of this node's own,
over every way there is. `mark_dead` is the one funnel through which a member dies, and fires
each death once, whoever found out.
"""

from hyperscale.errors import InvariantError
from hyperscale.membership.context import MembershipContext
from hyperscale.membership.events import DrainSocket, MemberDied, MemberState
from hyperscale.membership.formulas import (
    UNCONFIRMED_S,
    confirmations_wanted,
    greeting_within_s,
    verify_chance,
)
from hyperscale.membership.member_table import MemberRecord
from hyperscale.membership.messages import ClaimedState
from hyperscale.membership.prober import Prober
from hyperscale.membership.suspicion import Suspicion
from hyperscale.membership.timers import TimerKind

_DRAIN_S = 0.1
_AWAY_S = 3.0
"""Whoever stood still for this long has missed news that nobody tells any more."""

_STATE_OF = {
    ClaimedState.SILENT: MemberState.DEAD,
    ClaimedState.REFUSED: MemberState.DEAD,
    ClaimedState.LEFT: MemberState.LEFT,
}


class MemberLifecycle:
    """What this node thinks of the others."""

    def __init__(self, station: MembershipContext, prober: Prober) -> None:
        self._station = station
        self._prober = prober
        self._roster = station.roster
        self._at_address: dict[str, str] = {}
        self.suspects: dict[str, MemberRecord] = {}
        self.ring_changed = False

    # Confirming.

    def await_confirmation(self, peer: MemberRecord) -> None:
        """A peer is spoken of, or starts a new life: never judged before it answers."""
        station = self._station
        peer.state, peer.since_s, peer.greetings = MemberState.UNCONFIRMED, station.now_s, 0
        within_s = greeting_within_s(len(self._roster))
        station.set(TimerKind.GREET, peer.node, within_s * station.rng.random())
        station.set(TimerKind.FORGET, peer.node, UNCONFIRMED_S.get(peer.role, 180.0))

    def answered(self, peer: MemberRecord) -> None:
        """A two-way exchange with this life of a peer: it is a member, and not suspect here."""
        if peer.state is MemberState.UNCONFIRMED:
            peer.state, peer.since_s = MemberState.ALIVE, self._station.now_s
            self._station.deadlines.cancel(TimerKind.GREET, peer.node)
            self._station.deadlines.cancel(TimerKind.FORGET, peer.node)
            self._enter(peer)
            self._station.log("member.confirmed", peer)
            self._station.change(peer, MemberState.UNCONFIRMED)
        elif peer.state is MemberState.SUSPECT:
            self.clear(peer)

    def returned(self, peer: MemberRecord) -> None:
        """A member that was silent has spoken up."""
        before = peer.state
        peer.state, peer.since_s = MemberState.ALIVE, self._station.now_s
        self._station.deadlines.cancel(TimerKind.FORGET, peer.node)
        self._enter(peer)
        self._station.log("member.returned", peer)
        self._station.change(peer, before)

    def _enter(self, peer: MemberRecord) -> None:
        self._roster.enter(peer)
        self.ring_changed = True
        self._occupy(peer)
        if len(self._station.gossip):
            self._station.start_gossip()

    def _occupy(self, peer: MemberRecord) -> None:
        """One address, one process: an older one that was there is gone."""
        other = self._roster.get(self._at_address.get(peer.address, ""))
        if (
            other is not None
            and other is not peer
            and other.is_living
            and other.incarnation < peer.incarnation
        ):
            self.mark_dead(other, ClaimedState.REFUSED, is_from_gossip=False)
        self._at_address[peer.address] = peer.node

    def _vacate(self, peer: MemberRecord) -> None:
        if self._at_address.get(peer.address) == peer.node:
            del self._at_address[peer.address]

    def relocate(self, peer: MemberRecord, address: str, stream_port: int) -> None:
        """A known node is reached elsewhere."""
        if (address, stream_port) == (peer.address, peer.stream_port):
            return
        self._station.log("member.moved", peer, f"{peer.address} -> {address}")
        self._vacate(peer)
        peer.address, peer.stream_port = address, stream_port
        if peer.is_living:
            self._occupy(peer)
            self.ring_changed = True
            self._station.change(peer, peer.state)

    # Suspecting.

    def suspect(self, peer: MemberRecord, by: str) -> None:
        """Counts `by` as a witness that `peer` is silent."""
        station, config = self._station, self._station.config
        multiplier = station.awareness.multiplier
        suspicion = peer.suspicion
        if suspicion is not None:
            if suspicion.confirm(by, multiplier):
                station.tell_others(peer.news(ClaimedState.SUSPECT, by))
                self._await_verdict(peer.node, suspicion)
            return
        # Whoever is suspected itself cannot be waited for as a witness.
        members = len(self._roster) - len(self.suspects)
        wanted = confirmations_wanted(members, config.confirmations)
        suspicion = Suspicion(
            by,
            now_s=station.now_s,
            min_s=config.suspicion_min_s,
            max_s=config.suspicion_max_s - config.last_look_s,
            wanted=wanted,
            multiplier=multiplier,
        )
        peer.suspicion, peer.state, peer.claim = (
            suspicion,
            MemberState.SUSPECT,
            ClaimedState.SUSPECT,
        )
        peer.since_s = station.now_s
        self.suspects[peer.node] = peer
        self.ring_changed = True
        self._await_verdict(peer.node, suspicion)
        station.log("member.suspected", peer, f"by {by}")
        station.tell_others(peer.news(ClaimedState.SUSPECT, by))
        station.change(peer, MemberState.ALIVE)
        if by == station.node:
            self._prober.tell(peer)
        elif station.rng.random() < verify_chance(members, wanted):
            self._prober.probe(peer)

    def condemn(self, peer: MemberRecord, by: str) -> None:
        """Another member found it silent to the end: the strongest suspicion, and no more."""
        self.suspect(peer, by)
        if peer.suspicion is not None:
            peer.suspicion.condemn()
            self._await_verdict(peer.node, peer.suspicion)

    def _await_verdict(self, node: str, suspicion: Suspicion) -> None:
        # A deadline in the past would look as if this node had slept through it.
        if not suspicion.looks:
            at_s = max(suspicion.deadline_s, self._station.now_s)
            self._station.deadlines.set(TimerKind.SUSPICION, node, at_s)

    def clear(self, peer: MemberRecord) -> None:
        """A suspicion is over, and its subject alive."""
        self._end_suspicion(peer)
        peer.state, peer.claim, peer.since_s = (
            MemberState.ALIVE,
            ClaimedState.ALIVE,
            self._station.now_s,
        )
        self.ring_changed = True
        self._station.log("suspicion.cleared", peer)
        self._station.change(peer, MemberState.SUSPECT)

    def _end_suspicion(self, peer: MemberRecord) -> None:
        peer.suspicion = None
        self.suspects.pop(peer.node, None)
        self._station.deadlines.cancel(TimerKind.SUSPICION, peer.node)
        self._station.deadlines.cancel(TimerKind.LOOK, peer.node)

    def look(self, node: str) -> None:
        """The last look: before this node condemns, it asks for itself, several times over."""
        peer = self._roster.peers[node]
        suspicion, config = peer.suspicion, self._station.config
        if suspicion is None:
            raise InvariantError(f"a last look at {node}, which is not suspected")
        if suspicion.looks == config.last_look_pings:
            self.mark_dead(peer, ClaimedState.SILENT, is_from_gossip=False)
            return
        suspicion.looks += 1
        self._prober.look(peer, suspicion.looks)
        self._station.set(TimerKind.LOOK, node, config.last_look_s / config.last_look_pings)

    def stalled(self, late_s: float) -> None:
        """This node stood still: what it did not hear in that time is held against nobody."""
        station = self._station
        station.awareness.stalled(late_s)
        station.log_own("node.stalled", f"{late_s:.3f} s")
        not_before_s = station.now_s + _DRAIN_S
        station.deadlines.shift(TimerKind.PROBE, late_s, not_before_s=not_before_s)
        most_s = station.config.stall_extension_max_s
        for peer in self.suspects.values():
            suspicion = peer.suspicion
            if suspicion is None or suspicion.extended_s >= most_s:
                continue
            suspicion.extend(late_s, most_s=most_s)
            for timer in (TimerKind.SUSPICION, TimerKind.LOOK):
                at_s = station.deadlines.at_s(timer, peer.node)
                if at_s is not None:
                    station.deadlines.set(timer, peer.node, max(at_s + late_s, not_before_s))
        if late_s > _AWAY_S:
            station.catch_up()
        station.effects.append(DrainSocket(late_s))

    # Dying.

    def refused(self, peer: MemberRecord) -> None:
        """Its process is gone for certain."""
        if peer.is_living:
            self.mark_dead(peer, ClaimedState.REFUSED, is_from_gossip=False)
        elif peer.state is MemberState.DEAD and peer.claim is ClaimedState.SILENT:
            self.mark_final(peer, ClaimedState.REFUSED)
            self._station.tell_others(peer.news(ClaimedState.REFUSED, self._station.node))

    def mark_dead(
        self,
        peer: MemberRecord,
        claim: ClaimedState,
        *,
        is_from_gossip: bool,
        is_replaced: bool = False,
    ) -> None:
        """The one place where a living member stops being one."""
        if not peer.is_living:
            raise InvariantError(f"{peer.node} is {peer.state} and cannot die")
        station, before = self._station, peer.state
        self._end_suspicion(peer)
        self._prober.drop(peer)
        self._roster.exit(peer)
        self._vacate(peer)
        peer.state, peer.claim, peer.since_s = _STATE_OF[claim], claim, station.now_s
        self.ring_changed = True
        self._bury(peer)
        what = "member.left" if claim is ClaimedState.LEFT else "member.died"
        informed = "gossip" if is_from_gossip else "own evidence"
        station.log(what, peer, f"{claim.name.lower()}, {informed}")
        if not is_replaced:  # else the new life is the news
            station.tell_others(peer.news(claim, station.node))
        if claim is not ClaimedState.LEFT:
            station.effects.append(MemberDied(peer.member(), claim, is_from_gossip))
        station.change(peer, before)

    def mark_final(self, peer: MemberRecord, claim: ClaimedState) -> None:
        """A dead member turns out to be gone for good."""
        before = peer.state
        peer.claim, peer.state = claim, _STATE_OF[claim]
        self._bury(peer)
        if peer.state is not before:
            self._station.change(peer, before)

    def _bury(self, peer: MemberRecord) -> None:
        """Remembers the dead: to ask again, and not to believe old news of them."""
        station, roster, config = self._station, self._roster, self._station.config
        roster.silent.pop(peer.node, None)
        roster.gone.pop(peer.node, None)
        station.set(TimerKind.FORGET, peer.node, config.tombstone_s)
        if peer.claim is ClaimedState.SILENT:
            if not roster.silent:
                station.set(TimerKind.DEAD_ROUND, None, config.reprobe_silent_s)
                station.set(TimerKind.DEAD_SYNC_ROUND, None, config.sync_dead_s)
            roster.silent[peer.node] = None
        elif peer.claim is ClaimedState.REFUSED:
            if not roster.gone:
                station.set(TimerKind.GONE_ROUND, None, config.reprobe_gone_s)
            roster.gone[peer.node] = None

    # Forgetting.

    def forget_due(self, node: str) -> None:
        peer = self._roster.get(node)
        if peer is not None and not peer.is_living:
            unconfirmed = peer.state is MemberState.UNCONFIRMED
            self.forget(peer, "unconfirmed.removed" if unconfirmed else "tombstone.removed")

    def forget(self, peer: MemberRecord, what: str) -> None:
        self._roster.remove(peer)
        self._station.deadlines.cancel(TimerKind.GREET, peer.node)
        self._station.deadlines.cancel(TimerKind.FORGET, peer.node)
        self._station.log(what, peer)
