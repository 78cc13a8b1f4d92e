"""Test files on disk, loaded as the command line loads them."""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from hyperscale.graph import Blueprint, Overrides, Workflow, blueprint, build_plan, collect
from hyperscale.graph.loading import load_module
from hyperscale.plan import Plan

_HEAD = """
from hyperscale.graph import *
from hyperscale.testing import *
"""


class Files:
    """Writes test files into one directory and loads them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._numbers = itertools.count()

    def write(self, text: str, name: str | None = None) -> Path:
        path = self.directory / (name or f"case_{next(self._numbers)}.py")
        path.write_text(dedent(text))
        return path

    def classes(self, text: str, name: str | None = None) -> list[type[Workflow]]:
        return collect(load_module(self.write(_HEAD + dedent(text).lstrip(), name)))

    def plan(self, text: str, name: str | None = None, **overrides: object) -> Plan:
        path = self.write(_HEAD + dedent(text).lstrip(), name)
        return build_plan(path, collect(load_module(path)), Overrides(**overrides))  # type: ignore[arg-type]  # tests give wrong ones on purpose

    def blueprint(self, text: str) -> Blueprint:
        """Return the blueprint of the last workflow in the text."""
        return blueprint(self.classes(text)[-1])


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    """Make the directory the working directory, so that messages show short paths."""
    before, path = set(sys.modules), list(sys.path)
    monkeypatch.chdir(tmp_path)
    yield Files(tmp_path)
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
