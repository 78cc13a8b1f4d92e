"""Every example runs as it is, against the built-in target on another port."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import RunningTarget
from tests.lab.command import results, run

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
SCRIPTS = {
    "changing_load.py",
    "cluster.py",
    "demo.py",
    "embedded_nodes.py",
    "local_runner.py",
    "many_datacenters.py",
    "placement.py",
}  # run by Python, not by `hyperscale run`
TESTS = sorted(path.name for path in EXAMPLES.glob("*.py") if path.name not in SCRIPTS)


def placed(tmp_path: Path, name: str, target: RunningTarget) -> None:
    """The example with the target's address in place of the one it is written for."""
    text = (EXAMPLES / name).read_text()
    assert target.scheme == "http" or "https://localhost:" in text
    text = re.sub(r"https?://localhost:\d+", target.url, text)
    text = re.sub(r"ws://localhost:\d+", f"ws://127.0.0.1:{target.port}", text)
    (tmp_path / name).write_text(text)
    shutil.copytree(EXAMPLES / "protocols", tmp_path / "protocols", dirs_exist_ok=True)


@pytest.mark.parametrize("name", TESTS)
def test_an_example_passes(
    name: str,
    tmp_path: Path,
    target: RunningTarget,
    tls_target: RunningTarget,
    http3_target: RunningTarget,
) -> None:
    server = {"tls.py": tls_target, "http3.py": http3_target}.get(name, target)
    placed(tmp_path, name, server)
    if server.certificate_pem:
        (tmp_path / "ca.pem").write_text(server.certificate_pem)
    # Stages say how long a workflow runs.
    shorter = () if "stages =" in (tmp_path / name).read_text() else ("--duration", "1s")
    done = run("run", name, *shorter, "--json", "r.json", cwd=tmp_path)
    assert done.code == 0, done.stdout + done.stderr
    result = results(tmp_path / "r.json")
    assert result["status"] == "completed"
    for workflow in result["workflows"]:
        assert workflow["status"] == "completed"
        assert not any(step["failed"] for step in workflow["steps"]), workflow["steps"]
        assert all(step["ok"] for step in workflow["steps"])
        assert not any(check["failed"] for check in workflow["checks"])
    meant = [text for text in result["warnings"] if "saturated" not in text]
    assert not meant, meant  # a busy machine says nothing about the example


def test_the_published_style_is_run_unchanged(tmp_path: Path) -> None:
    text = (EXAMPLES / "published_style.py").read_text()
    assert "class Test(Workflow):" in text
    assert '@step()\n    async def login(self, url: URL = "http://localhost:8080/' in text


def test_the_local_runner_is_run_by_python(tmp_path: Path, target: RunningTarget) -> None:
    placed(tmp_path, "local_runner.py", target)
    done = subprocess.run(
        [sys.executable, "local_runner.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\d+ ok, 0 failed, p99 [\d.]+ ms$", done.stdout, re.MULTILINE)


def test_the_load_is_changed_while_it_runs(tmp_path: Path, target: RunningTarget) -> None:
    placed(tmp_path, "changing_load.py", target)
    done = subprocess.run(
        [sys.executable, "changing_load.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *changes, last = done.stdout.splitlines()[-4:]
    assert [line.partition(": ")[2] for line in changes] == ["scale to 6 users", "pause", "resume"]
    assert re.fullmatch(r"\d+ ok, 0 failed, paused for [\d.]+ s", last)


def test_nodes_are_embedded_in_a_program(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "embedded_nodes.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "manager-1 is alive"


def test_a_cluster_and_its_client_fit_in_a_program(tmp_path: Path, target: RunningTarget) -> None:
    placed(tmp_path, "cluster.py", target)
    done = subprocess.run(
        [sys.executable, "cluster.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^Smoke: \d+ ok, 0 failed$", done.stdout, re.MULTILINE)
    assert re.search(r"^completed in [\d.]+ s on default$", done.stdout, re.MULTILINE)


def test_workflows_ask_for_labels_of_workers(tmp_path: Path, target: RunningTarget) -> None:
    placed(tmp_path, "placement.py", target)
    done = subprocess.run(
        [sys.executable, "placement.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "FromBothZones ran on 2 cores",
        "FromZoneB ran on 1 cores",
        "the job was refused: no worker has zone=c (of 2 workers, zone is a on 1, b on 1)",
    ]


def test_a_gate_and_two_datacenters_fit_in_a_program(tmp_path: Path, target: RunningTarget) -> None:
    placed(tmp_path, "many_datacenters.py", target)
    done = subprocess.run(
        [sys.executable, "many_datacenters.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("east", "west"):
        assert re.search(rf"^{name}: completed, 2 users, p99 [\d.]+ ms$", done.stdout, re.MULTILINE)
    assert re.search(r"^completed: \d+ ok, 0 failed$", done.stdout, re.MULTILINE)


def test_the_demo_needs_no_terminal_and_ends_with_a_report(tmp_path: Path) -> None:
    for name in ("demo.py", "quickstart.py"):
        shutil.copy(EXAMPLES / name, tmp_path)
    done = subprocess.run(
        [sys.executable, "demo.py", "--duration", "1s", "--json", "r.json"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "CI": "true"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "report.html" in done.stdout
    assert json.loads((tmp_path / "r.json").read_text())["passed"]
