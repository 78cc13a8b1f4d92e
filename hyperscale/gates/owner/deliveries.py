"""When a command about an assignment is sent to a datacenter, and sent again.

A command is repeated until the datacenter has answered it, 0.5 s to 10 s apart. A circuit breaker
per datacenter paces all of them, so that one that is away costs little. What is owed is committed
state; this is only the pace, so a new owner begins with an empty table.
"""

from dataclasses import dataclass

from hyperscale.gates.messages import AssignmentCommand, ChangeAssignment
from hyperscale.gates.owner.events import OwnerTimeouts
from hyperscale.wire.retries import BreakerState, CircuitBreaker

_WINDOW_S = 86_400.0  # failures in a row count, however far apart

DeliveryKey = tuple[str, str, str]
"""Job, datacenter, kind of command."""


def delivery_key(datacenter: str, command: AssignmentCommand) -> DeliveryKey:
    kind = type(command).__name__
    if isinstance(command, ChangeAssignment):  # one with more changes is another command
        kind += f" {command.taken}"
    return (command.job, datacenter, kind)


@dataclass(slots=True)
class _Delivery:
    wait_s: float
    send_at_s: float = 0.0
    expires_s: float | None = None  # of the call that is under way
    is_done: bool = False


class Deliveries:
    """The commands of one owner, and the breakers of the datacenters."""

    def __init__(self, timeouts: OwnerTimeouts) -> None:
        self._timeouts = timeouts
        self._deliveries: dict[DeliveryKey, _Delivery] = {}
        self._breakers: dict[str, CircuitBreaker] = {}

    def is_due(self, key: DeliveryKey, *, now_s: float) -> bool:
        """Return True if the command is to be sent now, and note that it is."""
        delivery = self._deliveries.get(key)
        if delivery is None:
            delivery = self._deliveries[key] = _Delivery(self._timeouts.retry_first_s)
        if delivery.is_done or now_s < delivery.send_at_s:
            return False
        if delivery.expires_s is not None:
            if now_s < delivery.expires_s:
                return False
            self._failed(delivery, key[1], now_s)
            return False
        wait_s = self._breaker(key[1]).try_begin(now_s=now_s)
        if wait_s > 0:
            delivery.send_at_s = now_s + min(wait_s, self._timeouts.retry_most_s)
            return False
        delivery.expires_s = now_s + self._timeouts.call_s
        return True

    def answered(self, key: DeliveryKey, *, is_done: bool, now_s: float) -> None:
        """Note that the datacenter replied. Unless that settles it, the command is repeated."""
        self._breaker(key[1]).succeeded()
        delivery = self._deliveries.get(key)
        if delivery is not None:
            delivery.is_done = delivery.is_done or is_done
            self._repeat_later(delivery, now_s)

    def failed(self, key: DeliveryKey, *, now_s: float) -> None:
        """Note that there was no reply."""
        delivery = self._deliveries.get(key)
        if delivery is not None and delivery.expires_s is not None:
            self._failed(delivery, key[1], now_s)
        else:
            self._breaker(key[1]).failed(now_s=now_s)

    def forget(self, job: str) -> None:
        for key in [key for key in self._deliveries if key[0] == job]:
            del self._deliveries[key]

    def open_breakers(self, *, now_s: float) -> frozenset[str]:
        return frozenset(
            name
            for name, breaker in self._breakers.items()
            if breaker.state(now_s=now_s) is not BreakerState.CLOSED
        )

    def _failed(self, delivery: _Delivery, datacenter: str, now_s: float) -> None:
        self._breaker(datacenter).failed(now_s=now_s)
        self._repeat_later(delivery, now_s)

    def _repeat_later(self, delivery: _Delivery, now_s: float) -> None:
        delivery.expires_s = None
        delivery.send_at_s = now_s + delivery.wait_s
        delivery.wait_s = min(delivery.wait_s * 2, self._timeouts.retry_most_s)

    def _breaker(self, datacenter: str) -> CircuitBreaker:
        found = self._breakers.get(datacenter)
        if found is None:
            found = self._breakers[datacenter] = CircuitBreaker(
                failures=self._timeouts.breaker_failures,
                window_s=_WINDOW_S,
                recovery_s=self._timeouts.breaker_open_s,
                successes=self._timeouts.breaker_successes,
            )
        return found
