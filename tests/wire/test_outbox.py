"""The outgoing queue: bytes, priorities, and what is dropped for whom."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.wire.errors import QueueFullError
from hyperscale.wire.frames import HEAD_BYTES
from hyperscale.wire.outbox import FrameFate, Outbox, QueuedFrame


def entry(
    priority: int, size: int = 84, request_id: int = 0, deadline_s: float = 0.0
) -> QueuedFrame:
    return QueuedFrame(1, request_id, priority, deadline_s, bytes(size))


def sent(box: Outbox, now_s: float = 1.0) -> list[QueuedFrame]:
    found = []
    while (each := box.pop(now_s=now_s)) is not None:
        found.append(each)
    return found


def test_the_highest_priority_leaves_first_and_within_it_the_oldest() -> None:
    box = Outbox()
    entries = [entry(p, size=n) for n, p in enumerate([2, 0, 3, 1, 0, 2])]
    for each in entries:
        box.push(each)
    assert [(e.priority, len(e.body)) for e in sent(box)] == [
        (0, 1),
        (0, 4),
        (1, 3),
        (2, 0),
        (2, 5),
        (3, 2),
    ]
    assert not box


@pytest.mark.parametrize(("priority", "taken"), [(0, 10), (1, 9), (2, 8), (3, 5)])
def test_each_priority_fills_the_box_to_its_own_mark(priority: int, taken: int) -> None:
    box = Outbox(bytes_max=1000)
    for number in range(taken):
        box.push(entry(priority, request_id=number + 1))
    with pytest.raises(QueueFullError):
        box.push(entry(priority, request_id=99))
    assert len(box) == taken
    assert box.held_bytes == taken * 100


def test_an_old_one_way_message_makes_room_for_a_new_one_of_its_lane() -> None:
    box = Outbox(bytes_max=1000)
    for size in range(80, 85):
        box.push(entry(3, size))
    box.push(entry(3, 84))
    assert [len(e.body) for e in sent(box)] == [81, 82, 83, 84, 84]


def test_a_request_is_refused_rather_than_another_request_dropped() -> None:
    box = Outbox(bytes_max=1000)
    waiting = [entry(3, request_id=n) for n in range(1, 6)]
    for each in waiting:
        box.push(each)
    with pytest.raises(QueueFullError):
        box.push(entry(3))
    assert sent(box) == waiting


def test_critical_pushes_out_low_and_then_normal_one_ways_but_nothing_else() -> None:
    box = Outbox(bytes_max=1000)
    for _ in range(4):
        box.push(entry(3))
    for _ in range(2):
        box.push(entry(2))
    box.push(entry(2, request_id=7))
    box.push(entry(1))
    for _ in range(8):
        box.push(entry(0))
    kept = sent(box)
    assert [e.priority for e in kept] == [0] * 8 + [1, 2]
    assert kept[-1].request_id == 7
    for _ in range(10):
        box.push(entry(0))
    with pytest.raises(QueueFullError):
        box.push(entry(0))


def test_a_frame_past_its_deadline_is_not_sent() -> None:
    box = Outbox()
    late, good = entry(1, deadline_s=5.0), entry(1, deadline_s=9.0)
    box.push(late)
    box.push(good)
    assert sent(box, now_s=5.0) == [good]
    assert (late.fate, good.fate) == (FrameFate.GONE, FrameFate.SENT)
    assert box.held_bytes == 0


def test_a_request_can_be_discarded_until_it_is_sent() -> None:
    box = Outbox()
    one, two = entry(1, request_id=1), entry(1, request_id=2)
    box.push(one)
    box.push(two)
    assert box.discard(one)
    assert box.discard(one)
    assert sent(box) == [two]
    assert not box.discard(two)
    assert box.held_bytes == 0


def test_discarding_many_frames_frees_their_memory() -> None:
    box = Outbox()
    tracemalloc.start()
    for _ in range(20_000):
        each = entry(1)
        box.push(each)
        box.discard(each)
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(box) == 0
    assert held_bytes < 400_000


actions = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 3), st.integers(0, 300), st.booleans()),
        st.tuples(st.just("pop"), st.just(0), st.just(0), st.just(False)),
        st.tuples(st.just("discard"), st.integers(0, 50), st.just(0), st.just(False)),
    ),
    max_size=80,
)


@given(actions)
def test_bytes_are_bounded_and_add_up_whatever_happens(
    script: list[tuple[str, int, int, bool]],
) -> None:
    box, known = Outbox(bytes_max=1000), list[QueuedFrame]()
    for what, number, size, is_request in script:
        match what:
            case "push":
                each = entry(number, size, request_id=len(known) + 1 if is_request else 0)
                try:
                    box.push(each)
                    known.append(each)
                except QueueFullError:
                    pass
            case "pop":
                box.pop(now_s=1.0)
            case "discard" if number < len(known):
                box.discard(known[number])
        assert 0 <= box.held_bytes <= 1000
    left = sent(box)
    assert sum(len(e.body) + HEAD_BYTES for e in left) <= 1000
    assert box.held_bytes == 0
    assert len({id(e) for e in left}) == len(left)
