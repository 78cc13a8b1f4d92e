"""Cores by priority, from the whole pool."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.jobs.provisioner import Claim, Provisioner, priority_range
from hyperscale.plan import Priority

LOW, NORMAL, HIGH, EXCLUSIVE, AUTO = (
    Priority.LOW,
    Priority.NORMAL,
    Priority.HIGH,
    Priority.EXCLUSIVE,
    Priority.AUTO,
)

claims = st.lists(
    st.builds(
        Claim,
        name=st.uuids().map(str),
        priority=st.sampled_from(Priority),
        is_test=st.booleans(),
        vus=st.none() | st.integers(1, 200),
    ),
    max_size=12,
    unique_by=lambda claim: claim.name,
)
pools = st.integers(1, 130)


@pytest.mark.parametrize(
    ("pool", "ranges"),
    [
        (24, {LOW: (1, 6), NORMAL: (6, 18), HIGH: (18, 24), EXCLUSIVE: (24, 24), AUTO: (1, 24)}),
        (8, {LOW: (1, 2), NORMAL: (2, 6), HIGH: (6, 8), EXCLUSIVE: (8, 8), AUTO: (1, 8)}),
        (1, dict.fromkeys(Priority, (1, 1))),
    ],
)
def test_a_priority_is_a_range_of_the_whole_pool(
    pool: int, ranges: dict[Priority, tuple[int, int]]
) -> None:
    assert {priority: priority_range(priority, pool) for priority in Priority} == ranges


def test_ranges_do_not_depend_on_busy_cores() -> None:
    half_busy = Provisioner(24).grant([Claim("a", LOW)], busy=12)
    assert half_busy == Provisioner(24).grant([Claim("a", LOW)]) == [("a", LOW, 6)]
    assert Provisioner(24).grant([Claim("a", HIGH)], busy=12) == []  # 18, not 9: it waits


def test_high_and_low_share_one_batch_by_their_ranges() -> None:
    batches = Provisioner(24).partition_by_priority([Claim("low", LOW), Claim("high", HIGH)])
    assert batches == [[("high", HIGH, 18), ("low", LOW, 6)]]


def test_two_high_workflows_run_one_after_the_other() -> None:
    batches = Provisioner(24).partition_by_priority([Claim("a", HIGH), Claim("b", HIGH)])
    assert batches == [[("a", HIGH, 24)], [("b", HIGH, 24)]]


def test_an_exclusive_workflow_runs_alone_even_with_few_virtual_users() -> None:
    batches = Provisioner(24).partition_by_priority(
        [Claim("low", LOW), Claim("all", EXCLUSIVE, vus=2), Claim("seed", is_test=False)]
    )
    assert batches == [[("seed", AUTO, 1), ("low", LOW, 6)], [("all", EXCLUSIVE, 2)]]


def test_a_single_auto_workflow_gets_all_cores() -> None:
    assert Provisioner(24).partition_by_priority([Claim("a")]) == [[("a", AUTO, 24)]]


def test_several_auto_workflows_get_equal_shares() -> None:
    (batch,) = Provisioner(8).partition_by_priority([Claim("a"), Claim("b"), Claim("c")])
    assert batch == [("a", AUTO, 3), ("b", AUTO, 3), ("c", AUTO, 2)]


@pytest.mark.parametrize("vus", [1, 1000, 10000])
@pytest.mark.parametrize("priority", Priority)
def test_a_workflow_that_is_no_test_gets_one_core(vus: int, priority: Priority) -> None:
    batches = Provisioner(8).partition_by_priority([Claim("seed", priority, False, vus)])
    assert batches == [[("seed", priority, 1)]]


def test_a_workflow_that_is_no_test_takes_a_core_from_the_tests_within_their_ranges() -> None:
    configs = [
        {"workflow_name": "LoadTest", "priority": "HIGH", "is_test": True},
        {"workflow_name": "DataLoad", "priority": Priority.AUTO, "is_test": False},
        {"workflow_name": "Metrics", "priority": "low", "is_test": True},
    ]
    batches = Provisioner(24).partion_by_priority(configs)
    assert batches == [[("DataLoad", AUTO, 1), ("LoadTest", HIGH, 18), ("Metrics", LOW, 5)]]


def test_cores_beyond_the_virtual_users_go_to_other_workflows() -> None:
    (batch,) = Provisioner(8).partition_by_priority([Claim("few", vus=2), Claim("many")])
    assert batch == [("few", AUTO, 2), ("many", AUTO, 6)]


def test_a_workflow_that_does_not_fit_stays_ready() -> None:
    provisioner = Provisioner(8)
    ready = [Claim("a", HIGH), Claim("b", NORMAL)]
    assert provisioner.grant(ready, busy=4) == [("b", NORMAL, 4)]
    assert provisioner.grant(ready, busy=8) == []


@given(pools, claims)
def test_every_batch_fits_and_every_workflow_is_served_once_within_its_range(
    pool: int, wanted: list[Claim]
) -> None:
    provisioner = Provisioner(pool)
    batches = provisioner.partition_by_priority(wanted)
    assert batches == provisioner.partition_by_priority(wanted)
    assert sorted(g.name for batch in batches for g in batch) == sorted(c.name for c in wanted)
    by_name = {claim.name: claim for claim in wanted}
    for batch in batches:
        assert sum(grant.threads for grant in batch) <= pool
        for grant in batch:
            claim = by_name[grant.name]
            least, most = priority_range(claim.priority, pool) if claim.is_test else (1, 1)
            cap = most if claim.vus is None else claim.vus
            assert min(least, cap) <= grant.threads <= min(most, cap)
            assert grant.threads >= 1


@given(pools, claims)
def test_no_core_is_idle_that_the_batch_could_use(pool: int, wanted: list[Claim]) -> None:
    by_name = {claim.name: claim for claim in wanted}
    for batch in Provisioner(pool).partition_by_priority(wanted):
        if sum(grant.threads for grant in batch) < pool:
            for grant in batch:
                claim = by_name[grant.name]
                most = priority_range(claim.priority, pool)[1] if claim.is_test else 1
                assert grant.threads == (most if claim.vus is None else min(most, claim.vus))


@given(pools, claims, st.integers(0, 130))
def test_grants_never_exceed_the_free_cores(pool: int, wanted: list[Claim], busy: int) -> None:
    busy = min(busy, pool)
    granted = Provisioner(pool).grant(wanted, busy=busy)
    assert sum(grant.threads for grant in granted) <= pool - busy
    if not busy and wanted:
        assert granted


@given(pools, st.integers(1, 12))
def test_equal_claims_differ_by_at_most_one_core(pool: int, count: int) -> None:
    for batch in Provisioner(pool).partition_by_priority([Claim(str(n)) for n in range(count)]):
        threads = [grant.threads for grant in batch]
        assert max(threads) - min(threads) <= 1


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="0 cores"):
        Provisioner(0)
