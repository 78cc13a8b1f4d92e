"""How each hook is called, computed once per slot so that the loop computes nothing.

`compile_calls` turns the hooks of a blueprint into `HookCall`s with their arguments, dependencies
and places in the recorder. Pure: runs no user code, has no loop and no clock.
"""

import copy
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

from hyperscale.clients.scope import StepScope
from hyperscale.execution.feeds import row_place
from hyperscale.graph import Workflow
from hyperscale.graph.blueprint import Blueprint, Hook
from hyperscale.graph.hooks import Declared
from hyperscale.plan import Per, StepKind
from hyperscale.plan.dag import ancestors

# Defaults a step could change in place: each call gets its own copy, so that nothing of one
# iteration is ever seen by another.
_CHANGEABLE = (dict, list, set, bytearray)

RAISED = -1
"""The place in the results of an iteration that is true once the test's own code has raised."""
DUE = -2
"""The place, in an open workflow, that has when the iteration was due, in nanoseconds."""


class HookCall:
    """One hook, ready to be called."""

    __slots__ = (
        "accept",
        "bit",
        "fixed",
        "fresh",
        "from_context",
        "from_results",
        "from_rows",
        "function",
        "index",
        "is_async",
        "is_measured",
        "is_plain",
        "name",
        "needs",
        "only",
        "owes",
        "scope",
    )

    def __init__(
        self,
        hook: Hook,
        *,
        index: int,
        needs: int,
        scope: StepScope,
        from_results: Mapping[str, int],
    ) -> None:
        self.name = hook.name
        self.index = index  # in the recorder, and of its result in an iteration
        self.bit = 1 << index
        self.needs = needs  # bits of the steps it comes after
        self.scope = scope
        self.is_async = hook.is_async
        self.accept = hook.accept
        self.is_measured = hook.kind is StepKind.TEST
        self.owes = hook.owes  # the type that each call must return
        self.from_results = tuple(from_results.items())
        self.from_context = tuple(name for name in hook.injected if name not in from_results)
        self.from_rows = tuple(
            (name, row_place(column.feed), column.parts) for name, column in hook.columns.items()
        )
        self.fresh = _changeable_defaults(hook)
        rebound = _with_defaults(hook.function, hook.optimized)
        self.function: Callable[..., Any] = hook.function if rebound is None else rebound
        self.fixed: Mapping[str, object] = hook.optimized if rebound is None else {}
        others = self.from_context or self.fresh or self.fixed or self.from_rows
        self.is_plain = not (self.from_results or others)
        # Index of the result that is its only argument, so that no keywords are needed; None: it
        # has other arguments.
        self.only = None if others else _only_argument(self.function, self.from_results)

    def arguments(self, instance: Workflow, results: list[Any]) -> dict[str, Any]:
        """Return the keyword arguments of one call."""
        kwargs: dict[str, Any] = dict(self.fixed)
        for name, default in self.fresh:
            kwargs[name] = copy.deepcopy(default)
        if self.from_context:
            context = instance.context
            for name in self.from_context:
                if name in context:
                    kwargs[name] = context[name]
        for name, index in self.from_results:
            kwargs[name] = results[index]
        for name, place, parts in self.from_rows:
            kwargs[name] = parts[getattr(instance, place)]
        return kwargs


@dataclass(frozen=True, slots=True)
class StepProgram:
    """A workflow as the loop runs it. A layer of one step is that step, not a tuple."""

    layers: tuple[HookCall | tuple[HookCall, ...], ...]
    checks: tuple[HookCall, ...]
    metrics: tuple[HookCall, ...]
    setups: Mapping[Per, tuple[HookCall, ...]]
    teardowns: Mapping[Per, tuple[HookCall, ...]]
    judges_at_once: bool  # no check and no metric awaits anything
    size: int  # places for results in an iteration, and the last one for RAISED
    remembers: bool  # a step's last result is read by name, as `self.<step>.response`

    def recorded(self) -> Iterable[HookCall]:
        for layer in self.layers:
            yield from layer if isinstance(layer, tuple) else (layer,)
        for hooks in (*self.setups.values(), *self.teardowns.values()):
            yield from hooks


def compile_calls(blueprint: Blueprint) -> StepProgram:
    """Compile the hooks of a workflow; indexes are those of its recorder."""
    index = blueprint.index
    hooks = [hook for layer in blueprint.layers for hook in layer]
    after = {hook.name: hook.after for hook in hooks}
    scopes: dict[StepScope, StepScope] = {}

    def scope_of(step: int, sees_body: bool) -> StepScope:
        """Return one object for equal scopes: comparing identities is enough to tell them apart."""
        scope = StepScope(step, sees_body)
        return scopes.setdefault(scope, scope)

    def step(hook: Hook) -> HookCall:
        return HookCall(
            hook,
            index=index[hook.name],
            needs=_bits(index, hook.after),
            scope=scope_of(index[hook.name], hook.sees_body),
            from_results=_results(hook, ancestors(after, hook.name), index),
        )

    def lone(hook: Hook) -> HookCall:
        """Compile a setup or teardown hook; there are no results of steps to pass."""
        scope = StepScope(index[hook.name], hook.sees_body)
        return HookCall(hook, index=index[hook.name], needs=0, scope=scope, from_results={})

    def by_per(hooks: Iterable[Hook]) -> dict[Per, tuple[HookCall, ...]]:
        return {per: tuple(lone(hook) for hook in hooks if hook.per is per) for per in Per}

    def judge(place: int, hook: Hook) -> HookCall:
        """Compile a check or metric; its index is its place in the tallies, not in the recorder.

        Requests that it makes are counted for the last step whose result it takes.
        """
        owner = index[hook.after[-1]] if hook.after else 0
        return HookCall(
            hook,
            index=place,
            needs=_bits(index, hook.after),
            scope=scope_of(owner, True),
            from_results=_results(hook, hook.after, index),
        )

    layers = tuple(tuple(step(hook) for hook in layer) for layer in blueprint.layers)
    return StepProgram(
        layers=tuple(layer[0] if len(layer) == 1 else layer for layer in layers),
        checks=tuple(judge(place, hook) for place, hook in enumerate(blueprint.checks)),
        metrics=tuple(judge(place, hook) for place, hook in enumerate(blueprint.metrics)),
        judges_at_once=not any(hook.is_async for hook in (*blueprint.checks, *blueprint.metrics)),
        setups=by_per(blueprint.setups),
        teardowns=by_per(blueprint.teardowns),
        size=len(index) + 1,
        remembers=_reads_responses(blueprint.workflow),
    )


def is_once(blueprint: Blueprint) -> bool:
    """Return True if each virtual user runs the steps a single time.

    A workflow without test steps prepares or cleans up, so it does not loop for its duration
    unless `iterations` says how often.
    """
    return not blueprint.plan.is_test and not blueprint.plan.is_counted


def _bits(index: Mapping[str, int], names: Iterable[str]) -> int:
    bits = 0
    for name in names:
        bits |= 1 << index[name]
    return bits


def _results(hook: Hook, known: Iterable[str], index: Mapping[str, int]) -> dict[str, int]:
    known = set(known)
    return {name: index[name] for name in hook.injected if name in known}


def _only_argument(
    function: Callable[..., Any], from_results: tuple[tuple[str, int], ...]
) -> int | None:
    if len(from_results) != 1 or type(function) is not FunctionType:
        return None
    name, index = from_results[0]
    positional = function.__code__.co_varnames[: function.__code__.co_argcount]
    return index if positional[1:2] == (name,) else None


def _changeable_defaults(hook: Hook) -> tuple[tuple[str, object], ...]:
    """Return the defaults that a call could change; most setup and teardown hooks run once."""
    if hook.kind in (StepKind.SETUP, StepKind.TEARDOWN) and hook.per is not Per.VU:
        return ()
    return tuple(
        (name, parameter.default)
        for name, parameter in inspect.signature(hook.function).parameters.items()
        if type(parameter.default) in _CHANGEABLE and name not in hook.optimized
    )


def _with_defaults(
    function: Callable[..., Any], values: Mapping[str, object]
) -> Callable[..., Any] | None:
    """Return the function with `values` as the defaults of those parameters; None if impossible.

    A call without keyword arguments is the cheapest, and a step's request parts never change.
    """
    if not values:
        return function
    if type(function) is not FunctionType:
        return None
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    keyword = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    if not values.keys() <= {*positional, *keyword}:  # a decorator hides the parameters
        return None
    defaults = function.__defaults__ or ()
    first = len(positional) - len(defaults)
    rebound = FunctionType(
        code,
        function.__globals__,
        function.__name__,
        tuple(
            values.get(name, old) for name, old in zip(positional[first:], defaults, strict=True)
        ),
        function.__closure__,
    )
    rebound.__kwdefaults__ = {
        name: values.get(name, old) for name, old in (function.__kwdefaults__ or {}).items()
    }
    rebound.__qualname__ = function.__qualname__
    rebound.__module__ = function.__module__
    rebound.__dict__.update(function.__dict__)
    return rebound


def _reads_responses(cls: type[Workflow]) -> bool:
    """Return True if code of the class, or of its module, may read `self.<step>.response`.

    Only then are the last results of every user kept: they hold response bodies in memory.
    """
    holders: list[type | ModuleType] = [c for c in cls.__mro__ if c not in (Workflow, object)]
    holders += [m for c in list(holders) if (m := sys.modules.get(c.__module__)) is not None]
    return any(
        "response" in names
        for holder in holders
        for value in list(vars(holder).values())
        for names in _names(value)
    )


def _names(value: object) -> Iterable[tuple[str, ...]]:
    if isinstance(value, Declared):
        value = value.function
    code = inspect.unwrap(value).__code__ if isinstance(value, FunctionType) else None
    waiting: list[CodeType] = [] if code is None else [code]
    while waiting:
        current = waiting.pop()
        yield current.co_names
        waiting += [const for const in current.co_consts if isinstance(const, CodeType)]
