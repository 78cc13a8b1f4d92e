"""The pending work of a simulated node: timers, calls to other nodes, writes to its disk."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from tests.simulation.kernel import Host
from tests.simulation.ledger.store import CrashableStore


class PendingWork:
    """Callbacks of timers, calls and writes; they end with the process."""

    def __init__(self, host: Host, store: CrashableStore) -> None:
        self._host = host
        self._store = store
        self._calls: dict[int, Callable[[Any], None]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._timers, (self._host.world.now_s + delay_s, self._count, action))

    def wake(self, now_s: float) -> None:
        while self._timers and self._timers[0][0] <= now_s:
            heappop(self._timers)[2]()

    def wake_at_s(self) -> float | None:
        return self._timers[0][0] if self._timers else None

    def ask(self, address: str, message: Any, told: Callable[[Any], None], within_s: float) -> None:
        self._count += 1
        self._calls[self._count] = told
        self._host.ask(address, message, self._count, within_s=within_s)

    def answered(self, token: int, message: Any) -> None:
        if (told := self._calls.pop(token, None)) is not None:
            told(message)

    def keep(self, ticket: int, then: Callable[[], None]) -> None:
        """Call back once a write is durable."""
        if not self._store.has_failed and self._store.durable() >= ticket:
            then()
        else:
            self.after(0.005, lambda: self.keep(ticket, then))
