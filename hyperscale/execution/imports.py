"""Finds the local modules that a test file needs, by reading source and running nothing.

A module is local if its name is found from the directory of the test file (the *root*). The
standard library and installed packages are expected wherever the test runs.
"""

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import decode_source
from pathlib import Path

from hyperscale.errors import InputError
from hyperscale.graph.loading import module_name

# Modules that executors need: a local file of that name would break the executor.
_RESERVED = frozenset({"hyperscale", "msgspec", "uvloop", "cloudpickle"})


@dataclass(frozen=True, slots=True)
class Source:
    """One module of a test."""

    module: str
    path: Path
    path_in_root: Path


def scan(
    file: Path, *, module: str | None = None, loaded: Iterable[str] = ()
) -> tuple[str, list[Source]]:
    """Return the module name of `file`, and all local modules it needs, sorted by name.

    `module` is the dotted name of `file` if it is part of a package. `loaded` names modules that
    are needed although no source says so (imported by a computed name).
    """
    root, name = file.parent, module_name(file)
    if module is not None:
        root = file.parents[module.count(".") + (file.name == "__init__.py")]
        name = module
    found = {name: Source(name, file, file.relative_to(root))}
    for extra in (*_parents(name), *loaded):
        if source := _find(root, extra):
            found.setdefault(extra, source)
    waiting = list(found.values())
    while waiting:
        source = waiting.pop()
        for named in _imports(_parse(source.path), source, root):
            for wanted in (*_parents(named.module), named.module):
                if wanted in found or not _is_local(root, named, wanted, source):
                    continue
                local = _find(root, wanted, named_in=f"{source.path}:{named.line}")
                if local is not None:
                    found[wanted] = local
                    waiting.append(local)
    return name, [found[key] for key in sorted(found)]


def _find(root: Path, module: str, *, named_in: str = "") -> Source | None:
    """Return the source of a dotted name below `root`; None if there is no such local module."""
    place = root.joinpath(*module.split("."))
    for path in (place / "__init__.py", place.with_name(place.name + ".py")):
        if path.is_file():
            return Source(module, path, path.relative_to(root))
    where = f"{named_in}: " if named_in else ""
    for suffix in EXTENSION_SUFFIXES:
        native = place.with_name(place.name + suffix)
        if native.is_file():
            raise InputError(
                f"{where}module {module!r} is a native extension ({native}), "
                "which cannot travel with the test",
                hint="install it as a package where the test runs",
            )
    compiled = place.with_name(place.name + ".pyc")
    if compiled.is_file():
        raise InputError(
            f"{where}module {module!r} has no source, only {compiled}",
            hint=f"put {place.name}.py beside it",
        )
    return None  # a directory without __init__.py contains modules but is none itself


@dataclass(frozen=True, slots=True)
class _Named:
    module: str
    line: int
    is_guess: bool = False  # `from a import b`: b may be a module or not


def _is_local(root: Path, named: _Named, wanted: str, source: Source) -> bool:
    top = wanted.partition(".")[0]
    if top == "hyperscale" and (root / top / "__init__.py").is_file():
        return False  # a checkout of Hyperscale itself
    if top not in sys.stdlib_module_names and top not in _RESERVED:
        return True
    local = _find(root, top)
    if local is not None and local.path != source.path and not named.is_guess:
        owner = "Hyperscale's own" if top in _RESERVED else "the standard library's"
        raise InputError(
            f"{source.path}:{named.line}: {local.path} hides {owner} module {top!r}",
            hint=f"rename {local.path.name}",
        )
    return False


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(read_source(path), str(path))
    except SyntaxError as error:
        raise InputError(f"{path}:{error.lineno or 1}: syntax error: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as Python: {error}") from error


def read_bytes(path: Path) -> bytes:
    """Read a file. Raises InputError if that fails."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_source(path: Path) -> str:
    """Return the text of a module, decoded by its declared encoding."""
    payload = read_bytes(path)
    try:
        return decode_source(payload)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as Python: {error}") from error


def _parents(module: str) -> Iterator[str]:
    """Yield `a` and `a.b` for `a.b.c`."""
    parts = module.split(".")
    for count in range(1, len(parts)):
        yield ".".join(parts[:count])


def _imports(tree: ast.Module, source: Source, root: Path) -> Iterator[_Named]:
    for node in _walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield _Named(alias.name, node.lineno)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = _absolute(module, level, source, node.lineno)
                yield _Named(base, node.lineno)
                for alias in names:
                    if alias.name == "*":
                        for child in _children(root, base):
                            yield _Named(child, node.lineno, is_guess=True)
                    else:
                        yield _Named(f"{base}.{alias.name}", node.lineno, is_guess=True)
            case ast.Call(func=function, args=[ast.Constant(value=str() as name), *_]):
                if _last_name(function) in {"import_module", "__import__"} and name[:1] != ".":
                    yield _Named(name, node.lineno)
            case _:
                pass


def _walk(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes except those that only a type checker sees."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and _last_name(node.test) == "TYPE_CHECKING":
            waiting.extend(node.orelse)
        else:
            waiting.extend(ast.iter_child_nodes(node))


def _absolute(module: str | None, level: int, source: Source, line: int) -> str:
    """Return the absolute name of the module in `from ..x import y`."""
    if level == 0:
        return module or ""
    is_package = source.path.name == "__init__.py"
    package = source.module if is_package else source.module.rpartition(".")[0]
    steps = package.split(".") if package else []
    if level > len(steps):
        raise InputError(
            f"{source.path}:{line}: relative import outside of a package",
            hint=f"a test file is not part of a package: write `import {module or 'name'}`",
        )
    base = steps[: len(steps) - level + 1]
    return ".".join([*base, module] if module else base)


def _children(root: Path, package: str) -> Iterator[str]:
    """Yield the modules directly inside the package of a `from package import *`."""
    place = root.joinpath(*package.split("."))
    if (place / "__init__.py").is_file():
        for path in sorted(place.glob("*.py")):
            if path.stem.isidentifier() and path.stem != "__init__":
                yield f"{package}.{path.stem}"


def _last_name(node: ast.expr) -> str:
    """Return `b` for `a.b` and `b`; "" for anything else."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Constant(value=str() as text):
            return text.rpartition(".")[2]
    return ""
