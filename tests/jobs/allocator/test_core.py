"""The allocator: how many cores a request gets, on which workers, and when."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hyperscale.jobs.allocator.core import FREED_S, REBUILD_S
from hyperscale.jobs.allocator.events import LostAllocator
from hyperscale.jobs.allocator.grants import RECOVERED_AT_ONCE
from hyperscale.jobs.allocator.placement import spread_over_workers
from hyperscale.jobs.allocator.queue import AGE_S, RESERVE_S, SETTLE_S, TOGETHER_S
from hyperscale.jobs.messages import (
    SHARED_MAX,
    AnnounceCores,
    AttemptId,
    HeldCores,
    RequestState,
    WorkerShare,
)
from hyperscale.jobs.provisioner import SHARED_PER_WORKER_MAX
from hyperscale.jobs.worker_events import WorkerDown
from hyperscale.plan import Priority
from tests.lab.allocator_world import AllocatorWorld


def test_a_single_workflow_gets_all_cores() -> None:
    world = AllocatorWorld(8, 8, 8)
    assert world.request("a").state is RequestState.QUEUED
    world.settle()
    assert world.cores("a") == 24


def test_high_and_low_together_get_the_ranges_of_their_priorities() -> None:
    world = AllocatorWorld(8, 8, 8)
    world.request("metrics", priority=Priority.LOW)
    world.request("load", priority=Priority.HIGH)
    world.settle()
    assert (world.cores("load"), world.cores("metrics")) == (18, 6)


def test_workflows_of_a_job_share_the_pool_although_their_requests_arrive_apart() -> None:
    world = AllocatorWorld(4)
    world.request("high", job="j", workflow="High", priority=Priority.HIGH, together=2)
    world.now_s += 1.0
    world.request("low", job="j", workflow="Low", priority=Priority.LOW, together=2)
    world.settle()
    assert (world.cores("high"), world.cores("low")) == (3, 1)


@given(
    gap=st.floats(0, 2 * SETTLE_S),
    same_job=st.booleans(),
    ticks=st.lists(st.floats(0, 4 * SETTLE_S), max_size=20),
)
@example(gap=0.0002, same_job=True, ticks=[SETTLE_S + 0.0001])
@example(gap=0.0002, same_job=False, ticks=[SETTLE_S + 0.0001])
def test_requests_that_arrive_together_are_served_together(
    gap: float, same_job: bool, ticks: list[float]
) -> None:
    world = AllocatorWorld(4)
    began_s = world.now_s
    jobs = {"job": "j", "together": 2} if same_job else {}
    world.request("high", priority=Priority.HIGH, **jobs)
    instants = sorted([(began_s + gap, "request"), *((began_s + tick, "tick") for tick in ticks)])
    for world.now_s, what in instants:
        if what == "request":
            world.request("low", priority=Priority.LOW, **jobs)
        else:
            world.tick()
    world.now_s = max(world.now_s, began_s + gap)
    world.settle()
    if same_job or gap < SETTLE_S:
        assert (world.cores("high"), world.cores("low")) == (3, 1)
    else:
        assert world.cores("high") in (3, 4)


def test_ended_workflows_of_a_job_do_not_count_as_requests_made_together() -> None:
    world = AllocatorWorld(4)
    world.request("first", job="j", workflow="First")
    world.settle()
    world.end("first")
    world.request("high", job="j", workflow="High", priority=Priority.HIGH, together=2)
    world.now_s += 1.0
    world.tick()
    world.request("low", job="j", workflow="Low", priority=Priority.LOW, together=2)
    world.settle()
    assert (world.cores("high"), world.cores("low")) == (3, 1)


def test_a_lost_request_does_not_keep_the_other_workflows_of_its_job_waiting() -> None:
    world = AllocatorWorld(4)
    world.request("high", job="j", workflow="High", priority=Priority.HIGH, together=2)
    world.run(TOGETHER_S)
    assert world.cores("high") == 4


def test_ranges_come_from_the_whole_pool_not_from_what_is_free() -> None:
    world = AllocatorWorld(8)
    world.request("first", priority=Priority.NORMAL, vus=4)
    world.settle()
    assert world.cores("first") == 4
    world.request("second", priority=Priority.NORMAL)
    world.settle()
    assert 2 <= world.cores("second") <= 4
    world.request("third", priority=Priority.HIGH)
    world.settle()
    assert "third" not in world.granted  # needs 6 of 8, though fewer are there


def test_a_workflow_gets_no_more_cores_than_virtual_users_and_one_if_it_is_no_test() -> None:
    world = AllocatorWorld(4, 4)
    world.request("small", vus=3)
    world.request("setup", is_test=False)
    world.settle()
    assert (world.cores("small"), world.cores("setup")) == (3, 1)


@given(
    st.integers(1, 40),
    st.dictionaries(st.sampled_from([f"w{i}" for i in range(6)]), st.integers(0, 16), max_size=6),
)
def test_a_workflow_is_spread_over_the_fewest_workers_that_fit(
    cores: int, free: dict[str, int]
) -> None:
    if sum(free.values()) < cores:
        return
    shares = spread_over_workers(cores, free)
    assert sum(share.cores for share in shares) == cores
    assert all(0 < share.cores <= free[share.worker] for share in shares)
    fewest, left = 0, cores
    for count in sorted(free.values(), reverse=True):
        if left <= 0:
            break
        left -= count
        fewest += 1
    assert len(shares) == fewest
    assert len({share.worker for share in shares}) == len(shares)


def test_the_last_share_goes_to_the_fullest_worker_that_fits() -> None:
    assert spread_over_workers(3, {"w0": 8, "w1": 3, "w2": 4}) == [WorkerShare("w1", 3)]


def test_cores_that_come_free_together_are_granted_together() -> None:
    world = AllocatorWorld(2, 2)
    world.request("a")
    world.settle()
    world.request("b")
    world.settle()
    world.held["w0"] = []
    world.announce("w0")
    world.now_s += FREED_S / 2
    world.tick()
    assert "b" not in world.granted
    world.held["w1"] = []
    world.announce("w1")
    world.now_s += FREED_S / 2
    wake_at_s = world.allocator.wake_at_s()
    assert wake_at_s is not None
    assert wake_at_s <= world.now_s
    world.tick()
    assert world.cores("b") == 4


def test_a_recovery_does_not_wait_for_more_cores_to_come_free() -> None:
    world = AllocatorWorld(2, 2)
    world.request("a")
    world.settle()
    world.request("b")
    world.request("a#2", is_recovery=True, part=0, cores=2)
    world.now_s += SETTLE_S
    world.held["w0"] = []
    world.announce("w0")
    assert world.granted["a#2"].shares == [WorkerShare("w0", 2)]


def test_nothing_is_granted_before_every_worker_has_announced_its_cores() -> None:
    world = AllocatorWorld(4, 4, announced=False)
    reply = world.request("a")
    assert reply.state is RequestState.REBUILDING
    assert reply.reason == "Load waits until w0, w1 announced which cores are in use"
    world.announce("w0")
    world.settle()
    assert not world.granted
    world.announce("w1")
    world.settle()
    assert world.cores("a") == 8


def test_cores_granted_by_an_earlier_allocator_are_not_granted_again() -> None:
    world = AllocatorWorld(4, announced=False)
    world.held["w0"] = [HeldCores(attempt_id=AttemptId("old", "Load", 0, 1), cores=3)]
    world.announce("w0")
    world.request("a")
    world.settle()
    assert world.cores("a") == 1


def test_only_exclusive_workflows_wait_for_a_silent_worker_without_a_limit() -> None:
    world = AllocatorWorld(4, 4, announced=False)
    world.announce("w0")
    world.request("a", priority=Priority.EXCLUSIVE)
    world.request("b", vus=1)
    world.run(REBUILD_S + 1)
    assert set(world.granted) == {"b"}
    world.end("b")
    world.handle(WorkerDown("w1"))
    world.run(RESERVE_S)
    assert world.cores("a") == 4


def test_an_exclusive_workflow_runs_alone_even_with_few_virtual_users() -> None:
    world = AllocatorWorld(4, 4)
    world.request("alone", priority=Priority.EXCLUSIVE, vus=2)
    world.request("other")
    world.settle()
    assert world.cores("alone") == 2
    world.run(5.0)
    assert "other" not in world.granted
    new = AllocatorWorld(4, 4, announced=False)  # a new allocator learns it from the workers
    new.held = world.held
    for name in new.totals:
        new.announce(name)
    new.request("other")
    new.settle()
    assert not new.granted
    world.end("alone")
    world.run(1.0)
    assert "other" in world.granted


def test_a_request_repeated_while_its_grant_is_in_use_gets_no_more_cores() -> None:
    world = AllocatorWorld(2, 2)
    world.request("normal", priority=Priority.NORMAL)
    world.settle()
    first = world.granted["normal"]
    assert world.repeat("normal") == first
    world.end("normal")
    world.request("auto")
    world.settle()
    assert world.cores("auto") == 4


def test_a_request_of_a_deposed_job_leader_is_refused() -> None:
    world = AllocatorWorld(2)
    world.request("old", term=1)
    world.release("old", term=2)
    assert world.request("old", term=1).state is RequestState.NOT_ALLOCATOR
    assert world.request("other group", group=2, term=1).state is RequestState.QUEUED
    assert world.request("new", term=2).state is RequestState.QUEUED


def test_a_release_by_a_deposed_job_leader_is_ignored() -> None:
    world = AllocatorWorld(2)
    world.request("a", term=2)
    world.settle(holds=False)
    world.release("a", term=1)
    assert world.allocator.pool.free() == {"w0": 0}


def test_one_share_of_a_grant_can_be_released() -> None:
    world = AllocatorWorld(2, 2)
    world.request("a")
    world.settle(holds=False)
    world.release("a", part=1)
    assert world.allocator.pool.free() == {"w0": 0, "w1": 2}
    assert world.repeat("a") == world.granted["a"]


def test_a_recovery_of_a_part_that_never_ran_waits_for_free_cores() -> None:
    world = AllocatorWorld(1, 1)
    world.request("other")
    world.settle()
    waits = world.request("new#2", is_recovery=True, part=0, cores=1)
    assert waits.state is RequestState.QUEUED
    world.run(3.0)
    assert "new#2" not in world.granted
    world.end("other")
    world.run(1.0)
    assert not world.granted["new#2"].shared


def test_a_late_announcement_of_a_dead_worker_does_not_bring_its_cores_back() -> None:
    world = AllocatorWorld(1, 1)
    world.handle(WorkerDown("w1"))
    world.announce("w1")  # sent before it died
    assert world.allocator.pool.size == 1
    world.incarnations["w1"] += 1
    world.announce("w1")
    assert world.allocator.pool.size == 2


def test_a_repeated_request_gets_the_same_grant() -> None:
    world = AllocatorWorld(4)
    world.request("a")
    world.settle(holds=False)
    assert world.request("a") == world.granted["a"]
    assert world.free() == 0


def test_an_unused_grant_expires() -> None:
    world = AllocatorWorld(4)
    world.request("a")
    world.settle(holds=False)
    world.run(RESERVE_S + 1, holds=False)
    assert world.free() == 4


def test_a_release_frees_the_reserved_cores() -> None:
    world = AllocatorWorld(4)
    world.request("a")
    world.settle(holds=False)
    world.request("b")
    world.settle(holds=False)
    world.release("a")
    assert world.cores("b") == 4


def test_a_draining_worker_gets_no_new_shares() -> None:
    world = AllocatorWorld(4, 4)
    world.draining.add("w0")
    world.announce("w0")
    world.request("a")
    world.settle()
    assert {share.worker for share in world.granted["a"].shares} == {"w1"}


def test_a_recovery_is_granted_first_and_shares_cores_if_none_are_free() -> None:
    world = AllocatorWorld(2, 2)
    world.request("a")
    world.settle()
    world.request("other")
    world.request("a#2", is_recovery=True, may_share=True, part=0, cores=2, exclude=["w0"])
    world.settle()
    reply = world.granted["a#2"]
    assert reply.shared
    assert reply.shares == [WorkerShare("w1", 2)]
    assert "other" not in world.granted


@pytest.mark.parametrize(
    ("exclude", "taken_by"),
    [(["w1"], "w0"), (["w1", "w0"], "w2"), (["w1", "w2", "w0"], "w1"), (["w9", "w2"], "w0")],
)
def test_a_recovery_goes_to_the_worker_excluded_longest_ago_if_no_other_could_take_it(
    exclude: list[str], taken_by: str
) -> None:
    world = AllocatorWorld(2, 2, 2)
    world.request("a#2", is_recovery=True, part=0, cores=2, exclude=exclude)
    world.settle()
    assert world.granted["a#2"].shares == [WorkerShare(taken_by, 2)]


def test_a_recovery_waits_for_a_busy_worker_rather_than_return_to_an_excluded_one() -> None:
    world = AllocatorWorld(2, 2)
    world.request("a", vus=2)
    world.settle()
    (busy,) = world.granted["a"].shares
    idle = "w1" if busy.worker == "w0" else "w0"
    reply = world.request("b#2", workflow="b", is_recovery=True, part=0, cores=2, exclude=[idle])
    world.settle()
    assert reply.state is RequestState.QUEUED
    assert "b#2" not in world.granted


def test_a_recovery_gets_free_cores_if_there_are_any() -> None:
    world = AllocatorWorld(2, 4, 2)
    world.request("a", vus=2)
    world.settle()
    world.request("a#2", is_recovery=True, may_share=True, part=0, cores=2, exclude=["w0"])
    world.settle()
    reply = world.granted["a#2"]
    assert not reply.shared
    assert reply.shares == [WorkerShare("w2", 2)]


def test_a_core_is_shared_by_at_most_shared_max_executors() -> None:
    world = AllocatorWorld(1)
    for number in range(SHARED_MAX):
        world.request(f"r{number}", is_recovery=True, may_share=True, part=0, cores=1)
        world.settle()
    assert len(world.granted) == SHARED_MAX
    world.request("more", is_recovery=True, may_share=True, part=0, cores=1)
    world.run(2.0)
    assert "more" not in world.granted


def test_many_recoveries_are_granted_in_rounds_and_spread_over_the_workers() -> None:
    lost, left = RECOVERED_AT_ONCE + 50, 300
    world = AllocatorWorld(*[1] * left)
    for number in range(lost):
        world.request(f"r{number}", is_recovery=True, may_share=True, part=0, cores=1)
    too_large = world.request(
        "large", is_recovery=True, may_share=True, part=0, cores=SHARED_MAX + 1
    )
    assert too_large.state is RequestState.IMPOSSIBLE
    world.settle(holds=False)
    assert len(world.granted) == RECOVERED_AT_ONCE
    wake_at_s = world.allocator.wake_at_s()
    assert wake_at_s is not None
    world.now_s = wake_at_s
    world.tick()
    assert len(world.granted) == lost
    assert not any(reply.shared for reply in world.granted.values())
    workers = [reply.shares[0].worker for reply in world.granted.values()]
    assert len(set(workers)) == lost
    world.hold()
    assert world.free() == left - lost


def test_many_recoveries_are_granted_before_new_workflows() -> None:
    lost = RECOVERED_AT_ONCE + 50
    world = AllocatorWorld(*[1] * lost)
    for number in range(lost):
        world.request(f"r{number}", is_recovery=True, may_share=True, part=0, cores=1)
    world.request("new")
    world.run(2.0)
    assert "new" not in world.granted
    assert len(world.granted) == lost
    assert not any(reply.shared for reply in world.granted.values())


def test_an_outdated_announcement_is_ignored() -> None:
    world = AllocatorWorld(4)
    world.request("a")
    world.settle()
    old = AnnounceCores(worker="w0", incarnation=1, version=0, total=4)
    world.handle(old)
    assert world.free() == 0


def test_a_node_that_is_not_the_allocator_grants_nothing() -> None:
    world = AllocatorWorld(4)
    world.handle(LostAllocator())
    assert world.request("a").state is RequestState.NOT_ALLOCATOR
    world.settle(holds=False)
    assert not world.granted


@settings(max_examples=150)
@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=4),
    st.lists(
        st.tuples(
            st.sampled_from(list(Priority)),
            st.integers(1, 20),
            st.booleans(),
            st.integers(0, 40),
            st.integers(0, 6),
        ),
        max_size=12,
    ),
)
def test_no_core_is_granted_twice_and_every_request_is_served(
    totals: list[int], requests: list[tuple[Priority, int, bool, int, int]]
) -> None:
    world = AllocatorWorld(*totals)
    for number, (priority, vus, is_test, wait_s, end) in enumerate(requests):
        world.request(f"j{number}", priority=priority, vus=vus, is_test=is_test)
        world.run(wait_s / 10)
        check(world)
        running = list(world.granted)
        if end < len(running):
            world.end(running[end])
            check(world)
    for _ in range(200):
        if not world.requests:
            break
        world.run(AGE_S / 2)
        check(world)
        for name in list(world.granted):
            world.end(name)
    assert not world.requests


def check(world: AllocatorWorld) -> None:
    for name, total in world.totals.items():
        held = sum(each.cores for each in world.held[name])
        assert held <= total
    jobs = {each.attempt_id.job: each.exclusive for held in world.held.values() for each in held}
    if any(jobs.values()):
        assert len(jobs) == 1


# --- workflows of one job share its cores ------------------------------------------------


def test_workflows_left_without_a_core_share_those_of_their_job() -> None:
    world = AllocatorWorld(1, 1)
    for name in "abcde":
        world.request(name, job="j", workflow=name, together=5)
    world.settle()
    own = {name for name, reply in world.granted.items() if not reply.shared}
    assert len(world.granted) == 5
    assert len(own) == 2
    beside = [reply for reply in world.granted.values() if reply.shared]
    assert all(reply.within_job for reply in beside)
    assert sorted(reply.shares[0].worker for reply in beside) == ["w0", "w0", "w1"]
    world.request("late", job="j", workflow="late")
    world.settle()
    assert world.granted["late"].within_job


def test_jobs_do_not_share_cores_with_each_other() -> None:
    world = AllocatorWorld(1)
    world.request("a", job="j", workflow="a", together=2)
    world.request("b", job="j", workflow="b", together=2)
    world.settle()
    assert world.free() == 0
    world.request("other")
    world.run(2.0)
    assert world.repeat("other").reason == "Load needs 1 core, and 1 of 1 is busy"
    first = "a" if not world.granted["a"].shared else "b"
    world.end(first)  # the other one has its core now
    world.run(2.0)
    assert "other" not in world.granted
    world.end("b" if first == "a" else "a")
    world.run(2.0)
    assert world.cores("other") == 1


def test_a_grant_to_share_keeps_the_core_that_its_job_leaves_meanwhile() -> None:
    world = AllocatorWorld(1)
    world.request("a", job="j", workflow="a")
    world.settle()
    world.request("b", job="j", workflow="b")
    world.request("other")
    world.settle(holds=False)
    assert world.granted["b"].within_job
    world.end("a")
    world.run(2.0, holds=False)
    assert "other" not in world.granted
    assert world.free() == 0


def test_64_workflows_share_the_cores_of_a_worker_and_the_next_one_waits() -> None:
    world = AllocatorWorld(1)
    for number in range(1 + SHARED_PER_WORKER_MAX):
        world.request(f"r{number}", job="j", workflow=f"W{number}")
    world.settle()
    assert len(world.granted) == 1 + SHARED_PER_WORKER_MAX
    world.request("more", job="j")
    world.run(2.0)
    assert world.repeat("more").reason == (
        "Load needs 1 core, and 1 of 1 is busy; 64 workflows share the cores of each worker of its "
        "job, and no more may"
    )
    world.end("r64")
    world.run(2.0)
    assert world.granted["more"].within_job


def test_an_exclusive_workflow_shares_with_none_and_none_with_it() -> None:
    world = AllocatorWorld(1)
    alone = {"job": "j", "workflow": "Alone", "priority": Priority.EXCLUSIVE}
    world.request("a", job="j", workflow="a")
    world.settle()
    world.request("alone", **alone)
    world.request("b", job="j", workflow="b")
    world.settle()
    assert world.granted["b"].within_job
    world.run(AGE_S)
    world.request("c", job="j", workflow="c")
    world.run(2.0)
    assert set(world.granted) == {"a", "b"}  # once it has waited for long, none begins before it
    world.end("a")
    world.end("b")
    world.run(2.0)
    assert set(world.granted) == {"alone"}
    world.end("alone")
    world.run(2.0)
    assert set(world.granted) == {"c"}


def test_a_lost_part_that_shared_cores_shares_those_of_its_job_on_another_worker() -> None:
    world = AllocatorWorld(1, 1)
    world.request("own", job="j", workflow="own", vus=2)
    world.settle()
    assert world.cores("own") == 2
    recovery = {"job": "j", "is_recovery": True, "part": 0, "cores": 1, "within_job": True}
    world.request("b#2", workflow="b", exclude=["w0"], **recovery)
    world.settle()
    assert world.granted["b#2"].within_job
    assert world.granted["b#2"].shares == [WorkerShare("w1", 1)]
    world.request("x#2", **{**recovery, "job": "x"})
    world.run(2.0)
    assert "x#2" not in world.granted  # its job has no core
