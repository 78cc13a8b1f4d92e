"""Decides which steps are *static*: one client call on fixed arguments whose result is returned.

`execution.static` runs a workflow of only static steps in the native engine, without the
interpreter; `Blueprint.why_not_static` has the conditions for the workflow as a whole.
"""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import BuiltinMethodType

from hyperscale.graph.reading import ReadHook
from hyperscale.graph.source import FunctionNode, client_call, self_name
from hyperscale.plan import StepKind
from hyperscale.testing import HTTPResponse, StreamResponse

_CLIENTS = ("http", "tcp", "udp", "websocket")
"""Clients whose calls the native program can make."""


class NotStatic(Enum):
    """Why a step, or a workflow, has to run in Python."""

    # Of a step.
    UNKNOWN_SOURCE = "the source of the class cannot be read, or hands out self or its client"
    RESPONSE_TAKEN = "another hook takes its response"
    NO_HTTP_TEST = "it is not a test step that returns a response of HTTP, WebSocket, TCP or UDP"
    DECORATED = "it has a further decorator"
    MORE_THAN_ONE_CALL = "it is not a single `return await self.client.<name>.<method>(...)`"
    CHANGING_ARGUMENTS = "an argument is neither a literal nor a request part of the step"
    ACCEPT_IS_CODE = "a function decides which statuses it accepts"
    # Of a workflow.
    NO_STEPS = "it has no steps"
    JUDGED = "it has checks or metrics, which run after every iteration"
    FED = "it has a feed, whose rows Python gives to users"
    SET_UP = "it has setup hooks, or teardown hooks of users, whose cookies and connections count"


@dataclass(frozen=True, slots=True)
class FromParameter:
    """An argument that is the step's own request part of this name."""

    name: str


@dataclass(frozen=True, slots=True)
class StaticCall:
    """The one client call a step consists of. Arguments are literals or `FromParameter`."""

    method: str
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    accepted: tuple[int, ...] = ()  # statuses of 400 or more that count as success
    client: str = "http"  # its name under `self.client`


def static_call(hook: ReadHook, node: FunctionNode) -> StaticCall | NotStatic:
    """Return the call that a step consists of, or why the step is not static."""
    if hook.kind is not StepKind.TEST or not (
        hook.result and issubclass(hook.result, (HTTPResponse, StreamResponse))
    ):
        return NotStatic.NO_HTTP_TEST
    if len(node.decorator_list) != 1:
        return NotStatic.DECORATED
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    match body:
        case [ast.Return(value=ast.Await(value=ast.Call() as call))]:
            named = client_call(call, self_name(node))
        case _:
            named = None
    if named is None or named[0] not in _CLIENTS or named == ("http", "stream"):
        return NotStatic.MORE_THAN_ONE_CALL
    arguments = _arguments(call, {part.name for part in hook.parameters if part.optimized})
    if arguments is None:
        return NotStatic.CHANGING_ARGUMENTS
    accepted = _accepted_statuses(hook.accept)
    if accepted is None:
        return NotStatic.ACCEPT_IS_CODE
    return StaticCall(named[1], *arguments, accepted, named[0])


def _arguments(
    call: ast.Call, parts: set[str]
) -> tuple[tuple[object, ...], dict[str, object]] | None:
    """Return the arguments of a call; None if their values are not known beforehand."""
    try:
        args = tuple(_argument(argument, parts) for argument in call.args)
        kwargs = {str(k.arg): _argument(k.value, parts) for k in call.keywords if k.arg}
    except (ValueError, TypeError):  # no literal, or one that no dict or set can hold
        return None
    return (args, kwargs) if len(kwargs) == len(call.keywords) else None  # `**options` has no name


def _argument(node: ast.expr, parts: set[str]) -> object:
    if isinstance(node, ast.Name) and node.id in parts:
        return FromParameter(node.id)
    return ast.literal_eval(node)


def _accepted_statuses(accept: Callable[[int], bool] | None) -> tuple[int, ...] | None:
    """Return the statuses a step accepts; None if only a function of the user can tell."""
    if accept is None:
        return ()
    owner = getattr(accept, "__self__", None)
    if isinstance(accept, BuiltinMethodType) and isinstance(owner, frozenset):
        return tuple(sorted(owner))
    return None
