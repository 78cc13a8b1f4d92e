"""What is still to be told: news with a count of how often it was passed on.

News goes out least-told first, the urgent before the rest, as much as fits a datagram, until it
was told often enough to have reached everyone. Newer news about a node replaces what was said
about it before. Knows nothing of members or time.
"""

import msgspec

from hyperscale.membership.messages import Claim, News

ITEMS_MAX = 4_096
"""Beyond this the most-told news is forgotten; push-pull brings it to whoever missed it."""

_URGENT = frozenset({Claim.REFUSED, Claim.LEFT, Claim.SILENT})
_encode = msgspec.msgpack.Encoder().encode

_Key = tuple[str, str]
_Tier = dict[_Key, tuple[News, int]]


_SMALLEST_BYTES = 24
"""No news is smaller: with less room left there is nothing to look for."""


class GossipQueue:
    """News by how often it was told. `tiers[n]` holds (urgent, other) told n times."""

    def __init__(self) -> None:
        self._tiers: list[tuple[_Tier, _Tier]] = [({}, {})]
        self._where: dict[_Key, tuple[int, int]] = {}
        self._accusers: dict[str, dict[str, None]] = {}
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._where)

    def __bool__(self) -> bool:
        return bool(self._where)

    def is_telling(self, node: str) -> bool:
        """Whether something other than a suspicion of `node` is still to be told."""
        return (node, "") in self._where

    def put(self, news: News, *, urgent: bool = False) -> None:
        """Queues news. A suspicion stands beside others' of the same node; all else replaces."""
        if news.claim is Claim.SUSPECT:
            key = (news.node, news.by)
            self._accusers.setdefault(news.node, {})[news.by] = None
        else:
            key = (news.node, "")
            self.forget_suspicions(news.node)
        self._drop(key)
        if len(self._where) >= ITEMS_MAX:
            self._drop_most_told()
        lane = 0 if urgent or news.claim in _URGENT else 1
        self._tiers[0][lane][key] = (news, len(_encode(news)))
        self._where[key] = (0, lane)

    def forget_suspicions(self, node: str) -> None:
        """What was said against a node is refuted or settled."""
        for by in self._accusers.pop(node, ()):
            self._drop((node, by))

    def take(self, budget_bytes: int, *, limit: int, copies: int = 1) -> tuple[News, ...]:
        """News for one datagram that goes to `copies` members; told `limit` times it is dropped."""
        if not self._where:
            return ()
        taken = self._pick(budget_bytes)
        tiers, where = self._tiers, self._where
        for key, (news, size), told, lane in taken:
            del tiers[told][lane][key]
            now_told = told + copies
            if now_told >= limit:
                del where[key]
                continue
            while len(tiers) <= now_told:
                tiers.append(({}, {}))
            tiers[now_told][lane][key] = (news, size)
            where[key] = (now_told, lane)
        return tuple([item[1][0] for item in taken])

    def _pick(self, budget_bytes: int) -> list[tuple[_Key, tuple[News, int], int, int]]:
        taken: list[tuple[_Key, tuple[News, int], int, int]] = []
        for told, tier in enumerate(self._tiers):
            for lane, items in enumerate(tier):
                for key, item in items.items():
                    if item[1] <= budget_bytes:
                        budget_bytes -= item[1]
                        taken.append((key, item, told, lane))
                    if budget_bytes < _SMALLEST_BYTES:
                        return taken
        return taken

    def _drop(self, key: _Key) -> None:
        where = self._where.pop(key, None)
        if where is not None:
            del self._tiers[where[0]][where[1]][key]

    def _drop_most_told(self) -> None:
        for tier in reversed(self._tiers):
            for items in reversed(tier):
                if items:
                    self._drop(next(iter(items)))
                    self.dropped += 1
                    return
