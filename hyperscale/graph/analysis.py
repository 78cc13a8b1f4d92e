"""What a step's source says about it, so that the engine need not do what nobody can see.

Two questions, each answered carefully, "yes, it may" where the source leaves doubt:

- can anything look at the body of the step's responses? If not, the engine drops it unread;
- is the step one client call on fixed arguments, returned untouched? Then it is *static*
  and can run without the interpreter.

A response is out of sight when it is only ever returned, or asked for what is not its body,
and when whoever receives it (a step or check that takes it by name) does no more than that.
Any way around this, such as handing out `self` or its client, gives the careful answer for
the whole class.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from hyperscale.graph.hooks import Declared
from hyperscale.graph.reading import ReadHook, Reading
from hyperscale.graph.source import FunctionNode, tree_of
from hyperscale.graph.workflow import Workflow
from hyperscale.plan import StepKind
from hyperscale.testing import HTTPResponse

# What a response can be asked for without its body.
_BODILESS = frozenset(
    {
        "status",
        "status_code",
        "ok",
        "reason",
        "version",
        "headers",
        "cookies",
        "url",
        "method",
        "redirects",
        "elapsed_s",
        "phases",
        "bytes_sent",
        "bytes_received",
        "remote",
        "tls_version",
        "tls_cipher",
    }
)
# Ways to reach a local or an attribute that no name in the source shows.
_REFLECTION = frozenset({"locals", "vars", "globals", "eval", "exec", "compile", "super"})


@dataclass(frozen=True, slots=True)
class FromParameter:
    """An argument that is the step's own request part of this name."""

    name: str


@dataclass(frozen=True, slots=True)
class StaticCall:
    """The one client call a step consists of. Arguments are literals or `FromParameter`."""

    protocol: str
    method: str
    args: tuple[object, ...]
    kwargs: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Insight:
    """What the source of one hook shows; the defaults are the careful answers."""

    sees_body: bool = True
    static: StaticCall | None = None


@dataclass(slots=True)
class _Method:
    """One method of the class, as far as its source was found and tells."""

    node: FunctionNode
    parents: dict[ast.AST, ast.AST]
    self_name: str | None
    leaks_self: bool = False  # `self` or a client goes where we do not follow
    shows_body: bool = False  # a response of its own calls is looked at, or may be
    attributes: set[str] = field(default_factory=set)  # `self.<name>` it reads


def analyse(reading: Reading) -> dict[str, Insight]:
    """What can be said of each hook, by name."""
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
                and _is_looked_at(methods[other.function], hook.name)
                for other in reading.hooks
            )
        )
        taken = hook.name in touched or any(
            hook.name in reading.injected(other) for other in reading.hooks
        )
        static = None if taken else _static_call(hook, method)
        insights[hook.name] = Insight(sees_body=seen, static=static)
    return insights


def literal_urls(reading: Reading) -> list[tuple[str, str]]:
    """Addresses written into calls of the HTTP client: where, and what."""
    found = []
    for hook in reading.hooks:
        node = tree_of(hook.function)
        if node is None:
            continue
        for child in ast.walk(node):
            named = _client_call(child, _self_name(node))
            if named is None or named[0] != "http" or not isinstance(child, ast.Call):
                continue
            at = 1 if named[1] == "request" else 0
            given = [word.value for word in child.keywords if word.arg == "url"] or child.args[at:]
            match given:
                case [ast.Constant(value=str(url)), *_]:
                    found.append((hook.where, url))
    return found


def may_fill_context(reading: Reading) -> bool:
    """Whether any method of the class may put a value into `self.context`."""
    methods = _methods(reading.cls)
    if methods is None:
        return True
    return any(m.leaks_self or "context" in m.attributes for m in methods.values())


# --- methods -----------------------------------------------------------------------------


def _methods(cls: type[Workflow]) -> dict[Any, _Method] | None:
    """Every method of the class by its function; None if one of them cannot be read."""
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
                # A wrapper around the method is somebody else's code, of another name.
                if node is None or function.__code__.co_qualname != f"{base.__qualname__}.{name}":
                    return None
                methods[function] = _look(node, is_static=isinstance(value, staticmethod))
    return methods


def _functions_of(value: object) -> list[FunctionType] | None:
    """The functions behind a class attribute; None if it runs code we cannot see."""
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
    method = _Method(node, parents, None if is_static else _self_name(node))
    responses: set[str] = set()  # local names that hold a response
    for child in _body(node):
        if isinstance(child, ast.Name) and child.id in _REFLECTION:
            method.leaks_self |= not _is_super_init(child, parents)
        elif isinstance(child, ast.ExceptHandler) and child.name:
            method.shows_body = True  # an error carries its exchange
        elif isinstance(child, ast.Name) and child.id == method.self_name:
            _follow_self(child, method, responses)
    for name in responses:
        # Its own response it may return: what becomes of that is asked of those who take it.
        method.shows_body |= _is_looked_at(method, name, may_return=True)
    return method


def _follow_self(name: ast.Name, method: _Method, responses: set[str]) -> None:
    """Where one mention of `self` leads."""
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
    is_called_here = _client_call(call, method.self_name) is not None
    # `http = self.client.http`, or a coroutine or function that makes the call later: it may
    # be made, and its response looked at, from any step.
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


def _is_looked_at(method: _Method, name: str, *, may_return: bool = False) -> bool:
    """Whether the response in the local `name` may be asked for its body, or leaves our sight."""
    for child in _body(method.node):
        if isinstance(child, ast.Global | ast.Nonlocal) and name in child.names:
            return True
        if not isinstance(child, ast.Name) or child.id != name:
            continue
        parent = method.parents[child]
        is_harmless = (
            not isinstance(child.ctx, ast.Load)
            or _is_bodiless(parent)
            or _is_none_test(parent)
            or (may_return and isinstance(parent, ast.Return))
        )
        if not is_harmless or _is_deferred(child, method):
            return True
    return False


def _is_code(cls: type, name: str) -> bool:
    """Whether reading `self.<name>` reaches code of the class, whose calls we do not follow."""
    if name in ("client", "context"):
        return False
    value = inspect.getattr_static(cls, name, None)
    return hasattr(type(value), "__get__")


# --- static calls ------------------------------------------------------------------------


def _static_call(hook: ReadHook, method: _Method) -> StaticCall | None:
    """The call if the step is nothing but it, on literals and its own request parts."""
    node = method.node
    is_http = hook.result is not None and issubclass(hook.result, HTTPResponse)
    if hook.kind is not StepKind.TEST or not is_http or len(node.decorator_list) != 1:
        return None
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    if len(body) != 1 or not isinstance(body[0], ast.Return):
        return None
    awaited = body[0].value
    call = awaited.value if isinstance(awaited, ast.Await) else None
    named = _client_call(call, method.self_name)
    if not isinstance(call, ast.Call) or named is None or named[0] != "http":
        return None
    parts = {parameter.name for parameter in hook.parameters if parameter.optimized}
    try:
        args = tuple(_argument(argument, parts) for argument in call.args)
        kwargs = {str(k.arg): _argument(k.value, parts) for k in call.keywords if k.arg}
    except (ValueError, TypeError):  # no literal, or one that no dict or set can hold
        return None
    if len(kwargs) != len(call.keywords):  # **options
        return None
    return StaticCall(protocol=named[0], method=named[1], args=args, kwargs=kwargs)


def _argument(node: ast.expr, parts: set[str]) -> object:
    if isinstance(node, ast.Name) and node.id in parts:
        return FromParameter(node.id)
    return ast.literal_eval(node)


# --- syntax ------------------------------------------------------------------------------


def _client_call(node: ast.AST | None, self_name: str | None) -> tuple[str, str] | None:
    """Protocol and method of `self.client.<protocol>.<method>(…)`."""
    match node:
        case ast.Call(
            func=ast.Attribute(
                attr=method,
                value=ast.Attribute(
                    attr=protocol,
                    value=ast.Attribute(attr="client", value=ast.Name(id=owner)),
                ),
            )
        ) if owner == self_name:
            return protocol, method
    return None


def _self_name(node: FunctionNode) -> str | None:
    arguments = [*node.args.posonlyargs, *node.args.args]
    return arguments[0].arg if arguments else None


def _body(node: FunctionNode) -> Iterator[ast.AST]:
    """Everything that runs when the function does; its decorators and defaults ran before."""
    for statement in node.body:
        yield from ast.walk(statement)


def _ancestor(node: ast.AST, parents: Mapping[ast.AST, ast.AST], steps: int) -> ast.AST:
    for _ in range(steps):
        node = parents.get(node, node)
    return node


def _is_deferred(node: ast.AST, method: _Method) -> bool:
    """Inside a function or class within the method, which may run at another time."""
    parent = method.parents.get(node)
    while parent is not None and parent is not method.node:
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            return True
        parent = method.parents.get(parent)
    return False


def _is_bodiless(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in _BODILESS


def _is_none_test(node: ast.AST) -> bool:
    return isinstance(node, ast.Compare) and all(
        isinstance(operator, ast.Is | ast.IsNot) for operator in node.ops
    )


def _is_super_init(name: ast.Name, parents: Mapping[ast.AST, ast.AST]) -> bool:
    attribute = _ancestor(name, parents, 2)
    return (
        name.id == "super"
        and isinstance(attribute, ast.Attribute)
        and (attribute.attr == "__init__")
    )
