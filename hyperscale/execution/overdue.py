"""When an executor whose slot should have ended has to be killed, and whether its code is to blame.

Silence alone proves nothing: an executor that gets no CPU on a busy machine, waits for a disk
or was stopped by a signal cannot answer. An executor that could have answered and did not runs
code that holds the interpreter. Pure: what the kernel says about the process comes in as numbers.
"""

from typing import NamedTuple

from hyperscale.execution.limits import SILENT_S, TEARDOWN_S

ANSWER_CPU_S = 0.05
"""More than enough for a report. A process that is held up and used less CPU than this between two
checks had no chance to send one."""

_HELD_UP = "it was stopped, blocked or given no CPU"


class KillReason(NamedTuple):
    """Why to kill an executor, and whether that is the fault of the code it runs."""

    reason: str
    blames_code: bool


class LeaseLapse:
    """Finds out whether an executor was killed because its lease expired: the kernel does that
    without notice. Updated whenever the lease is renewed."""

    def __init__(self) -> None:
        self._deadline_ns: int | None = None  # the last that it has certainly received
        self._next_ns: int | None = None  # the last that was sent
        self._sent_s: float | None = None  # when that was
        self._cpu_s = 0.0  # used when it last sent a message

    def renewed(self, deadline_ns: int, *, now_s: float, heard_s: float, cpu_s: float) -> None:
        """Note that a later deadline is sent; its last message came at `heard_s`."""
        if self._sent_s is None or heard_s >= self._sent_s:
            self._deadline_ns = deadline_ns if self._next_ns is None else self._next_ns
            self._next_ns, self._sent_s = deadline_ns, now_s
            self._cpu_s = cpu_s

    def verdict(self, *, now_ns: int, silent_s: float, cpu_s: float) -> KillReason | None:
        """Return why it was killed; None if that was not the end of its lease."""
        if self._deadline_ns is None or now_ns < self._deadline_ns:
            return None
        silence = f"no answer for {silent_s:.0f} s, until its lease was over"
        if cpu_s - self._cpu_s >= ANSWER_CPU_S:
            return KillReason(f"its code holds the interpreter: {silence}", blames_code=True)
        return KillReason(f"{silence}: {_HELD_UP}", blames_code=False)


class OverdueWatch:
    """Decides about one executor, from the moment its slot was due to end."""

    def __init__(self, *, due_s: float) -> None:
        self._due_s = due_s
        self._heard_s: float | None = None
        self._cpu_s = 0.0  # used when it last sent a message, or at the first check

    def verdict(
        self,
        *,
        now_s: float,
        heard_s: float,
        cpu_s: float,
        is_held_up: bool,
        is_tearing_down: bool,
    ) -> KillReason | None:
        """Return why to kill it now; None to check again soon."""
        if heard_s != self._heard_s:
            self._heard_s, self._cpu_s = heard_s, cpu_s
        # Silence counts from when it was due: before, it may have had nothing to say.
        silent_s = now_s - max(heard_s, self._due_s)
        overdue_s = now_s - self._due_s
        # Teardown hooks may block on purpose; virtual users may not.
        patience_s = SILENT_S + (TEARDOWN_S if is_tearing_down else 0.0)
        is_innocent = is_held_up and cpu_s - self._cpu_s < ANSWER_CPU_S
        if silent_s >= patience_s and not is_innocent:
            what = "its teardown" if is_tearing_down else "its code"
            reason = (
                f"{what} holds the interpreter: no answer for {silent_s:.0f} s after it "
                "should have stopped"
            )
            return KillReason(reason, blames_code=True)
        if overdue_s >= TEARDOWN_S + 2 * SILENT_S:
            why = f": {_HELD_UP}" if is_innocent else ""
            reason = f"it did not stop within {overdue_s:.0f} s of its end{why}"
            return KillReason(reason, blames_code=not is_innocent)
        return None
