"""When a link may dial or call its peer again: backoff, circuit breaker, waits after refusals.

The circuit breaker, on an explicit clock:

    CLOSED     calls pass; `FAILURES` of them failing within `FAILURES_WINDOW_S` open the circuit
    OPEN       calls fail at once; after `RECOVERY_S` one trial call may pass
    HALF_OPEN  the trial call is under way; its outcome closes or opens the circuit

A call counts as one failure, however often it was retried inside. A reply of the peer is never a
failure, even if it refuses the call or its handler failed.
"""

from collections import deque
from enum import StrEnum
from random import Random

BACKOFF_FIRST_S = 0.5
BACKOFF_CAP_S = 15.0
_BACKOFF_JITTER = 0.25  # so that many nodes do not dial at once

FAILURES = 3
FAILURES_WINDOW_S = 30.0
RECOVERY_S = 10.0

_REFUSAL_FACTOR = 1.5
_REFUSAL_CAP_S = 60.0


class Backoff:
    """The wait before the next dial: doubled each time up to a cap, plus jitter."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._base_s = BACKOFF_FIRST_S

    def next_s(self) -> float:
        base_s = self._base_s
        self._base_s = min(base_s * 2.0, BACKOFF_CAP_S)
        return base_s * (1 + self._rng.random() * _BACKOFF_JITTER)

    def reset(self) -> None:
        self._base_s = BACKOFF_FIRST_S


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


# Bound once: in Python 3.11 each access through an enum class costs a Python call.
_CLOSED = BreakerState.CLOSED


class CircuitBreaker:
    """The circuit to one peer. It closes after `successes` trial calls succeeded."""

    def __init__(
        self,
        *,
        failures: int = FAILURES,
        window_s: float = FAILURES_WINDOW_S,
        recovery_s: float = RECOVERY_S,
        successes: int = 1,
    ) -> None:
        self._window_s = window_s
        self._recovery_s = recovery_s
        self._successes_wanted = successes
        self._successes = 0  # trial calls in a row
        self._failed_s: deque[float] = deque(maxlen=failures)
        self._opened_s = 0.0
        self._state = BreakerState.CLOSED
        self._is_trying = False

    def state(self, *, now_s: float) -> BreakerState:
        if self._state is BreakerState.OPEN and now_s >= self._opened_s + self._recovery_s:
            return BreakerState.HALF_OPEN
        return self._state

    @property
    def is_closed(self) -> bool:
        return self._state is _CLOSED

    def try_begin(self, *, now_s: float) -> float:
        """Return 0.0 if a call may pass; its outcome must be reported. Otherwise the wait."""
        if self._state is _CLOSED:
            return 0.0
        if self._state is BreakerState.OPEN:
            wait_s = self._opened_s + self._recovery_s - now_s
            if wait_s > 0:
                return wait_s
            self._state = BreakerState.HALF_OPEN
        if self._is_trying:
            return self._recovery_s
        self._is_trying = True
        return 0.0

    def succeeded(self) -> None:
        self._is_trying = False
        if self._state is not _CLOSED:
            self._successes += 1
            if self._successes < self._successes_wanted:
                return
        self._state = _CLOSED
        if self._failed_s:
            self._failed_s.clear()

    def failed(self, *, now_s: float) -> None:
        was_trying, self._is_trying = self._is_trying, False
        if self._state is BreakerState.OPEN:
            return  # a call that began before the circuit opened
        self._failed_s.append(now_s)
        is_full = len(self._failed_s) == self._failed_s.maxlen
        if was_trying or (is_full and now_s - self._failed_s[0] <= self._window_s):
            self._state, self._successes = BreakerState.OPEN, 0
            self._opened_s = now_s

    def abandoned(self) -> None:
        """End a call without an outcome: its caller gave up."""
        self._is_trying = False


class RetryThrottle:
    """Delays calls that an overloaded peer refused: as long as it asked, longer each time.

    A refusal of one message type does not delay the others.
    """

    def __init__(self) -> None:
        self._until_s: dict[object, float] = {}
        self._refusals: dict[object, int] = {}

    @property
    def is_waiting(self) -> bool:
        """True if a call of any message type may have to wait."""
        return bool(self._until_s)

    def wait_s(self, operation: object, *, now_s: float) -> float:
        """Return how long a call of this message type has to wait before it is sent."""
        return max(self._until_s.get(operation, 0.0) - now_s, 0.0)

    def refused(self, operation: object, retry_after_s: float, *, now_s: float) -> float:
        """Record a refusal; return how long to wait."""
        count = self._refusals.get(operation, 0)
        self._refusals[operation] = count + 1
        wait_s = min(max(retry_after_s, 0.001) * _REFUSAL_FACTOR**count, _REFUSAL_CAP_S)
        # A hostile or broken peer may send years or NaN: both are bounded.
        until_s = now_s + (wait_s if wait_s == wait_s else 1.0)  # noqa: PLR0124  NaN
        self._until_s[operation] = max(self._until_s.get(operation, 0.0), until_s)
        return self._until_s[operation] - now_s

    def accepted(self, operation: object) -> None:
        if self._refusals:
            self._refusals.pop(operation, None)
            self._until_s.pop(operation, None)
