"""Static workflows: the native engine loops their steps, in short slices.

`graph.static_steps` decides which steps are static. This module compiles and runs a workflow of
only static steps; the native program records the same as the Python loop would. `NativeCrew`
has the interface of `virtual_users.UserCrew`.
"""

import asyncio

from hyperscale._native import Program as NativeProgram
from hyperscale._native import Template
from hyperscale.clients import ClientHub
from hyperscale.clients.hub import CompiledStep
from hyperscale.errors import InputError
from hyperscale.execution.feeds import check_rows
from hyperscale.execution.lease import boottime_ns
from hyperscale.execution.pacing import is_paced
from hyperscale.execution.protocol import PrepareSlot
from hyperscale.execution.slot_clock import SlotClock
from hyperscale.execution.tally import CheckTally, MetricTally
from hyperscale.graph import Blueprint, Hook
from hyperscale.graph.static_steps import FromParameter, StaticCall
from hyperscale.plan import FeedPer
from hyperscale.plan.alternatives import choices_of
from hyperscale.plan.rows import feeds_once
from hyperscale.plan.shapes import slot_users

# Between slices the event loop runs: reports, stops and leases wait for one slice at most.
_SLICE_S = 0.02


class NativeCrew:
    """The virtual users of a native program."""

    def __init__(
        self, program: NativeProgram, assignment: PrepareSlot, clock: SlotClock, *, vus: int
    ) -> None:
        self._program: NativeProgram | None = program
        self._assignment = assignment
        self._clock = clock
        self.size = vus
        self.raised = 0  # there is no code of the test's own
        self._drawn = 0  # once there is no program
        self._driver: asyncio.Task[None] | None = None
        self._is_cut = False
        self._is_halted = False
        self._lease_boottime_ns: int | None = None
        self.breakage: BaseException | None = None
        self.checks: list[CheckTally] = []
        self.metrics: list[MetricTally] = []

    @property
    def looping(self) -> int:
        program = self._program
        return 0 if program is None or self._driver is None else program.active

    def start(self) -> None:
        """Start the program, when the clock of the slot has begun."""
        if self._program is not None:
            self._program.resize(self.size)
            self._pace(self._program)
            work = self._drive(self._program)
            self._driver = asyncio.get_running_loop().create_task(work, name="program")

    def change(self, vus: int) -> None:
        """Follow the changed schedule of the slot's clock, with up to so many users."""
        self.size = max(self.size, vus)
        if self._program is not None and self._driver is not None:
            self._program.resize(self.size)
            self._repace(self._program)

    @property
    def drawn(self) -> int:
        """Iterations that have had their rows, those of earlier attempts included."""
        if self._program is not None:
            self._drawn = self._program.drawn
        return self._drawn

    @property
    def short_of_rows(self) -> int:
        """Users that wait until the slot may use more rows."""
        return 0 if self._program is None else self._program.short_of_rows

    def grant_rows(self, limit: int) -> None:
        if self._program is not None:
            self._program.grant_rows(limit)

    async def wait(self) -> None:
        if self._driver is not None:
            await asyncio.wait((self._driver,))

    def stop(self) -> None:
        if self._program is not None:
            self._program.stop_in(0.0)

    def close(self) -> None:
        """Drop the program, which closes the connections of its users."""
        self._drawn = self.drawn
        self._program = self._driver = None

    def renew_lease(self, deadline_boottime_ns: int) -> None:
        self._lease_boottime_ns = deadline_boottime_ns
        if self._program is not None:
            # Kept natively too, on a clock that goes on while this process is stopped.
            self._program.lease_in(max(0, deadline_boottime_ns - boottime_ns()) / 1e9)

    def halt(self) -> None:
        """Run no further slice: `cut` follows."""
        self._is_halted = True

    def cut(self) -> None:
        if not self._is_cut and self._program is not None:
            self._is_cut = True
            self._program.cut()

    async def _drive(self, program: NativeProgram) -> None:
        try:
            # It is the program that waits; the sleep only lets the loop turn.
            while not self._is_over() and program.run(_SLICE_S):  # noqa: ASYNC110
                await asyncio.sleep(0)
        except Exception as error:  # noqa: BLE001 - the slot fails with it
            self.breakage = error

    def _is_over(self) -> bool:
        lease_ns = self._lease_boottime_ns
        if lease_ns is not None and boottime_ns() >= lease_ns:
            self._is_halted = True  # the lease watch calls `cut`
        return self._is_cut or self._is_halted

    def _pace(self, program: NativeProgram) -> None:
        """Tell the program when its users begin their iterations, if they do not simply loop, and
        when it ends."""
        plan, clock, slots = self._assignment.plan, self._clock, self._assignment.slots
        slot, interval_s, place_s = self._assignment.slot, plan.interval_s, clock.place_s
        begins_at_s = clock.schedule.place_s(clock.offset_s)
        if plan.is_open:
            program.pace_arrivals(
                self._stages(),
                slots,
                slot,
                place_s=place_s,
                begins_at_s=begins_at_s,
                missed_from_s=clock.missed_from_s,
                seed=plan.arrival_seed,
                phase=plan.arrival_phase,
            )
        elif is_paced(plan, clock.schedule):
            users = range(slot, slot + self.size * slots, slots)
            program.pace(
                begins_at_s=begins_at_s,
                place_s=place_s,
                interval_s=interval_s,
                phases_s=[interval_s * user / plan.vus for user in users] if interval_s else [],
                think_s=plan.think_s,
                seed=plan.seed * 2**31 + slot,
                changes=self._users(),
                iterations_per_vu=plan.iterations_per_vu,
            )
        if clock.schedule.is_paused:
            program.pause()
        # Kept natively, to the instant.
        program.end_in(clock.left_s)

    def _repace(self, program: NativeProgram) -> None:
        """Tell a running program that its shape has changed."""
        schedule, place_s = self._clock.schedule, self._clock.place_s
        if self._assignment.plan.is_open:
            program.change_arrivals(self._stages(), place_s=place_s)
        else:
            program.change(self._users(), place_s=place_s)
        if schedule.is_paused:
            program.pause()
        program.end_in(self._clock.left_s)

    def _stages(self) -> list[tuple[float, float]]:
        return [(stage.duration_s, stage.target) for stage in self._clock.schedule.stages]

    def _users(self) -> list[tuple[float, int]]:
        assignment = self._assignment
        stages = self._clock.schedule.stages
        return list(slot_users(stages, assignment.slots, assignment.slot))


def compile_static(
    design: Blueprint,
    hub: ClientHub,
    assignment: PrepareSlot,
    clock: SlotClock,
    *,
    vus: int,
    iterations: int | None,
) -> NativeCrew | None:
    """Compile a static workflow for the native engine; None if it has to run in Python."""
    plan, slots, slot = assignment.plan, assignment.slots, assignment.slot
    bounds = assignment.rows
    if design.why_not_static is not None or _runs_out(assignment, vus):
        return None
    hooks = [hook for layer in design.layers for hook in layer]
    position = {hook.name: place for place, hook in enumerate(hooks)}
    feeds = {feed.name: place for place, feed in enumerate(plan.feeds)}

    def compiled(hook: Hook) -> CompiledStep:
        column = next(iter(hook.columns.values()), None)
        after = [position[name] for name in hook.after]
        return (
            _requests(hook, hub),
            None if column is None else feeds[column.feed],
            design.index[hook.name],
            after,
            list(_static(hook).accepted),
        )

    try:
        layers = [[compiled(hook) for hook in layer] for layer in design.layers]
    except (InputError, AttributeError, TypeError, ValueError):
        # The call cannot be made. The Python loop makes it and shows the user where it fails.
        return None
    program = hub.program(layers, vus, iterations)
    choices = choices_of(plan)
    if choices or plan.feeds:
        check_rows(assignment, design.workflow)
        program.draw(
            [
                (
                    choice.seed,
                    list(choice.bounds),
                    [[position[name] for name in names] for names in choice.left_out],
                )
                for choice in choices
            ],
            [
                (feed.take.value, feed.per is FeedPer.VU, *feed.span, plan.seed_of(feed))
                for feed in plan.feeds
            ],
            slots=slots,
            slot=slot,
            first_vu=plan.first_vu + slot,
            drawn=0 if bounds is None else bounds.first,
            users_before=0 if bounds is None else bounds.users_before,
            limit=None if bounds is None else bounds.limit,
        )
    return NativeCrew(program, assignment, clock, vus=vus)


def _runs_out(assignment: PrepareSlot, vus: int) -> bool:
    """Return True if some users of the slot find no row that they could keep: in Python those end,
    and the others go on."""
    before = 0 if assignment.rows is None else assignment.rows.users_before
    return any(
        feed.dealt < assignment.slots * (before + vus - 1) + assignment.slot + 1
        for feed in feeds_once(assignment.plan, FeedPer.VU)
    )


def _requests(hook: Hook, hub: ClientHub) -> list[Template]:
    """Return the request of a static step, or that of each row of the feed it takes columns of."""
    call = _static(hook)

    def request(row: int) -> Template:
        def value(argument: object) -> object:
            if not isinstance(argument, FromParameter):
                return argument
            column = hook.columns.get(argument.name)
            return hook.optimized[argument.name] if column is None else column.parts[row]

        args = [value(argument) for argument in call.args]
        kwargs = {name: value(argument) for name, argument in call.kwargs.items()}
        return hub.compile(call.client, call.method, args, kwargs)

    columns = tuple(hook.columns.values())
    if not columns:
        return [request(0)]
    made: dict[tuple[int, ...], Template] = {}  # rows with the same parts share a request
    requests = []
    for row in range(len(columns[0].parts)):
        key = tuple(id(column.parts[row]) for column in columns)
        if key not in made:
            made[key] = request(row)
        requests.append(made[key])
    return requests


def _static(hook: Hook) -> StaticCall:
    assert isinstance(hook.static, StaticCall)  # `why_not_static` has looked
    return hook.static
