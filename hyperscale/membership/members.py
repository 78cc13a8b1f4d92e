"""The table of members, and which claim about a node outranks which.

Besides the table it keeps the orders the core walks: the living (to choose at random), the
shuffled round of probe targets, and the ring by which members watch their successors. It
decides nothing about anyone's health.
"""

import zlib
from bisect import bisect_right, insort
from random import Random

from hyperscale.membership.events import Member, State
from hyperscale.membership.messages import FINAL_CLAIMS, Claim, News
from hyperscale.membership.suspicion import Suspicion
from hyperscale.wire.roles import MAY_CONNECT, NODES, Role


def stream_address(address: str, stream_port: int) -> str:
    """Where a node takes streams: at its own address, unless on a port of their own."""
    return f"{address.rpartition(':')[0]}:{stream_port}" if stream_port else address


class Peer:
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

    def __init__(self, news: News, now_s: float) -> None:
        self.node = news.node
        self.incarnation = news.incarnation
        self.refutation = news.refutation
        self.claim = Claim.ALIVE
        self.role = news.role
        self.address = news.address
        self.stream_port = news.stream_port
        self.state = State.UNCONFIRMED
        self.since_s = now_s
        self.heard_s = float("-inf")
        self.synced_s = float("-inf")
        self.told_s = float("-inf")
        self.rtt_s: float | None = None
        self.metadata = b""
        self.metadata_version = 0
        self.suspicion: Suspicion | None = None
        self.greetings = 0
        self.place = place_of(news.node)

    @property
    def is_living(self) -> bool:
        return self.state is State.ALIVE or self.state is State.SUSPECT

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

    def news(self, claim: Claim, by: str = "") -> News:
        """A claim about this peer, as it travels. Only the living need an address."""
        if claim is Claim.ALIVE:
            return News(
                node=self.node,
                incarnation=self.incarnation,
                claim=claim,
                refutation=self.refutation,
                role=self.role,
                address=self.address,
                stream_port=self.stream_port,
            )
        return News(self.node, self.incarnation, claim, self.refutation, by)


def place_of(node: str) -> tuple[int, str]:
    """Where a node stands on the ring: the same on every member, spread evenly."""
    return zlib.crc32(node.encode()), node


def outranks(news: News, peer: Peer) -> bool:
    """Whether `news` is newer than what is known of `peer`.

    A later life outranks an earlier one. Within a life what is final stands; else the later
    refutation counts, and within the same one the graver claim.
    """
    if news.incarnation != peer.incarnation:
        return news.incarnation > peer.incarnation
    if peer.claim in FINAL_CLAIMS:
        return False
    if news.claim in FINAL_CLAIMS:
        return True
    if news.refutation != peer.refutation:
        return news.refutation > peer.refutation
    return news.claim > peer.claim


class Roster:
    """All peers, and the living among them in three orders."""

    def __init__(self, own: str, rng: Random) -> None:
        self._own = place_of(own)
        self._rng = rng
        self.peers: dict[str, Peer] = {}
        self._living: list[Peer] = []
        self._index: dict[str, int] = {}
        self._round: list[str] = []
        self._ring: list[tuple[int, str]] = []
        self.silent: dict[str, None] = {}  # dead, may be back
        self.gone: dict[str, None] = {}  # dead, process known to be gone

    def __len__(self) -> int:
        """How many members there are, this node included."""
        return len(self._living) + 1

    @property
    def living(self) -> list[Peer]:
        return self._living

    def get(self, node: str) -> Peer | None:
        return self.peers.get(node)

    def add(self, peer: Peer) -> None:
        self.peers[peer.node] = peer

    def remove(self, peer: Peer) -> None:
        del self.peers[peer.node]
        self.silent.pop(peer.node, None)
        self.gone.pop(peer.node, None)

    def enter(self, peer: Peer) -> None:
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

    def exit(self, peer: Peer) -> None:
        """A peer is no longer among the living."""
        at = self._index.pop(peer.node, None)
        if at is None:
            return
        last = self._living.pop()
        if last is not peer:
            self._living[at] = last
            self._index[last.node] = at
        del self._ring[bisect_right(self._ring, peer.place) - 1]

    def next_target(self) -> Peer | None:
        """The next of the round; every living peer comes once, then the round is shuffled anew."""
        while self._living:
            if not self._round:
                self._round = [peer.node for peer in self._living]
                self._rng.shuffle(self._round)
            node = self._round.pop()
            if node in self._index:
                return self.peers[node]
        return None

    def sample(self, count: int, *, but: str = "", healthy: bool = False) -> list[Peer]:
        """Up to `count` living peers at random, `but` that one, only unsuspected if `healthy`."""
        living = self._living
        if len(living) <= 2 * count + 2:
            pool = [
                p for p in living if p.node != but and not (healthy and p.state is State.SUSPECT)
            ]
            if len(pool) <= count:
                return pool
            return self._rng.sample(pool, count)
        chosen: dict[str, Peer] = {}
        random = self._rng.random
        for _ in range(4 * count):
            peer = living[int(random() * len(living))]
            if peer.node == but or (healthy and peer.state is State.SUSPECT):
                continue
            chosen[peer.node] = peer
            if len(chosen) == count:
                break
        return list(chosen.values())

    def successors(self, count: int, most: int) -> list[Peer]:
        """Who this node watches: its next `count` unsuspected successors on the ring, and the
        suspects before them: a row of silent nodes is uncovered one after another."""
        ring = self._ring
        found: list[Peer] = []
        at = bisect_right(ring, self._own)
        for step in range(min(len(ring), most)):
            peer = self.peers[ring[(at + step) % len(ring)][1]]
            found.append(peer)
            if peer.state is not State.SUSPECT:
                count -= 1
                if not count:
                    break
        return found

    def stream_duties(self, count: int, own_role: Role) -> list[Peer]:
        """Whose process this node watches over a stream: every node is watched by the `count`
        members before it on the ring that may connect to its role."""
        open_roles = dict.fromkeys(NODES & MAY_CONNECT[own_role], count)
        found: list[Peer] = []
        ring = self._ring
        at = bisect_right(ring, self._own)
        for step in range(len(ring)):
            peer = self.peers[ring[(at + step) % len(ring)][1]]
            if peer.role in open_roles:
                found.append(peer)
            if peer.state is State.SUSPECT:
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
