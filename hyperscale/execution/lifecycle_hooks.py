"""Runs the hooks around the loop: Use and setup before it, Provide and teardown after it.

Hooks with `per="vu"` run on the instance of each virtual user, all others on the instance of the
first one; every user starts with the context of that instance. Hooks may fail, hang or ignore
cancellation; the slot ends nevertheless.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

from hyperscale.clients.scope import current_step
from hyperscale.config import format_duration
from hyperscale.errors import RunError
from hyperscale.execution.capture import complain
from hyperscale.execution.hook_calls import HookCall, StepProgram
from hyperscale.execution.limits import CUT_S, TEARDOWN_S
from hyperscale.execution.outcomes import StepOutcomes
from hyperscale.execution.protocol import FRAME_BYTES_MAX
from hyperscale.execution.user_errors import HOOK_ERRORS, failure, format_error
from hyperscale.execution.values import pack_value
from hyperscale.graph import Blueprint, Workflow
from hyperscale.graph.reading import ReadHook
from hyperscale.graph.workflow import VU_ATTRIBUTES, settable
from hyperscale.plan import Per, StateKind
from hyperscale.plan.context import CONTEXT_BYTES_MAX, Provided

T = TypeVar("T")
_ABSENT = object()
_STATES_BYTES_MAX = FRAME_BYTES_MAX // 2  # the last report of the slot must fit beside them
_VUS_AT_ONCE = 100
"""How many virtual users of a slot run their setup or teardown hooks side by side."""


class LifecycleHooks:
    """Runs the Use, setup, Provide and teardown hooks of a slot."""

    def __init__(
        self,
        design: Blueprint,
        program: StepProgram,
        outcomes: StepOutcomes,
        instance: Workflow,
        received: dict[str, dict[str, Any]],
    ) -> None:
        self.design = design
        self.program = program
        self.outcomes = outcomes
        self.received = received
        self._inherited = dict(instance.context)
        self._name = design.plan.name
        self.instance = instance  # of the first virtual user
        self.shared: dict[str, Any] = {}  # attributes for all users: set with per="executor"
        self.is_tainted = False  # a hook ignored its cancellation and still runs
        self.has_begun = False  # requests of setup hooks have to be reported
        self._begun: dict[Per, list[Workflow]] = {}  # whose teardown hooks have to run

    async def use(self) -> None:
        """Pass what was provided to the Use hooks. Raises RunError if one raises."""
        for hook in self.design.states:
            if hook.state is StateKind.USE:
                await self._call_state(hook, **self.received.get(hook.name, {}))

    def hand_over(self) -> None:
        """Leave the teardown of the workflow to another slot."""
        self._begun.pop(Per.WORKFLOW, None)

    def take_over(self) -> None:
        """Take the teardown of a workflow that another slot has set up."""
        self._begun[Per.WORKFLOW] = [self.instance]

    async def set_up(self, per: Per, instances: Sequence[Workflow]) -> None:
        """Run the setup hooks of a kind on each of the instances, in order.

        Raises RunError if one raises; teardown hooks still run.
        """
        self.has_begun = True
        if self.program.setups[per]:
            self.outcomes.recorder.begin()  # what comes before the clock is its second 0
        before = dict(vars(self.instance)) if per is Per.EXECUTOR else {}
        await self._set_up(per, instances)
        if per is Per.EXECUTOR:
            self.shared = {
                name: value
                for name, value in vars(self.instance).items()
                if name not in VU_ATTRIBUTES and before.get(name, _ABSENT) is not value
            }

    async def set_up_more(self, instances: Sequence[Workflow]) -> None:
        """Run the setup hooks of users that come later, while others loop. Raises RunError."""
        await self._set_up(Per.VU, instances)

    async def _set_up(self, per: Per, instances: Sequence[Workflow]) -> None:
        begun, setups = self._begun.setdefault(per, []), self.program.setups[per]
        if not setups:
            begun += instances if self.program.teardowns[per] else ()
            return

        async def set_up_one(instance: Workflow) -> None:
            begun.append(instance)
            for call in setups:
                error = await self._run(call, instance, per)
                if error is not None:  # printed already, like the error of a step
                    raise failure(RunError, f"{self._name}.{call.name} failed", error) from error

        await _on_each(instances, set_up_one)

    async def tear_down(self) -> None:
        """Run the teardown hooks whose setup has begun. Their errors are printed and counted."""
        if not self._begun:
            return
        try:
            await self._bounded(self._run_teardowns(), "teardown hooks")
        except RunError as error:
            complain(f"{error}\n")

    async def provide(self, slot: int) -> Provided:
        """Run the Provide hooks and return their values. Raises RunError if one fails."""
        return await self._bounded(self._provide(slot), "Provide hooks")

    async def _run(self, call: HookCall, instance: Workflow, per: Per) -> BaseException | None:
        """Run a setup or teardown hook and record it; returns the error it raised, or None."""
        current_step.set(call.scope)
        began_ns = time.perf_counter_ns()
        try:
            with nullcontext() if per is Per.WORKFLOW else settable(instance):
                result = call.function(instance, **call.arguments(instance, []))
                if call.is_async:
                    result = await result
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # the slot was stopped, or time is up
                self.outcomes.recorder.add_cut(call.index)
                raise
            self.outcomes.fail(call, error)  # something the hook waited for was cancelled
            return error
        except HOOK_ERRORS as error:
            self.outcomes.fail(call, error)
            return error
        self.outcomes.settle(call, result, time.perf_counter_ns() - began_ns)
        return None

    async def _call_state(self, hook: ReadHook, **values: Any) -> Any:
        try:
            value = hook.function(self.instance, **values)
            return await value if hook.is_async else value
        except HOOK_ERRORS as error:
            complain(f"{hook.name} raised:\n{format_error(error)}")
            raise failure(RunError, f"{self._name}.{hook.name} failed", error) from error

    async def _run_teardowns(self) -> None:
        """Run what was set up last first: of users, of the executor, of the workflow."""
        begun, self._begun = self._begun, {}
        for per, instances in reversed(begun.items()):
            if self.program.teardowns[per]:
                await _on_each(instances, partial(self._tear_down_one, per))

    async def _tear_down_one(self, per: Per, instance: Workflow) -> None:
        for call in self.program.teardowns[per]:
            await self._run(call, instance, per)

    async def _provide(self, slot: int) -> Provided:
        states: dict[str, bytes] = {}
        for hook in self.design.states:
            if hook.state is StateKind.PROVIDE:
                value = await self._call_state(hook)
                if value is not None:
                    states[hook.name] = pack_value(value, where=f"{self._name}.{hook.name}")
        size = sum(map(len, states.values()))
        if size > _STATES_BYTES_MAX:
            raise RunError(
                f"{self._name}: Provide hooks return {size:,} bytes, over {_STATES_BYTES_MAX:,}",
                hint="provide a key or a path from which others can get the data",
            )
        context = {} if self.design.plan.is_test else self._own_context()
        return Provided(slot=slot, states=states, context=context)

    def _own_context(self) -> dict[str, bytes]:
        """Return what this workflow itself put into `self.context`.

        Dependents did not ask for it, so values that cannot be sent are left out with a message.
        """
        packed: dict[str, bytes] = {}
        room = CONTEXT_BYTES_MAX // 2  # the rest is for what is provided on purpose
        for key, value in self.instance.context.items():
            if not isinstance(key, str) or self._inherited.get(key, _ABSENT) is value:
                continue
            try:
                one = pack_value(value, where=f"self.context[{key!r}]")
            except RunError as error:
                complain(f"not passed on: {error}\n")
                continue
            room -= len(one)
            if room < 0:
                complain(f"not passed on: self.context[{key!r}]: the context is too large\n")
                break
            packed[key] = one
        return packed

    async def _bounded(self, work: Coroutine[Any, Any, T], what: str) -> T:
        """Run hooks for at most TEARDOWN_S; hooks that ignore their cancellation are abandoned."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task,), timeout=TEARDOWN_S)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.cancelled():
            raise RunError(f"{self._name}: its {what} cancelled themselves")
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait((task,), timeout=CUT_S)
        self.is_tainted = self.is_tainted or not task.done()
        raise RunError(f"{self._name}: its {what} took longer than {format_duration(TEARDOWN_S)}")


async def _on_each(
    instances: Sequence[Workflow], work: Callable[[Workflow], Coroutine[Any, Any, None]]
) -> None:
    """Do the work on each instance, on a limited number at a time; raises the first error."""
    if len(instances) == 1:
        await work(instances[0])
        return
    waiting = iter(instances)

    async def lane() -> None:
        for instance in waiting:
            await work(instance)

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(_VUS_AT_ONCE, len(instances))):
                tasks.create_task(lane(), name="hooks")
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
