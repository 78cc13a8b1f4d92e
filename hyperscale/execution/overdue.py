"""When an executor that should have ended has to be killed, and what it is blamed for.

Silence alone proves nothing: an executor that gets no CPU on a busy machine, waits for a disk
or was stopped by somebody cannot answer. One that could have and said nothing is busy with code
that does not let go. Pure: what the kernel says of the process comes in as numbers.
"""

from typing import NamedTuple

from hyperscale.execution.limits import SILENT_S, TEARDOWN_S

ANSWER_CPU_S = 0.05
"""Plenty for a report. Less than this between two looks at a process that others hold up means
that it was given no chance to send one."""

_HELD_UP = "it was stopped, blocked or given no CPU"


class KillReason(NamedTuple):
    """Why to kill an executor, and whether that is the fault of the code it runs."""

    reason: str
    blames_code: bool


class LeaseLapse:
    """Judges one executor that its own lease has ended: the kernel kills it then without
    asking anybody. Looked at whenever its lease is renewed."""

    def __init__(self) -> None:
        self._deadline_ns: int | None = None  # the last that it can have heard of
        self._cpu_s = 0.0  # when it was last known to have spoken
        self._next_ns = 0
        self._sent_s = float("-inf")

    def renewed(self, deadline_ns: int, *, now_s: float, heard_s: float, cpu_s: float) -> None:
        """It was told of a later deadline, and has last been heard then."""
        if heard_s >= self._sent_s:
            self._deadline_ns = self._next_ns or deadline_ns
            self._next_ns, self._sent_s = deadline_ns, now_s
            self._cpu_s = cpu_s

    def verdict(self, *, now_ns: int, silent_s: float, cpu_s: float) -> KillReason | None:
        """Why it was killed; None: not by the end of its lease."""
        if self._deadline_ns is None or now_ns < self._deadline_ns:
            return None
        silence = f"no answer for {silent_s:.0f} s, until its lease was over"
        if cpu_s - self._cpu_s >= ANSWER_CPU_S:
            return KillReason(f"its code holds the interpreter: {silence}", blames_code=True)
        return KillReason(f"{silence}: {_HELD_UP}", blames_code=False)


class OverdueWatch:
    """Judges one executor, from the moment its part was due to end."""

    def __init__(self, *, due_s: float) -> None:
        self._due_s = due_s
        self._heard_s = -1.0
        self._cpu_s = 0.0  # when it was last heard, or the first time it was looked at

    def verdict(
        self,
        *,
        now_s: float,
        heard_s: float,
        cpu_s: float,
        is_held_up: bool,
        is_tearing_down: bool,
    ) -> KillReason | None:
        """Why to kill it now; None: look again soon."""
        if heard_s != self._heard_s:
            self._heard_s, self._cpu_s = heard_s, cpu_s
        # From when it was due: before that, an executor with nothing to do may be silent.
        silent_s = now_s - max(heard_s, self._due_s)
        overdue_s = now_s - self._due_s
        # Hooks that tear down may block on purpose; looping users may not.
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
