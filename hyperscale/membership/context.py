"""What every part of the machine works with: the time, the timers, the news, who this node is.

One event is handled at a time; while it is, `now_s` stands still and `effects` collects what
follows from it. Nothing is decided here.
"""

from random import Random

from msgspec import Struct

from hyperscale.membership.audit_log import AuditLog
from hyperscale.membership.awareness import Awareness
from hyperscale.membership.events import Member, MemberChanged, MembershipEffect, MemberState
from hyperscale.membership.formulas import catch_up_within_s, transmissions
from hyperscale.membership.gossip import GossipQueue
from hyperscale.membership.member_table import MemberRecord, MemberTable, stream_address
from hyperscale.membership.messages import ClaimedState, MemberUpdate, Sender
from hyperscale.membership.settings import MembershipConfig
from hyperscale.membership.timers import TimerHeap, TimerKind
from hyperscale.wire.registry import SizeClass
from hyperscale.wire.roles import MAY_CONNECT, Role

_HEAD_BYTES = 240
"""Room in a datagram for everything that is not news or metadata: names of 64 bytes twice."""
_ABOUT_BYTES = 170
"""What one piece of news takes at most."""


class LocalIdentity(Struct, frozen=True, kw_only=True):
    """Who this node is. The incarnation is the wall clock in milliseconds at process start."""

    node: str
    incarnation: int
    role: Role
    address: str
    stream_port: int = 0


class MembershipContext:
    """This node, and what its parts share."""

    def __init__(
        self, identity: LocalIdentity, config: MembershipConfig, *, rng: Random, now_s: float
    ) -> None:
        self.node = identity.node
        self.role = identity.role
        self.incarnation = identity.incarnation
        self.refutation = 0
        self.address = identity.address
        self.stream_port = identity.stream_port
        self.metadata = b""
        self.metadata_version = 0
        self.is_leaving = False
        self.config = config
        self.rng = rng
        self.now_s = now_s
        self.effects: list[MembershipEffect] = []
        self.deadlines = TimerHeap()
        self.awareness = Awareness(config.health_score_max)
        self.audit = AuditLog()
        self.roster = MemberTable(identity.node, rng)
        self.gossip = GossipQueue()
        self.sender = self._make_sender()
        self._pending = self.gossip.items

    # Timers.

    def set(self, timer: TimerKind, ident: object, in_s: float) -> None:
        self.deadlines.set(timer, ident, self.now_s + in_s)

    def catch_up(self) -> None:
        """This node was away, and has missed news that nobody tells any more."""
        self.sync_soon(catch_up_within_s(len(self.roster)))

    def sync_soon(self, within_s: float) -> None:
        """Something was missed, or an exchange failed: exchange views before it is due."""
        at_s = self.deadlines.at_s(TimerKind.SYNC_ROUND, None)
        if at_s is None or at_s > self.now_s + within_s:
            self.set(TimerKind.SYNC_ROUND, None, within_s * self.rng.random())

    # News.

    def tell_others(self, news: MemberUpdate, *, urgent: bool = False) -> None:
        self.gossip.put(news, urgent=urgent)
        self.start_gossip()

    def start_gossip(self) -> None:
        if self.deadlines.at_s(TimerKind.GOSSIP_ROUND, None) is None:
            self.set(
                TimerKind.GOSSIP_ROUND, None, self.config.gossip_interval_s * self.rng.random()
            )

    def news(
        self, copies: int, *, about: MemberRecord | None = None, taken_bytes: int = 0
    ) -> tuple[MemberUpdate, ...]:
        """What fits of the news; first of all what concerns the receiver (Lifeguard's buddy)."""
        first: tuple[MemberUpdate, ...] = ()
        if self.is_leaving:
            first = (self.own_news(),)
        elif (
            about is not None
            and about.claim is not ClaimedState.ALIVE
            and self.config.tells_suspects
        ):
            first = (about.news(about.claim, self.accuser_of(about)),)
        if not self._pending:
            return first
        room = int(SizeClass.DATAGRAM) - _HEAD_BYTES - taken_bytes - (_ABOUT_BYTES if first else 0)
        if room < _ABOUT_BYTES:
            return first
        room = min(self.config.news_bytes_max, room)
        limit = transmissions(len(self.roster.living) + 1, self.config.transmit_factor)
        return first + self.gossip.take(room, limit=limit, copies=copies)

    def accuser_of(self, peer: MemberRecord) -> str:
        """Who says what is held against a peer: a verdict is this node's own. Nothing is held
        against anyone without a name, it would count as one more witness beside the named."""
        return self.node if peer.suspicion is None else peer.suspicion.first_witness

    # This node.

    def own_news(self) -> MemberUpdate:
        return MemberUpdate(
            node=self.node,
            incarnation=self.incarnation,
            claim=ClaimedState.LEFT if self.is_leaving else ClaimedState.ALIVE,
            refutation=self.refutation,
            role=self.role,
            address=self.address,
            stream_port=self.stream_port,
        )

    def announce(self) -> None:
        """Something about this node itself is new."""
        self.sender = self._make_sender()
        self.tell_others(self.own_news(), urgent=True)

    def own_member(self) -> Member:
        return Member(
            node=self.node,
            incarnation=self.incarnation,
            refutation=self.refutation,
            role=self.role,
            address=self.address,
            stream_address=stream_address(self.address, self.stream_port),
            state=MemberState.LEFT if self.is_leaving else MemberState.ALIVE,
            since_s=0.0,
            metadata=self.metadata,
            metadata_version=self.metadata_version,
        )

    def _make_sender(self) -> Sender:
        return Sender(self.address, self.role, self.refutation, self.stream_port)

    # Peers.

    def may_dial(self, peer: MemberRecord) -> bool:
        return peer.role in MAY_CONNECT[self.role]

    def change(self, peer: MemberRecord, before: MemberState | None) -> None:
        self.effects.append(MemberChanged(peer.member(), before))

    def log(self, what: str, peer: MemberRecord, detail: str = "") -> None:
        self.audit.add(self.now_s, what, peer.node, peer.incarnation, detail)

    def log_own(self, what: str, detail: str) -> None:
        self.audit.add(self.now_s, what, self.node, self.incarnation, detail)
