"""Properties of the allocator: no core is granted twice, and no request waits for ever."""

from hypothesis import given, settings
from hypothesis import strategies as st

from hyperscale.jobs.allocator.core import Allocator
from hyperscale.jobs.allocator.events import BecameAllocator
from hyperscale.jobs.allocator.queue import AGE_S, RESERVE_S, SETTLE_S
from hyperscale.jobs.messages import RequestState
from hyperscale.plan import Priority
from tests.lab.allocator_world import AllocatorWorld

GIVE_UP_S = RESERVE_S - 5.0  # job leaders release a grant that they could not use by then

Wanted = tuple[Priority, int, bool]  # priority, virtual users, is a test
wanted_cores = st.tuples(st.sampled_from(Priority), st.integers(1, 12), st.booleans())
steps = st.one_of(
    st.tuples(st.just("request"), wanted_cores),
    st.tuples(st.just("wait"), st.integers(1, 40)),
    st.tuples(st.just("hold"), st.none()),
    st.tuples(st.just("end"), st.integers(0, 5)),
    st.tuples(st.just("release"), st.integers(0, 5)),
    st.tuples(st.just("drain"), st.integers(0, 3)),
    st.tuples(st.just("lead"), st.none()),
)


class Script:
    """Job leaders and workers that take an arbitrary time for each step."""

    def __init__(self, totals: list[int]) -> None:
        self.pool = AllocatorWorld(*totals)
        self.granted_s: dict[str, float] = {}
        self.count = 0

    def request(self, wanted: Wanted) -> None:
        priority, vus, is_test = wanted
        self.count += 1
        self.pool.request(f"j{self.count}", priority=priority, vus=vus, is_test=is_test)

    def wait(self, tenths: int) -> None:
        pool = self.pool
        pool.run(tenths / 10, holds=False)
        for name in pool.granted:
            self.granted_s.setdefault(name, pool.now_s)
        held = {each.attempt_id.job for worker in pool.held.values() for each in worker}
        for name in [name for name in pool.granted if name not in held]:
            if pool.now_s >= self.granted_s[name] + GIVE_UP_S:
                self._release(name)

    def hold(self, _: None) -> None:
        self.pool.hold()

    def end(self, index: int) -> None:
        """End a running workflow."""
        held = [each.attempt_id.job for worker in self.pool.held.values() for each in worker]
        running = list(dict.fromkeys(held))
        if index < len(running):
            self.pool.end(running[index])

    def release(self, index: int) -> None:
        """Release a request, or a grant that no worker holds yet."""
        held = {each.attempt_id.job for worker in self.pool.held.values() for each in worker}
        open_ = [name for name in self.pool.requests if name not in held]
        if index < len(open_):
            self._release(open_[index])

    def _release(self, name: str) -> None:
        pool = self.pool
        pool.granted.pop(name, None)
        del pool.requests[name]
        pool.release(name)

    def drain(self, index: int) -> None:
        """Drain a worker, or take the drain back."""
        if index < len(self.pool.totals):
            self.pool.draining ^= {f"w{index}"}
            self.pool.announce(f"w{index}")

    def lead(self, _: None) -> None:
        """Replace the allocator. Grants that no worker holds yet are lost."""
        pool = self.pool
        held = {each.attempt_id.job for worker in pool.held.values() for each in worker}
        for name in [name for name in pool.granted if name not in held]:
            del pool.granted[name]
            del pool.requests[name]
        pool.allocator = Allocator()
        pool.handle(BecameAllocator(tuple(pool.totals)))
        for worker in pool.totals:
            pool.announce(worker)

    def check(self) -> None:
        pool = self.pool
        taken = dict.fromkeys(pool.totals, 0)
        for answer in pool.granted.values():
            for share in answer.shares:
                taken[share.worker] += share.cores
        assert all(taken[name] <= total for name, total in pool.totals.items())
        exclusive = [
            name
            for name in pool.granted
            if pool.requests[name].is_test and pool.requests[name].priority is Priority.EXCLUSIVE
        ]
        assert not exclusive or len(pool.granted) == 1


@settings(max_examples=200)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=4), st.lists(steps, max_size=40))
def test_no_core_is_granted_twice(totals: list[int], script: list[tuple[str, object]]) -> None:
    world = Script(totals)
    for name, argument in script:
        getattr(world, name)(argument)
        world.check()


@settings(max_examples=25)
@given(
    totals=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    wanted=wanted_cores,
    stream=st.lists(wanted_cores, min_size=1, max_size=6),
    every=st.integers(5, 30),
    lasts=st.integers(5, 30),
)
def test_a_steady_stream_of_requests_starves_no_request(
    totals: list[int],
    wanted: Wanted,
    stream: list[Wanted],
    every: int,
    lasts: int,
) -> None:
    """Only requests that arrive before it has aged pass it; then it is served."""
    world = Script(totals)
    pool = world.pool
    for each in stream:
        world.request(each)
    pool.settle()
    world.request(wanted)
    patient = f"j{world.count}"
    begun_s: dict[str, float] = {}
    came_s = requested_s = pool.now_s
    ranks = len(Priority)
    outrank = ranks * AGE_S / (every / 10)  # requests that arrive while they outrank it
    bound_s = ranks * AGE_S + (outrank + len(stream) + 2) * (lasts / 10 + 1.0) + AGE_S
    while patient not in pool.granted:
        pool.run(0.5)
        world.check()
        if pool.now_s >= came_s + every / 10:
            came_s = pool.now_s
            world.request(stream[world.count % len(stream)])
        for name in list(pool.granted):
            if pool.now_s >= begun_s.setdefault(name, pool.now_s) + lasts / 10 and name != patient:
                pool.end(name)
        assert pool.now_s < requested_s + bound_s


@given(st.integers(1, 30), st.lists(wanted_cores, min_size=1, max_size=20))
def test_every_waiting_request_has_its_own_position_and_a_reason(
    total: int, requested: list[Wanted]
) -> None:
    world = Script([total])
    pool = world.pool
    pool.request("running", vus=total)
    pool.settle()
    for each in requested:
        world.request(each)
    pool.now_s += SETTLE_S
    pool.tick()
    answers = [pool.repeat(name) for name in pool.requests if name not in pool.granted]
    assert {answer.state for answer in answers} == {RequestState.QUEUED}
    assert sorted(a.position for a in answers) == list(range(1, len(requested) + 1))
    assert all(answer.reason.startswith("Load ") for answer in answers)
