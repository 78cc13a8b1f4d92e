"""Which rows of a feed a lost attempt may have used."""

from hypothesis import given
from hypothesis import strategies as st

from hyperscale.plan import FeedPer, FeedPlan, Take, WorkflowPlan
from hyperscale.plan.rows import LostRows, lost_rows, rows_of_slot


def feed(rows: int, *, first: int = 0, count: int | None = None) -> FeedPlan:
    return FeedPlan(
        name="people",
        take=Take.ONCE,
        per=FeedPer.ITERATION,
        rows=rows,
        digest=0,
        first=first,
        count=count,
    )


@given(
    rows=st.integers(1, 60),
    slots=st.integers(1, 5),
    used=st.lists(st.integers(0, 20), min_size=5, max_size=5),
    ahead=st.lists(st.integers(0, 20), min_size=5, max_size=5),
    first=st.integers(0, 9),
)
def test_slots_lose_exactly_the_rows_between_what_they_used_and_their_limit(
    rows: int, slots: int, used: list[int], ahead: list[int], first: int
) -> None:
    of_range = feed(rows + first, first=first, count=rows)
    for slot in range(slots):
        limit = used[slot] + ahead[slot]
        lost = lost_rows([of_range], slots=slots, slot=slot, used=used[slot], limit=limit)
        named = [each.first + each.step * n for each in lost for n in range(each.count)]
        numbers = (slot + k * slots for k in range(used[slot], limit))
        assert named == [first + number for number in numbers if number < rows]


def test_rows_are_described_as_people_count_them() -> None:
    rows = LostRows(feed="people", first=1, step=3, count=20)
    assert rows.describe() == "20 of people (2, 5, 8 … 59)"
    assert LostRows(feed="people", first=0, step=3, count=2).describe() == "2 of people (1, 4)"


def test_the_smallest_feed_that_deals_once_ends_a_slot() -> None:
    plan = WorkflowPlan(
        name="Load", vus=1, duration_s=1.0, timeout_s=1.0, feeds=(feed(10), feed(8))
    )
    assert rows_of_slot(plan, 3) == 3
    assert rows_of_slot(WorkflowPlan(name="A", vus=1, duration_s=1.0, timeout_s=1.0), 3) is None
