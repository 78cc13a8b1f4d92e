"""Every example gives the same counts natively and in Python, on one core and on two."""

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunningTarget
from tests.examples.test_examples import TESTS, placed
from tests.lab.command import results, run

# Fixed iterations instead of a time; a workflow that has a rate, stages or iterations keeps them.
FIXED = """

for _each in list(globals().values()):
    _is_workflow = isinstance(_each, type) and Workflow in _each.__mro__[1:]
    if _is_workflow and _each.rate is _each.stages is _each.iterations is _each.weight is None:
        _each.duration = "60s"
        _each.vus = min(_each.vus, 5)
        if any(getattr(hook, "decorator", "") == "step" for hook in vars(_each).values()):
            _each.iterations = "4/vu"
"""
WAYS = {
    "native": ("--workers", "1"),
    "native on two cores": ("--workers", "2"),
    "Python": ("--workers", "1", "--no-compile"),
    "Python on two cores": ("--workers", "2", "--no-compile"),
}


def counts(workflow: dict[str, Any]) -> dict[str, Any]:
    """Return the counts of a workflow that do not depend on how fast it was."""
    if workflow["arrivals"]:
        return {"arrivals": workflow["arrivals"]}
    return {
        "iterations": workflow["iterations"],
        "steps": {
            step["name"]: {key: step[key] for key in ("ok", "failed", "skipped", "sent", "none")}
            for step in workflow["steps"]
            if step["kind"] in ("test", "action")
        },
        "checks": {check["name"]: check["passed"] for check in workflow["checks"]},
    }


def received(server: RunningTarget, text: str) -> int:
    """Return what the target counted: requests, or messages of a test over WebSockets."""
    counts = server.counts()
    is_websocket = "self.client.websocket." in text
    return int(counts["streams"]["websocket"]["messages_in"] if is_websocket else counts["total"])


@pytest.mark.parametrize("name", TESTS)
def test_an_example_counts_the_same_however_it_runs(
    name: str, tmp_path: Path, target: RunningTarget, tls_target: RunningTarget
) -> None:
    server = tls_target if name == "tls.py" else target
    placed(tmp_path, name, server)
    if server.certificate_pem:
        (tmp_path / "ca.pem").write_text(server.certificate_pem)
    file = tmp_path / name
    file.write_text(file.read_text() + FIXED)
    found = {}
    for way, flags in WAYS.items():
        before = received(server, file.read_text())
        done = run("run", name, *flags, "--json", "r.json", cwd=tmp_path)
        assert done.code == 0, done.stdout + done.stderr
        result = results(tmp_path / "r.json")
        sent = sum(workflow["sent"] for workflow in result["workflows"])
        if "warmup = " not in file.read_text():  # requests of the warm-up are not counted
            assert received(server, file.read_text()) - before == sent, way
        found[way] = {
            workflow["name"]: counts(workflow)
            for workflow in result["workflows"]
            # How often users of a mix or of stages come round depends on time.
            if workflow["arrivals"] or not is_timed(file.read_text(), workflow["name"])
        }
    assert all(each == found["native"] for each in found.values()), found


def is_timed(text: str, workflow: str) -> bool:
    body = text.partition(f"class {workflow}(")[2].partition("\nclass ")[0].partition(FIXED)[0]
    return "stages =" in body or "weight = " in body
