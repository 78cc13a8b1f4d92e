"""Loading a test: its plan, and for each workflow the code its executors import.

A test comes from a file (the command line) or from classes (`LocalRunner`). Every mistake in user
code that can be found without running it is found here, before any process starts.
"""

import ast
import asyncio
import contextlib
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from msgspec.structs import replace

from hyperscale.errors import InputError
from hyperscale.execution.bundle import (
    Bundle,
    bundle_classes,
    bundle_file,
    bundled_modules,
    imported_anew,
)
from hyperscale.execution.imports import read_source, scan
from hyperscale.graph import Overrides, Workflow, build_plan, collect, load_module
from hyperscale.graph.loading import find, module_name
from hyperscale.plan import ParameterPlan, Plan
from hyperscale.reporting.reporter import Sink, as_reporters
from hyperscale.testing.mix import Mix
from hyperscale.testing.parameters import (
    GivenParameters,
    Mask,
    ParameterScope,
    declared_in,
    is_declared_anywhere,
    resolving,
)

READING = threading.RLock()
"""Held while user code is read: tests may be loaded in many threads at once.

The modules a file imports are those that `sys.modules` gains while the file is loaded, so files
are loaded one at a time; and until 3.11.8 `ast.parse` fails when it runs in two threads
(gh-106905).
"""

_STARTERS = ("asyncio.run", "uvloop.run", "anyio.run", "loop.run_until_complete")


@dataclass(frozen=True, slots=True)
class WorkflowCode:
    """The code of one workflow: what executors import, and where it is on this machine."""

    bundle: Bundle
    file: str  # the user's path; for tracebacks and `__file__`


@dataclass(frozen=True, slots=True)
class LoadedTest:
    plan: Plan
    code: Mapping[str, WorkflowCode]  # by workflow
    reporters: tuple[Sink, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict)  # values of secret parameters


def load_test_file(
    file: str | Path,
    overrides: Overrides | None = None,
    parameters: GivenParameters | None = None,
) -> LoadedTest:
    """Load a test file with the values that were given to its parameters."""
    scope = ParameterScope(parameters)
    with READING, _reimporting(Path(file)), resolving(scope):
        before = set(sys.modules)
        module = load_module(file)
        scope.refuse_unknown(str(file))
        classes = collect(module)
        mix = getattr(module, "mix", None)
        mix = mix if isinstance(mix, Mix) else None
        plan = plan_with_values(build_plan(str(file), classes, overrides, mix=mix), scope)
        loaded = sorted(set(sys.modules) - before - {module.__name__})
        # As Python does for a script behind a symbolic link: its directory is the real one.
        path = Path(file).resolve()
        bundle = bundle_file(path, loaded=loaded, files=_files(plan))
    code = WorkflowCode(bundle, str(path))
    reporters = as_reporters(getattr(module, "reporters", None), where=f"{file}: reporters")
    code_by_workflow = {workflow.name: code for workflow in plan.workflows}
    return LoadedTest(plan, code_by_workflow, reporters, scope.secrets)


@contextlib.contextmanager
def _reimporting(file: Path) -> Iterator[None]:
    """Have the local modules of a test imported again, if modules of this process have parameters:
    they were given the values of another test."""
    kept = {}
    if is_declared_anywhere() and file.is_file():
        _, sources = scan(file.resolve())
        names = [source.module for source in sources]
        kept = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    try:
        yield
    finally:
        sys.modules.update(kept)


def plan_with_values(plan: Plan, scope: ParameterScope) -> Plan:
    """Return the plan with the values of its parameters, and without the text of any secret."""
    mask = Mask(scope.secrets.values())
    shown = sorted(scope.shown.items())
    return replace(
        plan,
        workflows=tuple(
            replace(
                workflow,
                tags=tuple(map(mask.text, workflow.tags)),
                hosts=tuple(host for host in workflow.hosts if mask.text(host) == host),
            )
            for workflow in plan.workflows
        ),
        warnings=tuple(map(mask.text, (*plan.warnings, *scope.unused()))),
        parameters=tuple(
            ParameterPlan(name=name, value=value, is_secret=name in scope.secrets)
            for name, value in shown
        ),
    )


def load_test_classes(
    classes: Sequence[type[Workflow]], plan: Plan, secrets: Mapping[str, str]
) -> LoadedTest:
    """Load workflow classes that are already imported, each with its own module."""
    code: dict[str, WorkflowCode] = {}
    for members in _by_module(classes):
        with READING:
            one = _code_of(members, _files(plan))
        code.update({cls.__name__: one for cls in members})
    return LoadedTest(plan, code, secrets=secrets)


def _by_module(classes: Sequence[type[Workflow]]) -> list[list[type[Workflow]]]:
    by_module: dict[str, list[type[Workflow]]] = {}
    for cls in classes:
        key = cls.__module__ if _is_importable(cls) else f"{cls.__module__} by value"
        by_module.setdefault(key, []).append(cls)
    return list(by_module.values())


@contextlib.contextmanager
def classes_with_values(
    classes: Sequence[type[Workflow]], values: Mapping[str, object], scope: ParameterScope
) -> Iterator[dict[type[Workflow], type[Workflow]]]:
    """Yield each class as it is with the values of its parameters.

    Parameters got their defaults when the class was imported; if values are given, its modules
    are imported again, as executors do.
    """
    found = {cls: cls for cls in classes}
    with contextlib.ExitStack() as stack:
        for members in _by_module(classes) if values or is_declared_anywhere() else ():
            module = members[0].__module__
            if not _is_importable(members[0]):
                names = ", ".join(cls.__name__ for cls in members)
                for parameter in declared_in([module]):
                    if parameter.name in values:
                        raise InputError(
                            f"{names}: without a file of its own, so its parameter "
                            f"{parameter.name!r} has its value already",
                            hint="define the class at the top of a file, or assign the value",
                        )
                    scope.resolve(parameter)
                continue
            code = _code_of(members, {})
            if values:
                anew = stack.enter_context(imported_anew(code.bundle, code.file))
                found.update({cls: find(anew, cls.__name__) for cls in members})
            else:
                for parameter in declared_in([module, *bundled_modules(code.bundle)]):
                    scope.resolve(parameter)
        scope.refuse_unknown(", ".join(cls.__name__ for cls in classes))
        yield found


def _code_of(classes: Sequence[type[Workflow]], files: Mapping[str, str]) -> WorkflowCode:
    first = classes[0]
    module = sys.modules.get(first.__module__)
    if module is None or not _is_importable(first):
        return WorkflowCode(bundle_classes(classes), "")
    file = _file_of(module)
    assert file is not None  # `_is_importable` has checked
    name: str | None = module.__name__
    if name == "__main__":
        # Executors import the script under a name of its own; only here is it `__main__`.
        name = None
        _refuse_unguarded(file)
    elif name == module_name(file):
        name = None
    return WorkflowCode(bundle_file(file, module=name, files=files), str(file))


def _refuse_unguarded(script: Path) -> None:
    """Raise InputError for a script that would start a run in every executor that imports it."""
    for statement in ast.parse(read_source(script), str(script)).body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.If):
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in _STARTERS:
                raise InputError(
                    f"{script}:{node.lineno}: the script starts a run when it is imported, "
                    "and executors import it",
                    hint='move this line below `if __name__ == "__main__":`',
                )


def _is_importable(cls: type) -> bool:
    module = sys.modules.get(cls.__module__)
    return (
        module is not None
        and _file_of(module) is not None
        and getattr(module, cls.__qualname__, None) is cls
    )


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    if file is None or not file.endswith(".py") or not Path(file).is_file():
        return None
    return Path(file).resolve()


def _files(plan: Plan) -> dict[str, str]:
    return {written: path for w in plan.workflows for written, path in w.files.items()}


async def resolve_hosts(plan: Plan) -> None:
    """Raise InputError if a host in a URL of the plan has no address."""
    users: dict[str, str] = {}
    for workflow in plan.workflows:
        for host in workflow.hosts:
            users.setdefault(host, workflow.name)
    loop = asyncio.get_running_loop()

    async def resolve(authority: str) -> None:
        host, _, port = authority.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        try:
            await loop.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(
                f"{plan.file}: {users[authority]}: host {host!r} cannot be resolved: {reason}",
                hint="check the spelling of the host and your DNS settings",
            ) from error

    results = await asyncio.gather(*map(resolve, users), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
