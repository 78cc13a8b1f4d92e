"""The allocator: constraints on labels of workers, and the spread over their values."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from hyperscale.jobs.allocator.placement import divide
from hyperscale.jobs.allocator.queue import AGE_S
from hyperscale.jobs.messages import RequestState
from hyperscale.jobs.worker_events import WorkerDown
from hyperscale.plan import Priority
from hyperscale.plan.placement import Placement
from tests.lab.allocator_world import AllocatorWorld

IN_A = Placement((("zone", ("a",)),))
IN_B = Placement((("zone", ("b",)),))
IN_C = Placement((("zone", ("c",)),))
BOTH = Placement(spread="zone")


def by_worker(world: AllocatorWorld, request: str) -> dict[str, int]:
    cores: Counter[str] = Counter()
    for share in world.granted[request].shares:
        cores[share.worker] += share.cores
    return dict(cores)


def test_a_constrained_workflow_gets_the_workers_that_meet_it() -> None:
    world = AllocatorWorld(4, 4, 4, zones="aba")
    world.request("a", placement=IN_A)
    world.settle()
    assert by_worker(world, "a") == {"w0": 4, "w2": 4}


def test_the_priority_of_a_constrained_workflow_is_of_its_own_pool() -> None:
    world = AllocatorWorld(8, 4, zones="ab")
    world.request("high", placement=IN_B, priority=Priority.HIGH)
    world.request("low", placement=IN_B, priority=Priority.LOW)
    world.settle()
    assert (world.cores("high"), world.cores("low")) == (3, 1)


def test_an_unconstrained_workflow_leaves_the_narrow_pool_to_the_one_that_needs_it() -> None:
    world = AllocatorWorld(4, 4, zones="ab")
    world.request("anywhere", together=2, job="j", workflow="Anywhere")
    world.request("b", placement=IN_B, together=2, job="j", workflow="InB")
    world.settle()
    assert by_worker(world, "b") == {"w1": 4}
    assert by_worker(world, "anywhere") == {"w0": 4}


def test_a_workflow_waits_for_busy_workers_that_meet_it_and_says_so() -> None:
    world = AllocatorWorld(4, 4, zones="ab")
    world.request("first", placement=IN_B)
    world.settle()
    world.request("second", placement=IN_B)
    world.settle()
    reply = world.repeat("second")
    assert reply.state is RequestState.QUEUED
    assert reply.reason == "Load needs 1 core, and 4 of 4 that have zone=b are busy"
    world.end("first")
    world.run(1.0)
    assert by_worker(world, "second") == {"w1": 4}


def test_an_aged_constrained_workflow_does_not_keep_other_workers_from_others() -> None:
    world = AllocatorWorld(4, 4, zones="ab")
    world.request("holds", placement=IN_B, vus=3)
    world.settle()
    world.request("aged", placement=IN_B, priority=Priority.HIGH)
    world.run(AGE_S + 1)
    assert "aged" not in world.granted
    world.request("later", placement=IN_B, vus=1)
    world.request("elsewhere", placement=IN_A)
    world.run(2.0)
    assert "later" not in world.granted
    assert by_worker(world, "elsewhere") == {"w0": 4}


def test_a_workflow_that_no_worker_can_meet_is_impossible_and_says_what_there_is() -> None:
    world = AllocatorWorld(4, 4, zones="ab")
    reply = world.request("c", placement=IN_C)
    assert reply.state is RequestState.IMPOSSIBLE
    assert reply.reason == "no worker has zone=c (of 2 workers, zone is a on 1, b on 1)"
    assert world.allocator.why_unmet([IN_A, IN_C]) == reply.reason
    assert world.allocator.why_unmet([IN_A, IN_B]) == ""


def test_a_new_allocator_calls_no_placement_impossible() -> None:
    world = AllocatorWorld(4, zones="a", announced=False)
    assert world.allocator.why_unmet([IN_C]) == ""
    assert world.request("c", placement=IN_C).state is RequestState.REBUILDING


def test_a_lost_part_goes_to_a_worker_that_meets_its_placement() -> None:
    world = AllocatorWorld(2, 4, 2, zones="aba")
    world.request("a", placement=IN_A, vus=2)
    world.settle()
    (lost,) = by_worker(world, "a")
    world.handle(WorkerDown(lost, is_certain=True))
    fields = {"part": 0, "cores": 2, "is_recovery": True, "job": "a"}
    world.request("again", placement=IN_A, **fields)
    world.settle(holds=False)
    assert by_worker(world, "again") == {({"w0", "w2"} - {lost}).pop(): 2}


def test_a_spread_workflow_gets_as_many_cores_of_each_value() -> None:
    world = AllocatorWorld(6, 2, 2, zones="abb")
    world.request("spread", placement=BOTH)
    world.settle()
    assert by_worker(world, "spread") == {"w0": 5, "w1": 2, "w2": 2}


def test_a_lost_part_of_a_spread_workflow_goes_to_the_emptier_value() -> None:
    world = AllocatorWorld(3, 1, 3, 1, zones="aabb")
    world.request("s", placement=BOTH, vus=4)
    world.settle()
    zones = Counter(world.labels[name]["zone"] for name in by_worker(world, "s"))
    assert zones == {"a": 1, "b": 1}
    lost = next(name for name in by_worker(world, "s") if world.labels[name]["zone"] == "b")
    world.handle(WorkerDown(lost, is_certain=True))
    world.request("again", placement=BOTH, part=1, cores=1, is_recovery=True, job="s")
    world.settle(holds=False)
    assert [world.labels[name]["zone"] for name in by_worker(world, "again")] == ["b"]


def test_a_worker_without_the_label_is_no_part_of_a_spread() -> None:
    world = AllocatorWorld(4, 4, zones="a")
    world.request("spread", placement=BOTH)
    world.settle()
    assert by_worker(world, "spread") == {"w0": 4}


@given(
    workers=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), min_size=1, max_size=8),
    share=st.floats(0, 1),
    least_share=st.floats(0, 1),
)
def test_a_division_is_even_unless_the_minimum_needs_more(
    workers: list[tuple[str, int]], share: float, least_share: float
) -> None:
    free = {f"w{index}": cores for index, (_, cores) in enumerate(workers)}
    labels = {f"w{index}": zone for index, (zone, _) in enumerate(workers)}
    cores = round(sum(free.values()) * share)
    least = round(cores * least_share)
    shares = divide(cores, least, free, labels)
    assert all(each.cores <= free[each.worker] for each in shares)
    total = sum(each.cores for each in shares)
    assert least <= total <= cores
    room: Counter[str] = Counter()
    given_cores: Counter[str] = Counter()
    for name, count in free.items():
        room[labels[name]] += count
    for each in shares:
        given_cores[labels[each.worker]] += each.cores
    open_zones = [zone for zone, count in room.items() if count]
    if total > least and open_zones:
        counts = [given_cores[zone] for zone in open_zones]
        assert max(counts) - min(counts) <= 1
