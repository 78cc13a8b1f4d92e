"""Stamps order like cause and effect, and follow no clock that must be wrong."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.ledger.stamps import AHEAD_MAX_MS, StampError, Stamps, stamp_ms

NOW_MS = 1_700_000_000_000


def test_stamps_rise_even_when_the_clock_does_not() -> None:
    stamps = Stamps()
    given_out = [stamps.next(now_ms) for now_ms in (100, 100, 90, 100, 101)]
    assert given_out == sorted(set(given_out))
    assert stamp_ms(given_out[-1]) == 101


def test_a_stamp_a_minute_ahead_is_followed_and_one_beyond_is_refused() -> None:
    stamps, other = Stamps(), Stamps()
    stamps.observe(other.next(NOW_MS + AHEAD_MAX_MS), NOW_MS)
    assert stamp_ms(stamps.next(NOW_MS)) == NOW_MS + AHEAD_MAX_MS
    before = stamps.last
    with pytest.raises(StampError, match="ahead of this node's clock"):
        stamps.observe(other.next(NOW_MS + AHEAD_MAX_MS + 1), NOW_MS)
    assert stamps.last == before


@given(
    st.lists(st.integers(-50_000, 50_000), min_size=2, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 500)), max_size=60),
)
def test_an_effect_is_never_stamped_before_its_cause(
    skews_ms: list[int], messages: list[tuple[int, int, int]]
) -> None:
    nodes = [Stamps() for _ in skews_ms]
    now_ms = NOW_MS
    for sender, receiver, pause_ms in messages:
        now_ms += pause_ms
        source, target = sender % len(nodes), receiver % len(nodes)
        sent = nodes[source].next(now_ms + skews_ms[source])
        try:
            nodes[target].observe(sent, now_ms + skews_ms[target])
        except StampError:
            assert skews_ms[source] - skews_ms[target] > 0
            continue
        assert nodes[target].next(now_ms + skews_ms[target]) > sent


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=50))
def test_drift_is_bounded_whatever_is_heard(aheads_ms: list[int]) -> None:
    stamps = Stamps()
    for ahead_ms in aheads_ms:
        with suppress(StampError):
            stamps.observe((NOW_MS + ahead_ms * 1_000) << 16, NOW_MS)
    assert stamp_ms(stamps.next(NOW_MS)) <= NOW_MS + AHEAD_MAX_MS + 1
