"""`LocalRunner` in a test suite: workflow classes of test modules, classes and functions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import RunningTarget

HELPERS = """
class Fetching:
    async def fetch(self, url):
        return await self.client.http.get(url)
"""

SUITE = """
from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from helpers import Fetching

from hyperscale import LocalRunner, Workflow, step
from hyperscale.testing import URL, CustomResult, HTTPResponse

PATH = "/json"


class Doubled(CustomResult):
    number: int


def double(number) -> Doubled:
    return Doubled(number=number * 2)


class Top(Fetching, Workflow):
    vus = 2
    iterations = 10
    duration = "30s"

    @step()
    async def go(self):
        assert self.vus == 2
        return await self.fetch(os.environ["TARGET"] + PATH)


def run(cls, **options):
    runner = LocalRunner(workers=1)
    return asyncio.run(runner.run("suite", [cls], terminal_mode="none", **options))


@pytest.fixture
def url():
    return os.environ["TARGET"]


def test_a_class_of_the_module(tmp_path):
    result = run(Top, out=tmp_path / "out")
    assert result.workflows[0].ok == 10
    assert (tmp_path / "out" / "report.html").read_text().startswith("<!doctype html>")
    assert Path(result.outputs["html"]).is_file()


def test_a_class_in_a_function_with_a_fixture(url):
    class Shop(Fetching, Workflow):
        vus = 2
        iterations = 10
        duration = "30s"

        @step()
        async def go(self):
            return await self.client.http.get(url + PATH)

        @step("go")
        async def doubled(self, go: HTTPResponse) -> Doubled:
            assert go.status == 200
            return double(go.status)

        @step("go")
        async def part(self, address: URL = url + PATH):
            return await self.fetch(address)

    steps = run(Shop).workflows[0].steps
    assert [(each.name, each.ok, each.failed) for each in steps] == [
        ("go", 10, 0), ("doubled", 10, 0), ("part", 10, 0)
    ]


class TestShop:
    class Inner(Workflow):
        vus = 1
        iterations = 3
        duration = "30s"

        @step()
        async def go(self) -> HTTPResponse:
            return await self.client.http.get(os.environ["TARGET"] + PATH)

    def test_a_class_in_a_class(self):
        assert run(self.Inner).workflows[0].ok == 3
"""


@pytest.mark.parametrize("mode", ["prepend", "importlib"])
def test_workflows_defined_in_tests_run(tmp_path: Path, target: RunningTarget, mode: str) -> None:
    (tmp_path / "helpers.py").write_text(HELPERS)
    (tmp_path / "test_suite.py").write_text(SUITE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--import-mode={mode}"],
        cwd=tmp_path,
        env={**os.environ, "TARGET": target.url, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "3 passed" in done.stdout, done.stdout
    assert target.counts()["total"] == 10 + 20 + 3
