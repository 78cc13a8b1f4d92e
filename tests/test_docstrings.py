"""An editor teaches: every public name that test files use has a docstring."""

import inspect
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from typing import Any

import pytest

from hyperscale.clients.http import HTTPClient
from hyperscale.clients.hub import Client

MODULES = ("hyperscale", "hyperscale.graph", "hyperscale.testing", "hyperscale.plugin")


def public() -> Iterator[tuple[str, Any]]:
    """Yield every public class and function, with its full name."""
    for module in MODULES:
        home = import_module(module)
        for name in home.__all__:
            value = getattr(home, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                yield f"{module}.{name}", value
    yield "self.client", Client
    yield "self.client.http", HTTPClient


def undocumented(name: str, value: Any) -> Iterator[str]:
    if not inspect.getdoc(value) or value.__doc__ is None:
        yield name
    if not inspect.isclass(value) or issubclass(value, Enum):
        return
    for member in sorted({key for base in value.__mro__ for key in vars(base)}):
        bases = [base for base in value.__mro__ if member in vars(base)]
        if member.startswith("_") or not bases[0].__module__.startswith("hyperscale."):
            continue
        inner = vars(bases[0])[member]
        inner = inner.__func__ if isinstance(inner, staticmethod | classmethod) else inner
        is_method = inspect.isfunction(inner) or isinstance(inner, property)
        # An override may leave the docstring to its base.
        is_taught = any(getattr(vars(base)[member], "__doc__", None) for base in bases)
        if is_method and not is_taught:
            yield f"{name}.{member}"


@pytest.mark.parametrize("module", [*MODULES, "self.client"])
def test_every_public_name_has_a_docstring(module: str) -> None:
    names = [
        each
        for name, value in public()
        if name.rpartition(".")[0] == module or name == module or name == f"{module}.http"
        for each in undocumented(name, value)
    ]
    assert not names
