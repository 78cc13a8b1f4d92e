"""Virtual users: each is a task that loops the steps.

`UserCrew` is what the users of a slot share. The loop itself is native (`UserLoop`, in
`native/py/src/iteration.rs`): it calls the hooks and records their outcomes. It leaves to the
functions here what not every iteration has: layers of several steps, checks and metrics, errors.

`stop()` lets no new step start. `cut()` ends steps in flight: each is counted as cut at once, and
its later outcome does not count.
"""

import asyncio
from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from time import perf_counter_ns
from typing import Any

from hyperscale._native import UserLoop, UserProgram
from hyperscale.clients.scope import current_step
from hyperscale.execution.alternatives import SlotChoices
from hyperscale.execution.feeds import SlotFeeds
from hyperscale.execution.hook_calls import HookCall, StepProgram
from hyperscale.execution.outcomes import StepOutcomes
from hyperscale.execution.pacing import ClosedPacing, Pacing
from hyperscale.execution.tally import CheckTally, MetricTally, Tallies
from hyperscale.execution.user_errors import describe_error
from hyperscale.graph import Workflow
from hyperscale.graph.workflow import remember
from hyperscale.testing import HTTPResponse


class VirtualUser:
    """One user: its workflow instance and what it is doing."""

    __slots__ = ("instance", "loop", "remembers", "running", "siblings", "task")

    def __init__(self, instance: Workflow, *, remembers: bool) -> None:
        self.instance = instance
        self.remembers = remembers
        self.loop: UserLoop | None = None
        self.running = 0  # bits of the steps in flight in a layer of several
        self.siblings: list[asyncio.Task[bool]] = []  # steps of a layer beside its first
        self.task: asyncio.Task[None] | None = None


class UserCrew:
    """The virtual users of a slot and all they share."""

    def __init__(
        self,
        program: StepProgram,
        outcomes: StepOutcomes,
        *,
        tallies: Tallies,
        users: list[VirtualUser],
        pacing: Pacing | None = None,
        feeds: SlotFeeds | None = None,
        choices: SlotChoices | None = None,
        iterations: int | None = None,
        is_once: bool = False,
    ) -> None:
        self.program = program
        self.outcomes = outcomes
        self.tallies = tallies
        self.users = users
        self.pacing = pacing  # None: users loop without a pause
        self.feeds = feeds
        self._shared = UserProgram(
            outcomes.recorder,
            asyncio.get_running_loop(),
            program,
            response_type=HTTPResponse,
            set_step=current_step.set,
            outcomes=outcomes,
            tallies=tallies,
            feeds=feeds,
            choices=choices,  # None: every iteration runs all steps
            iterations=iterations,  # None: as many as the time allows
            is_open=outcomes.is_open,
            is_once=is_once,
            wait=_wait,
            run_layer=_run_layer,
            judge=_judge,
            reject=_reject,
            fail_check=_fail_check,
            forgive=_forgive,
            remember=remember,
        )
        self._shared.set_pacing(pacing)
        self._alive = 0  # users whose loop has not ended
        self.breakage: BaseException | None = None  # a bug in Hyperscale
        self._all_done: asyncio.Future[None] | None = None

    # --- life -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start a task for every user, when the clock of the slot has begun; they run from the
        next turn of the loop on."""
        self._all_done = asyncio.get_running_loop().create_future()
        if self.pacing is not None:
            self.pacing.start(self.users)
        self._start(self.users)
        if not self.users:
            self._all_done.set_result(None)

    def _start(self, users: list[VirtualUser]) -> None:
        loop = asyncio.get_running_loop()
        self._alive += len(users)
        for user in users:
            user.loop = UserLoop(self._shared, self, user)
            # One name for all: a name of its own would cost each user a string.
            user.task = loop.create_task(user.loop, name="virtual user")
            user.loop.bind(user.task)
            # Not a wrapper around the loop: every suspension would be one frame deeper.
            user.task.add_done_callback(self._leave)

    def change(self, more: list[VirtualUser], make_pacing: Callable[[], ClosedPacing]) -> None:
        """Follow the changed schedule of the slot's clock, with more users. Users that looped
        without a pause are paced from now on."""
        has_begun = self._all_done is not None
        if self.pacing is None:
            self.pacing = make_pacing()
            self._shared.set_pacing(self.pacing)
            if has_begun:
                self.pacing.add(self.users, are_looping=True)
        self.users += more
        if not has_begun or self.is_stopping:
            return
        if isinstance(self.pacing, ClosedPacing):
            self.pacing.add(more)
        self.pacing.change()
        self._start(more)

    @property
    def checks(self) -> list[CheckTally]:
        """The checks, with all that has passed until now."""
        for tally, passed in zip(self.tallies.checks, self._shared.take_passed(), strict=True):
            tally.passed += passed
        return self.tallies.checks

    @property
    def metrics(self) -> list[MetricTally]:
        return self.tallies.metrics

    @property
    def size(self) -> int:
        return len(self.users)

    @property
    def is_stopping(self) -> bool:
        """Whether no more steps start."""
        return self._shared.is_stopping

    @property
    def is_cut(self) -> bool:
        """Whether outcomes no longer count."""
        return self._shared.is_cut

    @property
    def looping(self) -> int:
        """Users that loop now, those that wait for their next iteration included."""
        return self._alive if self.pacing is None else min(self._alive, self.pacing.looping)

    @property
    def raised(self) -> int:
        """Iterations in which the test's own code raised."""
        return self.outcomes.raised

    @property
    def drawn(self) -> int:
        """Iterations that have had their rows, those of earlier attempts included."""
        return 0 if self.feeds is None else self.feeds.drawn

    @property
    def short_of_rows(self) -> int:
        """Users that wait until the slot may use more rows."""
        return 0 if self.feeds is None else self.feeds.short

    def grant_rows(self, limit: int) -> None:
        if self.feeds is not None:
            self.feeds.grant(limit)

    async def wait(self) -> None:
        """Wait until every user's loop has ended."""
        if self._all_done is not None:
            await asyncio.shield(self._all_done)

    def stop(self) -> None:
        """Start no more steps; users that wait for their next iteration end."""
        self._shared.stop()
        if self.feeds is not None:
            self.feeds.wake()
        if self.pacing is not None:
            self.pacing.stop()

    def halt(self) -> None:
        """Start no more steps. Only sets a flag, so a signal handler may call it."""
        self._shared.stop()

    def renew_lease(self, deadline_boottime_ns: int) -> None:
        """Do nothing: Python checks the lease for these users."""

    def close(self) -> None:
        """Do nothing: the connections belong to the hub, and teardown hooks may need them."""

    def cut(self) -> None:
        """Count every step in flight as cut and cancel it. May be called again."""
        self.stop()
        self._shared.cut()
        add_cut = self.outcomes.recorder.add_cut
        for user in self.users:
            if user.loop is not None and (step := user.loop.take_running()) is not None:
                add_cut(step)
            running, user.running = user.running, 0
            while running:
                add_cut((running & -running).bit_length() - 1)
                running &= running - 1
            for sibling in user.siblings:
                sibling.cancel()
            if user.task is not None:
                user.task.cancel()

    def _leave(self, task: "asyncio.Task[None]") -> None:
        """Note that the task of a user has ended."""
        if task.cancelled():
            if not self.is_stopping:
                self.breakage = self.breakage or RuntimeError("a virtual user was cancelled")
        elif (error := task.exception()) is not None:
            self.breakage = self.breakage or error
        self._alive -= 1
        if not self._alive and self._all_done is not None and not self._all_done.done():
            self._all_done.set_result(None)


async def _wait(awaitable: Awaitable[Any]) -> Any:
    """Wait for what an async hook returned, if it is no coroutine."""
    return await awaitable


async def _run_layer(  # noqa: PLR0917 - called natively
    crew: UserCrew,
    user: VirtualUser,
    layer: tuple[HookCall, ...],
    results: list[Any],
    done: int,
    left_out: int,
) -> int:
    """Run the steps of a layer side by side; returns the bits of those that returned."""
    ready = []
    for call in layer:
        if left_out & call.bit:
            continue
        if done & call.needs == call.needs:
            ready.append(call)
        else:
            crew.outcomes.recorder.add_skipped(call.index)
    if not ready:
        return 0
    # The first runs in the user's own task and so begins first; the others, made in order,
    # begin in order as soon as it waits.
    loop = asyncio.get_running_loop()
    user.siblings = [
        loop.create_task(_run_call(crew, user, call, results), name="virtual user")
        for call in ready[1:]
    ]
    returned = 0
    try:
        if await _run_call(crew, user, ready[0], results):
            returned = ready[0].bit
        for call, sibling in zip(ready[1:], user.siblings, strict=True):
            if await sibling:
                returned |= call.bit
    except CancelledError:
        if not crew.is_cut:
            raise
    finally:
        if not crew.is_cut:
            user.siblings = []
    return returned


async def _run_call(crew: UserCrew, user: VirtualUser, call: HookCall, results: list[Any]) -> bool:
    """Run one step of a layer of several. Errors of user code are recorded, not raised."""
    if crew.is_stopping:  # between the making of this task and its first turn
        return False
    current_step.set(call.scope)
    user.running |= call.bit
    began_ns = perf_counter_ns()
    try:
        if call.is_plain:
            result = call.function(user.instance)
        else:
            result = call.function(user.instance, **call.arguments(user.instance, results))
        if call.is_async:
            result = await result
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001 - a step may raise anything
        if not crew.is_cut:
            user.running &= ~call.bit
            crew.outcomes.fail(call, error, results)
            _forgive(error)
        return False
    if crew.is_cut:
        return False
    user.running &= ~call.bit
    results[call.index] = result
    crew.outcomes.settle(call, result, perf_counter_ns() - began_ns, results)
    if user.remembers:
        remember(user.instance, call.name, result)
    return True


def _reject(tallies: Tallies, index: int, verdict: object) -> None:
    """Count a check that returned something false."""
    try:
        tallies.checks[index].judge(verdict)
    except BaseException as error:  # noqa: BLE001 - showing what it returned may raise anything
        _fail_check(tallies, index, error)


def _fail_check(tallies: Tallies, index: int, error: BaseException) -> None:
    """Count a check that raised."""
    tallies.checks[index].fail(lambda: describe_error(error))
    _forgive(error)


async def _judge(
    crew: UserCrew, user: VirtualUser, results: list[Any], done: int, tallies: Tallies
) -> None:
    """Run the checks and metrics of an iteration whose steps have all returned."""
    instance = user.instance
    for call in crew.program.checks:
        if done & call.needs != call.needs:
            continue
        tally = tallies.checks[call.index]
        current_step.set(call.scope)
        try:
            verdict = call.function(instance, **call.arguments(instance, results))
            if call.is_async:
                verdict = await verdict
            tally.judge(verdict)
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - a step may raise anything
            if crew.is_cut:
                return
            _fail_check(tallies, call.index, error)
    for call in crew.program.metrics:
        if done & call.needs != call.needs:
            continue
        current_step.set(call.scope)
        try:
            value = call.function(instance, **call.arguments(instance, results))
            if call.is_async:
                value = await value
            tallies.metrics[call.index].add(value)
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - a step may raise anything
            if crew.is_cut:
                return
            crew.outcomes.note_raised(call.name, error, results)
            _forgive(error)


def _forgive(error: BaseException) -> None:
    """Undo a cancellation that user code caused itself: it fails the step, not the user."""
    if isinstance(error, CancelledError) and (task := asyncio.current_task()) is not None:
        while task.cancelling():
            task.uncancel()
