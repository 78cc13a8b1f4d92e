"""Push-pull: the periodic exchange of whole member tables over a stream.

Push-pull brings a new member the whole table, repairs what gossip has lost, and joins the two
sides of a healed partition.
"""

from hyperscale.membership.context import MembershipContext
from hyperscale.membership.events import (
    MemberDiscovered,
    MemberState,
    PushPullCompleted,
    PushPullFailed,
    PushPullRequested,
    ReplyToPushPull,
    StartPushPull,
)
from hyperscale.membership.formulas import push_pull_s
from hyperscale.membership.lifecycle import MemberLifecycle
from hyperscale.membership.member_table import MemberRecord
from hyperscale.membership.messages import (
    ClaimedState,
    MemberSnapshot,
    PushPull,
    PushPullReply,
    Sender,
)
from hyperscale.membership.timers import TimerKind
from hyperscale.membership.update_merger import UpdateMerger

_REPEAT_S = 5.0
_RETRY_S = 2.0


class PushPullExchange:
    """Starts push-pulls and merges the tables of others."""

    def __init__(
        self, context: MembershipContext, lifecycle: MemberLifecycle, merger: UpdateMerger
    ) -> None:
        self._context = context
        self._lifecycle = lifecycle
        self._merger = merger

    def round(self, _: None) -> None:
        """Push-pull with a random living member and schedule the next round."""
        context = self._context
        every_s = push_pull_s(context.config.push_pull_s, len(context.table))
        context.set_timer(TimerKind.PUSH_PULL_ROUND, None, every_s)
        partners = [peer for peer in context.table.living if context.local.may_dial(peer)]
        if partners and not context.local.is_leaving:
            self._start(context.rng.choice(partners))

    def silent_round(self, _: None) -> None:
        """Push-pull with a random silent member: a partition may have healed."""
        context = self._context
        if not context.table.silent or context.local.is_leaving:
            return
        every_s = context.config.push_pull_silent_s
        context.set_timer(TimerKind.SILENT_PUSH_PULL_ROUND, None, every_s)
        silent = [context.table.peers[node] for node in context.table.silent]
        silent = [peer for peer in silent if context.local.may_dial(peer)]
        if silent:
            self._start(context.rng.choice(silent))

    def reunite(self, peer: MemberRecord) -> None:
        """Push-pull with a silent member that sent a datagram: each side missed updates."""
        context = self._context
        last_s = peer.contact.push_pull_s
        is_due = last_s is None or context.now_s - last_s > _REPEAT_S
        if is_due and context.local.may_dial(peer):
            self._start(peer)

    def on_discovered(self, event: MemberDiscovered) -> None:
        """Push-pull with a member that discovery has found."""
        request = PushPull(self._context.local.sender, self._snapshots())
        self._context.effects.append(StartPushPull(event.address, "", 0, request))

    def _start(self, peer: MemberRecord) -> None:
        context = self._context
        peer.contact.push_pull_s = context.now_s
        request = PushPull(context.local.sender, self._snapshots())
        context.effects.append(
            StartPushPull(peer.stream_address, peer.node, peer.incarnation, request)
        )

    def on_completed(self, event: PushPullCompleted) -> None:
        """Merge the table of the member that replied."""
        self._merge(event.node, event.incarnation, event.reply.sender, event.reply.members)

    def on_failed(self, event: PushPullFailed) -> None:
        """Retry soon, with any living member."""
        peer = self._context.table.peers.get(event.node)
        if peer is not None and peer.is_living:
            self._context.push_pull_within(_RETRY_S)

    def on_requested(self, event: PushPullRequested) -> None:
        """Reply with this node's table and merge the table of the member that asked."""
        reply = PushPullReply(self._context.local.sender, self._snapshots())
        request = event.request
        self._merge(event.node, event.incarnation, request.sender, request.members)
        self._context.effects.append(ReplyToPushPull(event.token, reply))

    def _merge(
        self,
        node: str,
        incarnation: int,
        sender: Sender,
        members: tuple[MemberSnapshot, ...],
    ) -> None:
        peer = self._merger.heard_from(node, incarnation, sender)
        if peer is not None:
            self._lifecycle.confirm(peer)  # a stream is a two-way exchange
        for member in members:
            self._merger.merge(member.update)
            known = self._context.table.peers.get(member.update.node)
            if known is not None and known.incarnation == member.update.incarnation:
                self.merge_metadata(known, member.metadata_version, member.metadata)

    def merge_metadata(self, peer: MemberRecord, version: int, metadata: bytes) -> None:
        """Take over the metadata of a member if it is newer."""
        if version > peer.metadata_version:
            peer.metadata_version, peer.metadata = version, metadata
            self._context.report_change(peer, peer.state)

    def _snapshots(self) -> tuple[MemberSnapshot, ...]:
        """Return every row of the table, this node first. Unconfirmed members are not sent."""
        context, local = self._context, self._context.local
        members = [MemberSnapshot(local.full_update(), local.metadata_version, local.metadata)]
        for peer in context.table.peers.values():
            if peer.state is MemberState.UNCONFIRMED:
                continue
            by = "" if peer.claim is ClaimedState.ALIVE else context.accuser_of(peer)
            update = peer.full_update(by)
            members.append(MemberSnapshot(update, peer.metadata_version, peer.metadata))
        return tuple(members)
