"""Reads a workflow class: its decorated methods, resolved and classified, bases included.

Everything else in `graph` works on the `Reading`, never on the raw class. Each method is read by
itself; `graph.validation` checks whether the methods fit together.
"""

import inspect
import os
import sys
from collections.abc import Callable, Collection, Mapping
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
from hyperscale.graph.returns import returned
from hyperscale.graph.source import attribute_lines, class_node
from hyperscale.graph.values import parse_weight
from hyperscale.graph.workflow import Workflow
from hyperscale.plan import MetricKind, Per, StateKind, StepKind
from hyperscale.plan.dag import ancestors
from hyperscale.testing import CallResult, CustomResult, HTTPResponse, OptimizedArg

STEPS = (StepKind.TEST, StepKind.ACTION)

_GRPC_CODE_MAX = 16


@dataclass(frozen=True, slots=True)
class ReadParameter:
    name: str
    default: Any  # inspect.Parameter.empty without one
    by_name: bool  # False: positional-only, so no value can be passed
    optimized: type[OptimizedArg] | None  # the request part that its annotation names

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
    workflows: tuple[str, ...]  # of a state: the workflows it names
    kind: StepKind | None
    state: StateKind | None
    is_list: bool  # of a state: its type is a list
    result: type[CallResult] | type[CustomResult] | None
    is_always_result: bool  # its annotation permits no other type
    accept: Callable[[int], bool] | None
    metric_kind: MetricKind | None

    @property
    def is_step(self) -> bool:
        return self.kind in STEPS

    @property
    def weight(self) -> float | None:
        """Its share among alternatives. Raises InputError if it is not valid."""
        given = self.declared.weight
        return None if given is None else parse_weight(given, where=f"{self.where}: weight")

    @property
    def per(self) -> Per:
        """How often a setup or teardown hook runs. Raises ValueError if it is not valid."""
        return Per(self.declared.per)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    cls: type[Workflow]
    file: str  # as shown in messages
    hooks: tuple[ReadHook, ...]
    depends: tuple[str, ...]
    dropped: tuple[str, ...]  # hooks of a base that a plain attribute replaced

    @property
    def name(self) -> str:
        return self.cls.__name__

    @property
    def where(self) -> str:
        """The place of the class, for messages: "shop.py:4: Shop"."""
        node = class_node(self.cls)
        line = f":{node.lineno}" if node is not None else ""
        return f"{self.file}{line}: {self.name}"

    def at(self, attribute: str) -> str:
        """The place of an attribute, for messages: "shop.py:7: Shop.vus"."""
        owner = owner_of(self.cls, attribute)
        line = attribute_lines(owner).get(attribute)
        if line is None:
            return f"{self.where}.{attribute}"
        return f"{file_of(owner)}:{line}: {self.name}.{attribute}"

    @property
    def is_test(self) -> bool:
        return any(hook.kind is StepKind.TEST for hook in self.hooks)

    @property
    def states(self) -> tuple[ReadHook, ...]:
        return tuple(hook for hook in self.hooks if hook.state is not None)

    def with_kinds(self, kinds: Mapping[str, StepKind]) -> "Reading":
        """Return the reading with the kinds that were decided where the test was written."""
        hooks = []
        for hook in self.hooks:
            kind = kinds.get(hook.name, hook.kind)
            result = hook.result
            if kind is StepKind.TEST and result is None:
                result = HTTPResponse  # it returns a client call, which its source shows
            hooks.append(replace(hook, kind=kind, result=result))
        return replace(self, hooks=tuple(hooks))

    def step_order(self) -> dict[str, tuple[str, ...]]:
        """Return the names of the steps that each step waits for."""
        return {hook.name: hook.after for hook in self.hooks if hook.kind in STEPS}

    def waited_for(self, hook: ReadHook) -> set[str]:
        """Return the steps that have ended when `hook` is called."""
        order = self.step_order()
        return ancestors({**order, hook.name: hook.after}, hook.name)

    def injected(self, hook: ReadHook) -> tuple[str, ...]:
        """Return the parameters that get a step's result or a value of the context, by name.

        Steps that the hook does not wait for are left out: they may not have a result yet.
        """
        order, waited_for = self.step_order(), self.waited_for(hook)
        return tuple(
            parameter.name
            for parameter in hook.parameters
            if parameter.by_name
            and parameter.optimized is None
            and (parameter.name not in order or parameter.name in waited_for)
        )


def read(cls: type[Workflow], *, is_planned: bool = False) -> Reading:
    """Read a class; its hooks are in the order in which they were written.

    A class that is planned may have a return annotation that cannot be resolved: where the test
    was written it could, and a class that was sent by value lacks names that only annotate.
    """
    if not isinstance(cls, type) or not issubclass(cls, Workflow) or cls is Workflow:
        raise InputError(f"{cls!r} is not a workflow", hint="give a class derived from Workflow")
    file = file_of(cls)
    found, dropped = hooks_of(cls)
    hooks = [_read_hook(cls, file, name, declared, is_planned) for name, declared in found.items()]
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


def file_of(cls: type) -> str:
    """Return the file of a class as shown in messages."""
    path = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return display_path(path) if path else cls.__module__


def owner_of(cls: type, attribute: str) -> type:
    """Return the class whose body sets the attribute that `cls` has, or `cls` itself."""
    bases = [base for base in cls.__mro__ if base is not Workflow]
    return next((base for base in bases if attribute in vars(base)), cls)


def display_path(path: str | Path) -> str:
    """Return the path as shown in messages: relative if it is below the working directory."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def hooks_of(cls: type[Workflow]) -> tuple[dict[str, Declared], tuple[str, ...]]:
    """Return the hooks of a class, and the names of hooks that a plain attribute replaced.

    Hooks of bases come first; a redefined hook keeps the place of the hook it replaces.
    """
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


def _read_hook(
    cls: type[Workflow], file: str, name: str, declared: Declared, is_planned: bool
) -> ReadHook:
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
    if isinstance(hints.get("return"), UnresolvedAnnotation) and not is_planned:
        unresolved: UnresolvedAnnotation = hints["return"]
        raise InputError(
            f"{where}: the return annotation {unresolved.text!r} cannot be read: "
            f"{unresolved.reason}",
            hint="import or define it at the top of the file, outside `if TYPE_CHECKING:`",
        )
    kind = None
    if declared.decorator != "state":
        kind = said.kind if declared.decorator == "step" else StepKind(declared.decorator)
    says_nothing = hints.get("return") in (None, Any, object)
    if declared.decorator == "step" and says_nothing and returned(function, cls).response:
        kind, said = StepKind.TEST, replace(said, result=HTTPResponse)
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
        # A wrapper may be a plain function that returns the coroutine of the method.
        is_async=any(inspect.iscoroutinefunction(layer) for layer in (function, written)),
        parameters=_parameters(function, hints, where),
        after=_names(declared.after, where=f"{where}: {decorator}"),
        workflows=_names(declared.workflows, where=f"{where}: {decorator}"),
        kind=kind,
        state=said.state.kind if kind is None and said.state else None,
        is_list=said.is_list,
        result=said.result,
        is_always_result=said.is_always_result,
        accept=_acceptance(declared.accept, where=where),
        metric_kind=_metric_kind(declared, said, where) if kind is StepKind.METRIC else None,
    )


def _metric_kind(declared: Declared, said: Meaning, where: str) -> MetricKind:
    given = said.metric_kind if declared.metric_kind is None else declared.metric_kind
    given = getattr(given, "kind", given)  # COUNT and the other classes
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
    """Return a function that tells whether `@step(accept=…)` accepts a status."""
    if accept is None:
        return None
    if callable(accept):
        return cast(Callable[[int], bool], accept)
    statuses = accept if isinstance(accept, Collection) else (accept,)
    for status in statuses:
        if (
            isinstance(status, bool)
            or not isinstance(status, int)
            or not (100 <= status <= 599 or 1 <= status <= _GRPC_CODE_MAX)
        ):
            raise InputError(
                f"{where}: accept={accept!r}: {status!r} is neither an HTTP status nor a code of "
                "gRPC",
                hint="give statuses of 100 to 599, as accept=[404, 409], codes of gRPC from 1 to "
                f"{_GRPC_CODE_MAX}, or a function of one",
            )
    return frozenset(statuses).__contains__


def _names(given: tuple[object, ...], *, where: str) -> tuple[str, ...]:
    """Return the names given to a decorator, each once."""
    for name in given:
        if not isinstance(name, str):
            shown = getattr(name, "__name__", None) or getattr(name, "name", None) or repr(name)
            raise InputError(f"{where}: {name!r} is not a name", hint=f'write "{shown}", quoted')
    return tuple(dict.fromkeys(str(name) for name in given))


def _parameters(
    function: Callable[..., Any], hints: dict[str, Any], where: str
) -> tuple[ReadParameter, ...]:
    own, *rest = inspect.signature(function).parameters.values() or (None,)
    if (
        own is None
        or own.kind not in (own.POSITIONAL_ONLY, own.POSITIONAL_OR_KEYWORD)
        or own.default is not own.empty
        or optimized_kind(hints.get(own.name)) is not None
        or meaning(hints.get(own.name)).result is not None
    ):
        raise InputError(
            f"{where}: the first parameter must be self",
            hint=f"write `{function.__name__}(self, …)`",
        )
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
