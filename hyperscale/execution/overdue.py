"""Decides when to kill an executor whose slot should have ended, and whether its code is to blame.

Silence alone proves nothing: an executor that gets no CPU on a busy machine, waits for a disk or
was stopped by a signal cannot report. If an executor could have reported and did not, its code
blocks the event loop. This module is pure: CPU times and states of processes are arguments.
"""

from typing import NamedTuple

from hyperscale.execution.limits import SILENT_S, TEARDOWN_S

ANSWER_CPU_S = 0.05
"""More than enough for a report. A process that is held up and used less CPU than this could not
send one."""

_HELD_UP = "the process was stopped, waited for I/O or got no CPU time"


class KillReason(NamedTuple):
    """Why to kill an executor, and whether that is the fault of the code it runs."""

    reason: str
    blames_code: bool


class LeaseLapse:
    """Finds out whether the kernel killed an executor because its lease had expired."""

    def __init__(self) -> None:
        self._deadline_ns: int | None = None  # the last that the executor has certainly received
        self._next_ns: int | None = None  # the last that was sent
        self._sent_s: float | None = None  # when the last was sent
        self._cpu_s = 0.0  # CPU time when the executor last sent a message

    def renewed(self, deadline_ns: int, *, now_s: float, heard_s: float, cpu_s: float) -> None:
        """Note that a later deadline is sent; the last message arrived at `heard_s`."""
        if self._sent_s is None or heard_s >= self._sent_s:
            self._deadline_ns = deadline_ns if self._next_ns is None else self._next_ns
            self._next_ns, self._sent_s = deadline_ns, now_s
            self._cpu_s = cpu_s

    def verdict(self, *, now_ns: int, silent_s: float, cpu_s: float) -> KillReason | None:
        """Return why the executor was killed; None if its lease had not expired."""
        if self._deadline_ns is None or now_ns < self._deadline_ns:
            return None
        expired = f"its lease expired after {silent_s:.0f} s without a report"
        if cpu_s - self._cpu_s >= ANSWER_CPU_S:
            return KillReason(f"the code of the test blocked the event loop: {expired}", True)
        return KillReason(f"{expired}: {_HELD_UP}", False)


class OverdueWatch:
    """Decides whether to kill one executor whose slot should have ended at `due_s`."""

    def __init__(self, *, due_s: float) -> None:
        self._due_s = due_s
        self._heard_s: float | None = None
        self._cpu_s = 0.0  # CPU time at its last message, or at the first check

    def verdict(
        self,
        *,
        now_s: float,
        heard_s: float,
        cpu_s: float,
        is_held_up: bool,
        is_tearing_down: bool,
    ) -> KillReason | None:
        """Return why to kill the executor now; None to check again soon."""
        if heard_s != self._heard_s:
            self._heard_s, self._cpu_s = heard_s, cpu_s
        # Silence counts from `due_s`: before, the executor may have had nothing to report.
        silent_s = now_s - max(heard_s, self._due_s)
        overdue_s = now_s - self._due_s
        # Teardown hooks may block on purpose; virtual users may not.
        patience_s = SILENT_S + (TEARDOWN_S if is_tearing_down else 0.0)
        is_innocent = is_held_up and cpu_s - self._cpu_s < ANSWER_CPU_S
        if silent_s >= patience_s and not is_innocent:
            what = "a teardown or Provide hook" if is_tearing_down else "the code of the test"
            silence = f"no report for {silent_s:.0f} s after the slot should have ended"
            return KillReason(f"{what} blocked the event loop: {silence}", True)
        if overdue_s >= TEARDOWN_S + 2 * SILENT_S:
            why = f": {_HELD_UP}" if is_innocent else ""
            reason = f"the slot did not end within {overdue_s:.0f} s after it should have{why}"
            return KillReason(reason, not is_innocent)
        return None
