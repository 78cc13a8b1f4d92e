"""Stamps follow causality, and ignore clocks that must be wrong."""

from hypothesis import given
from hypothesis import strategies as st

from hyperscale.ledger.records import AHEAD_MAX_MS, COUNTER_BITS, EntryClock

NOW_MS = 1_700_000_000_000


def clock(now_ms: int = NOW_MS) -> EntryClock:
    made = EntryClock()
    made.now_ms = now_ms
    return made


def test_stamps_rise_even_when_the_wall_clock_does_not() -> None:
    own = clock()
    stamps = []
    for own.now_ms in (100, 100, 90, 100, 101):
        stamps.append(own.next())
    assert stamps == sorted(set(stamps))
    assert stamps[-1] >> COUNTER_BITS == 101


def test_a_stamp_a_minute_ahead_is_followed_and_one_beyond_is_ignored() -> None:
    own = clock()
    own.observe_ms(NOW_MS + AHEAD_MAX_MS)
    assert own.next() >> COUNTER_BITS == NOW_MS + AHEAD_MAX_MS
    before = own.last
    own.observe_ms(NOW_MS + AHEAD_MAX_MS + 1)
    assert (own.last, own.ignored_total) == (before, 1)


@given(
    st.lists(st.integers(-50_000, 50_000), min_size=2, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 500)), max_size=60),
)
def test_an_effect_is_never_stamped_before_its_cause(
    skews_ms: list[int], messages: list[tuple[int, int, int]]
) -> None:
    nodes = [EntryClock() for _ in skews_ms]
    now_ms = NOW_MS
    for sender, receiver, pause_ms in messages:
        now_ms += pause_ms
        source, target = sender % len(nodes), receiver % len(nodes)
        for node, skew_ms in zip(nodes, skews_ms, strict=True):
            node.now_ms = now_ms + skew_ms
        sent_ms = nodes[source].next() >> COUNTER_BITS
        ignored = nodes[target].ignored_total
        nodes[target].observe_ms(sent_ms)
        if nodes[target].ignored_total > ignored:
            assert skews_ms[source] - skews_ms[target] > 0
        else:
            assert nodes[target].next() >> COUNTER_BITS >= sent_ms


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=50))
def test_drift_is_bounded_whatever_is_observed(aheads_ms: list[int]) -> None:
    own = clock()
    for ahead_ms in aheads_ms:
        own.observe_ms(NOW_MS + ahead_ms * 1_000)
    assert own.next() >> COUNTER_BITS <= NOW_MS + AHEAD_MAX_MS + 1
