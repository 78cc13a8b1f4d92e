"""Decides which steps are *static*: one client call on fixed arguments whose result is returned.

`execution.static` runs a workflow of only static steps in the native engine, without the
interpreter; `first_obstacle` has the conditions for the workflow as a whole.
"""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from types import BuiltinMethodType

from hyperscale.graph.reading import ReadHook
from hyperscale.graph.source import FunctionNode, client_call, self_name
from hyperscale.plan import FeedPer, Per, StepKind, Take, WorkflowPlan
from hyperscale.testing import HTTPResponse, StreamResponse
from hyperscale.testing.feed import FeedColumn
from hyperscale.testing.protocols import NATIVE_PROTOCOLS

_CLIENTS = (*NATIVE_PROTOCOLS, "tcp", "udp", "websocket")
"""Clients whose calls the native program can make."""
_AROUND = (StepKind.SETUP, StepKind.TEARDOWN)
COMPILED_ROWS_MAX = 100_000
"""Rows of a feed for which requests are prepared ahead: each takes about a kilobyte."""


class NotStatic(Enum):
    """Why a workflow runs in Python, in words; `{step}` is the first step of which that is true."""

    # Of a step.
    UNKNOWN_SOURCE = "the source of the class cannot be read, or passes self or its client on"
    RESPONSE_TAKEN = "another step, a check or a metric takes the response of {step}"
    NO_HTTP_TEST = "{step} does not return a response of HTTP, WebSocket, TCP or UDP"
    DECORATED = "{step} has a further decorator"
    MORE_THAN_ONE_CALL = "{step} is not a single `return await self.client.<name>.<method>(...)`"
    CHANGING_ARGUMENTS = "{step} has an argument that is neither a literal nor a request part"
    ACCEPT_IS_CODE = "a function decides which statuses {step} accepts"
    TWO_FEEDS = "{step} takes columns of two feeds"
    # Of a workflow.
    NO_STEPS = "it has no steps"
    TRACED = "tracing gives requests a header of their own"
    JUDGED = "checks and metrics run after every iteration"
    SET_UP = "setup hooks, and teardown hooks of users, use the connections of users in Python"
    MANY_ROWS = f"a feed with columns has more than {COMPILED_ROWS_MAX:,} rows"
    RUNS_OUT = 'a feed with take="once" and per="vu" has fewer rows than there are users'


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
    has_columns: bool = False  # an argument is a column of a feed


def static_call(  # noqa: PLR0911 - one for each reason
    hook: ReadHook, node: FunctionNode
) -> StaticCall | NotStatic:
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
    columns = [each.default for each in hook.parameters if isinstance(each.default, FeedColumn)]
    if len({id(column.feed) for column in columns}) > 1:
        return NotStatic.TWO_FEEDS
    accepted = _accepted_statuses(hook.accept)
    if accepted is None:
        return NotStatic.ACCEPT_IS_CODE
    return StaticCall(named[1], *arguments, accepted, named[0], has_columns=bool(columns))


def first_obstacle(
    plan: WorkflowPlan, steps: Mapping[str, StaticCall | NotStatic]
) -> tuple[NotStatic, str] | None:
    """Return why a workflow has to run in Python, as a reason and in words; None if it need not.

    `steps` has the analysis of each step, in the plan's order.
    """
    found = _obstacle(plan, steps)
    if found is None:
        return None
    reason, step = found
    places = {each.name: each.where for each in plan.steps}
    shown = f"{step} ({places[step]})" if places.get(step) else step
    return reason, reason.value.format(step=shown)


def _obstacle(
    plan: WorkflowPlan, steps: Mapping[str, StaticCall | NotStatic]
) -> tuple[NotStatic, str] | None:
    kinds = {step.kind for step in plan.steps}
    of_users = [step for step in plan.steps if step.kind in _AROUND and step.per is Per.VU]
    conditions = {
        NotStatic.NO_STEPS: not steps,
        NotStatic.JUDGED: not kinds.isdisjoint((StepKind.CHECK, StepKind.METRIC)),
        NotStatic.TRACED: plan.tracing > 0,
        NotStatic.SET_UP: StepKind.SETUP in kinds or bool(of_users),
        NotStatic.RUNS_OUT: any(
            feed.take is Take.ONCE and feed.per is FeedPer.VU and feed.dealt < plan.vus
            for feed in plan.feeds
        ),
        NotStatic.MANY_ROWS: any(feed.rows > COMPILED_ROWS_MAX for feed in plan.feeds)
        and any(isinstance(step, StaticCall) and step.has_columns for step in steps.values()),
    }
    of_workflow = ((reason, "") for reason, holds in conditions.items() if holds)
    of_steps = ((each, name) for name, each in steps.items() if isinstance(each, NotStatic))
    return next(chain(of_workflow, of_steps), None)


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
