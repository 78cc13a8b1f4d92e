"""Refused peers: counted by reason, logged once per peer and reason.

Counts feed metrics; log lines tell the operator. Both are bounded: an unauthenticated peer must
not be able to fill a disk, whatever addresses it forges.
"""

import logging
from collections import Counter, OrderedDict

from hyperscale.wire.errors import PeerProtocolError, RefusalReason

PEERS_REMEMBERED = 4096
LINES_PER_MINUTE = 60

_log = logging.getLogger("hyperscale.wire")


class RefusalLog:
    """Counts refusals and logs the first of each kind."""

    def __init__(self) -> None:
        self.counts: Counter[RefusalReason] = Counter()
        """Peers this node refused."""
        self.rejections: Counter[RefusalReason] = Counter()
        """Peers that refused this node."""
        self._logged: OrderedDict[tuple[str, RefusalReason], None] = OrderedDict()
        self._minute = -1
        self._lines = 0

    def add(self, peer: str, error: PeerProtocolError, *, now_s: float) -> None:
        """Count a refusal. `peer` is the part of the address that stays the same on a retry."""
        self.counts[error.reason] += 1
        key = (peer, error.reason)
        if key in self._logged:
            self._logged.move_to_end(key)
            return
        minute = int(now_s // 60)
        if minute != self._minute:
            self._minute, self._lines = minute, 0
        if self._lines >= LINES_PER_MINUTE:
            return
        self._lines += 1
        self._logged[key] = None
        if len(self._logged) > PEERS_REMEMBERED:
            self._logged.popitem(last=False)
        _log.warning(
            "peer.refused: %s: %s",
            peer,
            error,
            extra={"peer": peer, "reason": str(error.reason), "detail": str(error)},
        )
