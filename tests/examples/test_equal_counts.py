"""Every example gives the same counts natively and in Python, on one core, on two, on a cluster."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hyperscale.reporting.json_report import encode_json
from tests.conftest import RunningTarget
from tests.examples.test_examples import TESTS, placed
from tests.lab.cluster import Cluster, running_cluster
from tests.lab.command import results, run
from tests.lab.loops import run_in_thread

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
LOCAL = {
    "native": ("--workers", "1"),
    "native on two cores": ("--workers", "2"),
    "Python": ("--workers", "1", "--no-compile"),
    "Python on two cores": ("--workers", "2", "--no-compile"),
}
# Examples of load and data; the others run on a cluster in soaks.
SHAPED = {"alternatives.py", "feed.py", "feed_columns.py", "load_shapes.py"}
ON_CLUSTER = [
    pytest.param(name, marks=() if name in SHAPED else pytest.mark.soak) for name in TESTS
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run a manager and two workers for all examples."""
    directory = tmp_path_factory.mktemp("examples") / "lab"
    with running_cluster(directory, "--managers", "1", "--workers", "2") as running:
        yield running


async def submitted(cluster: Cluster, file: Path) -> dict[str, Any]:
    """Run a test file on the cluster; return its results."""
    async with cluster.client() as client:
        final = await client.wait_for_completion(await client.submit_job(file), timeout=60)
    assert final.result.passed, final.result
    found: dict[str, Any] = json.loads(encode_json(final.result))
    return found


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
    name: str,
    tmp_path: Path,
    target: RunningTarget,
    tls_target: RunningTarget,
    http3_target: RunningTarget,
) -> None:
    server = {"tls.py": tls_target, "http3.py": http3_target}.get(name, target)
    file = fixed(tmp_path, name, server)
    found = {way: run_here(file, server, flags) for way, flags in LOCAL.items()}
    assert all(each == found["native"] for each in found.values()), found


@pytest.mark.parametrize("name", ON_CLUSTER)
def test_an_example_counts_the_same_on_a_cluster(
    name: str,
    tmp_path: Path,
    target: RunningTarget,
    tls_target: RunningTarget,
    http3_target: RunningTarget,
    cluster: Cluster,
) -> None:
    server = {"tls.py": tls_target, "http3.py": http3_target}.get(name, target)
    file = fixed(tmp_path, name, server)
    here = run_here(file, server, LOCAL["native"])
    before = received(server, file.read_text())
    there = run_in_thread(submitted(cluster, file))
    assert determined(file, server, there, before) == here


def fixed(tmp_path: Path, name: str, server: RunningTarget) -> Path:
    """Write an example with fixed iterations; return its file."""
    placed(tmp_path, name, server)
    if server.certificate_pem:
        (tmp_path / "ca.pem").write_text(server.certificate_pem)
    file = tmp_path / name
    # Workers have working directories of their own.
    text = file.read_text().replace('"ca.pem"', repr(str(tmp_path / "ca.pem")))
    file.write_text(text + FIXED)
    return file


def run_here(file: Path, server: RunningTarget, flags: tuple[str, ...]) -> dict[str, Any]:
    """Run a test file on this machine; return the counts that do not depend on time."""
    before = received(server, file.read_text())
    done = run("run", file.name, *flags, "--json", "r.json", cwd=file.parent)
    assert done.code == 0, done.stdout + done.stderr
    return determined(file, server, results(file.parent / "r.json"), before)


def determined(
    file: Path, server: RunningTarget, result: dict[str, Any], before: int
) -> dict[str, Any]:
    """Check what was sent against the target, which had counted `before`; return the counts that
    do not depend on time."""
    text = file.read_text()
    sent = sum(workflow["sent"] for workflow in result["workflows"])
    if "warmup = " not in text:  # requests of the warm-up are not counted
        assert received(server, text) - before == sent
    return {
        workflow["name"]: counts(workflow)
        for workflow in result["workflows"]
        # How often users of a mix or of stages come round depends on time.
        if workflow["arrivals"] or not is_timed(text, workflow["name"])
    }


def is_timed(text: str, workflow: str) -> bool:
    body = text.partition(f"class {workflow}(")[2].partition("\nclass ")[0].partition(FIXED)[0]
    return "stages =" in body or "weight = " in body
