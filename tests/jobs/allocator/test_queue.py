"""Waiting requests: their order, their position, and the reason they are given."""

from hyperscale.jobs.allocator.queue import AGE_S, FORGET_S
from hyperscale.jobs.messages import AttemptId, HeldCores, RequestState
from hyperscale.plan import Priority
from tests.lab.allocator_world import AllocatorWorld


def test_a_request_that_does_not_fit_waits_and_gets_its_position() -> None:
    world = AllocatorWorld(4)
    world.request("a")
    world.settle()
    world.request("b")
    world.now_s += 1
    world.request("c")
    assert (world.repeat("b").position, world.repeat("c").position) == (1, 2)
    world.end("a")
    world.run(1.0)
    assert "b" in world.granted


def test_a_waiting_request_is_answered_with_the_reason() -> None:
    world = AllocatorWorld(4)
    world.request("a", vus=3)
    world.settle()
    high = world.request("b", priority=Priority.HIGH)
    assert high.reason == "Load needs 3 cores, and 3 of 4 are busy"
    assert world.request("c", priority=Priority.LOW).reason == "Load waits behind Load of b"
    world.now_s += AGE_S
    world.tick()
    alone = world.request("d", priority=Priority.EXCLUSIVE)
    assert alone.reason == "Load is EXCLUSIVE and waits for Load of a to end"
    recovered = world.request("a#2", is_recovery=True, part=0, cores=1)
    assert recovered.reason == "Load needs 1 core on another worker, and 3 of 4 are busy"


def test_the_reason_names_the_exclusive_workflow() -> None:
    world = AllocatorWorld(4)
    reply = world.request("a", priority=Priority.EXCLUSIVE)
    assert reply.reason == ""  # it is about to get its cores
    world.settle()
    assert world.request("b").reason == "Load waits for the EXCLUSIVE Load of a to end"
    new = AllocatorWorld(4, announced=False)
    new.announce("w0")
    reason = new.request("a", priority=Priority.EXCLUSIVE).reason
    assert reason.startswith("Load is EXCLUSIVE and waits 15 s more")


def test_small_requests_do_not_starve_an_exclusive_one() -> None:
    world = AllocatorWorld(4)
    world.request("small-0", vus=2)
    world.settle()
    world.request("alone", priority=Priority.EXCLUSIVE)
    started_s = world.now_s
    number = 0
    while "alone" not in world.granted:
        number += 1
        world.request(f"small-{number}", vus=2)
        world.run(5.0)
        ended = [name for name in world.granted if name.startswith("small")]
        if ended:
            world.end(ended[0])
        world.run(1.0)
        assert world.now_s < started_s + 4 * AGE_S
    assert world.cores("alone") == 4


def test_a_request_that_has_waited_outranks_a_later_one_of_higher_priority() -> None:
    world = AllocatorWorld(4)
    world.request("first")
    world.settle()
    world.request("low", priority=Priority.LOW)
    world.run(4 * AGE_S)
    reply = world.request("high", priority=Priority.HIGH)
    assert reply.position == 2


def test_waiting_requests_keep_their_order_when_the_allocator_changes() -> None:
    world = AllocatorWorld(4, announced=False)
    world.held["w0"] = [HeldCores(attempt_id=AttemptId("old", "Load", 0, 1), cores=4)]
    world.announce("w0")
    world.request("later", waited_s=5.0)
    world.request("new")
    world.request("earlier", waited_s=9.0)
    world.request("patient", waited_s=2 * AGE_S, priority=Priority.LOW)
    world.settle()
    positions = {name: world.repeat(name).position for name in world.requests}
    assert positions == {"patient": 1, "earlier": 2, "later": 3, "new": 4}


def test_the_queue_is_bounded() -> None:
    world = AllocatorWorld(1, queue_max=2)
    for name in "abcd":
        world.request(name)
        world.settle()
    reply = world.request("e")
    assert reply.state is RequestState.EXCEEDED
    assert reply.retry_after_s > 0
    assert reply.position == 3
    assert "capacity exceeded" in reply.reason
    assert world.allocator.room == 0
    assert world.request("again", is_recovery=True, part=0, cores=1).state is RequestState.QUEUED


def test_a_request_that_is_no_longer_repeated_is_forgotten() -> None:
    world = AllocatorWorld(4)
    world.request("a")
    world.settle()
    world.request("b")
    world.run(FORGET_S + 1, repeats=False)
    assert world.allocator.waiting == 0


def test_the_reason_says_that_there_are_no_workers() -> None:
    assert "no workers" in AllocatorWorld().request("a").reason


def test_a_lost_part_that_no_worker_can_take_is_impossible() -> None:
    world = AllocatorWorld(4)
    reply = world.request("a#2", is_recovery=True, part=0, cores=5)
    assert reply.state is RequestState.IMPOSSIBLE
