"""Finds and kills the processes that an executor started, by a mark they inherit.

Every process inherits an environment variable and the limit on file locks, which Linux has not
enforced since 2.4.25. Each executor has a random number in both, so the processes it started are
found by either, also after they were re-parented and after the executor has ended. Other processes
of a program that embeds a pool have no such mark. Orphans stay with init, which reaps them.

Not found are processes that removed both marks, processes of an executor inside the executor, and
processes that others started on request: a container, a service, a cron job. A process that changed
its user can be found but not killed.
"""

import contextlib
import os
import resource
import secrets
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

_VARIABLE = "_HYPERSCALE_STARTED_BY"  # not HYPERSCALE_…: those are settings
_LIMIT = 10  # RLIMIT_LOCKS, without effect since Linux 2.4.25; `resource` has no name for it
_BITS = 62  # more than any real limit needs, and no sign


class ProcessMark:
    """The mark of one executor and of every process it starts."""

    def __init__(self, value: int) -> None:
        self._value = value
        self._entry = f"{_VARIABLE}={value}".encode()

    @classmethod
    def new(cls) -> Self:
        return cls(1 << (_BITS - 1) | secrets.randbits(_BITS - 1))

    @classmethod
    def of_this_process(cls) -> Self:
        """Return the mark this process was started with."""
        return cls(int(os.environ[_VARIABLE]))

    def added_to(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return an environment with the mark added."""
        return {**environment, _VARIABLE: str(self._value)}

    def put_on_limits(self) -> None:
        """Put the mark on the limits of this process, which its children inherit."""
        # Where limits cannot be set, only the environment carries the mark.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(_LIMIT, (self._value, resource.getrlimit(_LIMIT)[1]))

    def is_on_others(self) -> bool:
        """Return True if a living process other than this one has the mark."""
        return any(pid != os.getpid() for pid in self._bearers())

    def end_bearers(self) -> bool:
        """Kill every process that has the mark; returns True if there were any."""
        ended = [self._end(pid) for pid in self._bearers()]
        return any(ended)

    def _bearers(self) -> Iterator[int]:
        for name in os.listdir("/proc"):
            if name.isdigit() and self._is_on(int(name)):
                yield int(name)

    def _is_on(self, pid: int) -> bool:
        return self._is_on_limits(pid) or self._is_on_environment(pid)

    def _is_on_limits(self, pid: int) -> bool:
        try:
            return resource.prlimit(pid, _LIMIT)[0] == self._value and _is_living(pid)
        except (OSError, ValueError):  # it has ended, or belongs to another user
            return False

    def _is_on_environment(self, pid: int) -> bool:
        try:
            # Empty once the process has ended; not readable if it belongs to another user.
            with open(f"/proc/{pid}/environ", "rb", buffering=0) as environment:
                return self._entry in environment.read().split(b"\0")
        except OSError:
            return False

    def _end(self, pid: int) -> bool:
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            descriptor = os.pidfd_open(pid)
            try:
                # Checked again: the descriptor now keeps the process id from being reused.
                if self._is_on(pid):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    return True
            finally:
                os.close(descriptor)
        return False


def _is_living(pid: int) -> bool:
    """Return True unless the process is a zombie."""
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    # The state comes after the name, which may hold anything.
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")
