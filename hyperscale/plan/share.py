"""The one rule by which a total is split over slots: VUs, rates, rows, iterations."""

from collections.abc import Sequence


def share(total: int, slots: int, slot: int) -> int:
    """Return the share of `slot`: all slots get the same, the first `total % slots` one more."""
    if slots < 1 or not 0 <= slot < slots or total < 0:
        raise ValueError(f"no share of {total} for slot {slot} of {slots}")
    each, rest = divmod(total, slots)
    return each + (slot < rest)


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Split a total by weights into whole numbers that add up: each gets what it is owed, rounded
    down, and the largest remainders get one more."""
    owed = [total * weight / sum(weights) for weight in weights]
    shares = [int(each) for each in owed]
    largest = sorted(range(len(owed)), key=lambda place: (shares[place] - owed[place], place))
    for place in largest[: total - sum(shares)]:
        shares[place] += 1
    return shares
