"""What is still to be told: news with a count of how often it was passed on.

News goes out least-told first, deaths and refutations before suspicions before newcomers, as
much as fits a datagram, until it was told often enough to have reached everyone. Newer news
about a node replaces what was said about it before. Knows nothing of members or time.
"""

import msgspec

from hyperscale.membership.messages import ClaimedState, MemberUpdate

ITEMS_MAX = 4_096
"""Beyond this the most-told news is forgotten; push-pull brings it to whoever missed it."""

_LANE_URGENT = 0
_LANES = {
    ClaimedState.REFUSED: _LANE_URGENT,
    ClaimedState.LEFT: _LANE_URGENT,
    ClaimedState.SILENT: _LANE_URGENT,
    ClaimedState.SUSPECT: 1,
    ClaimedState.ALIVE: 2,  # newcomers: nobody waits for them yet
}
_encode = msgspec.msgpack.Encoder().encode

_Key = tuple[str, str]


class _Item:
    __slots__ = ("key", "lane", "news", "order", "size", "told")

    def __init__(self, key: _Key, news: MemberUpdate, lane: int, order: int) -> None:
        self.key = key
        self.news = news
        self.size = len(_encode(news))
        self.lane = lane
        self.order = order
        self.told = 0


class GossipQueue:
    """News and how often each was told."""

    def __init__(self) -> None:
        self.items: dict[_Key, _Item] = {}
        self._accusers: dict[str, dict[str, None]] = {}
        self._bytes = 0
        self._order = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self.items)

    def is_telling(self, node: str) -> bool:
        """Whether something other than a suspicion of `node` is still to be told."""
        return (node, "") in self.items

    def put(self, news: MemberUpdate, *, urgent: bool = False) -> None:
        """Queues news. A suspicion stands beside others' of the same node; all else replaces."""
        if news.claim is ClaimedState.SUSPECT:
            key = (news.node, news.by)
            self._accusers.setdefault(news.node, {})[news.by] = None
        else:
            key = (news.node, "")
            self.forget_suspicions(news.node)
        self._drop(key)
        if len(self.items) >= ITEMS_MAX:
            self._drop(max(self.items.values(), key=_rank).key)
            self.dropped += 1
        self._order += 1
        lane = _LANE_URGENT if urgent else _LANES[news.claim]
        item = _Item(key, news, lane, self._order)
        self.items[key] = item
        self._bytes += item.size

    def forget_suspicions(self, node: str) -> None:
        """What was said against a node is refuted or settled."""
        for by in self._accusers.pop(node, ()):
            self._drop((node, by))

    def take(self, budget_bytes: int, *, limit: int, copies: int = 1) -> tuple[MemberUpdate, ...]:
        """News for one datagram that goes to `copies` members; told `limit` times it is dropped."""
        if self._bytes <= budget_bytes:
            chosen = list(self.items.values())
        else:
            chosen = []
            for item in sorted(self.items.values(), key=_rank):
                if item.size <= budget_bytes:
                    budget_bytes -= item.size
                    chosen.append(item)
        for item in chosen:
            item.told += copies
            if item.told >= limit:
                self._drop(item.key)
        return tuple([item.news for item in chosen])

    def _drop(self, key: _Key) -> None:
        item = self.items.pop(key, None)
        if item is not None:
            self._bytes -= item.size


def _rank(item: _Item) -> tuple[int, int, int]:
    return item.told, item.lane, item.order
