"""The table of members, and which claim about a node outranks which.

Besides the table it keeps the orders the core walks: the living (to choose at random), the
shuffled round of probe targets, and the ring by which members watch their successors. It
decides nothing about anyone's health.
"""

import zlib
from bisect import bisect_right, insort
from random import Random

from hyperscale.membership.events import Member, MemberState
from hyperscale.membership.messages import FINAL_STATES, ClaimedState, MemberUpdate
from hyperscale.membership.suspicion import Suspicion
from hyperscale.wire.roles import MAY_CONNECT, NODES, Role


def stream_address(address: str, stream_port: int) -> str:
    """Where a node takes streams: at its own address, unless on a port of their own."""
    return f"{address.rpartition(':')[0]}:{stream_port}" if stream_port else address


class MemberRecord:
    """What this node knows of another. Written by the core only."""

    __slots__ = (
        "address",
        "claim",
        "greetings",
        "heard_s",
        "incarnation",
        "metadata",
        "metadata_version",
        "node",
        "place",
        "refutation",
        "role",
        "rtt_s",
        "since_s",
        "state",
        "stream_port",
        "suspicion",
        "synced_s",
        "told_s",
    )

    def __init__(self, news: MemberUpdate, now_s: float) -> None:
        self.node = news.node
        self.incarnation = news.incarnation
        self.refutation = news.refutation
        self.claim = ClaimedState.ALIVE
        self.role = news.role
        self.address = news.address
        self.stream_port = news.stream_port
        self.state = MemberState.UNCONFIRMED
        self.since_s = now_s
        self.heard_s = float("-inf")
        self.synced_s = float("-inf")
        self.told_s = float("-inf")
        self.rtt_s: float | None = None
        self.metadata = b""
        self.metadata_version = 0
        self.suspicion: Suspicion | None = None
        self.greetings = 0
        self.place = ring_position(news.node)

    @property
    def is_living(self) -> bool:
        return self.state is MemberState.ALIVE or self.state is MemberState.SUSPECT

    @property
    def stream_address(self) -> str:
        return stream_address(self.address, self.stream_port)

    def member(self) -> Member:
        return Member(
            node=self.node,
            incarnation=self.incarnation,
            refutation=self.refutation,
            role=self.role,
            address=self.address,
            stream_address=self.stream_address,
            state=self.state,
            since_s=self.since_s,
            rtt_s=self.rtt_s,
            metadata=self.metadata,
            metadata_version=self.metadata_version,
        )

    def news(self, claim: ClaimedState, by: str = "") -> MemberUpdate:
        """A claim about this peer, as it travels. Only the living need an address."""
        if claim is ClaimedState.ALIVE:
            return MemberUpdate(
                node=self.node,
                incarnation=self.incarnation,
                claim=claim,
                refutation=self.refutation,
                role=self.role,
                address=self.address,
                stream_port=self.stream_port,
            )
        return MemberUpdate(self.node, self.incarnation, claim, self.refutation, by)


def ring_position(node: str) -> tuple[int, str]:
    """Where a node stands on the ring: the same on every member, spread evenly."""
    return zlib.crc32(node.encode()), node


def outranks(news: MemberUpdate, peer: MemberRecord) -> bool:
    """Whether `news` is newer than what is known of `peer`.

    A later life outranks an earlier one. Within a life what is final stands; else the later
    refutation counts, and within the same one the graver claim.
    """
    if news.incarnation != peer.incarnation:
        return news.incarnation > peer.incarnation
    if peer.claim in FINAL_STATES:
        return False
    if news.claim in FINAL_STATES:
        return True
    if news.refutation != peer.refutation:
        return news.refutation > peer.refutation
    return news.claim > peer.claim


class MemberTable:
    """All peers, and the living among them in three orders."""

    def __init__(self, own: str, rng: Random) -> None:
        self._own = ring_position(own)
        self._rng = rng
        self.peers: dict[str, MemberRecord] = {}
        self._living: list[MemberRecord] = []
        self._index: dict[str, int] = {}
        self._round: list[str] = []
        self._ring: list[tuple[int, str]] = []
        self.silent: dict[str, None] = {}  # dead, may be back
        self.gone: dict[str, None] = {}  # dead, process known to be gone

    def __len__(self) -> int:
        """How many members there are, this node included."""
        return len(self._living) + 1

    @property
    def living(self) -> list[MemberRecord]:
        return self._living

    def get(self, node: str) -> MemberRecord | None:
        return self.peers.get(node)

    def add(self, peer: MemberRecord) -> None:
        self.peers[peer.node] = peer

    def remove(self, peer: MemberRecord) -> None:
        del self.peers[peer.node]
        self.silent.pop(peer.node, None)
        self.gone.pop(peer.node, None)

    def enter(self, peer: MemberRecord) -> None:
        """A peer is among the living from here on."""
        if peer.node in self._index:
            return
        self._index[peer.node] = len(self._living)
        self._living.append(peer)
        insort(self._ring, peer.place)
        # At a random place of this round: who always came last could be missed for two rounds.
        self._round.insert(self._rng.randrange(len(self._round) + 1), peer.node)
        self.silent.pop(peer.node, None)
        self.gone.pop(peer.node, None)

    def exit(self, peer: MemberRecord) -> None:
        """A peer is no longer among the living."""
        at = self._index.pop(peer.node, None)
        if at is None:
            return
        last = self._living.pop()
        if last is not peer:
            self._living[at] = last
            self._index[last.node] = at
        del self._ring[bisect_right(self._ring, peer.place) - 1]

    def next_target(self) -> MemberRecord | None:
        """The next of the round; every living peer comes once, then the round is shuffled anew."""
        while self._living:
            if not self._round:
                self._round = [peer.node for peer in self._living]
                self._rng.shuffle(self._round)
            node = self._round.pop()
            if node in self._index:
                return self.peers[node]
        return None

    def sample(self, count: int, *, but: str = "", healthy: bool = False) -> list[MemberRecord]:
        """Up to `count` living peers at random, `but` that one, only unsuspected if `healthy`."""
        living = self._living
        if len(living) <= 2 * count + 2:
            pool = [
                p
                for p in living
                if p.node != but and not (healthy and p.state is MemberState.SUSPECT)
            ]
            if len(pool) <= count:
                return pool
            return self._rng.sample(pool, count)
        chosen: dict[str, MemberRecord] = {}
        random = self._rng.random
        for _ in range(4 * count):
            peer = living[int(random() * len(living))]
            if peer.node == but or (healthy and peer.state is MemberState.SUSPECT):
                continue
            chosen[peer.node] = peer
            if len(chosen) == count:
                break
        return list(chosen.values())

    def successors(self, count: int, most: int) -> list[MemberRecord]:
        """Who this node watches: its next `count` unsuspected successors on the ring, and the
        suspects before them: a row of silent nodes is uncovered one after another."""
        ring = self._ring
        found: list[MemberRecord] = []
        at = bisect_right(ring, self._own)
        for step in range(min(len(ring), most)):
            peer = self.peers[ring[(at + step) % len(ring)][1]]
            found.append(peer)
            if peer.state is not MemberState.SUSPECT:
                count -= 1
                if not count:
                    break
        return found

    def stream_duties(self, count: int, own_role: Role) -> list[MemberRecord]:
        """Whose process this node watches over a stream: every node is watched by the `count`
        members before it on the ring that may connect to its role."""
        open_roles = dict.fromkeys(NODES & MAY_CONNECT[own_role], count)
        found: list[MemberRecord] = []
        ring = self._ring
        at = bisect_right(ring, self._own)
        for step in range(len(ring)):
            peer = self.peers[ring[(at + step) % len(ring)][1]]
            if peer.role in open_roles:
                found.append(peer)
            if peer.state is MemberState.SUSPECT:
                continue
            for role in MAY_CONNECT[peer.role]:
                left = open_roles.get(role)
                if left is not None:
                    open_roles[role] = left - 1
                    if left == 1:
                        del open_roles[role]
            if not open_roles:
                break
        return found
