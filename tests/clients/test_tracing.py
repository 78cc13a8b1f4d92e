"""`tracing`: sampled requests carry a W3C `traceparent` header."""

import re
from pathlib import Path

import pytest

from hyperscale.clients.templates import TemplateBook, new_traceparent
from tests.conftest import RunningTarget
from tests.lab.command import results, run

TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-01")

FILE = """
from hyperscale import Workflow, step
from hyperscale.testing import HTTPResponse


class Traced(Workflow):
    vus = 2
    iterations = 20
    duration = "30s"
    allow_failures = True
    tracing = {tracing!r}

    @step()
    async def missing(self) -> HTTPResponse:
        return await self.client.http.get({url!r})
"""


def request_of(tmp_path: Path) -> str:
    step = results(tmp_path / "r.json")["workflows"][0]["steps"][0]
    return str(step["failures"][0]["sample"]["request"])


def test_trace_contexts_are_valid_and_differ() -> None:
    made = {new_traceparent() for _ in range(1000)}
    assert len(made) == 1000
    assert all(TRACEPARENT.fullmatch(each) for each in made)


def test_the_share_of_traced_requests_is_that_of_the_setting() -> None:
    book = TemplateBook(1.0, tracing=0.25)
    made = [book.template("GET", "http://a.test/", {}) for _ in range(4000)]
    # A request without the header is rendered once, one with it every time.
    assert 700 < len({id(template) for template in made}) < 1300


def test_a_failure_sample_names_the_trace(target: RunningTarget, tmp_path: Path) -> None:
    url = f"{target.url}/status/500"
    (tmp_path / "traced.py").write_text(FILE.format(tracing="100%", url=url))
    done = run("run", "traced.py", "--json", "r.json", cwd=tmp_path)
    assert done.code in (0, 1), done.stdout + done.stderr
    request, _, trace = request_of(tmp_path).partition(" traceparent=")
    assert request == f"GET {url}"
    assert TRACEPARENT.fullmatch(trace)


def test_without_tracing_no_request_has_a_trace(target: RunningTarget, tmp_path: Path) -> None:
    url = f"{target.url}/status/500"
    (tmp_path / "traced.py").write_text(FILE.format(tracing=0, url=url))
    run("run", "traced.py", "--json", "r.json", cwd=tmp_path)
    assert request_of(tmp_path) == f"GET {url}"


@pytest.mark.parametrize("wrong", ["often", "101%", -0.1, 2, True, "x%"])
def test_a_wrong_share_is_refused(wrong: object, tmp_path: Path) -> None:
    (tmp_path / "traced.py").write_text(FILE.format(tracing=wrong, url="http://127.0.0.1/"))
    done = run("check", "traced.py", cwd=tmp_path)
    assert done.code == 2, done.stdout + done.stderr
    assert "Traced.tracing" in done.stderr
    assert '"1%"' in done.stderr
