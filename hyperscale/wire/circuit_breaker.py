"""A circuit breaker for one peer, on an explicit clock.

    CLOSED     calls go; `failures` of them failing within `window_s` open it
    OPEN       calls fail at once; after `recovery_s` one may try
    HALF_OPEN  one call is trying; its outcome closes or opens again

One failure per operation, whatever it tried inside. A refusal by a healthy peer (overload, a
failing handler) is no failure: the peer answered.
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
        """0.0: the call may go, and its outcome must be told. Else seconds until one may."""
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
            return  # a call that began before it opened
        self._failed_s.append(now_s)
        is_full = len(self._failed_s) == self._failed_s.maxlen
        if was_trying or (is_full and now_s - self._failed_s[0] <= self._window_s):
            self._state = BreakerState.OPEN
            self._opened_s = now_s

    def abandoned(self) -> None:
        """A call ended without an outcome (its caller gave up)."""
        self._is_trying = False
