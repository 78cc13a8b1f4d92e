"""The CPU weight of an executor: how much of a busy core it gets beside other executors.

The kernel weighs processes of one control group by their nice value. Where autogroups are on, it
weighs sessions instead, by the value in /proc/PID/autogroup, and an executor leads its own session;
so both are set. Where the kernel has no autogroups, or does not let this process write there, nice
alone decides.
"""

import asyncio
import errno
import os
from pathlib import Path

from hyperscale.execution.limits import EXECUTOR_NICE

_NICE_MAX = 19
_AUTOGROUP_RETRY_S = 0.11
"""The kernel accepts one such write per tenth of a second from processes without privileges."""


class CpuWeight:
    """The weight of one executor process. It leads its session and its process group."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._nice: int | None = None
        self._retry: asyncio.TimerHandle | None = None

    def set(self, nice: int | None) -> bool:
        """Weigh the executor; None gives it the weight it started with.

        Return False if the kernel does not permit it: only a privileged process may lower nice.
        """
        if nice == self._nice:
            return True
        wanted = EXECUTOR_NICE if nice is None else nice
        # Relative to this process, which may have been started with `nice` itself.
        absolute = min(_NICE_MAX, os.getpriority(os.PRIO_PROCESS, 0) + wanted)
        try:
            os.setpriority(os.PRIO_PGRP, self._pid, absolute)  # all its threads and children
        except PermissionError:
            return False
        except ProcessLookupError:  # its end is reported elsewhere
            return True
        self._nice = nice
        self.stop()
        self._write_autogroup(nice or 0)
        return True

    def stop(self) -> None:
        """Write no more: the process has ended, and its id may be reused."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _write_autogroup(self, nice: int) -> None:
        try:
            Path(f"/proc/{self._pid}/autogroup").write_text(str(nice), encoding="ascii")
        except OSError as error:
            if error.errno == errno.EAGAIN:
                loop = asyncio.get_running_loop()
                self._retry = loop.call_later(_AUTOGROUP_RETRY_S, self._write_autogroup, nice)
