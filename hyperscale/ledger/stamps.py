"""Hybrid logical stamps: the time an entry carries, which orders like cause and effect.

A stamp is one integer, milliseconds of the wall clock and a counter below them. It follows
whatever it has seen, so an effect is never stamped before its cause, except of a clock so far
ahead that it must be wrong: following that one would set every clock wrong for good.
"""

from hyperscale.errors import HyperscaleError

_COUNTER_BITS = 16
AHEAD_MAX_MS = 60_000


class StampError(HyperscaleError):
    """A stamp from a clock that is too far ahead of ours."""


def stamp_ms(stamp: int) -> int:
    return stamp >> _COUNTER_BITS


class Stamps:
    """One node's clock of stamps."""

    def __init__(self) -> None:
        self.last = 0

    def next(self, now_ms: int) -> int:
        """A stamp above every one given or seen before."""
        self.last = max(self.last + 1, now_ms << _COUNTER_BITS)
        return self.last

    def observe(self, stamp: int, now_ms: int) -> None:
        """Takes note of another's stamp; `StampError` if it is over a minute ahead."""
        ahead_ms = stamp_ms(stamp) - now_ms
        if ahead_ms > AHEAD_MAX_MS:
            raise StampError(
                f"a stamp {ahead_ms / 1000:.0f} s ahead of this node's clock",
                hint="a clock is wrong: this node's, or the one that gave the stamp",
            )
        self.last = max(self.last, stamp)
