"""Those that wait for cores: their order, their place, and why, in words."""

from hyperscale.jobs.allocator.core import AGE_S, FORGET_S
from hyperscale.jobs.messages import AskState, AttemptId, HeldCores
from hyperscale.plan import Priority
from tests.jobs.pool import Pool


def test_who_does_not_fit_waits_and_is_told_its_place() -> None:
    pool = Pool(4)
    pool.ask("a")
    pool.settle()
    pool.ask("b")
    pool.now_s += 1
    pool.ask("c")
    assert (pool.ask("b").position, pool.ask("c").position, pool.ask("c").queue) == (1, 2, 2)
    pool.end("a")
    pool.run(1.0)
    assert "b" in pool.granted


def test_who_waits_is_told_for_what() -> None:
    pool = Pool(4)
    pool.ask("a", vus=3)
    pool.settle()
    assert pool.ask("b", priority=Priority.HIGH).reason == "Load needs 3 cores, and 3 of 4 are busy"
    assert pool.ask("c", priority=Priority.LOW).reason == "Load waits behind Load of b"
    pool.now_s += AGE_S
    pool.take(pool.allocator.tick(now_s=pool.now_s))
    alone = pool.ask("d", priority=Priority.EXCLUSIVE)
    assert alone.reason == "Load is EXCLUSIVE and waits for Load of a to end"
    recovered = pool.ask("a#2", is_recovery=True, part=0, cores=1)
    assert recovered.reason == "Load needs 1 core on another worker, and 3 of 4 are busy"


def test_who_waits_for_an_exclusive_one_or_to_be_one_is_told_so() -> None:
    pool = Pool(4)
    answer = pool.ask("a", priority=Priority.EXCLUSIVE)
    assert answer.reason == ""  # it is about to get its cores
    pool.settle()
    assert pool.ask("b").reason == "Load waits for the EXCLUSIVE Load of a to end"
    fresh = Pool(4, told=False)
    fresh.tell("w0")
    reason = fresh.ask("a", priority=Priority.EXCLUSIVE).reason
    assert reason.startswith("Load is EXCLUSIVE and waits 15 s more")


def test_small_ones_do_not_starve_an_exclusive_one() -> None:
    pool = Pool(4)
    pool.ask("small-0", vus=2)
    pool.settle()
    pool.ask("alone", priority=Priority.EXCLUSIVE)
    started_s = pool.now_s
    number = 0
    while "alone" not in pool.granted:
        number += 1
        pool.ask(f"small-{number}", vus=2)
        pool.run(5.0)
        ended = [name for name in pool.granted if name.startswith("small")]
        if ended:
            pool.end(ended[0])
        pool.run(1.0)
        assert pool.now_s < started_s + 4 * AGE_S
    assert pool.cores("alone") == 4


def test_one_that_has_waited_outranks_a_higher_priority_that_came_later() -> None:
    pool = Pool(4)
    pool.ask("first")
    pool.settle()
    pool.ask("low", priority=Priority.LOW)
    pool.run(4 * AGE_S)
    answer = pool.ask("high", priority=Priority.HIGH)
    assert answer.position == 2


def test_those_who_wait_keep_their_places_when_the_allocator_changes() -> None:
    pool = Pool(4, told=False)
    pool.held["w0"] = [HeldCores(run=AttemptId("old", "Load", 0, 1), cores=4)]
    pool.tell("w0")
    pool.ask("later", waited_s=5.0)
    pool.ask("new")
    pool.ask("earlier", waited_s=9.0)
    pool.ask("patient", waited_s=2 * AGE_S, priority=Priority.LOW)
    pool.settle()
    wishes = pool.wishes.values()
    places = {wish.ask: pool.allocator.ask(wish, now_s=pool.now_s).position for wish in wishes}
    assert places == {"patient": 1, "earlier": 2, "later": 3, "new": 4}


def test_the_queue_is_bounded() -> None:
    pool = Pool(1, queue_max=2)
    for name in "abcd":
        pool.ask(name)
        pool.settle()
    answer = pool.ask("e")
    assert answer.state is AskState.EXCEEDED
    assert answer.retry_after_s > 0
    assert answer.position == 3
    assert "capacity exceeded" in answer.reason
    assert pool.allocator.room == 0
    assert pool.ask("again", is_recovery=True, part=0, cores=1).state is AskState.QUEUED


def test_an_ask_without_a_leader_is_forgotten() -> None:
    pool = Pool(4)
    pool.ask("a")
    pool.settle()
    pool.ask("b")
    pool.run(FORGET_S + 1, asks=False)
    assert pool.allocator.waiting == 0


def test_without_workers_it_is_said_so() -> None:
    assert "no workers" in Pool().ask("a").reason


def test_a_part_nobody_else_can_take_is_impossible() -> None:
    pool = Pool(4)
    answer = pool.ask("a#2", is_recovery=True, part=0, cores=2, exclude=["w0"])
    assert answer.state is AskState.IMPOSSIBLE
