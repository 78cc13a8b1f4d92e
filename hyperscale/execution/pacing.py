"""When virtual users begin their iterations, where they do not simply loop.

`UserCrew` asks its pacing before every iteration of a user (`turn`). `ClosedPacing` lets each user
wait for its next start, and follows the stages with the number of users. `OpenPacing` begins an
iteration for every arrival, on a user that is free; an arrival that finds none is dropped.

`engine/pacing.rs` does the same for native programs.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from random import Random
from typing import Any

from hyperscale._native import Recorder
from hyperscale.plan import ArrivalKind, WorkflowPlan
from hyperscale.plan.shapes import Arrivals, slot_users

OVER = -1
"""What `turn` returns for a user that ends."""

_NS = 1_000_000_000
_TIMER_NS = 2_000_000
"""How much earlier than asked for a timer of the loop may fire: the loop counts milliseconds."""


class _Place:
    """One user of a paced crew."""

    __slots__ = ("due_s", "is_in", "left", "number", "phase_s", "waiter")

    def __init__(self, number: int, left: int | None) -> None:
        self.number = number  # within the slot
        self.left = left  # iterations; None: no limit of its own
        self.due_s: float | None = None  # start of its next iteration; None: it has had none
        self.phase_s = 0.0  # with an interval: when it first began
        self.is_in = False  # it loops
        self.waiter: asyncio.Future[None] | None = None  # of a user that waits


class ClosedPacing:
    """Users that loop with pauses, or join and leave in stages."""

    def __init__(self, plan: WorkflowPlan, *, slots: int, slot: int, offset_s: float) -> None:
        self._plan = plan
        self._slots, self._slot = slots, slot
        self._offset_s = offset_s
        self._changes = list(slot_users(plan.stages, slots, slot))
        self._changed = 0
        self._places: dict[Any, _Place] = {}
        self._in_order: list[_Place] = []
        self._wanted = 0
        self._began_s = 0.0  # when the workflow began, which may be before this slot did
        self._random = Random(plan.seed * 2**32 + slot)  # noqa: S311 - not for secrets
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False
        self.looping = 0

    def start(self, users: Sequence[Any], began_s: float) -> None:
        """Start with the users of the slot in order; its clock began at `began_s`, monotonic."""
        self._in_order = [_Place(n, self._plan.iterations_per_vu) for n in range(len(users))]
        self._places = dict(zip(users, self._in_order, strict=True))
        self._began_s = began_s - self._offset_s
        if self._changes:
            self._change()
        else:
            self._want(len(users))

    def stop(self) -> None:
        """End every user that waits; the others end after their iteration."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        for place in self._in_order:
            _wake(place)

    async def turn(self, user: object) -> int:
        """Wait until the next iteration of a user begins; return 0, or `OVER` if it ends."""
        place = self._places[user]
        if place.due_s is not None:  # it has ended an iteration
            if place.left is not None:
                place.left -= 1
            place.due_s = self._next_s(place)
        while not self._is_over and place.left != 0:
            if place.number >= self._wanted:
                self._leave(place)
                if self._changed >= len(self._changes):
                    break
                await _wait(place, None)
                continue
            if not place.is_in:
                place.is_in = True
                self.looping += 1
            if place.due_s is None:
                place.due_s = self._first_s(place)
            delay_s = place.due_s - time.monotonic()
            if delay_s <= 0:
                return 0
            await _wait(place, delay_s)
        self._leave(place)
        return OVER

    def _leave(self, place: _Place) -> None:
        if place.is_in:
            place.is_in, place.due_s = False, None
            self.looping -= 1

    def _first_s(self, place: _Place) -> float:
        interval_s, now_s = self._plan.interval_s, time.monotonic()
        if interval_s is None:
            return now_s
        if self._changes:  # a user that joins later begins at once, and keeps that phase
            place.phase_s = now_s
            return now_s
        user = self._slot + place.number * self._slots
        place.phase_s = self._began_s + interval_s * user / self._plan.vus
        return _next_on_grid(place.phase_s, interval_s, self._began_s + self._offset_s)

    def _next_s(self, place: _Place) -> float:
        now_s = time.monotonic()
        if self._plan.interval_s is not None:
            # Starts that the iteration overlapped are missed.
            return _next_on_grid(place.phase_s, self._plan.interval_s, now_s)
        if self._plan.think_s is not None:
            return now_s + self._random.uniform(*self._plan.think_s)
        return now_s

    def _change(self) -> None:
        """Apply the changes of the number of users that are due."""
        now_s, wanted = time.monotonic(), self._wanted
        while self._changed < len(self._changes):
            at_s, users = self._changes[self._changed]
            if self._began_s + at_s > now_s:
                delay_s = self._began_s + at_s - now_s
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(delay_s, self._change)
                break
            self._changed += 1
            wanted = users
        self._want(wanted)

    def _want(self, count: int) -> None:
        before, self._wanted = self._wanted, count
        if self._changed >= len(self._changes):
            before, count = 0, len(self._in_order)  # no more changes: users that are out end
        for place in self._in_order[min(before, count) : max(before, count)]:
            _wake(place)


class OpenPacing:
    """Arrivals at a rate, each begun by a user that is free."""

    def __init__(
        self,
        plan: WorkflowPlan,
        recorder: Recorder,
        *,
        slots: int,
        slot: int,
        offset_s: float,
        missed_from_s: float,
    ) -> None:
        seed = plan.seed if plan.arrivals is ArrivalKind.POISSON else None
        self._arrivals = Arrivals(plan.stages, slots, slot, seed=seed)
        self._recorder = recorder
        self._offset_s = offset_s
        self._missed_from_s = missed_from_s  # arrivals from there to the offset never began
        self._began_ns = 0
        self._free: list[asyncio.Future[int]] = []  # the one that was busy last comes first
        self._users = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    @property
    def looping(self) -> int:
        """Users that are in an iteration."""
        return 0 if self._is_over else max(0, self._users - len(self._free))

    def start(self, users: Sequence[Any], began_s: float) -> None:
        """Start; the clock of the slot began at `began_s`, monotonic. The first arrivals begin once
        the users wait for them."""
        now_ns = time.perf_counter_ns()
        self._users = len(users)
        self._began_ns = round((began_s - self._offset_s) * _NS)
        self._arrivals.skip_until(self._missed_from_s)
        if missed := self._arrivals.skip_until(self._offset_s):
            self._recorder.add_dropped(now_ns, missed)
        self._timer = asyncio.get_running_loop().call_later(0, self._begin_due)

    def stop(self) -> None:
        """Begin nothing more; arrivals that were due and have not begun are dropped."""
        if self._is_over:
            return
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        until_ns = time.perf_counter_ns() + _TIMER_NS
        while (due_ns := self._next_ns()) is not None and due_ns < until_ns:
            self._arrivals.advance()
            self._recorder.add_dropped(due_ns)
        free, self._free = self._free, []
        for waiter in free:
            if not waiter.done():
                waiter.set_result(OVER)

    async def turn(self, _user: object) -> int:
        """Wait for an arrival; return when it was due, in nanoseconds, or `OVER`."""
        if self._is_over:
            return OVER
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._free.append(waiter)
        due_ns = await waiter
        if due_ns == OVER:
            return OVER
        if self._is_over:  # stopped after the arrival was given to this user
            self._recorder.add_dropped(due_ns)
            return OVER
        self._recorder.add_arrival(due_ns)
        return due_ns

    def _next_ns(self) -> int | None:
        due_s = self._arrivals.next_s()
        return None if due_s is None else self._began_ns + int(due_s * _NS)

    def _begin_due(self) -> None:
        now_ns = time.perf_counter_ns()
        while (due_ns := self._next_ns()) is not None:
            if due_ns > now_ns:
                # The loop counts milliseconds: a shorter delay would be none, and burn the CPU.
                delay_s = max(0.001, (due_ns - now_ns) / _NS)
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(delay_s, self._begin_due)
                return
            self._arrivals.advance()
            if self._free:
                self._free.pop().set_result(due_ns)
            else:
                self._recorder.add_dropped(due_ns)
        # After the last arrival the users wait on: the end of the workflow ends them.


Pacing = ClosedPacing | OpenPacing


def pacing_of(
    plan: WorkflowPlan,
    recorder: Recorder,
    *,
    slots: int,
    slot: int,
    offset_s: float,
    missed_from_s: float,
) -> Pacing | None:
    """Return the pacing of a slot that begins `offset_s` into the workflow; None: users loop."""
    if plan.is_open:
        return OpenPacing(
            plan,
            recorder,
            slots=slots,
            slot=slot,
            offset_s=offset_s,
            missed_from_s=missed_from_s,
        )
    if is_paced(plan):
        return ClosedPacing(plan, slots=slots, slot=slot, offset_s=offset_s)
    return None


def is_paced(plan: WorkflowPlan) -> bool:
    """Return True if users do not simply loop."""
    settings = (plan.interval_s, plan.think_s, plan.iterations_per_vu, plan.stages or None)
    return (plan.is_test or plan.is_counted) and any(setting is not None for setting in settings)


def _next_on_grid(origin_s: float, interval_s: float, now_s: float) -> float:
    """Return the first of `origin_s`, `origin_s + interval_s`, … that is not before `now_s`."""
    return origin_s + max(0, math.ceil((now_s - origin_s) / interval_s)) * interval_s


async def _wait(place: _Place, delay_s: float | None) -> None:
    """Wait until `_wake`, at most for a time."""
    loop = asyncio.get_running_loop()
    place.waiter = waiter = loop.create_future()
    timer = None if delay_s is None else loop.call_later(delay_s, _wake, place)
    try:
        await waiter
    finally:
        place.waiter = None
        if timer is not None:
            timer.cancel()


def _wake(place: _Place) -> None:
    if place.waiter is not None and not place.waiter.done():
        place.waiter.set_result(None)
