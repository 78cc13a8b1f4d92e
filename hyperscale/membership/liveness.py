"""Judging: who is confirmed, suspected, dead. The only writer of a peer's state.

A suspicion grows with witnesses and ends in a last look: several questions of this node's own,
over every way there is. `mark_dead` is the one funnel through which a member dies, and fires
each death once, whoever found out.
"""

from hyperscale.errors import InvariantError
from hyperscale.membership.deadlines import Timer
from hyperscale.membership.events import Died, Drain, State
from hyperscale.membership.formulas import (
    UNCONFIRMED_S,
    confirmations_wanted,
    greeting_within_s,
    verify_chance,
)
from hyperscale.membership.local_node import Station
from hyperscale.membership.members import Peer
from hyperscale.membership.messages import Claim
from hyperscale.membership.prober import Prober
from hyperscale.membership.suspicion import Suspicion

_DRAIN_S = 0.1
_AWAY_S = 3.0
"""Whoever stood still for this long has missed news that nobody tells any more."""

_STATE_OF = {Claim.SILENT: State.DEAD, Claim.REFUSED: State.DEAD, Claim.LEFT: State.LEFT}


class Judge:
    """What this node thinks of the others."""

    def __init__(self, station: Station, prober: Prober) -> None:
        self._station = station
        self._prober = prober
        self._roster = station.roster
        self._at_address: dict[str, str] = {}
        self.suspects: dict[str, Peer] = {}
        self.ring_changed = False

    # Confirming.

    def await_confirmation(self, peer: Peer) -> None:
        """A peer is spoken of, or starts a new life: never judged before it answers."""
        station = self._station
        peer.state, peer.since_s, peer.greetings = State.UNCONFIRMED, station.now_s, 0
        within_s = greeting_within_s(len(self._roster))
        station.set(Timer.GREET, peer.node, within_s * station.rng.random())
        station.set(Timer.FORGET, peer.node, UNCONFIRMED_S.get(peer.role, 180.0))

    def answered(self, peer: Peer) -> None:
        """A two-way exchange with this life of a peer: it is a member, and not suspect here."""
        if peer.state is State.UNCONFIRMED:
            peer.state, peer.since_s = State.ALIVE, self._station.now_s
            self._station.deadlines.cancel(Timer.GREET, peer.node)
            self._station.deadlines.cancel(Timer.FORGET, peer.node)
            self._enter(peer)
            self._station.log("member.confirmed", peer)
            self._station.change(peer, State.UNCONFIRMED)
        elif peer.state is State.SUSPECT:
            self.clear(peer)

    def returned(self, peer: Peer) -> None:
        """A member that was silent has spoken up."""
        before = peer.state
        peer.state, peer.since_s = State.ALIVE, self._station.now_s
        self._station.deadlines.cancel(Timer.FORGET, peer.node)
        self._enter(peer)
        self._station.log("member.returned", peer)
        self._station.change(peer, before)

    def _enter(self, peer: Peer) -> None:
        self._roster.enter(peer)
        self.ring_changed = True
        self._occupy(peer)
        if len(self._station.gossip):
            self._station.start_gossip()

    def _occupy(self, peer: Peer) -> None:
        """One address, one process: an older one that was there is gone."""
        other = self._roster.get(self._at_address.get(peer.address, ""))
        if (
            other is not None
            and other is not peer
            and other.is_living
            and other.incarnation < peer.incarnation
        ):
            self.mark_dead(other, Claim.REFUSED, is_from_gossip=False)
        self._at_address[peer.address] = peer.node

    def _vacate(self, peer: Peer) -> None:
        if self._at_address.get(peer.address) == peer.node:
            del self._at_address[peer.address]

    def relocate(self, peer: Peer, address: str, stream_port: int) -> None:
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

    def suspect(self, peer: Peer, by: str) -> None:
        """Counts `by` as a witness that `peer` is silent."""
        station, config = self._station, self._station.config
        multiplier = station.awareness.multiplier
        suspicion = peer.suspicion
        if suspicion is not None:
            if suspicion.confirm(by, multiplier):
                station.tell_others(peer.news(Claim.SUSPECT, by))
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
        peer.suspicion, peer.state, peer.claim = suspicion, State.SUSPECT, Claim.SUSPECT
        peer.since_s = station.now_s
        self.suspects[peer.node] = peer
        self.ring_changed = True
        self._await_verdict(peer.node, suspicion)
        station.log("member.suspected", peer, f"by {by}")
        station.tell_others(peer.news(Claim.SUSPECT, by))
        station.change(peer, State.ALIVE)
        if by == station.node:
            self._prober.tell(peer)
        elif station.rng.random() < verify_chance(members, wanted):
            self._prober.probe(peer)

    def condemn(self, peer: Peer, by: str) -> None:
        """Another member found it silent to the end: the strongest suspicion, and no more."""
        self.suspect(peer, by)
        if peer.suspicion is not None:
            peer.suspicion.condemn()
            self._await_verdict(peer.node, peer.suspicion)

    def _await_verdict(self, node: str, suspicion: Suspicion) -> None:
        # A deadline in the past would look as if this node had slept through it.
        if not suspicion.looks:
            at_s = max(suspicion.deadline_s, self._station.now_s)
            self._station.deadlines.set(Timer.SUSPICION, node, at_s)

    def clear(self, peer: Peer) -> None:
        """A suspicion is over, and its subject alive."""
        self._end_suspicion(peer)
        peer.state, peer.claim, peer.since_s = State.ALIVE, Claim.ALIVE, self._station.now_s
        self.ring_changed = True
        self._station.log("suspicion.cleared", peer)
        self._station.change(peer, State.SUSPECT)

    def _end_suspicion(self, peer: Peer) -> None:
        peer.suspicion = None
        self.suspects.pop(peer.node, None)
        self._station.deadlines.cancel(Timer.SUSPICION, peer.node)
        self._station.deadlines.cancel(Timer.LOOK, peer.node)

    def look(self, node: str) -> None:
        """The last look: before this node condemns, it asks for itself, several times over."""
        peer = self._roster.peers[node]
        suspicion, config = peer.suspicion, self._station.config
        if suspicion is None:
            raise InvariantError(f"a last look at {node}, which is not suspected")
        if suspicion.looks == config.last_look_pings:
            self.mark_dead(peer, Claim.SILENT, is_from_gossip=False)
            return
        suspicion.looks += 1
        self._prober.look(peer, suspicion.looks)
        self._station.set(Timer.LOOK, node, config.last_look_s / config.last_look_pings)

    def stalled(self, late_s: float) -> None:
        """This node stood still: what it did not hear in that time is held against nobody."""
        station = self._station
        station.awareness.stalled(late_s)
        station.log_own("node.stalled", f"{late_s:.3f} s")
        not_before_s = station.now_s + _DRAIN_S
        station.deadlines.shift(Timer.PROBE, late_s, not_before_s=not_before_s)
        most_s = station.config.stall_extension_max_s
        for peer in self.suspects.values():
            suspicion = peer.suspicion
            if suspicion is None or suspicion.extended_s >= most_s:
                continue
            suspicion.extend(late_s, most_s=most_s)
            for timer in (Timer.SUSPICION, Timer.LOOK):
                at_s = station.deadlines.at_s(timer, peer.node)
                if at_s is not None:
                    station.deadlines.set(timer, peer.node, max(at_s + late_s, not_before_s))
        if late_s > _AWAY_S:
            station.catch_up()
        station.effects.append(Drain(late_s))

    # Dying.

    def refused(self, peer: Peer) -> None:
        """Its process is gone for certain."""
        if peer.is_living:
            self.mark_dead(peer, Claim.REFUSED, is_from_gossip=False)
        elif peer.state is State.DEAD and peer.claim is Claim.SILENT:
            self.mark_final(peer, Claim.REFUSED)
            self._station.tell_others(peer.news(Claim.REFUSED, self._station.node))

    def mark_dead(
        self, peer: Peer, claim: Claim, *, is_from_gossip: bool, is_replaced: bool = False
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
        what = "member.left" if claim is Claim.LEFT else "member.died"
        informed = "gossip" if is_from_gossip else "own evidence"
        station.log(what, peer, f"{claim.name.lower()}, {informed}")
        if not is_replaced:  # else the new life is the news
            station.tell_others(peer.news(claim, station.node))
        if claim is not Claim.LEFT:
            station.effects.append(Died(peer.member(), claim, is_from_gossip))
        station.change(peer, before)

    def mark_final(self, peer: Peer, claim: Claim) -> None:
        """A dead member turns out to be gone for good."""
        before = peer.state
        peer.claim, peer.state = claim, _STATE_OF[claim]
        self._bury(peer)
        if peer.state is not before:
            self._station.change(peer, before)

    def _bury(self, peer: Peer) -> None:
        """Remembers the dead: to ask again, and not to believe old news of them."""
        station, roster, config = self._station, self._roster, self._station.config
        roster.silent.pop(peer.node, None)
        roster.gone.pop(peer.node, None)
        station.set(Timer.FORGET, peer.node, config.tombstone_s)
        if peer.claim is Claim.SILENT:
            if not roster.silent:
                station.set(Timer.DEAD_ROUND, None, config.reprobe_silent_s)
                station.set(Timer.DEAD_SYNC_ROUND, None, config.sync_dead_s)
            roster.silent[peer.node] = None
        elif peer.claim is Claim.REFUSED:
            if not roster.gone:
                station.set(Timer.GONE_ROUND, None, config.reprobe_gone_s)
            roster.gone[peer.node] = None

    # Forgetting.

    def forget_due(self, node: str) -> None:
        peer = self._roster.get(node)
        if peer is not None and not peer.is_living:
            unconfirmed = peer.state is State.UNCONFIRMED
            self.forget(peer, "unconfirmed.removed" if unconfirmed else "tombstone.removed")

    def forget(self, peer: Peer, what: str) -> None:
        self._roster.remove(peer)
        self._station.deadlines.cancel(Timer.GREET, peer.node)
        self._station.deadlines.cancel(Timer.FORGET, peer.node)
        self._station.log(what, peer)
