"""Imports a test file and finds its workflows. Nothing of the user's escapes as a traceback."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

from hyperscale.errors import InputError
from hyperscale.graph.reading import display_path
from hyperscale.graph.workflow import Workflow, forget_module


def module_name(path: str | Path) -> str:
    """The name a test file is imported under: the same in every process."""
    return "hyperscale_file_" + re.sub(r"\W", "_", Path(path).stem)


def load_module(path: str | Path) -> ModuleType:
    file = Path(path)
    shown = display_path(file)
    if not file.is_file():
        raise InputError(f"{shown}: no such file")
    source = file.read_bytes()
    name = module_name(file)
    code = compile(source, str(file), "exec", dont_inherit=True)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    directory = str(file.resolve().parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    forget_module(name)
    sys.modules[name] = module
    exec(code, module.__dict__)  # noqa: S102  running the user's file is what we are for
    return module


def collect(module: ModuleType) -> list[type[Workflow]]:
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Workflow)
        and value.__module__ == module.__name__
    ]
    return list(dict.fromkeys(found))
