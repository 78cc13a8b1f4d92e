"""Wrong files, attributes, flags and environments: a message, exit code 2, and nothing runs.

In this process: every one of these is refused before an executor starts.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hyperscale.cli.command_line import run_command_line
from tests.lab.processes import executors_of

HEAD = "from hyperscale import *\nfrom hyperscale.testing import *\n"
SHOP = (
    HEAD
    + """
class Shop(Workflow):
    vus = 2
    duration = "1s"
    {line}

    @step({step})
    async def go(self, url: URL = "http://127.0.0.1:1/"){returns}:
        {code}
        return await self.client.http.get(url{call})
"""
)


def shop(
    line: str = "pass", *, step: str = "", returns: str = "", code: str = "pass", call: str = ""
) -> str:
    return SHOP.format(line=line, step=step, returns=returns, code=code, call=call)


# What the file shop.py contains, and a word that the message must have.
FILES: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "no workflow"),
    "only comments": ("# nothing\n", "no workflow"),
    "binary": (bytes(range(256)), "shop.py"),
    "not UTF-8": (b"# caf\xe9\n" + shop().encode(), "shop.py"),
    "UTF-16": (shop().encode("utf-16"), "shop.py"),
    "tabs and spaces": ("if True:\n\tx = 1\n        y = 2\n", "syntax error"),
    "an unclosed string": ('x = "', "syntax error"),
    "deeply nested": ("(" * 5000 + ")" * 5000, "shop.py"),
    "Python 2": ("print 'hello'\n", "syntax error"),
    "endless recursion": ("def f(): f()\nf()\n", "RecursionError"),
    "import of itself": ("from shop import Shop\n", "shop.py"),
    "a relative import": ("from .steps import go\n", "relative import"),
    "an unknown name of ours": ("from hyperscale import Workflows\n", "Workflows"),
    "an assertion at import": ("assert 1 == 2\n", "AssertionError"),
    "exit at import": ("import sys; sys.exit('bye')\n", "ends the process"),
    "a warning as an error": ("raise DeprecationWarning('old')\n", "DeprecationWarning"),
    "a metaclass of its own": (
        HEAD + "class M(type): ...\nclass A(metaclass=M): ...\n"
        "class Shop(Workflow, A):\n    vus = 0\n    @step()\n    async def go(self): ...\n",
        "Shop.vus",
    ),
    "a base that is no class": (HEAD + "class Shop(step): ...\n", "shop.py:3"),
    "steps outside a class": (HEAD + "@step()\nasync def go(self): ...\n", "no workflow"),
    "a bare decorator": (shop().replace("@step()", "@step"), "parentheses"),
    "a step of a step": (shop().replace("@step()", "@step()\n    @step()"), "keep one"),
    "a generator": (shop(code="yield"), "generator"),
    "reporters that are none": (shop() + "\nreporters = 5\n", "reporters"),
}

ATTRIBUTES = {
    "vus = []": "Shop.vus",
    "vus = 1e3": "Shop.vus",
    "vus = float('inf')": "Shop.vus",
    "duration = '1x'": "Shop.duration",
    "duration = {}": "Shop.duration",
    "duration = float('inf')": "Shop.duration",
    "timeout = 'never'": "Shop.timeout",
    "interval = -1": "Shop.interval",
    "iterations = 2.5": "Shop.iterations",
    "thresholds = 'p99<1s'": "Shop.thresholds",
    "thresholds = {'p99': None}": "Shop.thresholds",
    "thresholds = {5: '<1s'}": "Shop.thresholds",
    "tags = {'a': 1, 2: 3}": "Shop.tags",
    "connections = True": "Shop.connections",
    "client = None": "Shop.client",
    "VUs = 10": "'vus'",
    "hatch_rate = 5": "'stages'",
    "def __init__(self, x): ...": "Shop.__init__",
}

STEPS = {
    "step='login'": "login",
    "step='go'": "wait for each other",
    "step=None": "not a name",
    "accept": "accept",
    "an unknown argument": "after",
    "an unknown annotation": "cannot be read",
    "a URL without a scheme": "scheme",
    "an unknown host": "no-such-host.invalid",
}
_STEPS = {
    "step='login'": shop(step="'login'"),
    "step='go'": shop(step="'go'"),
    "step=None": shop(step="None"),
    "accept": shop(step="accept='ok'"),
    "an unknown argument": shop(step="after='go'"),
    "an unknown annotation": shop(returns=" -> 'Respons'"),
    "a URL without a scheme": shop().replace("http://127", "127"),
    "an unknown host": shop().replace("127.0.0.1", "no-such-host.invalid"),
}

FLAGS = {
    "--vus 1e3": "--vus",
    "--vus ∞": "--vus",
    "--vus 99999999999999999999": "--vus",
    "--duration 1e999s": "--duration",
    "--duration nan": "--duration",
    "--timeout -1": "--timeout",
    "--workers 1000000000": "--workers",
    "--workers two": "--workers",
    "--only": "--only",
    "--only shop": "--only",
    "--set base": "--set",
    "--set nothing=1": "nothing",
    "--ui": "--ui",
    "--json /dev/null/out.json": "--json",
    "--out /proc/nope": "--out",
    "--log-dir /dev/null/logs": "--log-dir",
    "--log-level": "--log-level",
    "--no-compile=yes": "--no-compile",
}

ENVIRONMENT = {
    "HYPERSCALE_SET_COUNT=many": "many",
    "HYPERSCALE_SET_COUNT=": "HYPERSCALE_SET_COUNT",
}


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    before, path = set(sys.modules), list(sys.path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def refused(capfd: pytest.CaptureFixture[str], word: str, *arguments: str) -> None:
    assert run_command_line(["run", "shop.py", "--ui", "none", *arguments]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("hyperscale"), err
    assert len(err.strip().splitlines()) <= 2, "one message and at most one hint"
    assert word in err
    assert "Traceback" not in err
    assert "internal error" not in err
    assert executors_of(os.getpid()) == []
    assert not Path("hyperscale-results").exists()


@pytest.mark.parametrize("case", FILES)
def test_a_wrong_file_is_refused(case: str, capfd: pytest.CaptureFixture[str]) -> None:
    content, word = FILES[case]
    Path("shop.py").write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(capfd, word)


@pytest.mark.parametrize("line", ATTRIBUTES)
def test_a_wrong_attribute_is_refused(line: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path("shop.py").write_text(shop(line))
    refused(capfd, ATTRIBUTES[line])


@pytest.mark.parametrize("case", STEPS)
def test_a_wrong_step_is_refused(case: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path("shop.py").write_text(_STEPS[case])
    refused(capfd, STEPS[case])


@pytest.mark.parametrize("flags", FLAGS)
def test_a_wrong_flag_is_refused(flags: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path("shop.py").write_text(shop())
    refused(capfd, FLAGS[flags], *flags.split(" "))


@pytest.mark.parametrize("setting", ENVIRONMENT)
def test_a_wrong_environment_is_refused(
    setting: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("shop.py").write_text(shop("count = Param(5)"))
    monkeypatch.setenv(*setting.split("="))
    refused(capfd, ENVIRONMENT[setting])
