"""Whatever is asked, ended, drained and forgotten: no core twice, and nobody waits for ever."""

from hypothesis import given, settings
from hypothesis import strategies as st

from hyperscale.jobs.allocator.core import AGE_S, RESERVE_S, SETTLE_S, Allocator
from hyperscale.jobs.messages import AskState, ReleaseCores
from hyperscale.plan import Priority
from tests.jobs.pool import Pool

GIVE_UP_S = RESERVE_S - 5.0  # leaders let a grant go that they could not use by then

wishes = st.tuples(st.sampled_from(Priority), st.integers(1, 12), st.booleans())
steps = st.one_of(
    st.tuples(st.just("ask"), wishes),
    st.tuples(st.just("wait"), st.integers(1, 40)),
    st.tuples(st.just("hold"), st.none()),
    st.tuples(st.just("end"), st.integers(0, 5)),
    st.tuples(st.just("release"), st.integers(0, 5)),
    st.tuples(st.just("drain"), st.integers(0, 3)),
    st.tuples(st.just("lead"), st.none()),
)


class Script:
    """Job leaders and workers around an allocator, none of them in a hurry."""

    def __init__(self, totals: list[int]) -> None:
        self.pool = Pool(*totals)
        self.granted_s: dict[str, float] = {}
        self.count = 0

    def ask(self, wish: tuple[Priority, int, bool]) -> None:
        priority, vus, is_test = wish
        self.count += 1
        self.pool.ask(f"j{self.count}", priority=priority, vus=vus, is_test=is_test)

    def wait(self, tenths: int) -> None:
        pool = self.pool
        pool.run(tenths / 10, holds=False)
        for name in pool.granted:
            self.granted_s.setdefault(name, pool.now_s)
        held = {each.run.job for worker in pool.held.values() for each in worker}
        for name in [name for name in pool.granted if name not in held]:
            if pool.now_s >= self.granted_s[name] + GIVE_UP_S:
                self._release(name)

    def hold(self, _: None) -> None:
        self.pool.hold()

    def end(self, index: int) -> None:
        """A workflow that runs is over."""
        held = [each.run.job for worker in self.pool.held.values() for each in worker]
        running = list(dict.fromkeys(held))
        if index < len(running):
            self.pool.end(running[index])

    def release(self, index: int) -> None:
        """A wish, or a grant nobody holds yet, is given up."""
        held = {each.run.job for worker in self.pool.held.values() for each in worker}
        open_ = [name for name in self.pool.wishes if name not in held]
        if index < len(open_):
            self._release(open_[index])

    def _release(self, name: str) -> None:
        pool = self.pool
        pool.granted.pop(name, None)
        del pool.wishes[name]
        release = ReleaseCores(ask=name, group=1, term=1)
        pool.take(pool.allocator.release(release, now_s=pool.now_s))

    def drain(self, index: int) -> None:
        """Begins, or is taken back."""
        if index < len(self.pool.totals):
            self.pool.draining ^= {f"w{index}"}
            self.pool.tell(f"w{index}")

    def lead(self, _: None) -> None:
        """Another allocator, which knows nothing. What nobody holds, nobody promises any more."""
        pool = self.pool
        held = {each.run.job for worker in pool.held.values() for each in worker}
        for name in [name for name in pool.granted if name not in held]:
            del pool.granted[name]
            del pool.wishes[name]
        pool.allocator = Allocator()
        pool.allocator.lead(pool.totals, now_s=pool.now_s)
        for worker in pool.totals:
            pool.tell(worker)

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
            if pool.wishes[name].is_test and pool.wishes[name].priority is Priority.EXCLUSIVE
        ]
        assert not exclusive or len(pool.granted) == 1


@settings(max_examples=200)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=4), st.lists(steps, max_size=40))
def test_no_core_is_promised_twice_whatever_happens(
    totals: list[int], script: list[tuple[str, object]]
) -> None:
    world = Script(totals)
    for name, argument in script:
        getattr(world, name)(argument)
        world.check()


@settings(max_examples=25)
@given(
    totals=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    wish=wishes,
    stream=st.lists(wishes, min_size=1, max_size=6),
    every=st.integers(5, 30),
    lasts=st.integers(5, 30),
)
def test_nobody_is_starved_by_those_who_keep_coming(
    totals: list[int],
    wish: tuple[Priority, int, bool],
    stream: list[tuple[Priority, int, bool]],
    every: int,
    lasts: int,
) -> None:
    """Those that outrank it came within so long: once they are done, it is its turn."""
    world = Script(totals)
    pool = world.pool
    for each in stream:
        world.ask(each)
    pool.settle()
    world.ask(wish)
    patient = f"j{world.count}"
    begun_s: dict[str, float] = {}
    came_s = asked_s = pool.now_s
    ranks = len(Priority)
    outrank = ranks * AGE_S / (every / 10)  # so many come while they outrank it
    bound_s = ranks * AGE_S + (outrank + len(stream) + 2) * (lasts / 10 + 1.0) + AGE_S
    while patient not in pool.granted:
        pool.run(0.5)
        world.check()
        if pool.now_s >= came_s + every / 10:
            came_s = pool.now_s
            world.ask(stream[world.count % len(stream)])
        for name in list(pool.granted):
            if pool.now_s >= begun_s.setdefault(name, pool.now_s) + lasts / 10 and name != patient:
                pool.end(name)
        assert pool.now_s < asked_s + bound_s


@given(st.integers(1, 30), st.lists(wishes, min_size=1, max_size=20))
def test_everyone_who_waits_has_a_place_of_its_own_and_a_reason(
    total: int, asked: list[tuple[Priority, int, bool]]
) -> None:
    world = Script([total])
    pool = world.pool
    pool.ask("running", vus=total)
    pool.settle()
    for each in asked:
        world.ask(each)
    pool.now_s += SETTLE_S
    pool.take(pool.allocator.tick(now_s=pool.now_s))
    answers = [
        pool.allocator.ask(wish, now_s=pool.now_s)
        for name, wish in pool.wishes.items()
        if name not in pool.granted
    ]
    assert {answer.state for answer in answers} == {AskState.QUEUED}
    assert sorted(a.position for a in answers) == list(range(1, len(asked) + 1))
    assert all(answer.reason.startswith("Load ") for answer in answers)
