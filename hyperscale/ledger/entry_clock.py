"""Hybrid logical stamps: the time an entry carries, in an order that follows causality.

A stamp is one integer: milliseconds of the wall clock, and a counter in the low bits. A node
advances its clock past every stamp it applies, so that no entry is stamped before one that it
follows. Stamps of a clock too far ahead are ignored: following them would set every clock of the
tier wrong for good.
"""

COUNTER_BITS = 16
AHEAD_MAX_MS = 60_000


class EntryClock:
    """The clock of one node that stamps entries."""

    def __init__(self) -> None:
        self.now_ms = 0
        """The wall clock as of the last batch of input."""
        self.last = 0
        self.ignored_total = 0
        """Stamps over a minute ahead of this node's wall clock."""

    def next(self) -> int:
        """Return a stamp above every one given or observed before."""
        self.last = max(self.last + 1, self.now_ms << COUNTER_BITS)
        return self.last

    def observe_ms(self, stamped_ms: int) -> None:
        """Advance past an entry's time, unless it is over a minute ahead."""
        if stamped_ms - self.now_ms > AHEAD_MAX_MS:
            self.ignored_total += 1
        else:
            self.last = max(self.last, stamped_ms << COUNTER_BITS)
