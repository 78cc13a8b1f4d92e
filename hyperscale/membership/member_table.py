"""The table of members, and which claim about a node outranks which.

Besides the rows, the table keeps three orders of the living members: a list (for random choice),
the shuffled round of probe targets, and the ring on which members watch their successors. It
decides nothing about the state of a member.
"""

import zlib
from bisect import bisect_right, insort
from random import Random
from typing import Protocol

from msgspec import Struct, field

from hyperscale.membership.events import Member, MemberState
from hyperscale.membership.messages import FINAL_STATES, ClaimedState, MemberUpdate
from hyperscale.membership.suspicion import Suspicion
from hyperscale.wire.roles import MAY_CONNECT, NODES, Role


class _Addressed(Protocol):
    @property
    def address(self) -> str: ...
    @property
    def stream_port(self) -> int: ...


def stream_address(of: _Addressed) -> str:
    """Return where a node accepts streams: its address, with another port if it has one."""
    if not of.stream_port:
        return of.address
    return f"{of.address.rpartition(':')[0]}:{of.stream_port}"


class ContactHistory(Struct):
    """When this node last had to do with a member that may not answer. None: never yet."""

    rtt_s: float | None = None
    push_pull_s: float | None = None  # when this node last started a push-pull with it
    notified_s: float | None = None  # when this node last pinged it out of turn
    attempts: int = 0  # pings since it is unconfirmed

    def notified_within(self, within_s: float, *, now_s: float) -> bool:
        """Return True if the member was notified less than `within_s` ago."""
        return self.notified_s is not None and now_s - self.notified_s < within_s


class MemberRecord(Struct, eq=False):
    """What this node knows about another member. `lifecycle` is the only writer of `state`."""

    node: str
    incarnation: int
    role: Role
    address: str
    stream_port: int = 0
    refutation: int = 0
    claim: ClaimedState = ClaimedState.ALIVE
    state: MemberState = MemberState.UNCONFIRMED
    since_s: float = 0.0
    metadata: bytes = b""
    metadata_version: int = 0
    suspicion: Suspicion | None = None
    contact: ContactHistory = field(default_factory=ContactHistory)

    def restart(self, update: MemberUpdate) -> None:
        """Take over a later incarnation of the node."""
        self.incarnation, self.refutation = update.incarnation, update.refutation
        self.claim, self.role = ClaimedState.ALIVE, update.role
        self.metadata, self.metadata_version = b"", 0
        self.contact.rtt_s = None

    @property
    def is_living(self) -> bool:
        return self.state is MemberState.ALIVE or self.state is MemberState.SUSPECT

    @property
    def stream_address(self) -> str:
        """Where the member accepts streams."""
        return stream_address(self)

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
            rtt_s=self.contact.rtt_s,
            metadata=self.metadata,
            metadata_version=self.metadata_version,
        )

    def update(self, claim: ClaimedState, by: str = "") -> MemberUpdate:
        """Return a claim about this member. Only a claim that it is alive needs its address."""
        if claim is ClaimedState.ALIVE:
            return self.full_update()
        return MemberUpdate(self.node, self.incarnation, claim, self.refutation, by)

    def full_update(self, by: str = "") -> MemberUpdate:
        """Return the current claim about this member, with its role and address."""
        return MemberUpdate(
            node=self.node,
            incarnation=self.incarnation,
            claim=self.claim,
            refutation=self.refutation,
            by=by,
            role=self.role,
            address=self.address,
            stream_port=self.stream_port,
        )


def ring_position(node: str) -> tuple[int, str]:
    """Return the position of a node on the ring: the same on every member, spread evenly."""
    return zlib.crc32(node.encode()), node


def outranks(update: MemberUpdate, peer: MemberRecord) -> bool:
    """Return True if `update` is newer than what the table says about `peer`.

    A later incarnation outranks an earlier one. Within an incarnation a final state stays;
    otherwise the later refutation wins, and within one refutation the graver claim.
    """
    if update.incarnation != peer.incarnation:
        return update.incarnation > peer.incarnation
    if peer.claim in FINAL_STATES:
        return False
    if update.claim in FINAL_STATES:
        return True
    if update.refutation != peer.refutation:
        return update.refutation > peer.refutation
    return update.claim > peer.claim


class MemberTable:
    """All members but this node, and the living among them in three orders."""

    def __init__(self, local: str, rng: Random) -> None:
        self._local = ring_position(local)
        self._rng = rng
        self.peers: dict[str, MemberRecord] = {}
        self.living: list[MemberRecord] = []
        self._index: dict[str, int] = {}
        self._round: list[str] = []
        self._ring: list[tuple[int, str]] = []
        self.silent: dict[str, None] = {}  # dead, but may be behind a partition
        self.refused: dict[str, None] = {}  # dead, their process has certainly ended

    def __len__(self) -> int:
        """Return the number of living members, this node included."""
        return len(self.living) + 1

    def remove(self, peer: MemberRecord) -> None:
        del self.peers[peer.node]
        self.silent.pop(peer.node, None)
        self.refused.pop(peer.node, None)

    def enter(self, peer: MemberRecord) -> None:
        """Add a member to the living."""
        if peer.node in self._index:
            return
        self._index[peer.node] = len(self.living)
        self.living.append(peer)
        insort(self._ring, ring_position(peer.node))
        # At a random place of this round: a member at the end could be missed for two rounds.
        self._round.insert(self._rng.randrange(len(self._round) + 1), peer.node)
        self.silent.pop(peer.node, None)
        self.refused.pop(peer.node, None)

    def exit(self, peer: MemberRecord) -> None:
        """Remove a member from the living."""
        at = self._index.pop(peer.node, None)
        if at is None:
            return
        last = self.living.pop()
        if last is not peer:
            self.living[at] = last
            self._index[last.node] = at
        del self._ring[bisect_right(self._ring, ring_position(peer.node)) - 1]

    def next_target(self) -> MemberRecord | None:
        """Return the next probe target: every living member once per round, in random order."""
        while self.living:
            if not self._round:
                self._round = [peer.node for peer in self.living]
                self._rng.shuffle(self._round)
            node = self._round.pop()
            if node in self._index:
                return self.peers[node]
        return None

    def sample(self, count: int, *, but: str = "", healthy: bool = False) -> list[MemberRecord]:
        """Return up to `count` random living members, except `but` and, if `healthy`, suspects."""
        living = self.living
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
        """Return the next `count` unsuspected successors of this node on the ring, and the
        suspects between them: a row of silent nodes is uncovered one after another."""
        ring = self._ring
        found: list[MemberRecord] = []
        at = bisect_right(ring, self._local)
        for step in range(min(len(ring), most)):
            peer = self.peers[ring[(at + step) % len(ring)][1]]
            found.append(peer)
            if peer.state is not MemberState.SUSPECT:
                count -= 1
                if not count:
                    break
        return found

    def session_targets(self, count: int, local_role: Role) -> list[MemberRecord]:
        """Return the members this node keeps a session with: every node is watched by the
        `count` members before it on the ring that may connect to its role."""
        open_roles = dict.fromkeys(NODES & MAY_CONNECT[local_role], count)
        found: list[MemberRecord] = []
        ring = self._ring
        at = bisect_right(ring, self._local)
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
