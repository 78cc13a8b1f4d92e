"""Merging updates: which claims to believe, which to refute, which to pass on.

Updates arrive with every datagram and every push-pull. An update that outranks the table
(`member_table.outranks`) is applied through `lifecycle` and gossiped on; a claim about this node
itself is refuted.
"""

from hyperscale.membership.context import MembershipContext
from hyperscale.membership.events import (
    HolderVerified,
    IncarnationRaised,
    MemberState,
    NameClaimed,
    SendDatagram,
)
from hyperscale.membership.lifecycle import MemberLifecycle
from hyperscale.membership.member_table import MemberRecord, outranks, stream_address
from hyperscale.membership.messages import (
    FINAL_STATES,
    ClaimedState,
    Gossip,
    MemberUpdate,
    Sender,
)
from hyperscale.membership.name_claims import NameClaims, NameVerdict
from hyperscale.membership.prober import Prober

_RAISE_INCARNATION_EVERY_S = 5.0


class UpdateMerger:
    """Applies updates to the member table."""

    def __init__(
        self,
        context: MembershipContext,
        lifecycle: MemberLifecycle,
        prober: Prober,
        names: NameClaims,
    ) -> None:
        self._context = context
        self._lifecycle = lifecycle
        self._prober = prober
        self._names = names
        self._table = context.table
        self._raised_s: float | None = None

    def heard_from(self, node: str, incarnation: int, sender: Sender) -> MemberRecord | None:
        """Record that this incarnation of a node sent a datagram or a push-pull.

        Return its record; None if it must be ignored: this node itself, an earlier incarnation,
        a process whose name another one may have, or one more member than the table takes.
        """
        local = self._context.local
        if node == local.node:
            if incarnation > local.incarnation:
                reason = "another process uses this node's name"
                self._outrank(incarnation, stream_address(sender), reason)
            return None
        peer = self._table.peers.get(node)
        if peer is not None and incarnation > peer.incarnation:
            claim = NameClaimed(node, incarnation, stream_address(sender))
            self._names.on_claimed(claim)
            if self._names.verdict(claim) is not NameVerdict.FREE:
                return None
        if peer is None or incarnation > peer.incarnation:
            self.merge(
                MemberUpdate(
                    node=node,
                    incarnation=incarnation,
                    claim=ClaimedState.ALIVE,
                    refutation=sender.refutation,
                    role=sender.role,
                    address=sender.address,
                    stream_port=sender.stream_port,
                )
            )
            peer = self._table.peers.get(node)
            if peer is None:
                return None
        elif incarnation < peer.incarnation:
            self._prober.notify_earlier_incarnation(peer, sender.address)
            return None
        elif sender.refutation > peer.refutation:
            self.refuted(peer, sender.refutation, sender.address, sender.stream_port)
        if peer.state is MemberState.UNCONFIRMED:
            self._prober.notify(peer)
        return peer

    def merge(self, update: MemberUpdate) -> None:
        """Apply one update."""
        if update.node == self._context.local.node:
            self._merge_local(update)
            return
        peer = self._table.peers.get(update.node)
        if peer is None:
            self._add(update)
        elif update.claim is ClaimedState.ALIVE:
            self._merge_alive(peer, update)
        elif update.claim in FINAL_STATES:
            self._merge_final(peer, update)
        elif peer.claim in FINAL_STATES:
            self._repeat_claim(peer, update)
        elif peer.is_living and update.incarnation == peer.incarnation:
            self._merge_suspicion(peer, update)

    def _add(self, update: MemberUpdate) -> None:
        """Add a node this table does not have: unconfirmed until it answers."""
        if not update.address or update.claim not in (ClaimedState.ALIVE, ClaimedState.SUSPECT):
            return
        context = self._context
        peer = MemberRecord(
            update.node,
            update.incarnation,
            update.role,
            update.address,
            update.stream_port,
            update.refutation,
            since_s=context.now_s,
        )
        if len(self._table.peers) >= context.config.members_max:
            context.counts["member.refused"] += 1
            return
        self._table.peers[peer.node] = peer
        self._lifecycle.await_confirmation(peer)
        context.broadcast(peer.update(ClaimedState.ALIVE))
        context.report_change(peer, None)

    def _merge_alive(self, peer: MemberRecord, update: MemberUpdate) -> None:
        if not outranks(update, peer):
            if peer.claim >= ClaimedState.SILENT:
                self._repeat_claim(peer, update)
        elif update.incarnation == peer.incarnation:
            self.refuted(peer, update.refutation, update.address, update.stream_port)
        else:
            self._restart(peer, update)

    def _restart(self, peer: MemberRecord, update: MemberUpdate) -> None:
        """Replace a member by its later incarnation."""
        before = peer.state
        if peer.is_living:
            # Only a new process has a new incarnation: the old process has certainly ended.
            self._lifecycle.mark_dead(
                peer, ClaimedState.REFUSED, is_from_gossip=True, is_replaced=True
            )
        self._table.silent.pop(peer.node, None)
        self._table.refused.pop(peer.node, None)
        peer.restart(update)
        self._lifecycle.relocate(peer, update.address, update.stream_port)
        self._lifecycle.await_confirmation(peer)
        self._context.broadcast(peer.update(ClaimedState.ALIVE))
        self._context.report_change(peer, before)

    def refuted(self, peer: MemberRecord, refutation: int, address: str, stream_port: int) -> None:
        """Apply a refutation by a member, within the incarnation that the table knows."""
        if peer.claim in FINAL_STATES:
            return  # only a new incarnation outranks a final state
        before = peer.state
        peer.refutation, peer.claim = refutation, ClaimedState.ALIVE
        if address:
            self._lifecycle.relocate(peer, address, stream_port)
        self._context.broadcast(peer.update(ClaimedState.ALIVE), urgent=True)
        if before is MemberState.SUSPECT:
            self._lifecycle.clear(peer)
        elif before is MemberState.DEAD:
            self._lifecycle.revive(peer)

    def _merge_suspicion(self, peer: MemberRecord, update: MemberUpdate) -> None:
        if update.refutation < peer.refutation:
            return  # refuted already
        if update.refutation > peer.refutation:
            # The member has refuted before, which this node missed, and is suspected again.
            peer.refutation = update.refutation
            if peer.suspicion is not None:
                self._lifecycle.clear(peer)
        if update.claim is ClaimedState.SILENT:
            self._lifecycle.suspect_strongly(peer, update.by)
        else:
            self._lifecycle.suspect(peer, update.by)

    def _merge_final(self, peer: MemberRecord, update: MemberUpdate) -> None:
        if not outranks(update, peer):
            return
        was_living = peer.is_living
        if was_living:
            # Reported with the incarnation the member was known by: subscribers know that one.
            self._lifecycle.mark_dead(peer, update.claim, is_from_gossip=True)
        peer.refutation = max(peer.refutation, update.refutation)
        peer.incarnation = update.incarnation
        self._context.broadcast(update)
        if peer.state is MemberState.UNCONFIRMED:
            self._lifecycle.forget(peer, "unconfirmed.removed")
        elif not was_living:
            self._lifecycle.mark_final(peer, update.claim)

    def _repeat_claim(self, peer: MemberRecord, update: MemberUpdate) -> None:
        """Gossip the claim about a dead member again: another member believes it is alive."""
        context = self._context
        if update.incarnation == peer.incarnation and not context.gossip.has_claim_about(peer.node):
            context.broadcast(peer.update(peer.claim, context.local.node))

    def _merge_local(self, update: MemberUpdate) -> None:
        local = self._context.local
        if local.is_leaving or update.incarnation < local.incarnation:
            return
        if update.incarnation > local.incarnation:
            address = stream_address(update) if update.address else ""
            reason = "a later incarnation of this node is known"
            self._outrank(update.incarnation, address, reason)
        elif update.claim in FINAL_STATES:
            reason = f"this node was claimed to be {update.claim.name.lower()}"
            self._raise_incarnation(update.incarnation, reason)
        elif update.claim is not ClaimedState.ALIVE and update.refutation >= local.refutation:
            self._refute(update)
        elif update.refutation > local.refutation:
            local.refutation = update.refutation + 1
            self._context.broadcast_local()

    def _refute(self, update: MemberUpdate) -> None:
        """Refute a suspicion of this node, and answer the member that suspects it directly."""
        context, local = self._context, self._context.local
        local.refutation = update.refutation + 1
        context.awareness.refuted()
        context.counts["suspicion.refuted"] += 1
        context.broadcast_local()
        context.catch_up()  # this node was unreachable, if only for a moment
        accuser = self._table.peers.get(update.by)
        if accuser is not None and accuser.is_living:
            refutation = Gossip(local.sender, (local.full_update(),))
            context.effects.append(SendDatagram(accuser.address, refutation))

    def _outrank(self, incarnation: int, address: str, reason: str) -> None:
        """Outrank a later incarnation of this node, unless it may be another process."""
        if not self._names.dispute_own(incarnation, address):
            self._raise_incarnation(incarnation, reason)

    def on_verified(self, event: HolderVerified) -> None:
        """Take the outcome of a dial to the process that has a name."""
        if event.node != self._context.local.node:
            self._names.on_verified(event)
        elif not self._names.on_own_verified(event):
            self._raise_incarnation(event.incarnation, "a later incarnation of this node has ended")

    def _raise_incarnation(self, above: int, reason: str) -> None:
        """Outrank a past incarnation that the clock did not outrank, or a false death."""
        context = self._context
        raised_s = self._raised_s
        if raised_s is not None and context.now_s - raised_s < _RAISE_INCARNATION_EVERY_S:
            return
        self._raised_s = context.now_s
        context.local.start_incarnation(above + 1)
        context.counts["incarnation.raised"] += 1
        context.effects.append(IncarnationRaised(above + 1, reason))
        context.broadcast_local()
