"""What a worker's executors use of its cores, as the kernel counts, and what they get done."""

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from hyperscale.jobs.messages import AttemptId

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class CpuMeter:
    """CPU time between two looks, as a share of the cores."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._used_s: dict[int, float] = {}
        self._looked_s: float | None = None

    def share(self, pids: Iterable[int], *, now_s: float) -> float:
        used_s = {pid: cpu_s(pid) for pid in pids}
        # A process that was not there before has used what it used since.
        spent_s = sum(used - self._used_s.get(pid, 0.0) for pid, used in used_s.items())
        looked_s, self._looked_s, self._used_s = self._looked_s, now_s, used_s
        if looked_s is None or now_s <= looked_s:
            return 0.0
        return min(1.0, max(0.0, spent_s / ((now_s - looked_s) * self._cores)))


class ActionCount:
    """Actions that were finished here, since the beginning, by whoever is still at it or was."""

    def __init__(self) -> None:
        self._counts: dict[tuple[AttemptId, int], int] = {}
        self._before = 0  # of runs that are gone

    @property
    def executors(self) -> int:
        """How many are at it."""
        return len(self._counts)

    @property
    def total(self) -> int:
        return self._before + sum(self._counts.values())

    def note(self, run: AttemptId, place: int, count: int) -> None:
        self._counts[run, place] = count

    def forget_others(self, here: Collection[AttemptId]) -> None:
        """Every run but these has ended, in whichever way."""
        for key in [key for key in self._counts if key[0] not in here]:
            self._before += self._counts.pop(key)


def cpu_s(pid: int) -> float:
    """What a process has used, 0 if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0.0
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
