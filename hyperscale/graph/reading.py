"""Reads a workflow class: its decorated methods, resolved and classified, bases included.

Everything else in `graph` works on the `Reading`, never on the raw class. Here each method
is understood by itself; whether they make sense together is for `graph.validation`.
"""

import inspect
import os
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType
from typing import Any, cast

from hyperscale.errors import InputError
from hyperscale.graph.annotations import (
    Meaning,
    UnresolvedAnnotation,
    meaning,
    optimized_kind,
    resolve,
)
from hyperscale.graph.hooks import Declared
from hyperscale.graph.workflow import Workflow
from hyperscale.plan import MetricKind, StateKind, StepKind
from hyperscale.plan.dag import ancestors
from hyperscale.testing import CallResult, CustomResult, OptimizedArg

_KINDS = {
    "action": StepKind.ACTION,
    "check": StepKind.CHECK,
    "metric": StepKind.METRIC,
    "setup": StepKind.SETUP,
    "teardown": StepKind.TEARDOWN,
}
STEPS = (StepKind.TEST, StepKind.ACTION)
RECORDED = (*STEPS, StepKind.SETUP, StepKind.TEARDOWN)
_STATES = {"provide": StateKind.PROVIDE, "use": StateKind.USE}


@dataclass(frozen=True, slots=True)
class ReadParameter:
    name: str
    default: Any  # inspect.Parameter.empty without one
    by_name: bool  # False for positional-only ones, which nothing can feed
    optimized: type[OptimizedArg] | None  # with a default: a request part, prepared once

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadHook:
    """One decorated method. Exactly one of `kind` and `state` is set."""

    name: str
    where: str  # "shop.py:12: Shop.login"
    declared: Declared
    function: FunctionType
    is_async: bool
    parameters: tuple[ReadParameter, ...]
    after: tuple[str, ...]  # of a check or metric: the steps whose results it takes
    workflows: tuple[str, ...]  # those a state names
    kind: StepKind | None
    state: StateKind | None
    is_list: bool  # of a state: its type is a list
    result: type[CallResult] | type[CustomResult] | None
    is_always_result: bool  # by its annotation it returns nothing else
    accept: Callable[[int], bool] | None
    metric_kind: MetricKind | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    cls: type[Workflow]
    file: str  # as people know it, for messages
    hooks: tuple[ReadHook, ...]
    depends: tuple[str, ...]
    dropped: tuple[str, ...]  # hooks of a base that a plain attribute replaced

    @property
    def name(self) -> str:
        return self.cls.__name__

    @property
    def where(self) -> str:
        return f"{self.file}: {self.name}"

    @property
    def is_test(self) -> bool:
        return any(hook.kind is StepKind.TEST for hook in self.hooks)

    @property
    def steps(self) -> tuple[ReadHook, ...]:
        """What runs in the DAG of an iteration."""
        return self.of(*STEPS)

    @property
    def recorded(self) -> tuple[ReadHook, ...]:
        """What has a place in the recorder, in the order of its index."""
        return self.of(*RECORDED)

    @property
    def states(self) -> tuple[ReadHook, ...]:
        return tuple(hook for hook in self.hooks if hook.state is not None)

    def of(self, *kinds: StepKind) -> tuple[ReadHook, ...]:
        return tuple(hook for hook in self.hooks if hook.kind in kinds)

    def step_order(self) -> dict[str, tuple[str, ...]]:
        """What each step waits for."""
        return {step.name: step.after for step in self.steps}

    def waited_for(self, hook: ReadHook) -> set[str]:
        """The steps that have ended when `hook` is called."""
        order = self.step_order()
        return ancestors({**order, hook.name: hook.after}, hook.name)

    def injected(self, hook: ReadHook) -> tuple[str, ...]:
        """Parameters that take a step's result or a value of the context, by their name.

        A step it does not wait for is left out: its result may or may not be there.
        """
        order, waited_for = self.step_order(), self.waited_for(hook)
        return tuple(
            parameter.name
            for parameter in hook.parameters
            if parameter.by_name
            and parameter.optimized is None
            and (parameter.name not in order or parameter.name in waited_for)
        )


def read(cls: type[Workflow]) -> Reading:
    """The class as its decorators describe it, hooks in the order they were written."""
    if not isinstance(cls, type) or not issubclass(cls, Workflow) or cls is Workflow:
        raise InputError(f"{cls!r} is not a workflow", hint="give a class derived from Workflow")
    file = file_of(cls)
    found, dropped = _collect(cls)
    hooks = [_read_hook(cls, file, name, declared) for name, declared in found.items()]
    steps = {hook.name for hook in hooks if hook.kind in STEPS}
    return Reading(
        cls=cls,
        file=file,
        hooks=tuple(
            replace(hook, after=tuple(p.name for p in hook.parameters if p.name in steps))
            if hook.kind in (StepKind.CHECK, StepKind.METRIC)
            else hook
            for hook in hooks
        ),
        depends=_names(cls._depends, where=f"{file}: {cls.__name__}: @depends"),
        dropped=dropped,
    )


def hooks_of(cls: type[Workflow]) -> dict[str, Declared]:
    """The decorated methods of a class, bases included, as written."""
    return _collect(cls)[0]


def has_steps(cls: type[Workflow]) -> bool:
    """Whether the class, bases included, has anything to loop."""
    return any(hook.decorator in ("step", "action") for hook in hooks_of(cls).values())


def file_of(cls: type) -> str:
    """Return the file of a class, relative if it is below the working directory."""
    path = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return display_path(path) if path else cls.__module__


def display_path(path: str | Path) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _collect(cls: type[Workflow]) -> tuple[dict[str, Declared], tuple[str, ...]]:
    """Hooks by name: those of bases first, a redefinition in the place of what it replaces."""
    found: dict[str, Declared] = {}
    dropped: dict[str, None] = {}
    for base in reversed(cls.__mro__):
        if base in (object, Workflow):
            continue
        for name, value in vars(base).items():
            if isinstance(value, Declared):
                found[name] = value
                dropped.pop(name, None)
            elif name in found:
                del found[name]
                dropped[name] = None
    return found, tuple(dropped)


def _read_hook(cls: type[Workflow], file: str, name: str, declared: Declared) -> ReadHook:
    function = declared.function
    decorator = f"@{declared.decorator}"
    innermost = function
    while isinstance(innermost, Declared):
        innermost = innermost.function
    written = inspect.unwrap(innermost)
    code = getattr(written, "__code__", None)
    line = f":{code.co_firstlineno}" if code else ""
    where = f"{file}{line}: {cls.__name__}.{name}"
    if isinstance(function, Declared):
        raise InputError(
            f"{where}: is both @{function.decorator}() and {decorator}()", hint="keep one of them"
        )
    if not isinstance(function, FunctionType):
        raise InputError(
            f"{where}: {decorator}() must decorate a plain method, not a {type(function).__name__}",
            hint="write it as a method that takes self",
        )
    hints = resolve(function, cls)
    said = meaning(hints.get("return"))
    if isinstance(hints.get("return"), UnresolvedAnnotation):
        unresolved: UnresolvedAnnotation = hints["return"]
        raise InputError(
            f"{where}: the return annotation {unresolved.text!r} cannot be read: "
            f"{unresolved.reason}",
            hint="import or define it at the top of the file, outside `if TYPE_CHECKING:`",
        )
    kind = _kind(declared, said)
    if kind is None and said.state is None:
        raise InputError(
            f"{where}: {decorator} needs a return annotation",
            hint="-> Provide[T] gives a value to another workflow, -> Use[T] takes one",
        )
    return ReadHook(
        name=name,
        where=where,
        declared=declared,
        function=function,
        # A wrapper may be a plain function that hands on the coroutine it wraps.
        is_async=any(inspect.iscoroutinefunction(layer) for layer in (function, written)),
        parameters=_parameters(function, hints, where),
        after=_names(declared.after, where=f"{where}: {decorator}"),
        workflows=_names(declared.workflows, where=f"{where}: {decorator}"),
        kind=kind,
        state=_STATES[said.state.action] if kind is None and said.state else None,
        is_list=said.is_list,
        result=said.result,
        is_always_result=said.is_always_result,
        accept=_acceptance(declared.accept, where=where),
        metric_kind=_metric_kind(declared, said, where) if kind is StepKind.METRIC else None,
    )


def _kind(declared: Declared, said: Meaning) -> StepKind | None:
    if declared.decorator == "state":
        return None
    if declared.decorator != "step":
        return _KINDS[declared.decorator]
    if said.result is not None:
        return StepKind.TEST
    if said.check:
        return StepKind.CHECK
    return StepKind.METRIC if said.metric else StepKind.ACTION


def _metric_kind(declared: Declared, said: Meaning, where: str) -> MetricKind:
    given = said.metric_kind if declared.metric_kind is None else declared.metric_kind
    given = getattr(given, "kind", given)  # COUNT and its like
    if given is None:
        return MetricKind.COUNT
    if isinstance(given, MetricKind):
        return given
    text = given.strip().lower() if isinstance(given, str) else ""
    try:
        return MetricKind("distribution" if text == "sample" else text)
    except ValueError:
        kinds = ", ".join(kind.value for kind in MetricKind)
        raise InputError(
            f"{where}: {given!r} is no kind of metric", hint=f"one of {kinds}"
        ) from None


def _acceptance(accept: object, *, where: str) -> Callable[[int], bool] | None:
    """`@step(accept=…)` as a rule on the status."""
    if accept is None:
        return None
    if callable(accept):
        return cast(Callable[[int], bool], accept)
    statuses = accept if isinstance(accept, Collection) else (accept,)
    for status in statuses:
        if isinstance(status, bool) or not isinstance(status, int) or not 100 <= status <= 599:
            raise InputError(
                f"{where}: accept={accept!r}: {status!r} is not an HTTP status",
                hint="give statuses of 100 to 599, as accept=[404, 409], or a function of one",
            )
    return frozenset(statuses).__contains__


def _names(given: tuple[object, ...], *, where: str) -> tuple[str, ...]:
    """Names as written in a decorator, each once."""
    for name in given:
        if not isinstance(name, str):
            shown = getattr(name, "__name__", None) or getattr(name, "name", None) or repr(name)
            raise InputError(f"{where}: {name!r} is not a name", hint=f'write "{shown}", quoted')
    return tuple(dict.fromkeys(str(name) for name in given))


def _parameters(
    function: Callable[..., Any], hints: dict[str, Any], where: str
) -> tuple[ReadParameter, ...]:
    own, *rest = inspect.signature(function).parameters.values() or (None,)
    if own is None or own.kind not in (own.POSITIONAL_ONLY, own.POSITIONAL_OR_KEYWORD):
        raise InputError(f"{where}: the first parameter must be self")
    parameters = []
    for parameter in rest:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        optimized = optimized_kind(hints.get(parameter.name))
        parameters.append(
            ReadParameter(
                name=parameter.name,
                default=parameter.default,
                by_name=parameter.kind is not parameter.POSITIONAL_ONLY,
                # `headers: Headers | None = None` has nothing to prepare.
                optimized=None if parameter.default is None else optimized,
            )
        )
    return tuple(parameters)
