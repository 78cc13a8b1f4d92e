"""The queue of updates to gossip, each with a count of its transmissions.

The least transmitted updates go out first; among equals, deaths and refutations come before
suspicions and suspicions before new members. A datagram takes as many as fit. An update leaves
the queue once it was sent often enough to have reached every member. A newer update about a node
replaces the older one. This module knows neither members nor time.
"""

import msgspec

from hyperscale.membership.messages import ClaimedState, MemberUpdate

ITEMS_MAX = 4_096
"""Beyond this the most transmitted update is dropped; push-pull still spreads it."""

_LANE_URGENT = 0
_LANES = {
    ClaimedState.REFUSED: _LANE_URGENT,
    ClaimedState.LEFT: _LANE_URGENT,
    ClaimedState.SILENT: _LANE_URGENT,
    ClaimedState.SUSPECT: 1,
    ClaimedState.ALIVE: 2,  # new members: no decision waits for them
}
_encode = msgspec.msgpack.Encoder().encode

_Key = tuple[str, str]


class _Item(msgspec.Struct):
    key: _Key
    update: MemberUpdate
    size: int
    lane: int
    order: int
    sent: int = 0


class GossipQueue:
    """Updates and how often each was sent."""

    def __init__(self) -> None:
        self.items: dict[_Key, _Item] = {}
        self._accusers: dict[str, dict[str, None]] = {}
        self._bytes = 0
        self._order = 0

    def __len__(self) -> int:
        return len(self.items)

    def has_claim_about(self, node: str) -> bool:
        """Return True if an update about `node` other than a suspicion is still queued."""
        return (node, "") in self.items

    def put(self, update: MemberUpdate, *, urgent: bool = False) -> None:
        """Queue an update. Suspicions by different members stay side by side; any other update
        replaces everything queued about the node."""
        if update.claim is ClaimedState.SUSPECT:
            key = (update.node, update.by)
            self._accusers.setdefault(update.node, {})[update.by] = None
        else:
            key = (update.node, "")
            self.drop_suspicions(update.node)
        self._drop(key)
        if len(self.items) >= ITEMS_MAX:
            self._drop(max(self.items.values(), key=_rank).key)
        self._order += 1
        lane = _LANE_URGENT if urgent else _LANES[update.claim]
        item = _Item(key, update, len(_encode(update)), lane, self._order)
        self.items[key] = item
        self._bytes += item.size

    def drop_suspicions(self, node: str) -> None:
        """Remove the suspicions of a node: they are refuted or decided."""
        for by in self._accusers.pop(node, ()):
            self._drop((node, by))

    def clear(self) -> None:
        """Remove every update."""
        self.items.clear()
        self._accusers.clear()
        self._bytes = 0

    def take(self, budget_bytes: int, *, limit: int, copies: int = 1) -> tuple[MemberUpdate, ...]:
        """Return updates for one datagram that goes to `copies` members.

        An update that has been sent `limit` times leaves the queue.
        """
        if self._bytes <= budget_bytes:
            chosen = list(self.items.values())
        else:
            chosen = []
            for item in sorted(self.items.values(), key=_rank):
                if item.size <= budget_bytes:
                    budget_bytes -= item.size
                    chosen.append(item)
        for item in chosen:
            item.sent += copies
            if item.sent >= limit:
                self._drop(item.key)
        return tuple([item.update for item in chosen])

    def _drop(self, key: _Key) -> None:
        item = self.items.pop(key, None)
        if item is not None:
            self._bytes -= item.size


def _rank(item: _Item) -> tuple[int, int, int]:
    return item.sent, item.lane, item.order
