"""The shape of a load over time: how many users, or which rate, at each moment.

A shape is piecewise linear: each stage goes from the target of the stage before it (0 before the
first) to its own in its duration; a stage of no duration is a jump. Users are whole, so a shape of
`n.3` users has n + 1. Arrivals are numbered from 0, and arrival n is due when the area under the
rate reaches n, so its time follows from its number alone: nothing drifts, and a slot that begins
in the middle of a run finds its place.

Pure functions of the time since the start of the workflow. `native/core/src/shape.rs` has the same
arithmetic for native programs; the tests compare the two.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec import Struct

STAGES_MAX = 1000
TARGET_MAX = 10_000_000  # of a stage: far more than any cluster runs
_WHOLE = 1e-6  # less than this is a rounding error, not a further arrival
_MASK = 2**64 - 1


class StagePlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One stage: linear from where the stage before ended to `target`."""

    duration_s: float
    target: float  # users, or arrivals per second


def constant(value: float, duration_s: float) -> tuple[StagePlan, ...]:
    """Return the stages of a load that is the same all the time."""
    return StagePlan(duration_s=0.0, target=value), StagePlan(duration_s=duration_s, target=value)


@dataclass(frozen=True, slots=True)
class _Piece:
    begin_s: float
    end_s: float
    from_: float
    to: float
    area: float  # under all pieces before this one

    @property
    def slope(self) -> float:
        return (self.to - self.from_) / (self.end_s - self.begin_s)


class Shape:
    """Stages as a function of the time since the start of the workflow."""

    def __init__(self, stages: Sequence[StagePlan]) -> None:
        self._pieces: list[_Piece] = []
        at_s = value = area = peak = 0.0
        for stage in stages:
            if stage.duration_s > 0:
                end_s = at_s + stage.duration_s
                self._pieces.append(_Piece(at_s, end_s, value, stage.target, area))
                area += (value + stage.target) / 2 * stage.duration_s
                at_s = end_s
            value = stage.target
            peak = max(peak, value)
        self.duration_s = at_s
        self.peak = peak
        self.area = area

    def value_at(self, at_s: float) -> float:
        """Return the value at a time; at a jump, the value after it. 0 outside of the shape."""
        for piece in self._pieces:
            if piece.begin_s <= at_s < piece.end_s:
                share = (at_s - piece.begin_s) / (piece.end_s - piece.begin_s)
                return piece.from_ + (piece.to - piece.from_) * share
        return 0.0

    def area_until(self, at_s: float) -> float:
        """Return the area under the shape up to a time: how many arrivals were due."""
        if at_s >= self.duration_s:
            return self.area
        for piece in self._pieces:
            if piece.begin_s <= at_s < piece.end_s:
                into_s = at_s - piece.begin_s
                return piece.area + into_s * (piece.from_ + piece.slope * into_s / 2)
        return 0.0

    def time_of(self, area: float) -> float | None:
        """Return when the area under the shape reaches `area`; None if it never does."""
        if not 0 <= area < self.area - _WHOLE:
            return None
        piece = self._pieces[0]
        for following in self._pieces:
            if following.area > area:
                break
            piece = following
        need = area - piece.area
        # The solution of from * x + slope * x² / 2 = need that does not cancel digits.
        root = math.sqrt(max(0.0, piece.from_**2 + 2 * piece.slope * need))
        into_s = 2 * need / (piece.from_ + root) if need > 0 else 0.0
        return min(piece.begin_s + into_s, piece.end_s)

    def users_at(self, at_s: float) -> int:
        """Return how many users the shape has at a time."""
        return math.ceil(self.value_at(at_s))


def slot_users(stages: Sequence[StagePlan], slots: int, slot: int) -> Iterator[tuple[float, int]]:
    """Yield when the number of users of a slot changes, and to how many, in order of time.

    Users are numbered over all slots, and user g belongs to slot g mod `slots`: at any time the
    slot has `share(users, slots, slot)` users. At the end of the shape it has none.
    """
    at_s, users = 0.0, 0
    for stage in stages:
        target = math.ceil(stage.target)
        each_s = stage.duration_s / max(1, abs(target - users))
        if target > users:
            first = users + (slot - users) % slots
            for user in range(first, target, slots):
                yield at_s + (user - users) * each_s, user // slots + 1
        else:
            last = users - 1 - (users - 1 - slot) % slots
            for user in range(last, target - 1, -slots):
                yield at_s + (users - user) * each_s, user // slots
        at_s, users = at_s + stage.duration_s, target
    if users > slot:
        yield at_s, 0


class Arrivals:
    """The arrivals of one slot, in order: when each is due.

    Even arrivals: arrival n of the workflow belongs to slot n mod `slots`. All of them come later
    by `phase` of their distance: those of several datacenters alternate. With `seed` they are a
    Poisson process: those of each slot are independent, with its share of the rate, and together
    they have the whole rate.
    """

    def __init__(
        self,
        stages: Sequence[StagePlan],
        slots: int,
        slot: int,
        *,
        seed: int | None = None,
        phase: float = 0.0,
    ) -> None:
        self._shape = Shape(stages)
        self._slots = slots
        self._random = None if seed is None else SplitMix(seed, slot)
        self._area = slot + phase if seed is None else slots * self._exponential()

    def next_s(self) -> float | None:
        """Return when the next arrival is due; None: there are no more."""
        return self._shape.time_of(self._area)

    def advance(self) -> None:
        """Go on to the arrival after the next one."""
        self._area += self._slots if self._random is None else self._slots * self._exponential()

    def reshape(self, stages: Sequence[StagePlan]) -> None:
        """Go on with other stages: the numbers of the arrivals go on."""
        self._shape = Shape(stages)

    def skip_until(self, at_s: float) -> int:
        """Skip the arrivals that were due before a time; return how many."""
        skipped = 0
        if self._random is None:  # by arithmetic: a long run has many millions
            until = self._shape.area_until(at_s)
            skipped = max(0, math.ceil((until - self._area - _WHOLE) / self._slots))
            self._area += skipped * self._slots
        while (due_s := self.next_s()) is not None and due_s < at_s:
            self.advance()
            skipped += 1
        return skipped

    def _exponential(self) -> float:
        assert self._random is not None
        return -math.log1p(-self._random.fraction())


class SplitMix:
    """SplitMix64 (Steele, Lea, Flood 2014): a few lines, the same numbers in every language."""

    def __init__(self, seed: int, stream: int) -> None:
        self._state = (seed * 0x9E3779B97F4A7C15 + stream * 0xD1B54A32D192ED03) & _MASK

    def fraction(self) -> float:
        """Return a number from 0 up to, and without, 1."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((self._state ^ (self._state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((mixed ^ (mixed >> 31)) >> 11) / 2**53
