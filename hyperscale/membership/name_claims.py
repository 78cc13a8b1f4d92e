"""Claims to a name: which process may use a name that another process has, or had.

A process claims a name with every connection and datagram. If the table knows the name from
another process at another address, this node dials that process, the *holder*: while the holder
answers, it keeps the name. An ended holder loses it at once. A silent holder loses it when
membership declares it dead, or at once to a process with the same key: that process has the
holder's data directory, which a running holder would have locked.

A process that hears of another one with its own name dials it, too: if it answers, this node was
replaced while it was unreachable.
"""

from enum import StrEnum

from msgspec import Struct

from hyperscale.membership.context import MembershipContext
from hyperscale.membership.events import (
    HolderOutcome,
    HolderVerified,
    MemberState,
    NameClaimed,
    NameLost,
    VerifyHolder,
)
from hyperscale.membership.lifecycle import MemberLifecycle
from hyperscale.membership.member_table import MemberRecord
from hyperscale.wire.roles import MAY_CONNECT, Role

_VERIFY_S = 5.0
"""Longer than a dial: a verification that reports nothing is repeated after this time."""
_TAKEN_S = 10.0
_CLAIMS_MAX = 1024


class NameVerdict(StrEnum):
    FREE = "free"
    UNCERTAIN = "uncertain"  # the holder is being dialled, or is silent and not yet dead
    TAKEN = "taken"  # the holder has answered


class _Claim(Struct):
    verdict: NameVerdict
    until_s: float
    key: str
    holder: int
    """The incarnation of the process that had the name when it was claimed."""


class NameClaims:
    """Judges claims to names."""

    def __init__(self, context: MembershipContext, lifecycle: MemberLifecycle) -> None:
        self._context = context
        self._lifecycle = lifecycle
        self._claims: dict[tuple[str, int], _Claim] = {}  # by name and claiming incarnation
        self._keys: dict[str, str] = {}  # name -> key of the process that has it

    def verdict(self, claim: NameClaimed) -> NameVerdict:
        """Return whether a process may use its name."""
        if not self._is_disputed(claim):
            return NameVerdict.FREE
        known = self._known(claim.node, claim.incarnation)
        return NameVerdict.UNCERTAIN if known is None else known.verdict

    def on_claimed(self, claim: NameClaimed) -> None:
        """Take a claim; dial the holder if another process may have the name."""
        if not self._is_disputed(claim):
            self._remember_key(claim)
        elif self._known(claim.node, claim.incarnation) is None:
            peer = self._context.table.peers[claim.node]
            self._verify(claim, peer.role, peer.incarnation, peer.stream_address)

    def dispute_own(self, incarnation: int, address: str) -> bool:
        """Dial a later process with this node's own name; return False if that is this node's own
        past."""
        local = self._context.local
        if not address or address in {local.address, local.stream_address}:
            return False
        if self._known(local.node, incarnation) is None:
            claim = NameClaimed(local.node, incarnation, address)
            self._verify(claim, local.role, incarnation, address)
        return True

    def on_verified(self, event: HolderVerified) -> None:
        """Take the outcome of a dial."""
        context = self._context
        peer = context.table.peers.get(event.node)
        for (node, incarnation), claim in list(self._claims.items()):
            is_waiting = claim.verdict is NameVerdict.UNCERTAIN
            if node != event.node or claim.holder != event.incarnation or not is_waiting:
                continue
            if event.outcome is HolderOutcome.ANSWERED:
                claim.verdict, claim.until_s = NameVerdict.TAKEN, context.now_s + _TAKEN_S
                context.counts["name.taken"] += 1
                continue
            del self._claims[node, incarnation]
            if peer is None or peer.incarnation != event.incarnation:
                continue
            if event.outcome is HolderOutcome.ENDED or self._may_replace_silent(peer, claim):
                self._release(peer)

    def on_own_verified(self, event: HolderVerified) -> bool:
        """Take the outcome of a dial to a process with this node's own name; return True if that
        process answered."""
        self._claims.pop((event.node, event.incarnation), None)
        if event.outcome is not HolderOutcome.ANSWERED:
            return False
        self._context.effects.append(NameLost(event.address))
        return True

    def _is_disputed(self, claim: NameClaimed) -> bool:
        """Return True if the table has the name from another process that may be running."""
        peer = self._context.table.peers.get(claim.node)
        if (
            peer is None
            or peer.state in (MemberState.DEAD, MemberState.LEFT)
            or claim.incarnation == peer.incarnation
            or not claim.address
        ):
            return False
        # A process that listens on the address of another one proves that the other has ended.
        return claim.address not in {peer.address, peer.stream_address}

    def _known(self, node: str, incarnation: int) -> _Claim | None:
        claim = self._claims.get((node, incarnation))
        return claim if claim is not None and claim.until_s > self._context.now_s else None

    def _verify(self, claim: NameClaimed, role: Role, holder: int, address: str) -> None:
        if role not in MAY_CONNECT[self._context.local.role]:
            return  # the claim stays uncertain until a member that may dial the holder has judged
        now_s = self._context.now_s
        if len(self._claims) >= _CLAIMS_MAX:
            self._claims = {name: c for name, c in self._claims.items() if c.until_s > now_s}
        if len(self._claims) < _CLAIMS_MAX:  # else the claim stays uncertain and is made again
            self._claims[claim.node, claim.incarnation] = _Claim(
                NameVerdict.UNCERTAIN, now_s + _VERIFY_S, claim.key, holder
            )
            self._context.effects.append(VerifyHolder(claim.node, holder, address))

    def _may_replace_silent(self, peer: MemberRecord, claim: _Claim) -> bool:
        is_same_directory = bool(claim.key) and self._keys.get(peer.node) == claim.key
        return is_same_directory or peer.state is MemberState.UNCONFIRMED

    def _release(self, peer: MemberRecord) -> None:
        if peer.state is MemberState.UNCONFIRMED:
            self._lifecycle.forget(peer, "unconfirmed.removed")
        else:
            self._lifecycle.mark_refused(peer)

    def _remember_key(self, claim: NameClaimed) -> None:
        if not claim.key:
            return
        self._keys.pop(claim.node, None)
        if len(self._keys) >= self._context.config.members_max:
            del self._keys[next(iter(self._keys))]  # the one that connected longest ago
        self._keys[claim.node] = claim.key
