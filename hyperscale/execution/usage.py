"""CPU time, waiting time and memory of this executor, as its reports have them."""

import os
import time
from io import FileIO

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ExecutorUsage:
    """Times count from `begin`. The files are opened once: descriptors may run out later."""

    def __init__(self) -> None:
        self._statm = FileIO("/proc/self/statm")
        self._schedstat: FileIO | None = None  # None: the kernel keeps no such figures
        if os.path.exists("/proc/self/schedstat"):
            self._schedstat = FileIO("/proc/self/schedstat")
        self.begin()

    def begin(self) -> None:
        self._cpu_began_s = time.process_time()
        self._waited_began_s = self._waited_s()

    @property
    def cpu_s(self) -> float:
        return time.process_time() - self._cpu_began_s

    @property
    def cpu_wait_s(self) -> float:
        """How long the loop's thread was ready to run and waited for a core."""
        return self._waited_s() - self._waited_began_s

    @property
    def rss_bytes(self) -> int:
        self._statm.seek(0)
        return int(self._statm.read().split()[1]) * _PAGE_BYTES

    def close(self) -> None:
        self._statm.close()
        if self._schedstat is not None:
            self._schedstat.close()

    def _waited_s(self) -> float:
        if self._schedstat is None:
            return 0.0
        self._schedstat.seek(0)
        return int(self._schedstat.read().split()[1]) / 1e9
