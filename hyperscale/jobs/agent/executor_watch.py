"""Finds executors that have stopped to report although they run a part.

An executor reports ten times a second, whatever its virtual users do: requests in flight, think
time, a pause or a rate of 0 are no silence. One that says nothing was suspended, or its code
blocks the event loop. The lease ends it after a while (`docs/workers.md`); until it reports again
or is gone, its worker should get no other part.
"""

from hyperscale.jobs.agent.attempts import AttemptState, WorkerAttempts

STUCK_S = 3.0
_ASLEEP_S = 2.0
"""The agent looks at least each second. After a longer pause it was suspended itself, and has not
read what executors reported meanwhile."""


class ExecutorWatch:
    """Judges the executors of all attempts on a worker."""

    def __init__(self, attempts: WorkerAttempts) -> None:
        self._attempts = attempts
        self._looked_s: float | None = None
        self._awake_s: float | None = None  # when the agent was last suspended until

    def why_stuck(self, *, now_s: float) -> str:
        """Return which executor does not report; empty if all do."""
        if self._looked_s is not None and now_s > self._looked_s + _ASLEEP_S:
            self._awake_s = now_s
        self._looked_s = now_s
        for attempt in self._attempts.values():
            if attempt.state is not AttemptState.RUNNING or attempt.started_s is None:
                continue
            for place in attempt.remaining:
                heard_s = attempt.statistics.heard_s(place)
                since_s = max(attempt.started_s, heard_s or 0.0, self._awake_s or 0.0)
                if now_s >= since_s + STUCK_S:
                    name = f"{attempt.id.workflow} of {attempt.id.job}"
                    return f"an executor of {name} has not reported for {STUCK_S:g} s"
        return ""
