"""Nodes as child processes: bound to CPUs, killed with their parent.

The kernel kills a node when the thread that started it ends: start nodes from the main thread.
"""

import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from hyperscale.errors import RunError

_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def start_node(argv: Sequence[str], cpus: Sequence[int], log: Path) -> "subprocess.Popen[bytes]":
    """Start a node in a session of its own; append its output to `log`."""
    own = {name: text for name, text in os.environ.items() if not name.startswith("HYPERSCALE_")}
    try:
        with open(log, "ab", opener=partial(os.open, mode=0o600)) as output:
            return subprocess.Popen(  # noqa: S603  our own command line
                list(argv),
                env=own,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=partial(_bind_to_parent, os.getpid(), cpus),  # noqa: PLW1509  no threads here
            )
    except (OSError, subprocess.SubprocessError) as error:
        raise RunError(f"{argv[0]} cannot be started: {error}") from error


def _bind_to_parent(parent: int, cpus: Sequence[int]) -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before prctl was called
        os._exit(1)
    if cpus:
        os.sched_setaffinity(0, cpus)


def ended_how(code: int) -> str:
    """Return in words how a process with this `Popen.returncode` ended."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def children_of(pid: int) -> list[int]:
    """Return the child processes of a process."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError):
                if int(_stat(int(name))[1]) == pid:
                    found.append(int(name))
    return found


def is_running(pid: int) -> bool:
    """Return True if a process exists and is not a zombie."""
    try:
        return _stat(pid)[0] not in "ZX"
    except OSError:
        return False


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the command's name: state, parent, ..."""
    text = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    return text.rpartition(")")[2].split()
