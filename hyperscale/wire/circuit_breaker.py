"""A circuit breaker for one peer, on an explicit clock.

    CLOSED     calls pass; `failures` of them failing within `window_s` open the circuit
    OPEN       calls fail at once; after `recovery_s` one trial call may pass
    HALF_OPEN  the trial call is under way; its outcome closes or opens the circuit

A call counts as one failure, however often it was retried inside. A reply of the peer is never a
failure, even if it refuses the call or its handler failed.
"""

from collections import deque
from enum import StrEnum


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


# Bound once: in Python 3.11 each access through an enum class costs a Python call.
_CLOSED = BreakerState.CLOSED


class CircuitBreaker:
    def __init__(
        self, *, failures: int = 3, window_s: float = 30.0, recovery_s: float = 10.0
    ) -> None:
        self._window_s = window_s
        self._recovery_s = recovery_s
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
            self._state = BreakerState.OPEN
            self._opened_s = now_s

    def abandoned(self) -> None:
        """End a call without an outcome: its caller gave up."""
        self._is_trying = False
