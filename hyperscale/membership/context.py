"""The state that all parts of the membership core share: time, timers, gossip, table, effects,
the local health of this node, counts of its decisions.

The core handles one event at a time; meanwhile `now_s` stands still and `effects` collects the
effects of that event. No decision is made here.
"""

from collections import Counter
from random import Random

from msgspec.structs import asdict

from hyperscale.membership.events import MemberChanged, MembershipEffect, MemberState
from hyperscale.membership.formulas import (
    HEALTH_SCORE_MAX,
    catch_up_within_s,
    health_multiplier,
    transmissions,
)
from hyperscale.membership.gossip import GossipQueue
from hyperscale.membership.local_node import LocalIdentity, LocalNode
from hyperscale.membership.member_table import MemberRecord, MemberTable
from hyperscale.membership.messages import ClaimedState, MemberUpdate
from hyperscale.membership.settings import MembershipConfig
from hyperscale.membership.timers import TimerHeap, TimerKind
from hyperscale.wire.registry import SizeClass

_HEAD_BYTES = 240
"""Room in a datagram for everything but updates and metadata: two names of 64 bytes included."""
_UPDATE_BYTES_MAX = 170
"""The largest size of one encoded update."""


class Awareness:
    """The local health of this node (Lifeguard's LHA, §IV-A): how well it can judge others.

    A score from 0 (healthy) to 8, and the factor by which timeouts grow with it. Only evidence
    about *this* node counts: relays that sent not even a nack, late wake-ups, suspicions this node
    had to refute. A dead peer is no such evidence: the nacks of the relays show that this node
    receives datagrams.
    """

    __slots__ = ("_score_max", "multiplier", "score")

    def __init__(self, score_max: int = HEALTH_SCORE_MAX) -> None:
        self._score_max = score_max
        self.score = 0
        self.multiplier = 1.0

    def probe_answered(self) -> None:
        """Improve the score: a direct probe was answered in time."""
        if self.score:
            self._change(-1)

    def nacks_missed(self, missed: int) -> None:
        """Worsen the score by the number of relays that sent neither ack nor nack."""
        if missed:
            self._change(missed)

    def refuted(self) -> None:
        """Worsen the score: others suspected this node."""
        self._change(1)

    def stalled(self, late_s: float) -> None:
        """Worsen the score: this node woke up `late_s` too late."""
        self._change(2 if late_s > 2.0 else 1)

    def _change(self, by: int) -> None:
        self.score = max(0, min(self._score_max, self.score + by))
        self.multiplier = health_multiplier(self.score)


class MembershipContext:
    """This node, the members it knows, and the event that is being handled."""

    def __init__(
        self, identity: LocalIdentity, config: MembershipConfig, *, rng: Random, now_s: float
    ) -> None:
        self.local = LocalNode(**asdict(identity), state=MemberState.ALIVE)
        self.config = config
        self.rng = rng
        self.now_s = now_s
        self.effects: list[MembershipEffect] = []
        self.timers = TimerHeap()
        self.awareness = Awareness(config.health_score_max)
        self.counts: Counter[str] = Counter()
        """Decisions about members since the start, each a `noun.past_verb`."""
        self.table = MemberTable(identity.node, rng)
        self.gossip = GossipQueue()

    def set_timer(self, kind: TimerKind, ident: object, in_s: float) -> None:
        """Set a timer `in_s` from now."""
        self.timers.set(kind, ident, self.now_s + in_s)

    def catch_up(self) -> None:
        """Push-pull soon: this node was unreachable and missed updates that nobody repeats."""
        self.push_pull_within(catch_up_within_s(len(self.table)))

    def push_pull_within(self, within_s: float) -> None:
        """Move the next push-pull round forward to a random time in the next `within_s`."""
        at_s = self.timers.at_s(TimerKind.PUSH_PULL_ROUND, None)
        if at_s is None or at_s > self.now_s + within_s:
            self.set_timer(TimerKind.PUSH_PULL_ROUND, None, within_s * self.rng.random())

    def broadcast(self, update: MemberUpdate, *, urgent: bool = False) -> None:
        """Queue an update for gossip to all members."""
        self.gossip.put(update, urgent=urgent)
        self.start_gossip()

    def broadcast_local(self) -> None:
        """Queue the update about this node itself."""
        self.broadcast(self.local.full_update(), urgent=True)

    def start_gossip(self) -> None:
        """Schedule a gossip round unless one is scheduled."""
        if self.timers.at_s(TimerKind.GOSSIP_ROUND, None) is None:
            wait_s = self.config.gossip_interval_s * self.rng.random()
            self.set_timer(TimerKind.GOSSIP_ROUND, None, wait_s)

    def updates(
        self, copies: int, *, about: MemberRecord | None = None, taken_bytes: int = 0
    ) -> tuple[MemberUpdate, ...]:
        """Return the updates for one datagram to `copies` members, as many as fit.

        The claim about the receiver `about` comes first, so that it can refute (Lifeguard's
        buddy system).
        """
        first: tuple[MemberUpdate, ...] = ()
        if self.local.is_leaving:
            first = (self.local.full_update(),)
        elif (
            about is not None and about.claim is not ClaimedState.ALIVE and self.config.buddy_system
        ):
            first = (about.update(about.claim, self.accuser_of(about)),)
        if not self.gossip.items:
            return first
        room = int(SizeClass.DATAGRAM) - _HEAD_BYTES - taken_bytes
        if first:
            room -= _UPDATE_BYTES_MAX
        if room < _UPDATE_BYTES_MAX:
            return first
        room = min(self.config.updates_bytes_max, room)
        limit = transmissions(len(self.table), self.config.transmit_factor)
        return first + self.gossip.take(room, limit=limit, copies=copies)

    def accuser_of(self, peer: MemberRecord) -> str:
        """Return the member to name as the source of the claim about `peer`.

        A verdict is this node's own. A claim without a name would count as one more witness.
        """
        return self.local.node if peer.suspicion is None else peer.suspicion.first_witness

    def report_change(self, peer: MemberRecord, before: MemberState | None) -> None:
        """Report the current state of `peer` to the rest of the process."""
        self.effects.append(MemberChanged(peer.member(), before))
