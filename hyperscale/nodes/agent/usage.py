"""How busy a worker is: CPU time of its executors, and the actions they finish."""

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from hyperscale.health.signals import ProgressMeter
from hyperscale.jobs.messages import AttemptId

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class UsageMeter:
    """CPU use and progress of all executors of a worker."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._cpu_s: dict[int, float] = {}  # process -> CPU time at the last measurement
        self._measured_s: float | None = None
        self._actions: dict[tuple[AttemptId, int], int] = {}  # (attempt, place) -> actions
        self._ended_actions = 0  # actions of attempts that have ended
        self._progress = ProgressMeter()

    def note_actions(self, attempt_id: AttemptId, place: int, count: int) -> None:
        """Note how many actions an executor has finished in an attempt."""
        self._actions[attempt_id, place] = count

    def measure(
        self, pids: Iterable[int], attempts: Collection[AttemptId], *, now_s: float
    ) -> float:
        """Return the share of the cores used since the last call; `attempts` have not ended."""
        for key in [key for key in self._actions if key[0] not in attempts]:
            self._ended_actions += self._actions.pop(key)
        total = self._ended_actions + sum(self._actions.values())
        self._progress.report(assigned=len(self._actions), actions=total, now_s=now_s)
        return self._cpu_share(pids, now_s)

    def progress(self, *, now_s: float) -> str:
        """Return the state of progress that is announced to members."""
        return str(self._progress.state(now_s=now_s))

    def _cpu_share(self, pids: Iterable[int], now_s: float) -> float:
        cpu_s = {pid: _cpu_s(pid) for pid in pids}
        # A process that is new has used all its CPU time since the last call.
        spent_s = sum(used_s - self._cpu_s.get(pid, 0.0) for pid, used_s in cpu_s.items())
        measured_s, self._measured_s, self._cpu_s = self._measured_s, now_s, cpu_s
        if measured_s is None or now_s <= measured_s:
            return 0.0
        return min(1.0, max(0.0, spent_s / ((now_s - measured_s) * self._cores)))


def _cpu_s(pid: int) -> float:
    """Return the CPU time of a process, 0 if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0.0
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
