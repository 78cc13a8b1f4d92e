"""Deadlines in buckets: never early, never lost, nothing kept of what is done."""

from hypothesis import given
from hypothesis import strategies as st

from hyperscale.wire.calls import QUANTUM_S, CallDeadlines

moments = st.floats(0, 100, allow_nan=False)


@given(st.dictionaries(st.integers(1, 1000), moments, max_size=50), st.sets(st.integers(1, 1000)))
def test_each_deadline_expires_once_within_a_quantum_unless_removed(
    due: dict[int, float], removed: set[int]
) -> None:
    deadlines = CallDeadlines()
    buckets = {number: deadlines.add(number, at_s) for number, at_s in due.items()}
    for number in removed & due.keys():
        deadlines.remove(number, buckets[number])
    expired: dict[int, float] = {}
    while (wake_s := deadlines.wake_at_s()) is not None:
        for number in deadlines.expired(now_s=wake_s):
            assert number not in expired
            expired[number] = wake_s
    assert expired.keys() == due.keys() - removed
    for number, at_s in expired.items():
        assert due[number] <= at_s <= due[number] + 2 * QUANTUM_S


def test_removed_deadlines_leave_nothing_to_wake_for() -> None:
    deadlines = CallDeadlines()
    for number in range(10_000):
        deadlines.remove(number, deadlines.add(number, 30 + number / 1e6))
    assert deadlines.wake_at_s() is None
