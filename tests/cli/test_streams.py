"""Closed or full standard streams: the run completes and its exit code is right."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.conftest import RunningTarget
from tests.lab.command import HYPERSCALE, results, write
from tests.lab.waiting import WAIT_S

SHOP = """
    class Shop(Workflow):
        vus = 2
        duration = "30s"
        iterations = 6

        @step()
        async def go(self, url: URL = "{url}/") -> HTTPResponse:
            return await self.client.http.get(url)
"""


def in_shell(arguments: str, redirections: str, *, cwd: Path) -> tuple[int, str, str]:
    line = f"{shlex.join(HYPERSCALE)} {arguments} {redirections}"
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=cwd,
        env={**os.environ, "CI": "true"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "redirections",
    ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full", ">/dev/full 2>/dev/full", "| true"],
)
def test_a_run_completes_with_closed_or_full_streams(
    tmp_path: Path, target: RunningTarget, redirections: str
) -> None:
    write(tmp_path / "shop.py", SHOP.format(url=target.url))
    code, _, stderr = in_shell("run shop.py --ui ci --json r.json", redirections, cwd=tmp_path)
    assert (code, stderr) == (0, "")
    assert results(tmp_path / "r.json")["status"] == "completed"
    assert target.counts()["routes"] == {"/": {"GET": 6}}


def test_output_that_cannot_be_written_is_an_error_not_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    code, _, stderr = in_shell("new shop.py", ">/dev/full", cwd=tmp_path)
    assert (code, stderr) == (3, "hyperscale: stdout cannot be written: No space left on device\n")


def test_characters_that_the_locale_cannot_encode_are_replaced(tmp_path: Path) -> None:
    line = f"PYTHONIOENCODING=ascii {shlex.join(HYPERSCALE)} new münze_☃.py"
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, capture_output=True, timeout=WAIT_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"wrote m?nze_?.py\n")


@pytest.mark.parametrize("redirections", ["2>/dev/full", "2>&-", "<&- >&- 2>&-"])
def test_an_error_message_that_cannot_be_written_does_not_change_the_exit_code(
    tmp_path: Path, redirections: str
) -> None:
    assert in_shell("run nowhere.py", redirections, cwd=tmp_path) == (2, "", "")


def test_results_that_cannot_be_written_to_stdout_are_an_error_not_a_crash(
    tmp_path: Path, target: RunningTarget
) -> None:
    write(tmp_path / "shop.py", SHOP.format(url=target.url))
    arguments = "run shop.py --ui none --out out --json -"
    code, _, stderr = in_shell(arguments, ">/dev/full", cwd=tmp_path)
    message = "hyperscale: --json -: cannot write the results: No space left on device\n"
    assert (code, stderr) == (3, message)
    assert results(tmp_path / "out" / "results.json")["status"] == "completed"
    assert in_shell(arguments, "| true", cwd=tmp_path)[0::2] == (0, "")
