"""Ends the servers of a test run with it, even if the run is killed.

Every process of a server inherits a mark in its environment, daemons in sessions of their own too.
A process beside pytest waits until pytest has closed its end of a pipe, which the kernel does for
a killed one, and then kills every process with the mark.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_NAME = "HYPERSCALE_TEST_RUN"


def mark() -> dict[str, str]:
    """Return the variable that marks the processes of this run."""
    return {_NAME: str(os.getpid())}


@contextlib.contextmanager
def watch() -> Iterator[None]:
    """Kill the marked processes at the end of the block, or when this process is killed."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.services.guard", mark()[_NAME]],
        stdin=subprocess.PIPE,
        start_new_session=True,
    ) as watching:
        yield
        assert watching.stdin is not None
        watching.stdin.close()


def marked(value: str) -> list[int]:
    """Return the processes of a run, by the value of their mark."""
    wanted = f"{_NAME}={value}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # ended meanwhile, or of another account
            if wanted in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return found


def main() -> None:
    sys.stdin.read()
    while pids := marked(sys.argv[1]):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)  # a killed process is listed until the kernel has ended it


if __name__ == "__main__":
    main()
