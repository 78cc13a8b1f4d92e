"""Admission of requests: nested watermarks, rate limits per client, fair share under stress.

Watermarks count the requests in flight below CRITICAL: LOW is admitted below half of the total,
NORMAL below four fifths, HIGH below all of it; so while HIGH is refused, NORMAL and LOW are too.
Nodes are bounded by the watermarks only; external callers (clients, operators) also by a rate per
message type, which shrinks to an equal share when the node is stressed. A refused request is not
counted as in flight; its reply says when to retry.
"""

from collections import OrderedDict
from enum import IntEnum
from random import Random

from msgspec import Struct

from hyperscale.wire.registry import MessagePriority, MessageSpec
from hyperscale.wire.roles import NODES, Role

WINDOW_S = 10.0
CLIENTS_MAX = 10_000
CLIENT_IDLE_S = 300.0
CRITICAL_MAX = 10_000
"""More CRITICAL requests in flight mean a bug. Probes are not affected: they run at once."""

_LOW_MARK = 0.5
_NORMAL_MARK = 0.8
_RETRY_S = {  # a refused LOW request waits longest
    MessagePriority.CRITICAL: (0.1, 0.3),
    MessagePriority.HIGH: (0.1, 0.5),
    MessagePriority.NORMAL: (0.25, 1.0),
    MessagePriority.LOW: (0.5, 2.0),
}


class OverloadLevel(IntEnum):
    """How loaded a node is, as `health.overload` detects it."""

    HEALTHY = 0
    BUSY = 1
    STRESSED = 2
    OVERLOADED = 3


# Bound once: in Python 3.11 each access through an enum class costs a Python call.
_CRITICAL, _HIGH, _NORMAL = (
    MessagePriority.CRITICAL,
    MessagePriority.HIGH,
    MessagePriority.NORMAL,
)
_HEALTHY, _OVERLOADED = OverloadLevel.HEALTHY, OverloadLevel.OVERLOADED


class AdmissionWatermarks(Struct, frozen=True):
    """How many requests below CRITICAL may be in flight: in total, NORMAL and LOW."""

    total: int = 1000
    normal: int = 300
    low: int = 200


WATERMARKS: dict[Role, AdmissionWatermarks] = {
    Role.GATE: AdmissionWatermarks(total=2000, normal=600, low=400),
    Role.MANAGER: AdmissionWatermarks(total=5000, normal=1500, low=1000),
    Role.WORKER: AdmissionWatermarks(total=500, normal=150, low=100),
    Role.CLIENT: AdmissionWatermarks(),
    Role.OPERATOR: AdmissionWatermarks(),
}


class SlidingWindow:
    """Counts events of about the last `window_s`, from the current and the previous window.

    They count as `current + previous x (1 - progress of the current window)`.
    """

    __slots__ = ("_current", "_previous", "_started_s", "_window_s")

    def __init__(self, window_s: float, *, now_s: float) -> None:
        self._window_s = window_s
        self._started_s = now_s
        self._current = 0
        self._previous = 0

    def try_take(self, limit: int, *, now_s: float) -> float:
        """Count an event and return 0.0, or return the seconds until the limit allows it."""
        progress = self._roll(now_s)
        if self._current + self._previous * (1 - progress) + 1 <= limit:
            self._current += 1
            return 0.0
        room = limit - 1
        if self._current <= room:
            # Wait until the share of the previous window has shrunk enough.
            needed = 1 - (room - self._current) / self._previous
            return max((needed - progress) * self._window_s, 0.001)
        needed = 1 - room / self._current
        return (1 - progress + needed) * self._window_s

    def _roll(self, now_s: float) -> float:
        """Advance to the window of `now_s`; return the progress in it, 0 to 1."""
        passed = int((now_s - self._started_s) / self._window_s)
        if passed >= 1:
            self._previous = self._current if passed == 1 else 0
            self._current = 0
            self._started_s += passed * self._window_s
        return min(max((now_s - self._started_s) / self._window_s, 0.0), 1.0)


class _ClientRates(Struct):
    windows: dict[int, SlidingWindow] = {}
    seen_s: float = 0.0


class Admission:
    """Admits requests of one node. Every `admit` that returns 0.0 needs one `release`."""

    def __init__(self, watermarks: AdmissionWatermarks, rng: Random) -> None:
        self._rng = rng
        self._total_max = watermarks.total
        self._mark_low = watermarks.total * _LOW_MARK
        self._mark_normal = watermarks.total * _NORMAL_MARK
        self._normal_max = watermarks.normal
        self._low_max = watermarks.low
        self._clients: OrderedDict[str, _ClientRates] = OrderedDict()
        self._in_flight = 0  # below CRITICAL
        self.load = OverloadLevel.HEALTHY
        self.in_flight = [0, 0, 0, 0]
        self.admitted = [0, 0, 0, 0]
        self.shed = [0, 0, 0, 0]

    def admit(self, spec: MessageSpec, role: Role, sender: str, *, now_s: float) -> float:
        """Return 0.0 if the request is admitted; otherwise the `retry_after_s` of the refusal."""
        priority = spec.priority
        if not self._has_room(priority):
            self.shed[priority] += 1
            return self._rng.uniform(*_RETRY_S[priority])
        if role not in NODES:
            wait_s = self._take_of_client(spec, sender, now_s)
            if wait_s > 0:
                self.shed[priority] += 1
                return wait_s
        self.in_flight[priority] += 1
        self.admitted[priority] += 1
        if priority:
            self._in_flight += 1
        return 0.0

    def release(self, priority: MessagePriority) -> None:
        self.in_flight[priority] -= 1
        if priority:
            self._in_flight -= 1

    def _has_room(self, priority: MessagePriority) -> bool:
        if priority is _CRITICAL:
            return self.in_flight[0] < CRITICAL_MAX
        in_flight, load = self._in_flight, self.load
        if in_flight >= self._total_max or load is _OVERLOADED:
            return False
        if priority is _HIGH:
            return True
        if priority is _NORMAL:
            return in_flight < self._mark_normal and self.in_flight[priority] < self._normal_max
        return (
            load is _HEALTHY
            and in_flight < self._mark_low
            and self.in_flight[priority] < self._low_max
        )

    def _take_of_client(self, spec: MessageSpec, sender: str, now_s: float) -> float:
        client = self._clients.get(sender)
        if client is None:
            self._forget_idle(now_s)
            client = self._clients[sender] = _ClientRates()
        client.seen_s = now_s
        self._clients.move_to_end(sender)
        limit = spec.rate_per_10s
        if self.load >= OverloadLevel.STRESSED:
            limit = max(1, limit // self._active_clients(now_s))
        window = client.windows.get(spec.kind)
        if window is None:
            window = client.windows[spec.kind] = SlidingWindow(WINDOW_S, now_s=now_s)
        return window.try_take(limit, now_s=now_s)

    def _active_clients(self, now_s: float) -> int:
        """Return how many clients sent a request within the window, the current one included."""
        active = 0
        for client in reversed(self._clients.values()):
            if now_s - client.seen_s > WINDOW_S:
                break
            active += 1
        return max(active, 1)

    def _forget_idle(self, now_s: float) -> None:
        while self._clients:
            oldest = next(iter(self._clients.values()))
            if len(self._clients) < CLIENTS_MAX and now_s - oldest.seen_s < CLIENT_IDLE_S:
                return
            self._clients.popitem(last=False)
