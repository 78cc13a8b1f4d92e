"""Analyses the source of a class.

- Can any code read the body of a step's responses? If not, the engine drops bodies unread.
- Does any code take a step's response? If not, the step may be static (`static_steps`).
- Which URLs are literals in calls, and can a method fill `self.context`?

In doubt the answer is yes. A body is unread if the step, and every step or check that takes its
response by name, only returns the response or reads attributes that do not need the body. If any
method passes on `self` or its client, the answers for the whole class are yes.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from hyperscale.graph.hooks import Declared
from hyperscale.graph.reading import Reading
from hyperscale.graph.source import FunctionNode, client_call, self_name, tree_of
from hyperscale.graph.static_steps import NotStatic, StaticCall, static_call
from hyperscale.graph.workflow import Workflow
from hyperscale.testing import HTTPResponse
from hyperscale.testing.arguments import CLIENT_SCHEMES

# Attributes of a response that do not need its body.
BODILESS = frozenset(
    name for name, value in vars(HTTPResponse).items() if isinstance(value, property)
) - {"content", "body", "text"}
# Ways to reach a local or an attribute that no name in the source shows.
_REFLECTION = frozenset({"locals", "vars", "globals", "eval", "exec", "compile", "super"})


@dataclass(frozen=True, slots=True)
class Insight:
    """What the source shows about one hook; the defaults are the careful answers."""

    sees_body: bool = True
    static: StaticCall | NotStatic = NotStatic.UNKNOWN_SOURCE


@dataclass(slots=True)
class _Method:
    """The source of one method of the class, and what it shows."""

    node: FunctionNode
    parents: dict[ast.AST, ast.AST]
    self_name: str | None
    leaks_self: bool = False  # `self` or a client is passed to other code
    shows_body: bool = False  # the body of a response of its own calls may be read
    attributes: set[str] = field(default_factory=set)  # `self.<name>` it reads


def analyse(reading: Reading) -> dict[str, Insight]:
    """Analyse the hooks of a class; returns an `Insight` for each hook name."""
    methods = _methods(reading.cls)
    if methods is None or any(method.leaks_self for method in methods.values()):
        return {hook.name: Insight() for hook in reading.hooks}
    touched = set().union(*(method.attributes for method in methods.values()))
    insights = {}
    for hook in reading.hooks:
        method = methods[hook.function]
        seen = (
            method.shows_body
            or hook.name in touched
            or any(_is_code(reading.cls, name) for name in method.attributes)
            or any(
                hook.name in reading.injected(other)
                and _may_read_body(methods[other.function], hook.name)
                for other in reading.hooks
            )
        )
        taken = hook.name in touched or any(
            hook.name in reading.injected(other) for other in reading.hooks
        )
        static = NotStatic.RESPONSE_TAKEN if taken else static_call(hook, method.node)
        insights[hook.name] = Insight(sees_body=seen, static=static)
    return insights


def literal_urls(reading: Reading) -> list[tuple[str, str, str]]:
    """Return the URLs written into calls of clients that use the engine: the place of the hook, the
    name of the client, the URL."""
    found = []
    for hook in reading.hooks:
        node = tree_of(hook.function)
        if node is None:
            continue
        for child in ast.walk(node):
            named = client_call(child, self_name(node))
            if named is None or named[0] not in CLIENT_SCHEMES or not isinstance(child, ast.Call):
                continue
            at = 1 if named[1] == "request" else 0
            given = [word.value for word in child.keywords if word.arg == "url"] or child.args[at:]
            match given:
                case [ast.Constant(value=str(url)), *_]:
                    found.append((hook.where, named[0], url))
    return found


def literal_methods(reading: Reading) -> list[tuple[str, str]]:
    """Return the methods written into calls of gRPC: the place of the hook, and the method."""
    found = []
    for hook in reading.hooks:
        node = tree_of(hook.function)
        for child in () if node is None else ast.walk(node):
            named = client_call(child, self_name(node)) if node is not None else None
            if named is None or named[0] != "grpc" or not isinstance(child, ast.Call):
                continue
            given = [word.value for word in child.keywords if word.arg == "method"]
            match given or child.args[1:]:
                case [ast.Constant(value=str(method)), *_]:
                    found.append((hook.where, method))
    return found


def may_fill_context(reading: Reading) -> bool:
    """Return True if a method of the class may put a value into `self.context`."""
    methods = _methods(reading.cls)
    if methods is None:
        return True
    return any(m.leaks_self or "context" in m.attributes for m in methods.values())


# --- methods -----------------------------------------------------------------------------


def _methods(cls: type[Workflow]) -> dict[Any, _Method] | None:
    """Return every method of the class by its function; None if one cannot be read."""
    methods = {}
    for base in cls.__mro__:
        if base in (object, Workflow):
            continue
        for name, value in vars(base).items():
            if name in ("__dict__", "__weakref__"):
                continue
            functions = _functions_of(value)
            if functions is None:
                return None
            for function in functions:
                node = tree_of(function)
                # A wrapper around the method is other code, with another qualified name.
                if node is None or function.__code__.co_qualname != f"{base.__qualname__}.{name}":
                    return None
                methods[function] = _look(node, is_static=isinstance(value, staticmethod))
    return methods


def _functions_of(value: object) -> list[FunctionType] | None:
    """Return the functions behind a class attribute; None if it may run other code."""
    inner: list[object]
    if isinstance(value, Declared):
        inner = [value.function]
    elif isinstance(value, staticmethod | classmethod):
        inner = [value.__func__]
    elif isinstance(value, property):
        inner = [part for part in (value.fget, value.fset, value.fdel) if part is not None]
    elif isinstance(value, FunctionType):
        inner = [value]
    else:
        return None if hasattr(type(value), "__get__") else []
    functions = [function for function in inner if isinstance(function, FunctionType)]
    return functions if len(functions) == len(inner) else None


def _look(node: FunctionNode, *, is_static: bool) -> _Method:
    parents = {child: parent for parent in ast.walk(node) for child in ast.iter_child_nodes(parent)}
    method = _Method(node, parents, None if is_static else self_name(node))
    responses: set[str] = set()  # local names that hold a response
    for child in _body(node):
        if isinstance(child, ast.Name) and child.id in _REFLECTION:
            method.leaks_self |= not _is_super_init(child, parents)
        elif isinstance(child, ast.ExceptHandler) and child.name:
            method.shows_body = True  # an error carries its exchange
        elif isinstance(child, ast.Name) and child.id == method.self_name:
            _follow_self(child, method, responses)
    for name in responses:
        # `analyse` looks at the hooks that take a returned response.
        method.shows_body |= _may_read_body(method, name, may_return=True)
    return method


def _follow_self(name: ast.Name, method: _Method, responses: set[str]) -> None:
    """Note in `method` what one use of `self` does."""
    parents = method.parents
    attribute = parents[name]
    if not isinstance(attribute, ast.Attribute):
        method.leaks_self = True
        return
    if attribute.attr != "client":
        if isinstance(attribute.ctx, ast.Load):
            method.attributes.add(attribute.attr)
        return
    call = _ancestor(attribute, parents, 3)
    awaited = parents.get(call)
    is_called_here = client_call(call, method.self_name) is not None
    # `http = self.client.http`, or a coroutine or function that makes the call later: any step
    # may make the call and read its response.
    if not is_called_here or not isinstance(awaited, ast.Await) or _is_deferred(call, method):
        method.leaks_self = True
        return
    user = parents.get(awaited)
    if isinstance(user, ast.Assign | ast.AnnAssign):
        targets = user.targets if isinstance(user, ast.Assign) else [user.target]
        for target in targets:
            if isinstance(target, ast.Name):
                responses.add(target.id)
            else:
                method.shows_body = True
    elif not isinstance(user, ast.Expr | ast.Return) and not _is_bodiless(user):
        method.shows_body = True


def _may_read_body(method: _Method, name: str, *, may_return: bool = False) -> bool:
    """Return True if the body of the response in the local `name` may be read."""
    for child in _body(method.node):
        if isinstance(child, ast.Global | ast.Nonlocal) and name in child.names:
            return True
        if not isinstance(child, ast.Name) or child.id != name:
            continue
        parent = method.parents[child]
        is_harmless = (
            not isinstance(child.ctx, ast.Load)
            or _is_bodiless(parent)
            or (
                isinstance(parent, ast.Compare)
                and all(isinstance(operator, ast.Is | ast.IsNot) for operator in parent.ops)
            )
            or (may_return and isinstance(parent, ast.Return))
        )
        if not is_harmless or _is_deferred(child, method):
            return True
    return False


def _is_code(cls: type, name: str) -> bool:
    """Return True if reading `self.<name>` may run code of the class."""
    if name in ("client", "context"):
        return False
    value = inspect.getattr_static(cls, name, None)
    return hasattr(type(value), "__get__")


# --- syntax ------------------------------------------------------------------------------


def _body(node: FunctionNode) -> Iterator[ast.AST]:
    """Yield the nodes that run in a call; decorators and defaults ran before."""
    for statement in node.body:
        yield from ast.walk(statement)


def _ancestor(node: ast.AST, parents: Mapping[ast.AST, ast.AST], steps: int) -> ast.AST:
    for _ in range(steps):
        node = parents.get(node, node)
    return node


def _is_deferred(node: ast.AST, method: _Method) -> bool:
    """Return True if the node is in a nested function or class, which may run at another time."""
    parent = method.parents.get(node)
    while parent is not None and parent is not method.node:
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            return True
        parent = method.parents.get(parent)
    return False


def _is_bodiless(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in BODILESS


def _is_super_init(name: ast.Name, parents: Mapping[ast.AST, ast.AST]) -> bool:
    attribute = _ancestor(name, parents, 2)
    is_init = isinstance(attribute, ast.Attribute) and attribute.attr == "__init__"
    return is_init and name.id == "super"
