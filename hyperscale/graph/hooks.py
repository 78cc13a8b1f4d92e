"""The decorators people write, and what they leave on a class.

A decorator only notes what was written, as a `Declared` on the class; nothing is judged
here, because a class is not finished while its body runs. `graph.validation` judges.
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
    overload,
)

from hyperscale.errors import InputError
from hyperscale.plan import MetricKind

if TYPE_CHECKING:
    from hyperscale.graph.workflow import Workflow
    from hyperscale.testing.measures import MetricType

T = TypeVar("T")
P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])
W = TypeVar("W", bound="type[Workflow]")

Accept: TypeAlias = int | Collection[int] | Callable[[int], bool]
"""Statuses of 400 or more that are no failure: one, several, or a rule."""

MetricKindName: TypeAlias = Literal["count", "rate", "gauge", "distribution", "timer", "sample"]


class StateMark:
    """Marks the return annotation of a `@state` method."""

    def __init__(self, action: Literal["provide", "use"]) -> None:
        self.action = action


# Both sides may come away empty: a provider with nothing to give, a user with no default.
Provide: TypeAlias = Annotated[T | None, StateMark("provide")]
Use: TypeAlias = Annotated[T | None, StateMark("use")]


class Declared:
    """One decorated method as it was written. Reached through an instance, it is the method."""

    def __init__(
        self,
        decorator: Literal["step", "action", "check", "metric", "state", "setup", "teardown"],
        function: Callable[..., Any],
        *,
        after: tuple[object, ...] = (),
        accept: object = None,
        metric_kind: object = None,
        workflows: tuple[object, ...] = (),
    ) -> None:
        self.decorator = decorator
        self.function = function
        self.after = after
        self.accept = accept
        self.metric_kind = metric_kind
        self.workflows = workflows
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
    """A step of one virtual user: callable as the method it is, and it knows its last result."""

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
        """What the step last returned on this virtual user; None before that."""
        return cast(T | None, self._instance._responses.get(self._declared.name))


class DeclaredState(Declared):
    """A `@state` method. Called without arguments, one that uses gets what was provided."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        given = instance._received.get(self.name)
        if not given:
            return MethodType(self.function, instance)

        def call(*args: Any, **kwargs: Any) -> Any:
            return self.function(instance, *args, **{**given, **kwargs})

        return call


def step(
    *after: str, accept: Accept | None = None
) -> Callable[[Callable[Concatenate[Any, P], Awaitable[T]]], Step[P, T]]:
    """A step of every iteration, after the steps it names; those with none run side by side.

    Its return annotation makes it a test (`-> HTTPResponse`); without a result type it is
    an action. A response of 400 or more counts as failed unless `accept` lets it pass:
    a status, several, or a function of the status.
    """
    _refuse_bare("step", after)
    return lambda function: Step("step", function, after=after, accept=accept)


def action(
    *after: str,
) -> Callable[[Callable[Concatenate[Any, P], Awaitable[T]]], Step[P, T]]:
    """A step that is not measured as a test: preparing and clearing up."""
    _refuse_bare("action", after)
    return lambda function: Step("action", function, after=after)


def check() -> Callable[[F], F]:
    """An assertion on the steps whose names are its parameters. Passes unless False or raising."""
    return lambda function: _seen_as_written(Declared("check", function))


def metric(
    kind: "MetricKind | MetricKindName | type[MetricType] | None" = None,
) -> Callable[[F], F]:
    """A number of the user's own, made from the steps whose names are its parameters.

    `kind` is count (the default), rate, gauge, distribution or timer, unless the return
    annotation says it: `-> Metric[GAUGE]`.
    """
    _refuse_bare("metric", (kind,))
    return lambda function: _seen_as_written(Declared("metric", function, metric_kind=kind))


def state(*workflows: str) -> Callable[[F], F]:
    """Gives a value to the named workflows (`-> Provide[T]`) or takes some (`-> Use[T]`).

    Both sides must name each other. The key is the providing method's name; the using
    method takes it as the parameter of that name.
    """
    _refuse_bare("state", workflows)
    return lambda function: _seen_as_written(DeclaredState("state", function, workflows=workflows))


def setup() -> Callable[[F], F]:
    """Runs once per part of the workflow, before its virtual users start."""
    return lambda function: _seen_as_written(Declared("setup", function))


def teardown() -> Callable[[F], F]:
    """Runs once per part of the workflow, after its virtual users ended, however they ended."""
    return lambda function: _seen_as_written(Declared("teardown", function))


def depends(*workflows: str) -> Callable[[W], W]:
    """The class starts only when the named workflows have finished."""
    if len(workflows) == 1 and isinstance(workflows[0], type):
        raise InputError(
            f"@depends takes the names of workflows, not {workflows[0].__name__} itself",
            hint=f'write @depends("{workflows[0].__name__}")',
        )

    def note(cls: W) -> W:
        cls._depends = (*cls.__dict__.get("_depends", ()), *workflows)
        return cls

    return note


def _seen_as_written(declared: Declared) -> Any:
    """Through an instance a declared method is the method, so it keeps the method's type."""
    return declared


def _refuse_bare(decorator: str, given: tuple[object, ...]) -> None:
    """`@step` without parentheses hands us the method itself: say so where it happened."""
    if len(given) == 1 and isfunction(given[0]) and "." in given[0].__qualname__:
        raise InputError(f"{given[0].__qualname__}: write @{decorator}() with parentheses")
