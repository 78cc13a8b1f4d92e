"""The one rule by which totals are split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.plan import share


@given(st.integers(0, 10**9), st.integers(1, 300))
def test_shares_add_up_and_differ_by_at_most_one(total: int, slots: int) -> None:
    parts = [share(total, slots, slot) for slot in range(slots)]
    assert sum(parts) == total
    assert max(parts) - min(parts) <= 1
    assert parts == sorted(parts, reverse=True)


@pytest.mark.parametrize(
    ("total", "parts"),
    [
        (10_000, [2500, 2500, 2500, 2500]),
        (2000, [334, 334, 333, 333, 333, 333]),
        (11, [2, 2, 2, 2, 2, 1]),
    ],
)
def test_the_remainder_goes_to_the_first_slots(total: int, parts: list[int]) -> None:
    assert [share(total, len(parts), slot) for slot in range(len(parts))] == parts


@pytest.mark.parametrize(("total", "slots", "slot"), [(-1, 1, 0), (1, 0, 0), (1, 2, 2), (1, 2, -1)])
def test_a_slot_out_of_range_is_refused(total: int, slots: int, slot: int) -> None:
    with pytest.raises(ValueError, match="no share"):
        share(total, slots, slot)
