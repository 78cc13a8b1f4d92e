"""Executors of a worker are boxed: what the code of a hostile test cannot reach."""

import json
from pathlib import Path

import pytest

from hyperscale.config.loading import node_config
from hyperscale.errors import InputError
from tests.lab.command import CommandOutcome, run
from tests.lab.nodes import NodeCluster

# Tries what a hostile test would, and prints how each attempt ended.
HOSTILE = """
import ctypes, json, os, pathlib, socket, subprocess, sys, tempfile
from hyperscale import Workflow, action

def attempts():
    agent = os.getppid()
    yield "data", lambda: list(pathlib.Path(DATA).rglob("*.zip"))[0].read_bytes()
    yield "secret", lambda: pathlib.Path(SECRET).read_text()
    yield "shadow", lambda: pathlib.Path("/etc/shadow").read_text()
    yield "home", lambda: os.listdir("/root")
    yield "outside", lambda: pathlib.Path(OUTSIDE).write_text("was here")
    yield "symlink", through_symlink
    yield "environment", lambda: pathlib.Path(f"/proc/{agent}/environ").read_bytes()
    yield "memory", lambda: open(f"/proc/{agent}/mem", "rb")
    yield "signal", lambda: os.kill(agent, 19)
    yield "ptrace", lambda: ptrace(agent)
    yield "child", lambda: run_child()
    yield "temporary", lambda: tempfile.NamedTemporaryFile().write(b"x")
    yield "python", lambda: __import__("sqlite3")

def through_symlink():
    link = os.path.join(tempfile.gettempdir(), "link")
    os.symlink(SECRET, link)
    return open(link).read()

def ptrace(pid):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, pid, None, None) != 0:  # PTRACE_ATTACH
        raise OSError(ctypes.get_errno(), "ptrace")

def run_child():
    script = f"print(open({SECRET!r}).read())"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)

class Hostile(Workflow):
    vus = 1
    iterations = 1

    @action()
    async def attack(self) -> None:
        found = {}
        for name, attempt in attempts():
            try:
                attempt()
                found[name] = "done"
            except Exception as error:
                found[name] = type(error).__name__
        print("found " + json.dumps(found), flush=True)
"""

HUNGRY = """
import asyncio
from hyperscale import Workflow, action

HELD = []

class Hungry(Workflow):
    vus = 1
    duration = "30s"

    @action()
    async def eat(self) -> None:
        while True:
            HELD.append(b"x" * 2**20)
            await asyncio.sleep(0.001)
"""

FORKING = """
import os, time
from hyperscale import Workflow, action

class Forking(Workflow):
    vus = 1
    iterations = 1

    @action()
    async def fork(self) -> None:
        started = 0
        for _ in range(500):
            try:
                if os.fork() == 0:
                    time.sleep(60)
                    os._exit(0)
            except OSError:
                break
            started += 1
        print(f"started {started}", flush=True)
"""


class BoxedWorker:
    """A manager and a worker with limits, and the directory that both keep their data in."""

    def __init__(self, cluster: NodeCluster, directory: Path, *flags: str) -> None:
        self._directory = directory
        manager = cluster.start("manager", "m0").wait_listening()
        self._place = ("--manager", manager.address)
        seed = ("--seed", manager.address, "--cores", "1")
        self.worker = cluster.start("worker", "w0", *seed, *flags)
        self.worker.wait_listening()

    def submit(self, name: str, code: str) -> CommandOutcome:
        file = self._directory / f"{name}.py"
        file.write_text(code)
        return run("submit", str(file), *self._place, "--watch", cwd=self._directory)


def test_a_hostile_test_reaches_nothing_outside_its_box(
    cluster: NodeCluster, tmp_path: Path
) -> None:
    secret, outside = tmp_path / "secret.txt", tmp_path / "outside.txt"
    secret.write_text("the secret of the cluster")
    flags = ("--executors-sandbox", "required", "--executors-processes", "40")
    boxed = BoxedWorker(cluster, tmp_path, *flags)
    places = f"SECRET, OUTSIDE, DATA = {str(secret)!r}, {str(outside)!r}, {str(tmp_path)!r}\n"
    done = boxed.submit("hostile", places + HOSTILE)
    assert done.code == 0, done.stdout + done.stderr
    line = next(line for line in done.stdout.splitlines() if "found {" in line)
    found = json.loads(line[line.index("{") :])
    assert found.pop("temporary") == "done"
    assert found.pop("python") == "done"
    assert "done" not in found.values(), found
    assert not outside.exists()
    # The worker lives, and runs the next job; processes have an end.
    forked = boxed.submit("forking", FORKING)
    assert forked.code == 0, forked.stdout + forked.stderr
    started = next(line for line in forked.stdout.splitlines() if "started " in line)
    assert int(started.rpartition(" ")[2]) < 40


def test_a_job_over_its_memory_is_ended_with_that_reason(
    cluster: NodeCluster, tmp_path: Path
) -> None:
    boxed = BoxedWorker(cluster, tmp_path, "--executors-memory-mib", "300")
    done = boxed.submit("hungry", HUNGRY)
    assert done.code != 0
    assert "executors.memory_mib is 300 here" in done.stdout + done.stderr
    assert boxed.worker.output().count("attempt.finished") == 1  # it is not tried again


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"read": ["data"]}, "executors.read: 'data' is not an absolute path"),
        ({"write": ["~/x"]}, "executors.write: '~/x' is not an absolute path"),
        ({"sandbox": "yes"}, "executors.sandbox"),
        ({"memory_mib": -1}, "executors.memory_mib"),
    ],
)
def test_a_wrong_setting_of_executors_is_refused(settings: dict[str, object], words: str) -> None:
    tables = {"executors": settings, "discovery": {"seeds": ["127.0.0.1:1"]}}
    with pytest.raises(InputError, match=words.replace(".", r"\.")):
        node_config("worker", tables)
