"""The counters seen from one sender: a sliding window against replays, as in IPsec (RFC 6479).

Datagrams may be reordered, so a counter need not be the highest so far; but each is accepted
once, and a counter below the window is refused.
"""

WINDOW = 2048
_MASK = (1 << WINDOW) - 1


class ReplayWindow:
    """The highest counter seen and a bit for each of the `WINDOW` below it."""

    __slots__ = ("_highest", "_seen")

    def __init__(self) -> None:
        self._highest = -1
        self._seen = 0  # bit n: counter highest - n

    def is_fresh(self, counter: int) -> bool:
        """Return True if `counter` may still be accepted; record nothing."""
        behind = self._highest - counter
        if behind < 0:
            return True
        return behind < WINDOW and not self._seen >> behind & 1

    def mark(self, counter: int) -> None:
        """Record a counter. Call it only after its datagram has been authenticated."""
        ahead = counter - self._highest
        if ahead > 0:
            # A huge jump would shift by as many bits; beyond the window nothing remains anyway.
            self._seen = (self._seen << ahead | 1) & _MASK if ahead < WINDOW else 1
            self._highest = counter
        else:
            self._seen |= 1 << -ahead
