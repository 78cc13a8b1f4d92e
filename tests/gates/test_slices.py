"""Splitting a job over datacenters: by capacity, with global offsets, exactly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hyperscale.gates.slices import (
    PlanShare,
    sliced,
    split_plan,
    split_problem,
    whole_plan,
    without_rows,
)
from hyperscale.plan import ArrivalKind, FeedPer, FeedPlan, Plan, StagePlan, Take
from hyperscale.plan.shapes import Arrivals, constant
from tests.lab.job_builders import plan, workflow


@given(
    cores=st.lists(st.integers(0, 20_000), min_size=1, max_size=10),
    vus=st.integers(1, 100_000),
    iterations=st.none() | st.integers(1, 1_000_000),
)
def test_the_shares_of_all_datacenters_are_the_whole_without_gaps_or_overlaps(
    cores: list[int], vus: int, iterations: int | None
) -> None:
    job = plan(workflow("Load", vus=vus, iterations=iterations))
    shares = split_plan(job, {f"dc{n}": each for n, each in enumerate(cores)})
    next_vu = 0
    for shared in shares.values():
        assert shared["Load"].first_vu == next_vu
        next_vu += shared["Load"].vus
    assert next_vu == vus
    done = [shared["Load"].iterations for shared in shares.values()]
    assert sum(each or 0 for each in done) == (iterations or 0)


@pytest.mark.parametrize(
    ("vus", "expected"), [(1000, [500, 250, 250]), (8, [4, 2, 2]), (3, [1, 1, 1])]
)
def test_users_follow_the_cores_and_a_small_number_is_spread(vus: int, expected: list[int]) -> None:
    shares = split_plan(plan(workflow("Load", vus=vus)), {"a": 16, "b": 8, "c": 8})
    assert [shared["Load"].vus for shared in shares.values()] == expected


def test_a_workflow_that_provides_values_runs_in_every_datacenter() -> None:
    job = plan(workflow("Login", vus=1, is_test=False), workflow("Load", "Login", vus=4))
    shares = split_plan(job, {"a": 4, "b": 4})
    assert [shared["Login"].vus for shared in shares.values()] == [1, 1]


def test_fewer_users_or_iterations_than_datacenters_are_refused_with_a_sentence() -> None:
    assert split_problem(plan(workflow("Load", vus=2)), 2) is None
    assert split_problem(plan(workflow("Load", vus=1)), 2) == (
        "Load has 1 virtual users, fewer than 2 datacenters"
    )
    few = plan(workflow("Load", vus=9, iterations=2))
    assert split_problem(few, 3) == "Load has 2 iterations, fewer than 3 datacenters"


def test_a_slice_changes_users_and_iterations_of_the_plan_and_nothing_else() -> None:
    job = plan(workflow("Load", vus=10, iterations=7))
    shares = split_plan(job, {"a": 1, "b": 1})
    part = sliced(job, shares["b"]).workflows[0]
    assert (part.vus, part.first_vu, part.iterations) == (5, 5, 3)
    assert (part.name, part.duration_s) == ("Load", job.workflows[0].duration_s)


def test_per_datacenter_every_one_runs_all_users_with_numbers_of_its_own() -> None:
    shares = whole_plan(plan(workflow("Load", vus=10)), ["a", "b"])
    assert [(s["Load"].vus, s["Load"].first_vu) for s in shares.values()] == [(10, 0), (10, 10)]


def test_stages_are_split_like_users_and_rates_in_proportion() -> None:
    ramp = (StagePlan(duration_s=1.0, target=10.0), StagePlan(duration_s=2.0, target=3.0))
    users = replace(workflow("Users", vus=10), stages=ramp)
    job = plan(users, replace(workflow("Rate", vus=9), stages=ramp, is_open=True))
    shares = split_plan(job, {"a": 2, "b": 1})
    parts = [sliced(job, shared) for shared in shares.values()]
    targets = [[stage.target for stage in part.workflows[0].stages] for part in parts]
    assert [sum(each) for each in zip(*targets, strict=True)] == [10.0, 3.0]
    assert [max(each) for each in targets] == [part.workflows[0].vus for part in parts]
    rates = [[stage.target for stage in part.workflows[1].stages] for part in parts]
    assert [sum(each) for each in zip(*rates, strict=True)] == pytest.approx([10.0, 3.0])
    assert rates[0] == pytest.approx([2 * each for each in rates[1]])


def fed(rows: int, take: Take = Take.ONCE, per: FeedPer = FeedPer.ITERATION) -> Plan:
    feed = FeedPlan(name="people", take=take, per=per, rows=rows, digest=7)
    return plan(replace(workflow("Load", vus=90), feeds=(feed,)))


@pytest.mark.parametrize("take", [Take.ONCE, Take.CIRCULAR])
@given(
    cores=st.lists(st.integers(1, 200), min_size=1, max_size=6), rows=st.integers(2_000, 100_000)
)
def test_datacenters_deal_disjoint_rows_and_together_all_of_them(
    take: Take, cores: list[int], rows: int
) -> None:
    job = fed(rows, take)
    named = {f"dc{n}": each for n, each in enumerate(cores)}
    for shares in (split_plan(job, named), whole_plan(job, list(named))):
        next_row = 0
        for shared in shares.values():
            (feed,) = sliced(job, shared).workflows[0].feeds
            assert feed.span[0] == next_row
            next_row += feed.span[1]
        assert next_row == rows


def test_random_rows_are_any_rows_and_differ_between_datacenters() -> None:
    job = fed(100, Take.RANDOM)
    parts = [sliced(job, each).workflows[0] for each in split_plan(job, {"a": 1, "b": 1}).values()]
    assert [part.feeds[0].span for part in parts] == [(0, 100)] * 2
    assert len({part.seed_of(part.feeds[0]) for part in parts}) == 2


def test_circular_rows_of_users_follow_their_numbers_in_the_whole_job() -> None:
    job = fed(100, Take.CIRCULAR, FeedPer.VU)
    parts = [sliced(job, each).workflows[0] for each in split_plan(job, {"a": 1, "b": 1}).values()]
    assert [part.feeds[0].span for part in parts] == [(0, 100)] * 2


def test_fewer_rows_than_datacenters_are_refused_if_each_is_dealt_once() -> None:
    assert split_problem(fed(2), 3) == "Load has 2 rows in people, fewer than 3 datacenters"
    assert split_problem(fed(2, Take.CIRCULAR), 3) is None
    shares = split_plan(fed(2, Take.CIRCULAR), {"a": 1, "b": 1, "c": 1})
    assert all(not shared["Load"].rows for shared in shares.values())


def test_a_datacenter_that_replaces_another_deals_none_of_the_rows_it_may_have_used() -> None:
    job = fed(100)
    shared = without_rows(job, split_plan(job, {"a": 1, "b": 1})["b"])
    (feed,) = sliced(job, shared).workflows[0].feeds
    assert feed.dealt == 0


@given(cores=st.lists(st.integers(1, 9), min_size=1, max_size=5), total=st.integers(1, 400))
def test_datacenters_together_have_the_arrivals_of_the_job(cores: list[int], total: int) -> None:
    rate = replace(workflow("Rate", vus=50), stages=constant(total, 1.0), is_open=True)
    job = plan(rate)
    shares = split_plan(job, {f"dc{n}": each for n, each in enumerate(cores)})
    found = sum(len(arrivals(job, shared)) for shared in shares.values())
    assert abs(found - total) < len(cores)
    assert found == total or len(set(cores)) > 1  # exactly, if they are equal


def test_arrivals_of_equal_datacenters_alternate() -> None:
    job = plan(replace(workflow("Rate", vus=50), stages=constant(30, 1.0), is_open=True))
    found = [
        due_s
        for shared in split_plan(job, dict.fromkeys("abc", 4)).values()
        for due_s in arrivals(job, shared)
    ]
    assert sorted(found) == pytest.approx([n / 30 for n in range(30)])


def arrivals(job: Plan, shared: PlanShare) -> list[float]:
    """Return when the arrivals of a datacenter are due."""
    part = sliced(job, shared).workflows[0]
    made, found = Arrivals(part.stages, 1, 0, phase=part.arrival_phase), []
    while (due_s := made.next_s()) is not None:
        found.append(due_s)
        made.advance()
    return found


def test_poisson_arrivals_differ_between_datacenters() -> None:
    load = replace(workflow("Rate", vus=50), arrivals=ArrivalKind.POISSON, is_open=True)
    job = plan(replace(load, stages=constant(30, 1.0)))
    shares = split_plan(job, {"a": 1, "b": 1}).values()
    assert len({sliced(job, shared).workflows[0].arrival_seed for shared in shares}) == 2
