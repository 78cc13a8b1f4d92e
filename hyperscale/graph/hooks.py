"""The decorators of the authoring API. Each puts a `Declared` on the class.

Decorators check nothing, because a class is not complete while its body runs; `graph.validation`
does.
"""

from collections.abc import Awaitable, Callable, Collection, Coroutine
from inspect import isfunction
from types import MethodType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
    overload,
)

from hyperscale.errors import InputError
from hyperscale.plan import MetricKind, Per, StateKind

if TYPE_CHECKING:
    from hyperscale.graph.workflow import Workflow
    from hyperscale.testing.results import MetricType

T = TypeVar("T")
P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])
W = TypeVar("W", bound="type[Workflow]")

Accept: TypeAlias = int | Collection[int] | Callable[[int], bool]
"""Statuses of 400 or more that are not failures: one, several, or a function of the status."""

MetricKindName: TypeAlias = Literal["count", "rate", "gauge", "distribution", "timer", "sample"]
PerName: TypeAlias = Literal["workflow", "executor", "vu"]


Decorator: TypeAlias = Literal["step", "action", "check", "metric", "state", "setup", "teardown"]
DECORATORS: tuple[str, ...] = get_args(Decorator)


class StateMark:
    """Marks the return annotation of a `@state` method."""

    def __init__(self, kind: StateKind) -> None:
        self.kind = kind


# Either may be None: a provider may have no value, a user no default.
Provide: TypeAlias = Annotated[T | None, StateMark(StateKind.PROVIDE)]
Use: TypeAlias = Annotated[T | None, StateMark(StateKind.USE)]


class Declared:
    """A decorated method on its class. On an instance it is the plain method."""

    def __init__(
        self,
        decorator: Decorator,
        function: Callable[..., Any],
        *,
        after: tuple[object, ...] = (),
        accept: object = None,
        weight: object = None,
        metric_kind: object = None,
        workflows: tuple[object, ...] = (),
        per: object = Per.WORKFLOW,
    ) -> None:
        self.decorator = decorator
        self.function = function
        self.after = after
        self.accept = accept
        self.weight = weight
        self.metric_kind = metric_kind
        self.workflows = workflows
        self.per = per
        self.name: str = getattr(function, "__name__", "")
        self.__doc__ = getattr(function, "__doc__", None)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self.function, instance)

    def __repr__(self) -> str:
        return f"<@{self.decorator} {getattr(self.function, '__qualname__', self.name)}>"


class Step(Declared, Generic[P, T]):
    """A step on its class."""

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> "Step[P, T]": ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> "BoundStep[P, T]": ...
    def __get__(self, instance: Any, owner: type | None = None) -> "Step[P, T] | BoundStep[P, T]":
        return self if instance is None else BoundStep(instance, self)


class BoundStep(Generic[P, T]):
    """A step of one virtual user: callable like the method, with its last result."""

    __slots__ = ("_declared", "_instance")

    def __init__(self, instance: "Workflow", declared: Step[P, T]) -> None:
        self._instance = instance
        self._declared = declared

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return cast(
            Coroutine[Any, Any, T], self._declared.function(self._instance, *args, **kwargs)
        )

    @property
    def response(self) -> T | None:
        """The last result of the step on this virtual user; None before the first."""
        return cast(T | None, self._instance._responses.get(self._declared.name))


class DeclaredState(Declared):
    """A `@state` method on its class. A `Use` method on an instance gets the provided values."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        given = instance._received.get(self.name)
        if not given:
            return MethodType(self.function, instance)

        def call(*args: Any, **kwargs: Any) -> Any:
            return self.function(instance, *args, **{**given, **kwargs})

        return call


def _typed_as_method(declared: Declared) -> Any:
    return declared  # on an instance it is the method


def step(
    *after: str, accept: Accept | None = None, weight: float | None = None
) -> Callable[[Callable[Concatenate[Any, P], Awaitable[T]]], Step[P, T]]:
    """Declare a step of every iteration. It runs after the steps named, or else at the start.

    A step that returns a result type (`-> HTTPResponse`) is a test, any other an action. A response
    with a status of 400 or more is a failure unless `accept` names the status: a number, several,
    or a function of the status. Of steps with a `weight` that come after the same steps, each
    iteration runs one, chosen at random in proportion to the weights.
    """
    _refuse_bare("step", after)
    return lambda function: Step("step", function, after=after, accept=accept, weight=weight)


def action(*after: str) -> Callable[[Callable[Concatenate[Any, P], Awaitable[T]]], Step[P, T]]:
    """Declare a step that is not measured as a test, such as preparing data."""
    _refuse_bare("action", after)
    return lambda function: Step("action", function, after=after)


def check() -> Callable[[F], F]:
    """Declare a check of the steps its parameters name. Returning False or raising fails it."""
    return lambda function: _typed_as_method(Declared("check", function))


def metric(
    kind: "MetricKind | MetricKindName | type[MetricType] | None" = None,
) -> Callable[[F], F]:
    """Declare a custom metric, computed from the steps that its parameters name.

    `kind` is count (the default), rate, gauge, distribution or timer; the return annotation can
    name it too: `-> Metric[GAUGE]`.
    """
    _refuse_bare("metric", (kind,))
    return lambda function: _typed_as_method(Declared("metric", function, metric_kind=kind))


def state(*workflows: str) -> Callable[[F], F]:
    """Declare a method that provides a value to the named workflows (`-> Provide[T]`), or uses
    values of them (`-> Use[T]`).

    Both workflows must name each other. The using method gets the value as the parameter that has
    the name of the providing method.
    """
    _refuse_bare("state", workflows)
    return lambda function: _typed_as_method(DeclaredState("state", function, workflows=workflows))


def setup(per: PerName = "workflow") -> Callable[[F], F]:
    """Declare a hook that runs before the virtual users start.

    - `per="workflow"` (the default): once for the workflow, wherever it runs. What it puts into
      `self.context` is the context that every virtual user starts with.
    - `per="executor"`: once in each process of the workflow, for pools and the like. Attributes
      that it sets on `self` are there for all virtual users of the process.
    - `per="vu"`: once for each virtual user, such as a login. Attributes that it sets on `self`
      belong to this user.
    """
    _refuse_bare("setup", (per,))
    return lambda function: _typed_as_method(Declared("setup", function, per=per))


def teardown(per: PerName = "workflow") -> Callable[[F], F]:
    """Declare a hook that runs after the virtual users have ended; `per` is that of `@setup`.

    With `per="workflow"` it runs once, on any worker, after the last part of the workflow, and
    finds in `self.context` what setup left there.
    """
    _refuse_bare("teardown", (per,))
    return lambda function: _typed_as_method(Declared("teardown", function, per=per))


def depends(*workflows: str) -> Callable[[W], W]:
    """Start the workflow only when the named workflows have finished."""
    if len(workflows) == 1 and isinstance(workflows[0], type):
        raise InputError(
            f"@depends takes the names of workflows, not {workflows[0].__name__} itself",
            hint=f'write @depends("{workflows[0].__name__}")',
        )

    def note(cls: W) -> W:
        cls._depends = (*cls.__dict__.get("_depends", ()), *workflows)
        return cls

    return note


def _refuse_bare(decorator: str, given: tuple[object, ...]) -> None:
    """Refuse `@step` without parentheses, which passes the method itself."""
    if len(given) == 1 and isfunction(given[0]) and "." in given[0].__qualname__:
        raise InputError(f"{given[0].__qualname__}: write @{decorator}() with parentheses")
