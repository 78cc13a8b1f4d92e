"""Claims about nodes: which to believe, which to contradict, which to pass on.

News comes with every datagram and with every exchange of views. What outranks what is known
(`members.outranks`) is acted on through `judge` and told further; what is said about this node
itself is refuted.
"""

from hyperscale.membership.context import MembershipContext
from hyperscale.membership.events import IncarnationRaised, MemberState, SendDatagram
from hyperscale.membership.lifecycle import MemberLifecycle
from hyperscale.membership.member_table import MemberRecord, outranks
from hyperscale.membership.messages import FINAL_STATES, ClaimedState, Gossip, MemberUpdate, Sender
from hyperscale.membership.prober import Prober

_REBORN_AGAIN_S = 5.0


class UpdateMerger:
    """What is said, and what follows from it."""

    def __init__(self, station: MembershipContext, judge: MemberLifecycle, prober: Prober) -> None:
        self._station = station
        self._judge = judge
        self._prober = prober
        self._roster = station.roster
        self._reborn_s = float("-inf")

    def hear(self, node: str, incarnation: int, sender: Sender) -> MemberRecord | None:
        """Something came from this life of a node: it lives, whether it hears us or not.

        None for what must not count: this node itself, an earlier life, one too many."""
        station = self._station
        if node == station.node:
            if incarnation > station.incarnation:
                self._reborn(incarnation, "another process has this node's name")
            return None
        peer = self._roster.peers.get(node)
        if peer is None or incarnation > peer.incarnation:
            self.take(
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
            peer = self._roster.get(node)
            if peer is None:
                return None
        elif incarnation < peer.incarnation:
            self._prober.remind(peer, sender.address)
            return None
        elif sender.refutation > peer.refutation:
            self.refuted(peer, sender.refutation, sender.address, sender.stream_port)
        peer.heard_s = station.now_s
        if peer.state is MemberState.UNCONFIRMED:
            self._prober.tell(peer)
        return peer

    def take(self, news: MemberUpdate) -> None:
        """One claim about one node."""
        if news.node == self._station.node:
            self._take_own(news)
            return
        peer = self._roster.peers.get(news.node)
        if peer is None:
            self._admit(news)
        elif news.claim is ClaimedState.ALIVE:
            self._take_alive(peer, news)
        elif news.claim in FINAL_STATES:
            self._take_final(peer, news)
        elif peer.claim in FINAL_STATES:
            self._correct(peer, news)
        elif peer.is_living and news.incarnation == peer.incarnation:
            self._take_accusation(peer, news)

    def _admit(self, news: MemberUpdate) -> None:
        """Someone new is spoken of: unconfirmed until it answers."""
        if not news.address or news.claim not in (ClaimedState.ALIVE, ClaimedState.SUSPECT):
            return
        station = self._station
        peer = MemberRecord(news, station.now_s)
        if len(self._roster.peers) >= station.config.members_max:
            station.log("member.refused", peer, "table full")
            return
        self._roster.add(peer)
        self._judge.await_confirmation(peer)
        station.tell_others(peer.news(ClaimedState.ALIVE))
        station.change(peer, None)

    def _take_alive(self, peer: MemberRecord, news: MemberUpdate) -> None:
        if not outranks(news, peer):
            if peer.claim >= ClaimedState.SILENT:
                self._correct(peer, news)
        elif news.incarnation == peer.incarnation:
            self.refuted(peer, news.refutation, news.address, news.stream_port)
        else:
            self._new_life(peer, news)

    def _new_life(self, peer: MemberRecord, news: MemberUpdate) -> None:
        before = peer.state
        if peer.is_living:
            # Only a new process starts a new life: the old one is gone for certain.
            self._judge.mark_dead(peer, ClaimedState.REFUSED, is_from_gossip=True, is_replaced=True)
        self._roster.silent.pop(peer.node, None)
        self._roster.gone.pop(peer.node, None)
        peer.incarnation, peer.refutation = news.incarnation, news.refutation
        peer.claim, peer.role = ClaimedState.ALIVE, news.role
        peer.metadata, peer.metadata_version, peer.rtt_s = b"", 0, None
        self._judge.relocate(peer, news.address, news.stream_port)
        self._judge.await_confirmation(peer)
        self._station.tell_others(peer.news(ClaimedState.ALIVE))
        self._station.change(peer, before)

    def refuted(self, peer: MemberRecord, refutation: int, address: str, stream_port: int) -> None:
        """The peer has contradicted what was said about it, in the life we know it in."""
        if peer.claim in FINAL_STATES:
            return  # of those only a new life is believed
        before = peer.state
        peer.refutation, peer.claim = refutation, ClaimedState.ALIVE
        if address:
            self._judge.relocate(peer, address, stream_port)
        self._station.tell_others(peer.news(ClaimedState.ALIVE), urgent=True)
        if before is MemberState.SUSPECT:
            self._judge.clear(peer)
        elif before is MemberState.DEAD:
            self._judge.returned(peer)

    def _take_accusation(self, peer: MemberRecord, news: MemberUpdate) -> None:
        if news.refutation < peer.refutation:
            return  # refuted already
        if news.refutation > peer.refutation:
            # It has refuted before, unheard by us, and is accused again.
            peer.refutation = news.refutation
            if peer.suspicion is not None:
                self._judge.clear(peer)
        if news.claim is ClaimedState.SILENT:
            self._judge.condemn(peer, news.by)
        else:
            self._judge.suspect(peer, news.by)

    def _take_final(self, peer: MemberRecord, news: MemberUpdate) -> None:
        if not outranks(news, peer):
            return
        was_living = peer.is_living
        if was_living:
            # In the life it was known in: whoever acts on the death knows it by that.
            self._judge.mark_dead(peer, news.claim, is_from_gossip=True)
        peer.refutation = max(peer.refutation, news.refutation)
        peer.incarnation = news.incarnation
        self._station.tell_others(news)
        if peer.state is MemberState.UNCONFIRMED:
            self._judge.forget(peer, "unconfirmed.removed")
        elif not was_living:
            self._judge.mark_final(peer, news.claim)

    def _correct(self, peer: MemberRecord, news: MemberUpdate) -> None:
        """Someone takes a life for going on that is over, or was found silent: say so again."""
        station = self._station
        if news.incarnation == peer.incarnation and not station.gossip.is_telling(peer.node):
            station.tell_others(peer.news(peer.claim, station.node))

    # About this node.

    def _take_own(self, news: MemberUpdate) -> None:
        station = self._station
        if station.is_leaving or news.incarnation < station.incarnation:
            return
        if news.incarnation > station.incarnation:
            self._reborn(news.incarnation, "a later incarnation of this node is known")
        elif news.claim in FINAL_STATES:
            self._reborn(news.incarnation, f"said to be {news.claim.name.lower()}")
        elif news.claim is not ClaimedState.ALIVE and news.refutation >= station.refutation:
            self._refute(news)
        elif news.refutation > station.refutation:
            station.refutation = news.refutation + 1
            station.announce()

    def _refute(self, news: MemberUpdate) -> None:
        station = self._station
        station.refutation = news.refutation + 1
        station.awareness.refuted()
        station.log_own("suspicion.refuted", f"by {news.by}")
        station.announce()
        station.catch_up()  # suspected: it was out of reach, if only for a moment
        accuser = self._roster.get(news.by)
        if accuser is not None and accuser.is_living:
            station.effects.append(
                SendDatagram(accuser.address, Gossip(station.sender, (station.own_news(),)))
            )

    def _reborn(self, above: int, why: str) -> None:
        """Outranks a past that the clock did not outrank, or a death that was none."""
        station = self._station
        if station.now_s - self._reborn_s < _REBORN_AGAIN_S:
            return
        self._reborn_s = station.now_s
        station.incarnation, station.refutation = above + 1, 0
        station.log_own("node.reborn", why)
        station.effects.append(IncarnationRaised(station.incarnation))
        station.announce()
