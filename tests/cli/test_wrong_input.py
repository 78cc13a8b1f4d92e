"""Invalid input: exit code 2, one message that names the problem, and nothing runs."""

from pathlib import Path
from textwrap import dedent

import pytest

from tests.conftest import RunningTarget
from tests.lab.command import HEADER, run, write

GOOD = """
    class Shop(Workflow):
        vus = 2
        duration = "1s"

        @step()
        async def go(self, url: URL = "{url}/") -> HTTPResponse:
            return await self.client.http.get(url)
"""


def with_attribute(line: str) -> str:
    return GOOD.replace('duration = "1s"', f'duration = "1s"\n        {line}')


def with_steps(steps: str) -> str:
    return GOOD + steps


FILES = {
    "an interval and a pause": (
        with_attribute('interval = "1s"; think = "1s"'),
        ["Shop.think", "think and interval contradict each other"],
    ),
    "a window too long": (
        with_attribute('thresholds = {"p99": "<1s over 1h"}'),
        ["Shop.thresholds", "from 1s to 10m"],
    ),
    "a weight without alternatives": (
        GOOD.replace("@step()", "@step(weight=3)"),
        ["Shop.go", "has a weight, but no other step at the start has one"],
    ),
    "an unknown column": (
        "from hyperscale import Feed\n"
        + dedent(with_attribute("f = Feed([{'a': 'b'}])").replace('"{url}/"', "f.column('u')")),
        ["Shop.go", "row 1 of f has no column 'u'"],
    ),
    "syntax error": (
        "def broken(:\n",
        ["shop.py:3", "syntax error"],
    ),
    "import error": (
        "import no_such_module\n",
        ["shop.py:3", "no module named 'no_such_module'"],
    ),
    "import of a missing name": (
        "from json import no_such_name\n",
        ["shop.py:3", "no_such_name"],
    ),
    "exception at import": (
        "raise ValueError('boom')\n",
        ["shop.py:3", "ValueError", "boom"],
    ),
    "exit at import": (
        "raise SystemExit(7)\n",
        ["shop.py:3", "ends the process"],
    ),
    "no workflow in the file": (
        "x = 1\n",
        ["shop.py", "no workflow"],
    ),
    "unknown step dependency": (
        with_steps(
            """
        @step("missing")
        async def after(self, url: URL = "{url}/") -> HTTPResponse:
            return await self.client.http.get(url)
"""
        ),
        ["shop.py", "Shop.after", "missing"],
    ),
    "cyclic step dependency": (
        with_steps(
            """
        @step("two")
        async def one(self, url: URL = "{url}/") -> HTTPResponse:
            return await self.client.http.get(url)

        @step("one")
        async def two(self, url: URL = "{url}/") -> HTTPResponse:
            return await self.client.http.get(url)
"""
        ),
        ["shop.py", "Shop", "one", "two"],
    ),
    "unknown workflow dependency": (
        GOOD.replace("class Shop", '@depends("Missing")\n    class Shop'),
        ["shop.py", "Shop", "Missing"],
    ),
    "cyclic workflow dependency": (
        GOOD.replace("class Shop", '@depends("Other")\n    class Shop')
        + GOOD.replace("class Shop", '@depends("Shop")\n    class Other'),
        ["shop.py", "Shop", "Other"],
    ),
    "vus of zero": (with_attribute("vus = 0"), ["shop.py", "Shop.vus", "0"]),
    "vus that is no number": (with_attribute('vus = "many"'), ["shop.py", "Shop.vus", "many"]),
    "bad duration": (
        GOOD.replace('"1s"', '"soon"'),
        ["shop.py", "Shop.duration", "soon"],
    ),
    "negative duration": (
        GOOD.replace('"1s"', '"-5s"'),
        ["shop.py", "Shop.duration", "-5s"],
    ),
    "unknown priority": (
        with_attribute('priority = "urgent"'),
        ["shop.py", "Shop.priority", "urgent"],
    ),
    "unknown threshold": (
        with_attribute('thresholds = {"p42": "<1s"}'),
        ["shop.py", "Shop.thresholds", "p42"],
    ),
    "bad threshold limit": (
        with_attribute('thresholds = {"p99": "fast"}'),
        ["shop.py", "Shop.thresholds", "fast"],
    ),
    "unresolvable host": (
        GOOD.replace("{url}/", "http://no-such-host.invalid/"),
        ["shop.py", "Shop", "no-such-host.invalid"],
    ),
    "a URL that is none": (
        GOOD.replace("{url}/", "localhost:8080"),
        ["shop.py", "Shop.go", "localhost:8080"],
    ),
    "a reporter that is none": (
        GOOD + "\n    reporters = ['json']\n",
        ["shop.py", "reporters", "'json'"],
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_an_invalid_file_is_refused_with_its_place(
    case: str, tmp_path: Path, target: RunningTarget
) -> None:
    body, named = FILES[case]
    write(
        tmp_path / "shop.py",
        body.replace("{url}", target.url).replace("{", "{").replace("}", "}"),
    )
    done = run("run", "shop.py", cwd=tmp_path)
    assert_refused(done.stderr, named)
    assert (done.code, done.stdout) == (2, "")
    assert target.counts()["total"] == 0
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["shop.py"]


FLAGS = {
    "a missing file": (["run", "nope.py"], ["nope.py", "no such file"]),
    "a directory": (["run", "."], ["directory"]),
    "no file at all": (["run"], ["hyperscale run", "FILE"]),
    "an unknown flag": (["run", "shop.py", "--vuss", "3"], ["--vuss", "did you mean --vus?"]),
    "an unknown command": (["rnu", "shop.py"], ["'rnu'", "did you mean run?"]),
    "no command like it": (["xyzzy"], ["'xyzzy'", "run, check, new, ping, target"]),
    "vus of zero": (["run", "shop.py", "--vus", "0"], ["--vus", "0"]),
    "vus that is no number": (["run", "shop.py", "--vus", "many"], ["--vus", "many"]),
    "a negative duration": (["run", "shop.py", "--duration=-5s"], ["--duration", "-5s"]),
    "a negative duration alone": (["run", "shop.py", "--duration", "-5s"], ["--duration", "-5s"]),
    "a bad duration": (["run", "shop.py", "--duration", "soon"], ["--duration", "soon"]),
    "a bad timeout": (["run", "shop.py", "--timeout", "0s"], ["--timeout", "0s"]),
    "workers of zero": (["run", "shop.py", "--workers", "0"], ["--workers", "0"]),
    "an unknown workflow": (["run", "shop.py", "--only", "Shpo"], ["--only", "Shpo", "Shop"]),
    "an unknown ui": (["run", "shop.py", "--ui", "shiny"], ["--ui", "shiny", "full"]),
    "an unknown log level": (["run", "shop.py", "--log-level", "loud"], ["--log-level", "loud"]),
    "one argument too many": (["run", "shop.py", "other.py"], ["other.py"]),
    "results into a file": (["run", "shop.py", "--out", "shop.py"], ["--out", "shop.py"]),
    "json to nowhere": (["run", "shop.py", "--json", ""], ["--json", "is empty"]),
    "json over the test itself": (["run", "shop.py", "--json", "./shop.py"], ["--json", "shop.py"]),
    "a shortened flag": (["run", "shop.py", "--dur", "1s"], ["--dur", "did you mean --duration?"]),
    "json into a directory": (["run", "shop.py", "--json", "."], ["--json"]),
    "a datacenter without a gate": (
        ["submit", "shop.py", "--datacenter", "east"],
        ["--datacenter needs gates", "its own datacenter"],
    ),
    "datacenters without a gate": (["datacenters"], ["no gates", "--gate names one"]),
    "gates and managers": (
        ["jobs", "--gate", "127.0.0.1", "--manager", "127.0.0.1"],
        ["--gate and --manager cannot be combined"],
    ),
    "an unknown protocol": (["ping", "gopher", "http://x"], ["gopher", "http"]),
    "a host that is no URL": (["ping", "localhost"], ["'localhost'", "ping http://localhost"]),
    "two addresses to ping": (["ping", "http://x", "http://y"], ["unexpected", "http://y"]),
    "a bad address to ping": (["ping", "http", "example.com"], ["example.com", "scheme"]),
    "a header that is none": (["ping", "http", "http://x", "-H", "nope"], ["--header", "nope"]),
    "a missing file to check": (["check", "nope.py"], ["nope.py", "no such file"]),
    "no name for a new file": (["new", "."], ["'.'", "not the name of a file"]),
    "an empty name for a new file": (["new", ""], ["''", "not the name of a file"]),
    "a file that is there": (["new", "shop.py"], ["shop.py", "--force"]),
}


@pytest.mark.parametrize("case", FLAGS)
def test_an_invalid_command_line_is_refused_with_a_message_that_names_the_problem(
    case: str, tmp_path: Path, target: RunningTarget
) -> None:
    arguments, named = FLAGS[case]
    write(tmp_path / "shop.py", GOOD.replace("{url}", target.url))
    done = run(*arguments, cwd=tmp_path)
    assert_refused(done.stderr, named)
    assert (done.code, done.stdout) == (2, "")
    assert target.counts()["total"] == 0
    assert not (tmp_path / "hyperscale-results").exists()


def test_a_symbolic_link_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shop.py").symlink_to("shop.py")
    done = run("run", "shop.py", cwd=tmp_path)
    assert (done.code, done.stdout) == (2, "")
    assert_refused(done.stderr, ["shop.py: is a link that leads back to itself"])


def assert_refused(stderr: str, named: list[str]) -> None:
    assert stderr.startswith("hyperscale"), stderr
    lines = stderr.strip().splitlines()
    assert len(lines) <= 2, "one message and at most one hint"
    assert len(lines) == 1 or lines[1].startswith("  hint: "), stderr
    assert "Traceback" not in stderr
    for word in named:
        assert word in stderr


def test_the_header_of_test_files_has_two_lines_as_the_line_numbers_above_assume() -> None:
    assert HEADER.count("\n") == 2
