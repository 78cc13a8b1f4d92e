"""Which processes an executor started, however they hid: found by a mark, ended for good.

Every process inherits two things nobody looks at: an environment variable, and the limit of file
locks, which the kernel has long ceased to apply. Each executor has a number of its own in both,
so what it started is known from either, whoever its parent is by now and also when the executor
is gone. Unrelated processes of whoever embeds a pool have no such mark. Orphans stay with init,
which reaps them: user code has no children that it did not start.

Not found is what has rid itself of both (of the environment alone where limits cannot be set),
what an executor inside the executor started, and what was not started but asked for: a container,
a service, a job of cron. What became another user's can be found but not ended.
"""

import contextlib
import os
import resource
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Self

_VARIABLE = "_HYPERSCALE_STARTED_BY"  # not HYPERSCALE_…: those are settings
_LIMIT = 10  # RLIMIT_LOCKS, without effect since Linux 2.4.25; `resource` has no name for it
_BITS = 62  # more than any real limit needs, and no sign


class ProcessMark:
    """What the processes of one executor have in common and nobody else has."""

    def __init__(self, value: int) -> None:
        self._value = value
        self._entry = f"{_VARIABLE}={value}".encode()

    @classmethod
    def new(cls) -> Self:
        return cls(1 << (_BITS - 1) | secrets.randbits(_BITS - 1))

    @classmethod
    def of_this_process(cls) -> Self:
        """The one it was started with."""
        return cls(int(os.environ[_VARIABLE]))

    def environment(self) -> dict[str, str]:
        """This process's, marked."""
        return {**os.environ, _VARIABLE: str(self._value)}

    def put_on_limits(self) -> None:
        """From now on this process's limits, and of all it starts, bear the mark too."""
        # Where limits are not to be set, the environment has to do.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(_LIMIT, (self._value, resource.getrlimit(_LIMIT)[1]))

    def is_on_others(self) -> bool:
        """Whether a living process other than this one has the mark."""
        return any(pid != os.getpid() for pid in self._bearers())

    def end_bearers(self) -> bool:
        """Kills every process that has the mark; whether there were any."""
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
        except (OSError, ValueError):  # gone, of another user, or there are no such limits
            return False

    def _is_on_environment(self, pid: int) -> bool:
        try:
            # Empty once it has ended; not readable if it is of another user.
            with open(f"/proc/{pid}/environ", "rb", buffering=0) as environment:
                return self._entry in environment.read().split(b"\0")
        except OSError:
            return False

    def _end(self, pid: int) -> bool:
        with contextlib.suppress(OSError):  # it ended meanwhile, or is of another user
            descriptor = os.pidfd_open(pid)
            try:
                # Once more: now its number cannot pass to another process unnoticed.
                if self._is_on(pid):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    return True
            finally:
                os.close(descriptor)
        return False


def _is_living(pid: int) -> bool:
    """Whether it is more than an entry that nobody has reaped yet."""
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    # The state comes after the name, which may hold anything.
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")
