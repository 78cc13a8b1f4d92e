"""Run the `hyperscale` command in a process of its own."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

from tests.lab.waiting import WAIT_S

HYPERSCALE = (sys.executable, "-m", "hyperscale.cli.main")

HEADER = """\
from hyperscale import Workflow, action, check, depends, metric, setup, state, step, Provide, Use
from hyperscale.testing import Data, HTTPResponse, URL
"""


_started: "list[subprocess.Popen[str]]" = []


@dataclass(frozen=True)
class CommandOutcome:
    """Exit code and output of a command that has ended."""

    code: int
    stdout: str
    stderr: str


def start(*arguments: str, cwd: Path, **options: Any) -> "subprocess.Popen[str]":
    """Start the command in a session of its own; `end_all` kills the session."""
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
    """Kill the commands that a failed test left running, and close their pipes."""
    while _started:
        process = _started.pop()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        with process:  # closes its pipes and waits
            pass


def run(*arguments: str, cwd: Path) -> CommandOutcome:
    """Run the command to its end."""
    process = start(*arguments, cwd=cwd)
    return finish(process)


def finish(process: "subprocess.Popen[str]") -> CommandOutcome:
    """Wait for a started command to end."""
    try:
        stdout, stderr = process.communicate(timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return CommandOutcome(process.returncode, stdout, stderr)


def results(path: Path) -> Any:
    """Return the content of a results file."""
    return json.loads(path.read_text())


def write(path: Path, body: str) -> Path:
    """Write a test file: the usual imports and `body`."""
    path.write_text(HEADER + dedent(body))
    return path
