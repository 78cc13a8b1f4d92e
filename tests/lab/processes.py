"""Look at other processes through /proc."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_prctl = ctypes.CDLL(None).prctl
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends: a `preexec_fn`."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    """Return True if the process exists and is not a zombie."""
    stat = _stat(pid)
    return bool(stat) and stat[0] not in "ZX"


def group_members(group: int) -> list[int]:
    """Return the processes of a process group that are not zombies."""
    return [pid for pid in _pids() if is_alive(pid) and int(_stat(pid)[2]) == group]


def executors_of(pid: int) -> list[int]:
    """Return the executor processes that the process `pid` started."""
    found = []
    for each in _pids():
        words = command_line(each)
        if "hyperscale.execution.executor" in words and str(pid) in words:
            found.append(each)
    return found


def command_line(pid: int) -> list[str]:
    """Return the arguments of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def open_sockets(pid: int | None = None) -> list[str]:
    """Return the sockets that a process, or this one, has open."""
    directory = f"/proc/{pid or 'self'}/fd"
    found = []
    for name in os.listdir(directory):
        with suppress(OSError):
            target = os.readlink(f"{directory}/{name}")
            if target.startswith("socket:"):
                found.append(target)
    return found


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Run `count` busy loops for as long as the context lasts."""
    loop = [sys.executable, "-c", "while True: pass"]
    running = [
        subprocess.Popen(loop, preexec_fn=die_with_parent)  # noqa: PLW1509  one system call
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.wait()


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the command's name: state, parent, group, ..."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
