"""Tests that prove nothing never end green; each says why, in every output."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.conftest import RunningTarget
from tests.lab.command import run, write

LOST = """
    import asyncio

    class Lost(Workflow):
        vus = 2
        duration = "30s"
        iterations = 20
        {settings}
        @step()
        async def home(self, url: URL = "{url}/status/404") -> HTTPResponse:
            {body}
            return await self.client.http.get(url)
"""
# Steps that are single requests run natively, others in Python.
NATIVE, PYTHON = "", "await asyncio.sleep(0)"
RAISING = "if self.context.setdefault('n', 0) == 0: raise KeyError('cart')"


def lost(tmp_path: Path, target: RunningTarget, body: str, settings: str = "") -> None:
    write(tmp_path / "lost.py", LOST.format(url=target.url, body=body, settings=settings))


@pytest.mark.parametrize("body", [NATIVE, PYTHON])
def test_a_run_of_only_404_is_red_in_every_output(
    tmp_path: Path, target: RunningTarget, body: str
) -> None:
    lost(tmp_path, target, body)
    done = run("run", "lost.py", "--out", "out", cwd=tmp_path)
    why = "not one call succeeded"
    assert done.code == 1, done.stdout
    assert "✗ failed in" in done.stdout
    assert why in done.stdout
    assert "20 failed (status 20)" in done.stdout
    result = json.loads((tmp_path / "out/results.json").read_bytes())
    (workflow,) = result["workflows"]
    assert (result["passed"], result["status"], workflow["raised"]) == (False, "completed", 0)
    assert [reason["kind"] for reason in workflow["reasons"]] == ["no_success"]
    (failure,) = ET.parse(tmp_path / "out/junit.xml").getroot().iter("failure")
    assert failure.get("type") == "no_success"
    assert str(failure.get("message")).startswith(why)
    assert why in (tmp_path / "out/report.html").read_text()


def test_a_run_whose_own_code_raises_is_red(tmp_path: Path, target: RunningTarget) -> None:
    lost(tmp_path, target, RAISING)
    done = run("run", "lost.py", "--json", "r.json", "--quiet", cwd=tmp_path)
    (workflow,) = json.loads((tmp_path / "r.json").read_bytes())["workflows"]
    assert (done.code, workflow["raised"], workflow["iterations"]) == (1, 20, 20)
    assert [reason["kind"] for reason in workflow["reasons"]] == ["no_success", "raised"]
    assert "the test's own code raised in 20 of 20 iterations" in done.stderr


@pytest.mark.parametrize("body", [NATIVE, RAISING])
def test_allowed_failures_are_green(tmp_path: Path, target: RunningTarget, body: str) -> None:
    lost(tmp_path, target, body, "allow_failures = True")
    done = run("run", "lost.py", cwd=tmp_path)
    assert done.code == 0, done.stdout
    assert "passed in" in done.stdout
    assert target.counts()["total"] == (20 if body == NATIVE else 0)


def test_a_workflow_of_actions_needs_no_success(tmp_path: Path) -> None:
    write(
        tmp_path / "seed.py",
        """
        class Seed(Workflow):
            vus = 1

            @action()
            async def make_key(self) -> None:
                self.context["key"] = "k-1"
        """,
    )
    assert run("run", "seed.py", cwd=tmp_path).code == 0


def test_allow_failures_is_true_or_false(tmp_path: Path, target: RunningTarget) -> None:
    lost(tmp_path, target, NATIVE, 'allow_failures = "yes"')
    done = run("run", "lost.py", cwd=tmp_path)
    assert done.code == 2
    assert re.search(
        r"lost\.py.*Lost\.allow_failures: 'yes' is neither True nor False", done.stderr
    )
