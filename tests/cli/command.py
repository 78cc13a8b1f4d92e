"""The real command line in real processes: how tests start it, watch it and look behind it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

HYPERSCALE = (sys.executable, "-m", "hyperscale.cli.main")
WAIT_S = 60.0

HEADER = """\
from hyperscale import Workflow, action, check, depends, metric, state, step, Provide, Use
from hyperscale.testing import Data, HTTPResponse, URL
"""


_started: "list[subprocess.Popen[str]]" = []


@dataclass(frozen=True)
class ForwardCommandReply:
    code: int
    stdout: str
    stderr: str


def start(*arguments: str, cwd: Path, **options: Any) -> "subprocess.Popen[str]":
    """The command, running. It leads its own session, so that `end_all` ends what it left."""
    environment = {**os.environ, "COLUMNS": "120", "CI": "true"}
    process = subprocess.Popen(
        [*HYPERSCALE, *arguments],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=options.pop("stdout", subprocess.PIPE),
        stderr=options.pop("stderr", subprocess.PIPE),
        text=True,
        start_new_session=True,
        **options,
    )
    _started.append(process)
    return process


def end_all() -> None:
    """Whatever a failed test left running or unread."""
    while _started:
        process = _started.pop()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        with process:  # closes its pipes and waits
            pass


def run(*arguments: str, cwd: Path) -> ForwardCommandReply:
    """The command, run to its end; nothing of it is left."""
    process = start(*arguments, cwd=cwd)
    return finish(process)


def finish(process: "subprocess.Popen[str]") -> ForwardCommandReply:
    try:
        stdout, stderr = process.communicate(timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return ForwardCommandReply(process.returncode, stdout, stderr)


def results(path: Path) -> Any:
    return json.loads(path.read_text())


def write(path: Path, body: str) -> Path:
    """A test file: the usual imports and `body`."""
    path.write_text(HEADER + dedent(body))
    return path


def until(condition: Callable[[], object], *, what: str, within_s: float = WAIT_S) -> None:
    """Waits for a condition of other processes, which can only be looked at again and again."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"in vain for {within_s:.0f} s: {what}")
        time.sleep(0.02)


# --- processes ---------------------------------------------------------------------------


def executors_of(pid: int) -> list[int]:
    """Processes of the executor module whose parent was `pid`."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            words = command_line(int(name))
            if "hyperscale.execution.executor" in words and str(pid) in words:
                found.append(int(name))
    return found


def command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def is_alive(pid: int) -> bool:
    """Zombies are not: nothing of theirs runs."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
