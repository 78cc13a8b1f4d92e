"""Interprets annotations: results, request parts, checks, metrics, `Provide` and `Use`.

Annotations are resolved one at a time, so that a name that exists only for type checkers does not
hide the others.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import hyperscale.testing
from hyperscale.graph import hooks
from hyperscale.graph.hooks import StateMark
from hyperscale.plan import StepKind
from hyperscale.testing import CallResult, CustomResult, OptimizedArg
from hyperscale.testing.results import CheckMark, Metric, MetricMark

# Names that resolve although they are imported under `if TYPE_CHECKING:`.
_KNOWN_NAMES: dict[str, Any] = {
    **{name: getattr(hyperscale.testing, name) for name in hyperscale.testing.__all__},
    "Provide": hooks.Provide,
    "Use": hooks.Use,
}


@dataclass(frozen=True, slots=True)
class UnresolvedAnnotation:
    """An annotation with a name that does not exist at run time."""

    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a return annotation means for its method."""

    kind: StepKind = StepKind.ACTION  # of a `@step`
    result: type[CallResult] | type[CustomResult] | None = None
    is_always_result: bool = False  # no other type is permitted, nor None
    metric_kind: object = None
    state: StateMark | None = None
    is_list: bool = False  # of a state: its type is a list


def resolve(function: Callable[..., Any], owner: type) -> dict[str, Any]:
    """Return the annotations of `function` as types, or as `UnresolvedAnnotation`."""
    written = inspect.unwrap(function)  # a wrapper has the annotations, but another module
    # Names of the module come before those of the class, where steps have names too.
    namespace = {
        **_KNOWN_NAMES,
        **{name: value for name, value in vars(owner).items() if isinstance(value, type)},
        owner.__name__: owner,
        **getattr(written, "__globals__", {}),
        **closure_of(written),
    }
    resolved = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        holder = SimpleNamespace(__annotations__={name: annotation})
        try:
            hints = get_type_hints(holder, namespace, {}, include_extras=True)
        except (NameError, AttributeError, TypeError, SyntaxError) as error:
            resolved[name] = UnresolvedAnnotation(str(annotation), str(error))
        else:
            resolved[name] = hints[name]
    return resolved


def closure_of(function: object) -> dict[str, Any]:
    """Return the variables of enclosing scopes that a function uses, if they are assigned."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = getattr(function, "__closure__", None) or ()
    found = {}
    for name, cell in zip(names, cells, strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def meaning(annotation: Any) -> Meaning:
    """Interpret a resolved return annotation."""
    result: type[CallResult] | type[CustomResult] | None = None
    is_always_result = True
    for part in _parts(annotation):
        if isinstance(part, StateMark):
            is_list = any(one is list for one in _parts(annotation))
            return Meaning(state=part, is_list=is_list)
        if isinstance(part, CheckMark):
            return Meaning(StepKind.CHECK)
        if isinstance(part, MetricMark):
            return Meaning(StepKind.METRIC, metric_kind=part.kind)
        if part is Metric:
            return Meaning(StepKind.METRIC)
        if isinstance(part, type) and issubclass(part, CallResult | CustomResult):
            result = result or part
        else:
            is_always_result = False
    return Meaning() if result is None else Meaning(StepKind.TEST, result, is_always_result)


def optimized_kind(annotation: Any) -> type[OptimizedArg] | None:
    """Return the request part that the annotation of a parameter names, if any."""
    for part in _parts(annotation):
        if isinstance(part, type) and issubclass(part, OptimizedArg):
            return part
    return None


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield the members of unions and of `Annotated`, whose marks come first."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *marks = get_args(annotation)
        yield from marks
        yield from _parts(inner)
    elif origin is Union or origin is UnionType:
        for option in get_args(annotation):
            yield from _parts(option)
    elif isinstance(origin, type):  # a generic result class: Page[int]
        yield origin
    else:
        yield annotation
