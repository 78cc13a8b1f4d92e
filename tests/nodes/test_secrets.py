"""The secrets of a worker: what a submitted test can see of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hyperscale.config.loading import node_config
from hyperscale.errors import InputError
from hyperscale.nodes.agent.executors import visible_environment
from hyperscale.wire.cluster_secret import make_secret, write_secret_file
from tests.lab.command import run
from tests.lab.nodes import NodeCluster

# Searches what a curious test can read: its environment, and the environment and arguments of
# every process of its user.
SPY = """
import json, os, pathlib
from hyperscale import Workflow, action

class Spy(Workflow):
    vus = 1

    @action()
    async def look(self) -> None:
        found = {"environment": dict(os.environ), "seen_in": []}
        for name in filter(str.isdigit, os.listdir("/proc")):
            for kind in ("environ", "cmdline"):
                try:
                    text = pathlib.Path("/proc", name, kind).read_bytes()
                except OSError:
                    continue
                if NEEDLE.encode()[::-1] in text:
                    found["seen_in"].append(f"{name}/{kind}")
        pathlib.Path(OUT).write_text(json.dumps(found))
"""


def test_a_job_sees_the_secret_in_no_environment_and_no_argument_list(
    cluster: NodeCluster, tmp_path: Path
) -> None:
    secret = make_secret()
    own = {"HYPERSCALE_SECRET": secret, "AWS_SECRET_ACCESS_KEY": "cloud", "SHOP_REGION": "eu"}
    manager = cluster.start("manager", "m0", environment=own).wait_listening()
    seed = ("--seed", manager.address, "--cores", "1")
    visible = ("--executors-env", "SHOP_*", "--executors-write", str(tmp_path))
    worker = cluster.start("worker", "w0", *seed, *visible, environment=own)
    worker.wait_listening()
    out = tmp_path / "found.json"
    # Reversed: the bundle and this command must not contain the secret themselves.
    file = tmp_path / "spy.py"
    file.write_text(f"NEEDLE = {secret[::-1]!r}\nOUT = {str(out)!r}\n{SPY}")
    write_secret_file(tmp_path / "secret", secret)
    flags = ("--manager", manager.address, "--secret-file", str(tmp_path / "secret"), "--watch")
    done = run("submit", str(file), *flags, cwd=tmp_path)
    assert done.code == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["seen_in"] == []
    assert found["environment"]["SHOP_REGION"] == "eu"
    assert not [name for name in found["environment"] if name.startswith(("HYPERSCALE_", "AWS_"))]
    assert secret not in worker.output() + manager.output()


def test_only_listed_variables_are_visible_to_tests() -> None:
    environment = {"PATH": "/bin", "LC_ALL": "C", "PYTHONPATH": "x", "HOME": "/h", "SHOP_A": "1"}
    assert visible_environment(environment, ()).keys() == {"PATH", "LC_ALL", "PYTHONPATH"}
    assert visible_environment(environment, ("SHOP_*", "HOME")).keys() == environment.keys()


@pytest.mark.parametrize("name", ["HYPERSCALE_SECRET", "HYPER*", "*", "", "A B", "a=b"])
def test_a_name_that_would_show_the_settings_of_the_worker_is_refused(name: str) -> None:
    tables = {"executors": {"env": [name]}, "discovery": {"seeds": ["127.0.0.1:1"]}}
    with pytest.raises(InputError, match=r"executors\.env"):
        node_config("worker", tables)


def test_a_protected_process_shows_no_secret_and_writes_no_core_file(tmp_path: Path) -> None:
    script = """
import ctypes, os, pathlib
from hyperscale.nodes.process_secrets import protect_secrets
protect_secrets()
shown = pathlib.Path("/proc/self/environ").read_bytes()
assert b"correct horse" not in shown, shown
assert b"BESIDE=kept" in shown and os.environ["BESIDE"] == "kept"
assert "HYPERSCALE_SECRET" not in os.environ
assert ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 0  # PR_GET_DUMPABLE
"""
    environment = {**os.environ, "HYPERSCALE_SECRET": "correct horse", "BESIDE": "kept"}
    subprocess.run([sys.executable, "-c", script], env=environment, cwd=tmp_path, check=True)
