"""Finds the syntax tree of a function, if the function was certainly compiled from it.

That is certain if compiling the source again gives the same code object. The functions of a changed
file, patched methods and rewritten modules have no tree.
"""

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FunctionType

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def tree_of(function: FunctionType) -> FunctionNode | None:
    """Return the definition that `function` was compiled from, or None if that is not certain."""
    code = function.__code__
    linecache.checkcache(code.co_filename)  # the file may have changed
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    found = _definitions(text, code.co_filename).get((code.co_qualname, code.co_firstlineno))
    if found is None or found[1] != code:
        return None
    return found[0]


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
            first = child.decorator_list[0] if child.decorator_list else child
            yield (f"{prefix}{child.name}", first.lineno), child
            yield from _functions(child, f"{prefix}{child.name}.<locals>.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, prefix)
