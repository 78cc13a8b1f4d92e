"""Wrong parameters: exit code 2, one message that names the parameter, and nothing runs."""

import os
from pathlib import Path

import pytest

from tests.conftest import RunningTarget
from tests.lab.command import run, write

FILE = """
    from hyperscale import Param

    base = Param("http://127.0.0.1:1")
    token = Param("development", secret=True)

    class Shop(Workflow):
        vus = Param(2)
        slow = Param(False)
        duration = "1s"

        @step()
        async def go(self, url: URL = f"{base}/") -> HTTPResponse:
            return await self.client.http.get(url)
"""

FLAGS = {
    "unknown, with a suggestion": (["bsae=x"], ["--set bsae", "did you mean base?"]),
    "unknown": (["region=eu"], ["--set region", "the file has base, token, vus, slow"]),
    "no equals sign": (["base"], ["--set", "'base' has no '='"]),
    "no name": (["=x"], ["--set", "the name before '=' is empty"]),
    "twice": (["vus=1", "vus=2"], ["--set vus", "given twice"]),
    "no number": (["vus=many"], ["shop.py:", "--set vus", "'many' is not a whole number"]),
    "empty number": (["vus="], ["--set vus", "'' is not a whole number"]),
    "no bool": (["slow=maybe"], ["--set slow", "'maybe' is not a bool"]),
    "out of the bounds of the setting": (["vus=0"], ["Shop.vus", "must be at least 1"]),
    "no URL": (["base=shop.test"], ["Shop.go: url", "'shop.test/' is not an http URL"]),
    "too large": ([f"base={'x' * 70_000}"], ["--set base", "70,000 bytes"]),
    "not UTF-8": ([os.fsdecode(b"base=\xff\xfe")], ["--set base", "not UTF-8"]),
    "a secret too short to mask": (["token=abc"], ["--set token", "at least 4 characters"]),
}

FILES = {
    "two defaults": (
        FILE.replace("slow = Param(False)", 'base = Param("http://other")'),
        ["shop.py:11", "'base' is also declared at shop.py:6, with another default"],
    ),
    "required": (
        FILE.replace('Param("development", secret=True)', "Param(secret=True)"),
        ["shop.py:7", "'token' has no default and was not set", "--set token="],
    ),
    "no name": (
        FILE.replace("slow = Param(False)", "slow = [Param(False)]"),
        ["shop.py:11", "has to be assigned to a name of its own"],
    ),
    "a default of another type": (
        FILE.replace("slow = Param(False)", "slow = Param({})"),
        ["shop.py:11", "'slow': a dict cannot be set from outside", "str, int, float, bool"],
    ),
}


def refused(tmp_path: Path, *arguments: str, says: list[str]) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert (done.code, done.stdout) == (2, ""), done.stderr
    assert "Traceback" not in done.stderr
    for words in says:
        assert words in done.stderr


@pytest.mark.parametrize("name", FLAGS)
def test_a_wrong_value_is_refused(name: str, tmp_path: Path, target: RunningTarget) -> None:
    write(tmp_path / "shop.py", FILE)
    values, says = FLAGS[name]
    flags = [word for value in values for word in ("--set", value)]
    refused(tmp_path, "run", "shop.py", *flags, says=says)
    assert target.counts()["total"] == 0


@pytest.mark.parametrize("name", FILES)
def test_a_wrong_declaration_is_refused(name: str, tmp_path: Path) -> None:
    body, says = FILES[name]
    write(tmp_path / "shop.py", body)
    refused(tmp_path, "check", "shop.py", says=says)


def test_a_wrong_value_of_the_environment_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "shop.py", FILE)
    monkeypatch.setenv("HYPERSCALE_SET_VUS", "many")
    refused(tmp_path, "submit", "shop.py", says=["HYPERSCALE_SET_VUS: 'many' is not a whole"])


def test_a_crash_log_has_no_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: RunningTarget
) -> None:
    write(tmp_path / "shop.py", FILE)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text(
        "import hyperscale.runner.source as source\n"
        "def fail(*_): raise KeyError('a bug')\n"
        "source.ParameterScope = fail\n"
    )
    flags = ("--set", "token=hunter2-hunter2", "--set=base=http://hunter2-hunter2")
    done = run("run", "shop.py", *flags, cwd=tmp_path)
    assert done.code == 3
    [log] = tmp_path.glob("hyperscale-crash-*.log")
    assert "'--set', 'token=***', '--set=base=***'" in log.read_text()
    assert "hunter2" not in log.read_text() + done.stdout + done.stderr
