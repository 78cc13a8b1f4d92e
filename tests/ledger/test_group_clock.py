"""The time of a group: every replica measures it alike, whatever the wall clocks of nodes show."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.jobs.committed.events import TimePassed, encode
from hyperscale.ledger.group_clock import ESTIMATE_MAX_S, FIRST_MS, GroupClock, TimeSource
from tests.lab.memory_tier import MemoryTier

GROUP = 1
TEN_MINUTES_MS = 600_000
TICK_MS = 50


def commit_time(tier: MemoryTier, number: int) -> int:
    """Commit an entry at a leader; return the time of the group that it carries."""
    tier.commit(number, GROUP, encode(TimePassed()))
    return tier.cores[number].replicas[GROUP].time_ms


def test_a_clock_that_begins_with_an_entry_counts_on_from_its_time() -> None:
    clock = GroupClock()
    clock.observe(5_000, now_s=70.0)
    assert clock.read_ms(71.5) == 6_500


def test_the_entry_that_travelled_fastest_counts() -> None:
    clock = GroupClock()
    clock.observe(5_000, now_s=70.4)
    clock.observe(6_000, now_s=71.1)
    clock.observe(7_000, now_s=72.9)
    assert clock.read_ms(73.1) == 8_000


@pytest.mark.parametrize(("age_s", "counted_s"), [(-600.0, 0.0), (7.0, 7.0), (600.0, 60.0)])
def test_the_age_of_an_entry_on_disk_is_estimated_by_its_date_up_to_a_minute(
    age_s: float, counted_s: float
) -> None:
    clock = GroupClock()
    clock.estimate(5_000, age_s=age_s, now_s=10.0)
    assert clock.source is TimeSource.DATES
    assert clock.read_ms(10.0) == 5_000 + counted_s * 1000
    assert counted_s <= ESTIMATE_MAX_S


def test_an_entry_of_another_leader_replaces_an_estimate_that_was_too_high() -> None:
    clock = GroupClock()
    clock.estimate(5_000, age_s=600.0, now_s=10.0)
    clock.observe(8_000, now_s=11.0)
    assert (clock.read_ms(11.0), clock.source) == (8_000, TimeSource.ENTRIES)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(-700_000, 700_000)), min_size=1, max_size=6),
    st.lists(st.integers(-50, 5_000), min_size=3, max_size=3),
)
def test_elections_and_wrong_clocks_neither_add_nor_lose_time(
    leaders: list[tuple[int, int]], origins_s: list[int]
) -> None:
    tier = MemoryTier()
    for number, origin_s in enumerate(origins_s, 1):
        tier.origins_s[number] = origin_s
    tier.elect(GROUP, 1)
    first_ms, began_ms = commit_time(tier, 1), tier.now_ms
    for leader, skew_ms in leaders:
        tier.skews_ms[leader + 1] = skew_ms
        tier.elect(GROUP, leader + 1)
        tier.tick(7)
        assert commit_time(tier, leader + 1) - first_ms == tier.now_ms - began_ms
    assert len(tier.digests(GROUP)) == 1


def test_a_new_group_begins_at_its_first_entry() -> None:
    tier = MemoryTier()
    tier.elect(GROUP, 2)
    assert FIRST_MS <= commit_time(tier, 2) < 10_000


@pytest.mark.parametrize("skew_ms", [-TEN_MINUTES_MS, 0, TEN_MINUTES_MS])
def test_a_node_that_was_down_learns_the_time_from_the_next_entry(skew_ms: int) -> None:
    tier = MemoryTier()
    tier.elect(GROUP, 1)
    first_ms, began_ms = commit_time(tier, 1), tier.now_ms
    tier.crash(3)
    tier.now_ms += 30_000
    tier.skews_ms[3] = skew_ms
    tier.start(3)
    tier.tick(8)
    commit_time(tier, tier.elect(GROUP, 1).number)
    tier.elect(GROUP, 3)
    assert tier.cores[3].group_clocks.get(GROUP).source is TimeSource.ENTRIES
    assert commit_time(tier, 3) - first_ms == tier.now_ms - began_ms


def test_the_time_without_any_node_counts_by_date() -> None:
    tier = MemoryTier()
    tier.elect(GROUP, 1)
    first_ms, began_ms = commit_time(tier, 1), tier.now_ms
    for number in (1, 2, 3):
        tier.crash(number)
    tier.now_ms += 20_000
    for number in (1, 2, 3):
        tier.start(number)
        tier.origins_s[number] = -int(tier.now_s)  # after a reboot
    leader = tier.elect(GROUP, 2)
    assert leader.group_clocks.get(GROUP).source is TimeSource.DATES
    took_ms = commit_time(tier, 2) - first_ms
    assert took_ms == pytest.approx(tier.now_ms - began_ms, abs=2 * TICK_MS)
