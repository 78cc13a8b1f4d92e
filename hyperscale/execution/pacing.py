"""When virtual users begin their iterations, where they do not simply loop.

`UserCrew` asks its pacing before every iteration of a user (`turn`). `ClosedPacing` lets each user
wait for its next start, and follows the stages with the number of users. `OpenPacing` begins an
iteration for every arrival, on a user that is free; an arrival that finds none is dropped. Both
count in places of the workflow's shape (`plan.changes`), which stand still while it is paused.

`engine/pacing.rs` does the same for native programs.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from random import Random
from typing import Any

from hyperscale._native import Recorder
from hyperscale.execution.slot_clock import SlotClock
from hyperscale.plan import WorkflowPlan
from hyperscale.plan.changes import LoadSchedule
from hyperscale.plan.shapes import Arrivals, slot_users

OVER = -1
"""What `turn` returns for a user that ends."""

_NS = 1_000_000_000
_TIMER_NS = 2_000_000
"""How much earlier than asked for a timer of the loop may fire: the loop counts milliseconds."""

_CATCH_UP_S = 0.25
"""Arrivals that a change has made due for longer than this do not begin."""


class _Place:
    """One user of a paced crew."""

    __slots__ = ("due_s", "is_in", "left", "number", "phase_s", "waiter")

    def __init__(self, number: int, left: int | None) -> None:
        self.number = number  # within the slot
        self.left = left  # iterations; None: no limit of its own
        # Places in the shape.
        self.due_s: float | None = None  # start of its next iteration; None: it has had none
        self.phase_s = 0.0  # with an interval: when it first began
        self.is_in = False  # it loops
        self.waiter: asyncio.Future[None] | None = None  # of a user that waits


class ClosedPacing:
    """Users that loop with pauses, or join and leave as the shape has it."""

    def __init__(self, plan: WorkflowPlan, clock: SlotClock, *, slots: int, slot: int) -> None:
        self._plan = plan
        self._clock = clock
        self._slots, self._slot = slots, slot
        self._changes = list(slot_users(clock.schedule.stages, slots, slot))
        self._changed = 0
        self._is_paused = clock.schedule.is_paused
        self._places: dict[Any, _Place] = {}
        self._in_order: list[_Place] = []
        self._wanted = 0
        self._random = Random(plan.seed * 2**32 + slot)  # noqa: S311 - not for secrets
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False
        self.looping = 0

    def start(self, users: Sequence[Any]) -> None:
        """Start with the users of the slot in order, when its clock has begun."""
        self.add(users)
        self._follow()

    def add(self, users: Sequence[Any], *, are_looping: bool = False) -> None:
        """Add users, which begin when the shape wants them, or which loop already."""
        for user in users:
            place = _Place(len(self._in_order), self._plan.iterations_per_vu)
            if are_looping:
                place.is_in, place.due_s = True, self._clock.place_s
                self.looping += 1
            self._in_order.append(place)
            self._places[user] = place

    def change(self) -> None:
        """Follow the schedule of the clock, which has changed."""
        schedule = self._clock.schedule
        self._is_paused = schedule.is_paused
        self._changes = list(slot_users(schedule.stages, self._slots, self._slot))
        self._changed = 0
        self._follow()
        for place in self._in_order:
            _wake(place)

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
                await _wait(place, None)
                continue
            if self._is_paused:
                await _wait(place, None)
                continue
            if not place.is_in:
                place.is_in = True
                self.looping += 1
            if place.due_s is None:
                place.due_s = self._first_s(place)
            delay_s = place.due_s - self._clock.place_s
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
        interval_s, now_s = self._plan.interval_s, self._clock.place_s
        if interval_s is None:
            return now_s
        if self._changes:  # a user that joins later begins at once, and keeps that phase
            place.phase_s = now_s
            return now_s
        user = self._slot + place.number * self._slots
        place.phase_s = interval_s * user / self._plan.vus
        began_s = self._clock.schedule.place_s(self._clock.offset_s)
        return _next_on_grid(place.phase_s, interval_s, began_s)

    def _next_s(self, place: _Place) -> float:
        now_s = self._clock.place_s
        if self._plan.interval_s is not None:
            # Starts that the iteration overlapped are missed.
            return _next_on_grid(place.phase_s, self._plan.interval_s, now_s)
        if self._plan.think_s is not None:
            return now_s + self._random.uniform(*self._plan.think_s)
        return now_s

    def _follow(self) -> None:
        """Apply the changes of the number of users that are due."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._changes:
            self._want(len(self._in_order))
            return
        now_s, wanted = self._clock.place_s, self._wanted
        while self._changed < len(self._changes):
            at_s, users = self._changes[self._changed]
            if at_s > now_s:
                if not self._is_paused:
                    loop = asyncio.get_running_loop()
                    self._timer = loop.call_later(at_s - now_s, self._follow)
                break
            self._changed += 1
            wanted = users
        self._want(wanted)

    def _want(self, count: int) -> None:
        before, self._wanted = self._wanted, count
        for place in self._in_order[min(before, count) : max(before, count)]:
            _wake(place)


class OpenPacing:
    """Arrivals at a rate, each begun by a user that is free."""

    def __init__(
        self,
        plan: WorkflowPlan,
        clock: SlotClock,
        recorder: Recorder,
        *,
        slots: int,
        slot: int,
    ) -> None:
        self._clock = clock
        self._arrivals = Arrivals(
            clock.schedule.stages, slots, slot, seed=plan.arrival_seed, phase=plan.arrival_phase
        )
        self._recorder = recorder
        self._began_ns = 0  # when the place was 0, if the workflow had never been paused
        self._free: list[asyncio.Future[int]] = []  # the one that was busy last comes first
        self._users = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_paused = False
        self._is_over = False

    @property
    def looping(self) -> int:
        """Users that are in an iteration."""
        return 0 if self._is_over else max(0, self._users - len(self._free))

    def start(self, users: Sequence[Any]) -> None:
        """Start, when the clock of the slot has begun. The first arrivals begin once the users wait
        for them."""
        self._users = len(users)
        self._arrivals.skip_until(self._clock.missed_from_s)
        self._skip_until(self._clock.schedule.place_s(self._clock.offset_s))
        self._follow()

    def change(self) -> None:
        """Follow the schedule of the clock, which has changed."""
        self._arrivals.reshape(self._clock.schedule.stages)
        # A change that took long to get here must not begin all that it asks for at once.
        self._skip_until(self._clock.place_s - _CATCH_UP_S)
        self._follow()

    def _skip_until(self, place_s: float) -> None:
        if missed := self._arrivals.skip_until(place_s):
            self._recorder.add_dropped(time.perf_counter_ns(), missed)

    def _follow(self) -> None:
        """Begin arrivals as they are due from now on."""
        if self._timer is not None:
            self._timer.cancel()
        self._is_paused = self._clock.schedule.is_paused
        if not self._is_paused:
            self._began_ns = time.perf_counter_ns() - round(self._clock.place_s * _NS)
            self._timer = asyncio.get_running_loop().call_later(0, self._begin_due)

    def stop(self) -> None:
        """Begin nothing more; arrivals that were due and have not begun are dropped."""
        if self._is_over:
            return
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        until_ns = 0 if self._is_paused else time.perf_counter_ns() + _TIMER_NS
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
    plan: WorkflowPlan, clock: SlotClock, recorder: Recorder, *, slots: int, slot: int
) -> Pacing | None:
    """Return the pacing of a slot; None: users loop."""
    if plan.is_open:
        return OpenPacing(plan, clock, recorder, slots=slots, slot=slot)
    if is_paced(plan, clock.schedule):
        return ClosedPacing(plan, clock, slots=slots, slot=slot)
    return None


def is_paced(plan: WorkflowPlan, schedule: LoadSchedule) -> bool:
    """Return True if users do not simply loop."""
    settings = (plan.interval_s, plan.think_s, plan.iterations_per_vu, schedule.stages or None)
    is_set = any(setting is not None for setting in settings)
    return plan.is_timed and (is_set or schedule.is_paused)


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
