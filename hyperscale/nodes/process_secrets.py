"""Keeps the secrets of a node process away from other processes of its user, such as executors.

Linux shows the environment that a process was started with to its user, in /proc, for as long as
the process lives; deleting a variable does not change that. So the values of secret variables are
overwritten in place. A process that is not dumpable writes no core file, and only root can read
its memory. Not protected: files that the user can read (docs/security.md).
"""

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

from hyperscale.config.schema import PREVIOUS_SECRET_VARIABLE, SECRET_VARIABLE

_PR_SET_DUMPABLE = 4
_ENVIRONMENT_START = 49  # in /proc/self/stat, counted from 0; the end follows


def protect_secrets(names: Iterable[str] = (SECRET_VARIABLE, PREVIOUS_SECRET_VARIABLE)) -> None:
    """Erase the variables from this process's environment and make the process not dumpable."""
    present = [name for name in names if os.environ.pop(name, None) is not None]
    if present:
        _overwrite(present)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _overwrite(names: Iterable[str]) -> None:
    """Overwrite the values in the environment block that the kernel shows in /proc."""
    start, end = _environment_block()
    block = ctypes.string_at(start, end - start)
    offset = 0
    prefixes = tuple(f"{name}=".encode() for name in names)
    for entry in block.split(b"\0"):
        for prefix in prefixes:
            if entry.startswith(prefix):
                value = start + offset + len(prefix)
                ctypes.memset(value, ord("*"), len(entry) - len(prefix))
        offset += len(entry) + 1


def _environment_block() -> tuple[int, int]:
    """Return the addresses between which the kernel put the environment of this process."""
    # The name in parentheses may hold anything; it is the second field.
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    first = _ENVIRONMENT_START - 2
    return int(fields[first]), int(fields[first + 1])
