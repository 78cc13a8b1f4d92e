"""The one heap of timers, against the simplest thing that could work."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from hyperscale.membership.timers import TimerHeap, TimerKind

keys = st.tuples(
    st.sampled_from([TimerKind.PROBE, TimerKind.SUSPICION, TimerKind.CONTACT]), st.integers(0, 5)
)
times = st.integers(0, 40).map(float)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("set"), keys, times),
        st.tuples(st.just("cancel"), keys, st.just(0.0)),
        st.tuples(st.just("pop"), st.just((TimerKind.PROBE, 0)), times),
        st.tuples(st.just("shift"), st.just((TimerKind.PROBE, 0)), st.just(3.0)),
    ),
    max_size=80,
)


@given(actions)
def test_the_timer_heap_agrees_with_a_plain_table(
    script: list[tuple[str, tuple[TimerKind, int], float]],
) -> None:
    heap, table = TimerHeap(), {}
    for what, key, at_s in script:
        if what == "set":
            heap.set(*key, at_s)
            table[key] = at_s
        elif what == "cancel":
            heap.cancel(*key)
            table.pop(key, None)
        elif what == "shift":
            heap.shift(TimerKind.PROBE, at_s, not_before_s=10.0)
            for each, when in table.items():
                if each[0] is TimerKind.PROBE:
                    table[each] = max(when + at_s, 10.0)
        else:
            due = heap.pop_due(at_s)
            if due is None:
                assert all(when > at_s for when in table.values())
            else:
                earliest_s = min(table.values())
                assert table.pop(due) == earliest_s <= at_s
        assert heap.next_s == min(table.values(), default=None)
        assert len(heap) == len(table)
        for each, when in table.items():
            assert heap.at_s(*each) == when


def test_due_timers_are_returned_in_order() -> None:
    heap = TimerHeap()
    for n, at_s in enumerate((5.0, 1.0, 3.0)):
        heap.set(TimerKind.PROBE, n, at_s)
    assert [heap.pop_due(9.0) for _ in range(4)] == [
        (TimerKind.PROBE, 1),
        (TimerKind.PROBE, 2),
        (TimerKind.PROBE, 0),
        None,
    ]


def test_moving_a_timer_often_does_not_grow_the_heap() -> None:
    heap = TimerHeap()
    tracemalloc.start()
    for n in range(20_000):
        heap.set(TimerKind.SUSPICION, "peer", 1e6 - n)
        heap.set(TimerKind.SUSPICION, "other", 1e6 + n)
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(heap) == 2
    assert held_bytes < 200_000
