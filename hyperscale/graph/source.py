"""Finds the syntax trees of functions and classes.

`tree_of` returns the tree that a function was certainly compiled from. That is certain if compiling
the source again gives the same code object. The functions of a changed file, patched methods and
rewritten modules have no tree.
"""

import ast
import linecache
import sys
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FunctionType

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def tree_of(function: FunctionType) -> FunctionNode | None:
    """Return the definition that `function` was compiled from, or None if that is not certain."""
    found = _find(function)
    return found[0] if found is not None and found[1] == function.__code__ else None


def definition_of(function: FunctionType) -> FunctionNode | None:
    """Return the definition of that name and line, also if a tool such as pytest rewrote its code.

    For what a person should be told; only `tree_of` is good enough to run something else instead.
    """
    found = _find(function)
    return found[0] if found is not None else None


def _find(function: FunctionType) -> tuple[FunctionNode, CodeType] | None:
    code = function.__code__
    linecache.checkcache(code.co_filename)  # the file may have changed
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    return _definitions(text, code.co_filename).get((code.co_qualname, code.co_firstlineno))


def class_node(cls: type) -> ast.ClassDef | None:
    """Return the definition of a class in the file of its module, or None if it is not there.

    For line numbers and the names in the body; only `tree_of` is certain of the code itself.
    """
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if file is None:
        return None
    linecache.checkcache(file)
    return _classes("".join(linecache.getlines(file)), file).get(cls.__qualname__)


def attribute_lines(cls: type) -> dict[str, int]:
    """Return the line of each name that the body of a class assigns or defines; the last wins."""
    definition = class_node(cls)
    lines: dict[str, int] = {}
    for statement in definition.body if definition is not None else ():
        match statement:
            case ast.Assign(targets=targets):
                inner = (node for target in targets for node in ast.walk(target))
                names = [node.id for node in inner if isinstance(node, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                names = [name]
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names = [name]
            case _:
                names = []
        lines.update(dict.fromkeys(names, first_line(statement)))
    return lines


def first_line(statement: ast.stmt) -> int:
    """Return the line where a statement begins, decorators included."""
    decorators = getattr(statement, "decorator_list", None)
    return int(decorators[0].lineno) if decorators else statement.lineno


def client_call(node: ast.AST | None, owner_name: str | None) -> tuple[str, str] | None:
    """Return protocol and method of `self.client.<protocol>.<method>(…)`; None for other nodes."""
    match node:
        case ast.Call(
            func=ast.Attribute(
                attr=method,
                value=ast.Attribute(
                    attr=protocol,
                    value=ast.Attribute(attr="client", value=ast.Name(id=owner)),
                ),
            )
        ) if owner == owner_name:
            return protocol, method
    return None


def self_name(node: FunctionNode) -> str | None:
    """Return the name of the first parameter, usually `self`."""
    arguments = [*node.args.posonlyargs, *node.args.args]
    return arguments[0].arg if arguments else None


@lru_cache(maxsize=16)
def _classes(text: str, filename: str) -> dict[str, ast.ClassDef]:
    """Return every class of a source by qualified name."""
    try:
        tree = ast.parse(text, filename)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    return dict(_class_nodes(tree, ""))


def _class_nodes(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    for child in ast.iter_child_nodes(node):
        inner = prefix
        if isinstance(child, ast.ClassDef):
            yield f"{prefix}{child.name}", child
            inner = f"{prefix}{child.name}."
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = f"{prefix}{child.name}.<locals>."
        yield from _class_nodes(child, inner)


@lru_cache(maxsize=16)
def _definitions(text: str, filename: str) -> dict[tuple[str, int], tuple[FunctionNode, CodeType]]:
    """Return every function of a source by qualified name and first line, with its code."""
    try:
        tree = ast.parse(text, filename)
        module = compile(text, filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    codes = {(code.co_qualname, code.co_firstlineno): code for code in _codes(module)}
    return {key: (node, codes[key]) for key, node in _functions(tree, "") if key in codes}


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[tuple[str, int], FunctionNode]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (f"{prefix}{child.name}", first_line(child)), child
            yield from _functions(child, f"{prefix}{child.name}.<locals>.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, prefix)
