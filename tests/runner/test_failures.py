"""Why calls failed: messages, counts and samples, against what the target counted."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunningTarget
from tests.lab.command import results, run, write

GET = """
    import asyncio

    class Get(Workflow):
        vus = 4
        duration = "30s"
        iterations = 40

        @step()
        async def get(self, url: URL = "{url}") -> HTTPResponse:
            {body}
            return await self.client.http.get(url)
"""
# Steps that are single requests run natively, others in Python.
BODIES = {"native": "", "python": "await asyncio.sleep(0)"}


def failures(tmp_path: Path, code: str) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
    """Run a workflow of one step; return the step and its failures."""
    write(tmp_path / "get.py", code)
    run("run", "get.py", "--json", "r.json", "--out", "out", "--quiet", cwd=tmp_path)
    (workflow,) = results(tmp_path / "r.json")["workflows"]
    step = workflow["steps"][0]
    assert sum(row["count"] for row in step["failures"]) == step["failed"]
    return step, step["failures"]


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_failed_status_has_its_request_and_response_as_sample(
    tmp_path: Path, target: RunningTarget, body: str
) -> None:
    url = target.url.replace("//", "//joe:hunter2@")
    step, rows = failures(
        tmp_path, GET.format(url=f"{url}/status/503?page=2&api_key=k-1", body=body)
    )
    (row,) = rows
    assert (row["error"], row["message"], row["count"]) == ("status", "503 Service Unavailable", 40)
    assert target.counts()["total"] == step["sent"] == 40
    sample = row["sample"]
    assert sample["request"] == f"GET {target.url}/status/503?page=2&api_key=***"
    assert (sample["status"], sample["body"]) == (503, "503 Service Unavailable\n")
    assert "Content-Type: text/plain; charset=utf-8" in sample["headers"]
    assert sample["latency_ms"] > 0
    shown = [(tmp_path / "out" / name).read_text() for name in ("report.html", "junit.xml")]
    for text in shown:
        assert "503 Service Unavailable" in text
        assert "api_key=***" in text
        assert "hunter2" not in text


def test_exceptions_are_told_apart_by_their_place_and_not_by_ids(
    tmp_path: Path, target: RunningTarget
) -> None:
    body = (
        "if self.vu == 3: raise ValueError('\\ud800 is odd')\n"
        "            raise KeyError(f'cart {{id(self)}} of {{self.iteration}}')"
    )
    _, rows = failures(tmp_path, GET.format(url=target.url, body=body))
    by_type = {row["message"].partition(":")[0]: row for row in rows}
    assert set(by_type) == {"KeyError", "ValueError"}
    assert all(row["error"] == "exception" for row in rows)
    trace = by_type["KeyError"]["sample"]["trace"]
    assert "get.py" in trace
    assert "raise KeyError" in trace
    assert "hyperscale/execution" not in trace


def test_a_refused_connection_names_the_address(tmp_path: Path) -> None:
    _, (row,) = failures(tmp_path, GET.format(url="http://127.0.0.1:1/", body=""))
    assert (row["error"], row["message"]) == ("connect", "connection refused by 127.0.0.1:1")
    assert row["sample"]["headers"] == []


def test_an_unknown_issuer_says_what_to_pass(tmp_path: Path, tls_target: RunningTarget) -> None:
    _, (row,) = failures(tmp_path, GET.format(url=tls_target.url, body=""))
    assert row["error"] == "tls"
    assert row["message"].startswith("unknown issuer: pass ca=")


def test_the_summary_shows_the_most_frequent_messages(
    tmp_path: Path, target: RunningTarget
) -> None:
    write(tmp_path / "get.py", GET.format(url=f"{target.url}/status/404", body=""))
    done = run("run", "get.py", cwd=tmp_path)
    assert f"40 get: status: 404 Not Found  GET {target.url}/status/404" in done.stdout
