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
        self._cpu = CpuMeter(cores)
        self._actions = ActionCount()
        self._progress = ProgressMeter()

    def note_actions(self, attempt_id: AttemptId, place: int, count: int) -> None:
        """Note how many actions an executor has finished."""
        self._actions.note(attempt_id, place, count)

    def measure(
        self, pids: Iterable[int], attempts: Collection[AttemptId], *, now_s: float
    ) -> float:
        """Return the share of the cores used since the last call; `attempts` have not ended."""
        self._actions.keep(attempts)
        self._progress.report(
            assigned=self._actions.executors, actions=self._actions.total, now_s=now_s
        )
        return self._cpu.share(pids, now_s=now_s)

    def progress(self, *, now_s: float) -> str:
        """Return the state of progress that members are told."""
        return str(self._progress.state(now_s=now_s))


class CpuMeter:
    """CPU time between two measurements, as a share of the cores."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._used_s: dict[int, float] = {}
        self._measured_s: float | None = None

    def share(self, pids: Iterable[int], *, now_s: float) -> float:
        """Return the share of the cores that the processes used since the last call."""
        used_s = {pid: cpu_s(pid) for pid in pids}
        # A process that is new has used all its CPU time since the last call.
        spent_s = sum(used - self._used_s.get(pid, 0.0) for pid, used in used_s.items())
        measured_s, self._measured_s, self._used_s = self._measured_s, now_s, used_s
        if measured_s is None or now_s <= measured_s:
            return 0.0
        return min(1.0, max(0.0, spent_s / ((now_s - measured_s) * self._cores)))


class ActionCount:
    """Actions finished on this worker since it was started."""

    def __init__(self) -> None:
        self._counts: dict[tuple[AttemptId, int], int] = {}  # (attempt, place) -> actions
        self._ended = 0  # actions of attempts that have ended

    @property
    def executors(self) -> int:
        """Executors that have reported and whose attempt has not ended."""
        return len(self._counts)

    @property
    def total(self) -> int:
        """Actions of all attempts, ended ones included."""
        return self._ended + sum(self._counts.values())

    def note(self, attempt_id: AttemptId, place: int, count: int) -> None:
        """Note the actions that one executor has finished in an attempt."""
        self._counts[attempt_id, place] = count

    def keep(self, attempts: Collection[AttemptId]) -> None:
        """Note that every attempt except these has ended."""
        for key in [key for key in self._counts if key[0] not in attempts]:
            self._ended += self._counts.pop(key)


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process, 0 if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0.0
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
