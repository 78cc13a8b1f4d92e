"""What the source of a step shows about its requests: does it make any, does it return a response?

A step that returns the response of a client call is measured, whatever its annotation says or
leaves out. The answer is found where the test is written and travels in the plan. In doubt the
answer is no: only names that hold nothing but responses count, and code that is not in the class
is not followed.
"""

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import FunctionType
from typing import Any

from hyperscale.graph.hooks import Declared
from hyperscale.graph.source import FunctionNode, definition_of, self_name

# Functions of asyncio that hand on the request they are given.
_HANDING_ON = frozenset({"wait_for", "shield", "create_task", "ensure_future"})


class _Value(Enum):
    """What an expression gives."""

    HUB = "self.client"
    CLIENT = "self.client.http"
    REQUEST = "a request that was not awaited"
    RESPONSE = "the response of a request"
    NOTHING = "None"
    OTHER = "anything else"


@dataclass(frozen=True, slots=True)
class Returned:
    """What a step does with its requests."""

    makes_requests: bool = False
    response: bool = False  # it returns the response of a request
    unawaited_line: int | None = None  # it returns a request without awaiting it


def returned(function: Callable[..., Any], cls: type) -> Returned:
    """Look at the source of a step of `cls`; if there is none, the answers are no."""
    return _look(function, cls, {})


def _look(
    function: Callable[..., Any], cls: type, known: dict[Callable[..., Any], Returned]
) -> Returned:
    if function not in known:
        known[function] = Returned()  # for a method that calls itself
        written = inspect.unwrap(function)
        node = definition_of(written) if isinstance(written, FunctionType) else None
        if node is not None:
            known[function] = _Body(node, cls, known).answer()
    return known[function]


class _Body:
    """One function: what its names hold, and what it returns."""

    def __init__(
        self, node: FunctionNode, cls: type, known: dict[Callable[..., Any], Returned]
    ) -> None:
        self._node = node
        self._cls = cls
        self._known = known
        self._owner = self_name(node)
        self._makes_requests = False
        self._names: dict[str, _Value] = {}
        for _ in range(2):  # a name may be used above the line that binds it, in a loop
            self._names = self._bindings()

    def answer(self) -> Returned:
        response, unawaited_line = False, None
        for child in _own_nodes(self._node):
            if isinstance(child, ast.Call):
                self._value(child)
            elif isinstance(child, ast.Return) and child.value is not None:
                value = self._value(child.value)
                response |= value is _Value.RESPONSE
                if value is _Value.REQUEST and unawaited_line is None:
                    unawaited_line = child.lineno
        return Returned(self._makes_requests, response, unawaited_line)

    def _bindings(self) -> dict[str, _Value]:
        """Return what each local name holds; a name that holds different things holds anything."""
        names: dict[str, _Value] = {}
        for child in _own_nodes(self._node):
            match child:
                case ast.Assign(targets=targets, value=value):
                    bound = [(target, value) for target in targets]
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    bound = [(target, value)]
                case ast.NamedExpr(target=target, value=value):
                    bound = [(target, value)]
                case ast.For(target=target) | ast.AsyncFor(target=target):
                    bound = [(target, ast.Constant(...))]
                case _:
                    continue
            for target, value in bound:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        held = self._value(value) if name is target else _Value.OTHER
                        names[name.id] = _either(names.get(name.id), held)
        return names

    def _value(self, node: ast.expr) -> _Value:  # noqa: PLR0911 - one line for each form
        match node:
            case ast.Constant(value=None):
                return _Value.NOTHING
            case ast.Name(id=name):
                return self._names.get(name, _Value.OTHER)
            case ast.NamedExpr(value=value):
                return self._value(value)
            case ast.Await(value=value):
                is_request = self._value(value) is _Value.REQUEST
                return _Value.RESPONSE if is_request else _Value.OTHER
            case ast.IfExp(body=one, orelse=other):
                return _either(self._value(one), self._value(other))
            case ast.Attribute(value=ast.Name(id=owner), attr="client") if owner == self._owner:
                return _Value.HUB
            case ast.Attribute(value=value) if self._value(value) is _Value.HUB:
                return _Value.CLIENT
            case ast.Call(func=function, args=args):
                return self._call(function, args)
        return _Value.OTHER

    def _call(self, function: ast.expr, args: list[ast.expr]) -> _Value:
        match function:
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner == self._owner:
                return self._method(name)
            case ast.Attribute(value=value) if self._value(value) is _Value.CLIENT:
                self._makes_requests = True
                return _Value.REQUEST
            case ast.Attribute(attr=name) | ast.Name(id=name) if name in _HANDING_ON and args:
                return self._value(args[0])
        return _Value.OTHER

    def _method(self, name: str) -> _Value:
        """Return what a call of `self.<name>` gives: awaiting it gives what the method returns."""
        method = inspect.getattr_static(self._cls, name, None)
        method = method.function if isinstance(method, Declared) else method
        if not isinstance(method, FunctionType):
            return _Value.OTHER
        seen = _look(method, self._cls, self._known)
        self._makes_requests |= seen.makes_requests
        is_async = inspect.iscoroutinefunction(method)
        gives_request = seen.response if is_async else seen.unawaited_line is not None
        return _Value.REQUEST if gives_request else _Value.OTHER


def _either(one: _Value | None, other: _Value) -> _Value:
    """Return what a name or expression holds that is the one or the other."""
    if one is None or one is other or one is _Value.NOTHING:
        return other
    return one if other is _Value.NOTHING else _Value.OTHER


def _own_nodes(node: FunctionNode) -> Iterator[ast.AST]:
    """Yield the nodes of a function in the order of the source, without nested functions."""
    waiting: list[ast.AST] = [*reversed(node.body)]
    while waiting:
        child = waiting.pop()
        yield child
        if not isinstance(
            child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
        ):
            waiting += reversed(list(ast.iter_child_nodes(child)))
