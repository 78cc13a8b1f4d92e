"""The lease of an executor: after its deadline the executor sends nothing more.

The kernel keeps the deadline (a timer on CLOCK_BOOTTIME, which also counts while the machine
sleeps) and sends a signal. A process that was stopped gets its pending signals before anything else
when it continues, and Python runs the handler before the next function call: nothing is sent in
between. A process that does not end its load then, because code blocks the event loop or because
it is still stopped, is killed by a second timer of the kernel: its connections end before another
worker may open as many.
"""

import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hyperscale.execution.capture import complain

if TYPE_CHECKING:
    from hyperscale.execution.timers import KernelTimer

KILL_S = 1.5
"""How long the load may take to end after its lease expired. Less than the margin that leaders add
to a lease before they start the part elsewhere."""

_OVER = signal.SIGRTMAX - 4  # not one that user code is likely to use


def boottime_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class LeaseWatch:
    """One slot's permission to generate load. `on_over` is called between any two instructions,
    so it may only set flags and call `loop.call_soon`."""

    def __init__(self, on_over: Callable[[], None]) -> None:
        self._on_over = on_over
        self._deadline_ns: int | None = None
        self._is_reported = False
        self._timers = _kernel_timers()
        signal.signal(_OVER, self._on_signal)

    @property
    def is_over(self) -> bool:
        return self._deadline_ns is not None and boottime_ns() >= self._deadline_ns

    def renew(self, deadline_boottime_ns: int) -> None:
        """Extend the lease. A lease that has expired stays expired."""
        if self.is_over:
            return
        self._is_reported = False
        self._deadline_ns = deadline_boottime_ns
        for timer, delay_ns in self._timers:
            timer.set(deadline_boottime_ns + delay_ns)

    def check(self) -> None:
        """Check the deadline without the signal, whose handler user code may have replaced."""
        if self.is_over and not self._is_reported:
            self._is_reported = True
            self._on_over()

    def end(self) -> None:
        """End the lease: the load has ended, so nothing is stopped or killed."""
        self._deadline_ns = None
        for timer, _ in self._timers:
            timer.set(None)

    def _on_signal(self, _number: int, _frame: object) -> None:
        self.check()  # it may have been renewed since


def _kernel_timers() -> "list[tuple[KernelTimer, int]]":
    """Return a timer that sends the signal and one that kills, with their delays in nanoseconds."""
    from hyperscale.execution.timers import KernelTimer  # noqa: PLC0415 - few need it

    try:
        return [(KernelTimer(_OVER), 0), (KernelTimer(signal.SIGKILL), round(KILL_S * 1e9))]
    except (OSError, AttributeError) as error:  # a sandbox
        complain(f"no kernel timer for the lease, it is checked every 50 ms instead: {error}\n")
        return []
