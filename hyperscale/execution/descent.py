"""Which processes an executor started, however they hid: looked up in /proc, ended for good.

While an executor lives it adopts what its children leave behind, so all it started is below it.
When it has died by itself that tree is gone; what is left is known by a mark in the environment
that every process inherits and that no other executor's have. Unrelated processes of whoever
embeds a pool have no such mark. What neither finds is a daemon that also overwrote its
environment, of an executor that died by itself.
"""

import contextlib
import ctypes
import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

_VARIABLE = "_HYPERSCALE_STARTED_BY"  # not HYPERSCALE_…: those are settings
_PR_SET_CHILD_SUBREAPER = 36


class Mark:
    """What the processes of one executor have in common and nobody else has."""

    def __init__(self) -> None:
        self._value = secrets.token_hex(16)
        self._entry = f"{_VARIABLE}={self._value}".encode()

    def environment(self) -> dict[str, str]:
        """This process's, marked."""
        return {**os.environ, _VARIABLE: self._value}

    def end_bearers(self) -> bool:
        """Kills every process that has the mark; whether there were any."""
        found = False
        for name in os.listdir("/proc"):
            if name.isdigit() and self._is_on(int(name)):
                found = self._end(int(name)) or found
        return found

    def _is_on(self, pid: int) -> bool:
        try:
            # Empty once it has ended; not readable if it is of another user.
            with open(f"/proc/{pid}/environ", "rb", buffering=0) as environment:
                return self._entry in environment.read().split(b"\0")
        except OSError:
            return False

    def _end(self, pid: int) -> bool:
        with contextlib.suppress(OSError):  # it ended meanwhile
            descriptor = os.pidfd_open(pid)
            try:
                # Once more: now its number cannot pass to another process unnoticed.
                if self._is_on(pid):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    return True
            finally:
                os.close(descriptor)
        return False


def adopt_orphans() -> None:
    """From now on, descendants that lose their parent become children of this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, *map(ctypes.c_ulong, (1, 0, 0, 0))) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl: {os.strerror(number)}")


def descendants(pid: int) -> list[int]:
    """What it started, also in sessions and groups of their own."""
    children: dict[int, list[int]] = {}
    for each, parent in _processes():
        children.setdefault(parent, []).append(each)
    found = list(children.get(pid, []))
    for each in found:
        found += children.get(each, [])
    return found


def _processes() -> Iterator[tuple[int, int]]:
    """Number and parent of all that are more than an entry nobody has reaped yet."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it ended while we looked
            stat = Path("/proc", name, "stat").read_bytes()
            # After the name, which may hold anything: state, parent.
            state, parent = stat.rpartition(b")")[2].split()[:2]
            if state not in (b"Z", b"X"):
                yield int(name), int(parent)
