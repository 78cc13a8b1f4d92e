"""The one rule by which a total is split over slots: VUs, rates, rows, iterations."""


def share(total: int, slots: int, slot: int) -> int:
    """Return the share of `slot`: all slots get the same, the first `total % slots` one more."""
    if slots < 1 or not 0 <= slot < slots or total < 0:
        raise ValueError(f"no share of {total} for slot {slot} of {slots}")
    each, rest = divmod(total, slots)
    return each + (slot < rest)
