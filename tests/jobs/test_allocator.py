"""Cores: who gets how many, where, and when."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from hyperscale.jobs.allocator.core import (
    AGE_S,
    FREED_S,
    REBUILD_S,
    RECOVERED_AT_ONCE,
    RESERVE_S,
    SETTLE_S,
    TOGETHER_S,
    place,
)
from hyperscale.jobs.messages import (
    SHARED_MAX,
    AnnounceCores,
    AskState,
    AttemptId,
    HeldCores,
    ReleaseCores,
    WorkerShare,
)
from hyperscale.plan import Priority
from tests.jobs.pool import Pool


def test_a_single_workflow_gets_all_cores() -> None:
    pool = Pool(8, 8, 8)
    assert pool.ask("a").state is AskState.QUEUED
    pool.settle()
    assert pool.cores("a") == 24


def test_high_and_low_together_share_the_pool_as_the_ranges_say() -> None:
    pool = Pool(8, 8, 8)
    pool.ask("metrics", priority=Priority.LOW)
    pool.ask("load", priority=Priority.HIGH)
    pool.settle()
    assert (pool.cores("load"), pool.cores("metrics")) == (18, 6)


def test_workflows_of_a_job_share_the_pool_however_far_apart_their_asks_come() -> None:
    pool = Pool(4)
    pool.ask("high", job="j", workflow="High", priority=Priority.HIGH, together=2)
    pool.now_s += 1.0
    pool.ask("low", job="j", workflow="Low", priority=Priority.LOW, together=2)
    pool.settle()
    assert (pool.cores("high"), pool.cores("low")) == (3, 1)


@given(
    gap=st.floats(0, 2 * SETTLE_S),
    same_job=st.booleans(),
    ticks=st.lists(st.floats(0, 4 * SETTLE_S), max_size=20),
)
@example(gap=0.0002, same_job=True, ticks=[SETTLE_S + 0.0001])
@example(gap=0.0002, same_job=False, ticks=[SETTLE_S + 0.0001])
def test_those_that_ask_together_are_served_together_whenever_it_is_looked(
    gap: float, same_job: bool, ticks: list[float]
) -> None:
    pool = Pool(4)
    began_s = pool.now_s
    jobs = {"job": "j", "together": 2} if same_job else {}
    pool.ask("high", priority=Priority.HIGH, **jobs)
    instants = sorted([(began_s + gap, "ask"), *((began_s + tick, "tick") for tick in ticks)])
    for pool.now_s, what in instants:
        if what == "ask":
            pool.ask("low", priority=Priority.LOW, **jobs)
        else:
            pool.take(pool.allocator.tick(now_s=pool.now_s))
    pool.now_s = max(pool.now_s, began_s + gap)
    pool.settle()
    if same_job or gap < SETTLE_S:
        assert (pool.cores("high"), pool.cores("low")) == (3, 1)
    else:
        assert pool.cores("high") in (3, 4)


def test_earlier_workflows_of_a_job_do_not_count_as_those_that_ask_together() -> None:
    pool = Pool(4)
    pool.ask("first", job="j", workflow="First")
    pool.settle()
    pool.end("first")
    pool.ask("high", job="j", workflow="High", priority=Priority.HIGH, together=2)
    pool.now_s += 1.0
    pool.take(pool.allocator.tick(now_s=pool.now_s))
    pool.ask("low", job="j", workflow="Low", priority=Priority.LOW, together=2)
    pool.settle()
    assert (pool.cores("high"), pool.cores("low")) == (3, 1)


def test_an_ask_that_is_lost_on_the_way_does_not_keep_the_others_of_its_job_waiting() -> None:
    pool = Pool(4)
    pool.ask("high", job="j", workflow="High", priority=Priority.HIGH, together=2)
    pool.run(TOGETHER_S)
    assert pool.cores("high") == 4


def test_ranges_come_from_the_whole_pool_not_from_what_is_free() -> None:
    pool = Pool(8)
    pool.ask("first", priority=Priority.NORMAL, vus=4)
    pool.settle()
    assert pool.cores("first") == 4
    pool.ask("second", priority=Priority.NORMAL)
    pool.settle()
    assert 2 <= pool.cores("second") <= 4
    pool.ask("third", priority=Priority.HIGH)
    pool.settle()
    assert "third" not in pool.granted  # needs 6 of 8, though fewer are there


def test_no_more_cores_than_virtual_users_and_one_for_what_is_no_test() -> None:
    pool = Pool(4, 4)
    pool.ask("small", vus=3)
    pool.ask("setup", is_test=False)
    pool.settle()
    assert (pool.cores("small"), pool.cores("setup")) == (3, 1)


@given(
    st.integers(1, 40),
    st.dictionaries(st.sampled_from([f"w{i}" for i in range(6)]), st.integers(0, 16), max_size=6),
)
def test_a_workflow_is_spread_over_the_fewest_workers_that_fit(
    cores: int, free: dict[str, int]
) -> None:
    if sum(free.values()) < cores:
        return
    shares = place(cores, free)
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


def test_the_last_worker_is_the_fullest_that_fits() -> None:
    assert place(3, {"w0": 8, "w1": 3, "w2": 4}) == [WorkerShare("w1", 3)]


def test_cores_that_come_free_together_are_given_together() -> None:
    pool = Pool(2, 2)
    pool.ask("a")
    pool.settle()
    pool.ask("b")
    pool.settle()
    pool.held["w0"] = []
    pool.tell("w0")
    pool.now_s += FREED_S / 2
    assert not pool.allocator.tick(now_s=pool.now_s)
    pool.held["w1"] = []
    pool.tell("w1")
    pool.now_s += FREED_S / 2
    assert pool.allocator.wake_at_s() <= pool.now_s
    pool.take(pool.allocator.tick(now_s=pool.now_s))
    assert pool.cores("b") == 4


def test_load_that_was_there_does_not_wait_for_more_cores_to_come_free() -> None:
    pool = Pool(2, 2)
    pool.ask("a")
    pool.settle()
    pool.ask("b")
    pool.ask("a#2", is_recovery=True, part=0, cores=2)
    pool.now_s += SETTLE_S
    pool.held["w0"] = []
    pool.tell("w0")
    assert pool.granted["a#2"].shares == [WorkerShare("w0", 2)]


def test_nothing_is_granted_before_every_worker_has_told() -> None:
    pool = Pool(4, 4, told=False)
    answer = pool.ask("a")
    assert answer.state is AskState.REBUILDING
    assert answer.reason == "Load waits for w0, w1 to tell what runs there"
    pool.tell("w0")
    pool.settle()
    assert not pool.granted
    pool.tell("w1")
    pool.settle()
    assert pool.cores("a") == 8


def test_cores_that_are_held_since_an_earlier_allocator_are_not_granted_again() -> None:
    pool = Pool(4, told=False)
    pool.held["w0"] = [HeldCores(run=AttemptId("old", "Load", 0, 1), cores=3)]
    pool.tell("w0")
    pool.ask("a")
    pool.settle()
    assert pool.cores("a") == 1


def test_a_worker_that_stays_silent_is_waited_for_only_so_long_but_by_the_exclusive() -> None:
    pool = Pool(4, 4, told=False)
    pool.tell("w0")
    pool.ask("a", priority=Priority.EXCLUSIVE)
    pool.ask("b", vus=1)
    pool.run(REBUILD_S + 1)
    assert set(pool.granted) == {"b"}
    pool.end("b")
    pool.take(pool.allocator.worker_down("w1", now_s=pool.now_s))
    pool.run(RESERVE_S)
    assert pool.cores("a") == 4


def test_an_exclusive_workflow_is_alone_even_if_it_has_few_users() -> None:
    pool = Pool(4, 4)
    pool.ask("alone", priority=Priority.EXCLUSIVE, vus=2)
    pool.ask("other")
    pool.settle()
    assert pool.cores("alone") == 2
    pool.run(5.0)
    assert "other" not in pool.granted
    fresh = Pool(4, 4, told=False)  # another allocator learns it from the workers
    fresh.held = pool.held
    for name in fresh.totals:
        fresh.tell(name)
    fresh.ask("other")
    fresh.settle()
    assert not fresh.granted
    pool.end("alone")
    pool.run(1.0)
    assert "other" in pool.granted


def test_an_ask_that_comes_late_when_its_grant_is_in_use_takes_no_more_cores() -> None:
    pool = Pool(2, 2)
    pool.ask("normal", priority=Priority.NORMAL)
    pool.settle()
    first = pool.granted["normal"]
    assert pool.allocator.ask(pool.wishes["normal"], now_s=pool.now_s) == first
    pool.end("normal")
    pool.ask("auto")
    pool.settle()
    assert pool.cores("auto") == 4


def test_a_leader_that_was_deposed_asks_in_vain() -> None:
    pool = Pool(2)
    pool.ask("old", term=1)
    pool.allocator.release(ReleaseCores(ask="old", group=1, term=2), now_s=pool.now_s)
    assert pool.ask("old", term=1).state is AskState.NOT_ALLOCATOR
    assert pool.ask("other group", group=2, term=1).state is AskState.QUEUED
    assert pool.ask("new", term=2).state is AskState.QUEUED


def test_a_leader_that_was_deposed_takes_nothing_back() -> None:
    pool = Pool(2)
    pool.ask("a", term=2)
    pool.settle(holds=False)
    pool.allocator.release(ReleaseCores(ask="a", group=1, term=1), now_s=pool.now_s)
    assert pool.allocator.free() == {"w0": 0}


def test_a_part_of_a_grant_can_be_given_back() -> None:
    pool = Pool(2, 2)
    pool.ask("a")
    pool.settle(holds=False)
    released = ReleaseCores(ask="a", group=1, term=1, part=1)
    pool.allocator.release(released, now_s=pool.now_s)
    assert pool.allocator.free() == {"w0": 0, "w1": 2}
    assert pool.allocator.ask(pool.wishes["a"], now_s=pool.now_s) == pool.granted["a"]


def test_what_never_ran_does_not_share_the_cores_of_others() -> None:
    pool = Pool(1, 1)
    pool.ask("other")
    pool.settle()
    waits = pool.ask("new#2", is_recovery=True, part=0, cores=1)
    assert waits.state is AskState.QUEUED
    pool.run(3.0)
    assert "new#2" not in pool.granted
    pool.end("other")
    pool.run(1.0)
    assert not pool.granted["new#2"].shared


def test_the_last_word_of_a_worker_that_is_gone_does_not_bring_its_cores_back() -> None:
    pool = Pool(1, 1)
    pool.take(pool.allocator.worker_down("w1", now_s=pool.now_s))
    pool.tell("w1")  # it was on its way
    assert pool.allocator.pool == 1
    pool.incarnations["w1"] += 1
    pool.tell("w1")
    assert pool.allocator.pool == 2


def test_asking_again_gets_the_same_grant() -> None:
    pool = Pool(4)
    pool.ask("a")
    pool.settle(holds=False)
    assert pool.ask("a") == pool.granted["a"]
    assert sum(pool.allocator.free().values()) == 0


def test_a_grant_nobody_uses_is_taken_back() -> None:
    pool = Pool(4)
    pool.ask("a")
    pool.settle(holds=False)
    pool.run(RESERVE_S + 1, holds=False)
    assert sum(pool.allocator.free().values()) == 4


def test_a_release_frees_what_was_promised() -> None:
    pool = Pool(4)
    pool.ask("a")
    pool.settle(holds=False)
    pool.ask("b")
    pool.settle(holds=False)
    released = ReleaseCores(ask="a", group=1, term=1)
    pool.take(pool.allocator.release(released, now_s=pool.now_s))
    assert pool.cores("b") == 4


def test_a_draining_worker_gets_nothing_new() -> None:
    pool = Pool(4, 4)
    pool.draining.add("w0")
    pool.tell("w0")
    pool.ask("a")
    pool.settle()
    assert {share.worker for share in pool.granted["a"].shares} == {"w1"}


def test_load_that_was_there_comes_back_first_and_beside_others_if_it_must() -> None:
    pool = Pool(2, 2)
    pool.ask("a")
    pool.settle()
    pool.ask("other")
    pool.ask("a#2", is_recovery=True, may_share=True, part=0, cores=2, exclude=["w0"])
    pool.settle()
    answer = pool.granted["a#2"]
    assert answer.shared
    assert answer.shares == [WorkerShare("w1", 2)]
    assert "other" not in pool.granted


def test_load_that_was_there_comes_back_on_free_cores_if_there_are() -> None:
    pool = Pool(2, 4, 2)
    pool.ask("a", vus=2)
    pool.settle()
    pool.ask("a#2", is_recovery=True, may_share=True, part=0, cores=2, exclude=["w0"])
    pool.settle()
    answer = pool.granted["a#2"]
    assert not answer.shared
    assert answer.shares == [WorkerShare("w2", 2)]


def test_a_core_is_shared_by_only_so_many() -> None:
    pool = Pool(1)
    for number in range(SHARED_MAX):
        pool.ask(f"r{number}", is_recovery=True, may_share=True, part=0, cores=1)
        pool.settle()
    assert len(pool.granted) == SHARED_MAX
    pool.ask("more", is_recovery=True, may_share=True, part=0, cores=1)
    pool.run(2.0)
    assert "more" not in pool.granted


def test_very_many_lost_parts_come_back_in_turns_spread_over_whoever_is_left() -> None:
    lost, left = RECOVERED_AT_ONCE + 50, 300
    pool = Pool(*[1] * left)
    for number in range(lost):
        pool.ask(f"r{number}", is_recovery=True, may_share=True, part=0, cores=1)
    too_large = pool.ask("large", is_recovery=True, may_share=True, part=0, cores=SHARED_MAX + 1)
    assert too_large.state is AskState.IMPOSSIBLE
    pool.settle(holds=False)
    assert len(pool.granted) == RECOVERED_AT_ONCE
    pool.now_s = pool.allocator.wake_at_s()
    pool.take(pool.allocator.tick(now_s=pool.now_s))
    assert len(pool.granted) == lost
    assert not any(answer.shared for answer in pool.granted.values())
    workers = [answer.shares[0].worker for answer in pool.granted.values()]
    assert len(set(workers)) == lost
    pool.hold()
    assert sum(pool.allocator.free().values()) == left - lost


def test_very_many_lost_parts_come_back_before_anything_new_begins() -> None:
    lost = RECOVERED_AT_ONCE + 50
    pool = Pool(*[1] * lost)
    for number in range(lost):
        pool.ask(f"r{number}", is_recovery=True, may_share=True, part=0, cores=1)
    pool.ask("new")
    pool.run(2.0)
    assert "new" not in pool.granted
    assert len(pool.granted) == lost
    assert not any(answer.shared for answer in pool.granted.values())


def test_news_of_a_worker_that_were_overtaken_are_ignored() -> None:
    pool = Pool(4)
    pool.ask("a")
    pool.settle()
    old = AnnounceCores(worker="w0", incarnation=1, version=0, total=4)
    pool.allocator.told(old, now_s=pool.now_s)
    assert sum(pool.allocator.free().values()) == 0


def test_who_does_not_lead_grants_nothing() -> None:
    pool = Pool(4)
    pool.allocator.follow()
    assert pool.ask("a").state is AskState.NOT_ALLOCATOR
    pool.settle(holds=False)
    assert not pool.granted


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
def test_no_core_is_promised_twice_and_nobody_waits_for_ever(
    totals: list[int], wishes: list[tuple[Priority, int, bool, int, int]]
) -> None:
    pool = Pool(*totals)
    for number, (priority, vus, is_test, wait_s, end) in enumerate(wishes):
        pool.ask(f"j{number}", priority=priority, vus=vus, is_test=is_test)
        pool.run(wait_s / 10)
        check(pool)
        running = list(pool.granted)
        if end < len(running):
            pool.end(running[end])
            check(pool)
    for _ in range(200):
        if not pool.wishes:
            break
        pool.run(AGE_S / 2)
        check(pool)
        for name in list(pool.granted):
            pool.end(name)
    assert not pool.wishes


def check(pool: Pool) -> None:
    for name, total in pool.totals.items():
        held = sum(each.cores for each in pool.held[name])
        assert held <= total
    jobs = {each.run.job: each.exclusive for held in pool.held.values() for each in held}
    if any(jobs.values()):
        assert len(jobs) == 1
