"""Imports a test file and finds its workflows.

An error in the file becomes one InputError with the file and line of the error.
"""

import ast
import contextlib
import importlib.util
import inspect
import re
import sys
import sysconfig
import traceback
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType

from hyperscale.errors import HyperscaleError, InputError
from hyperscale.graph.reading import display_path, hooks_of
from hyperscale.graph.workflow import Workflow


def module_name(path: str | Path) -> str:
    """Return the module name of a test file: unique to the file, the same in every process."""
    return "hyperscale_file_" + re.sub(r"\W", "_", Path(path).stem)


def load_module(path: str | Path) -> ModuleType:
    """Import a test file, whose directory is importable. Raises InputError if that fails."""
    file = Path(path).absolute()
    _refuse_undecodable(file)
    name = module_name(file)
    source = _read(file)
    code = _compile(source, file)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None:
        raise InputError(f"{display_path(file)}: not a Python file", hint="name it something.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _importable(str(file.resolve().parent)):
            exec(code, module.__dict__)  # noqa: S102 - the file is the user's own test
        _refuse_duplicates(source, module)
    except BaseException as error:  # user code may raise anything, SystemExit too
        sys.modules.pop(name, None)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise import_error(error, file) from error
    return module


@contextlib.contextmanager
def _importable(directory: str) -> Iterator[None]:
    """Put a directory first on `sys.path`; when the context ends, put it last.

    Code imports modules later too, and a file beside the test that has the name of a module of the
    standard library must not be imported in its place.
    """
    if directory in sys.path:
        yield
        return
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the file has removed it
            sys.path.remove(directory)
        sys.path.append(directory)


def collect(module: ModuleType) -> list[type[Workflow]]:
    """Return the workflows a file defines, in order; workflows it imports are not included.

    Bases are left out: marked `abstract = True`, named with a leading underscore, having
    abstract methods, or without a step of their own while another class builds on them.
    """
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    named = [
        cls
        for cls in dict.fromkeys(classes)
        if issubclass(cls, Workflow) and cls.__module__ == module.__name__
    ]
    found = [cls for cls in named if not _is_base(cls, named)]
    if not found:
        raise InputError(
            f"{_shown(module)}: no workflow in the file",
            hint="define a class derived from Workflow with at least one @step()",
        )
    return found


def find(module: ModuleType, name: str) -> type[Workflow]:
    """Return the workflow of that name, also one that `collect` leaves out as a base."""
    value = vars(module).get(name)
    if isinstance(value, type) and issubclass(value, Workflow):
        return value
    raise InputError(
        f"{_shown(module)}: has no workflow {name!r} when it is imported",
        hint='define it at the top of the file, not below `if __name__ == "__main__":`',
    )


def _shown(module: ModuleType) -> str:
    return display_path(getattr(module, "__file__", None) or module.__name__)


def _refuse_duplicates(source: bytes, module: ModuleType) -> None:
    """Refuse a second workflow of the same name, which replaces the first in the module."""
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    for name, count in Counter(node.name for node in classes if node.bases).items():
        value = vars(module).get(name)
        if count > 1 and isinstance(value, type) and issubclass(value, Workflow):
            raise InputError(
                f"{name} is defined twice; a workflow is known by its class name",
                hint="rename one of them",
            )


def _is_base(cls: type[Workflow], named: list[type[Workflow]]) -> bool:
    is_marked = vars(cls).get("abstract") is True or cls.__name__.startswith("_")
    if is_marked or inspect.isabstract(cls):
        return True
    is_built_on = any(other is not cls and issubclass(other, cls) for other in named)
    has_steps = any(hook.decorator in ("step", "action") for hook in hooks_of(cls)[0].values())
    return is_built_on and not has_steps


def _refuse_undecodable(file: Path) -> None:
    """Refuse a path that is not UTF-8: it cannot be sent, shown or written into results."""
    try:
        str(file.resolve()).encode()
    except (RuntimeError, OSError):  # the former until Python 3.13
        raise InputError(f"{display_path(file)}: is a link that leads back to itself") from None
    except UnicodeEncodeError:
        shown = display_path(file).encode("utf-8", "backslashreplace").decode()
        raise InputError(
            f"{shown}: its path is not UTF-8",
            hint="rename the file or its directory; in another locale, set LC_ALL=C.UTF-8",
        ) from None


def _read(file: Path) -> bytes:
    shown = display_path(file)
    try:
        if not file.is_file() and file.exists() and not file.is_dir():
            raise InputError(f"{shown}: is a pipe or a device, not a file")
        return file.read_bytes()
    except FileNotFoundError:
        raise InputError(
            f"{shown}: no such file", hint="'hyperscale new FILE' writes a test file to start from"
        ) from None
    except IsADirectoryError:
        raise InputError(f"{shown}: is a directory", hint="name the test file in it") from None
    except OSError as error:
        raise InputError(f"{shown}: cannot be read: {error.strerror or error}") from None


def _compile(source: bytes, file: Path) -> CodeType:
    try:
        source.decode("utf-8")
    except UnicodeDecodeError as error:
        line = source.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{display_path(file)}:{line}: not UTF-8: byte 0x{source[error.start]:02x}",
            hint="save the file as UTF-8",
        ) from None
    try:
        return compile(source, str(file), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise import_error(error, file) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{display_path(file)}: not Python source: {error}") from error


def import_error(error: BaseException, file: Path) -> InputError:
    """Return the error that user code raised while it was imported, with its place."""
    place = _place(error, file)
    if isinstance(error, HyperscaleError):  # from one of our decorators or types
        return InputError(f"{place}: {error.message}", hint=error.hint)
    if isinstance(error, SyntaxError):
        culprit = display_path(error.filename or file)
        return InputError(f"{culprit}:{error.lineno or 1}: syntax error: {error.msg}")
    if isinstance(error, ModuleNotFoundError):
        return InputError(
            f"{place}: no module named {error.name!r}",
            hint="install it, or put the module beside the test file",
        )
    if isinstance(error, ImportError):
        hint = ""
        if "relative import" in str(error):
            hint = "a test file is no package: import modules beside it by their plain name"
        return InputError(f"{place}: cannot import: {error}", hint=hint)
    if isinstance(error, SystemExit):
        return InputError(
            f"{place}: the file ends the process (exit code {error.code}) when it is imported",
            hint='move the code that ends it below `if __name__ == "__main__":`',
        )
    said = f": {error}" if str(error) else ""
    return InputError(f"{place}: importing the file raised {type(error).__name__}{said}")


def _place(error: BaseException, file: Path) -> str:
    """Return the innermost line of the user's own code, not of a library."""
    place = display_path(file)
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = frame.f_code.co_filename
        is_users = not name.startswith("<") and not is_installed(Path(name)) and not _is_ours(name)
        if name == str(file) or is_users:
            place = f"{display_path(name)}:{line}"
    return place


def _is_ours(name: str) -> bool:
    return Path(name).resolve().is_relative_to(Path(__file__).resolve().parent.parent)


def is_installed(file: Path) -> bool:
    """Return True if the file belongs to the standard library or an installed package."""
    return any(file.resolve().is_relative_to(home) for home in _library_homes())


@cache
def _library_homes() -> frozenset[Path]:
    paths = sysconfig.get_paths()
    keys = ("stdlib", "platstdlib", "purelib", "platlib")
    return frozenset(Path(paths[key]).resolve() for key in keys)
