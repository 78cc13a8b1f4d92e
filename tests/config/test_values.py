"""Numbers and durations as people write them, the absurd ones included."""

import math

import pytest

from hyperscale.config import parse_duration_s, parse_whole
from hyperscale.errors import InputError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("1", 1), ("64", 64), ("007", 7), ("0" * 6000 + "8", 8)),
        *(("0", None), ("65", None), ("", None), ("-1", None), ("1.5", None), ("٣", None)),
        *(("9" * 6000, None), (" 1", None), ("1_0", None)),
    ],
)
def test_a_whole_number_is_one_within_its_bounds_however_many_digits_are_written(
    text: str, expected: int | None
) -> None:
    assert parse_whole(text, low=1, most=64) == expected


def test_zero_may_be_within_the_bounds() -> None:
    assert parse_whole("0", low=0, most=5) == 0
    assert parse_whole("00", low=0, most=5) == 0


@pytest.mark.parametrize("value", [10**400, -(10**400), math.inf, math.nan, "9" * 500 + "h"])
def test_a_duration_no_float_can_hold_is_out_of_bounds(value: object) -> None:
    with pytest.raises(InputError, match="must be above 0 and at most 30 days"):
        parse_duration_s(value, where="timeout")
