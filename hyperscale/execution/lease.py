"""The lease of an executor: after its deadline nothing more is sent, whoever is frozen.

The kernel keeps the deadline (a timer on CLOCK_BOOTTIME, which also counts while the machine
sleeps) and tells by a signal. A process that was stopped meanwhile gets its pending signals
before anything else when it goes on, and Python runs the handler before the next call of any
function: nothing leaves in between. A process that does not end its load then, because code
holds it or because it is still stopped, is killed by a second timer, for which the kernel
needs nobody's help: its connections end before anyone else may open as many.
"""

import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hyperscale.execution.capture import complain

if TYPE_CHECKING:
    from hyperscale.execution.timers import KernelTimer

KILL_S = 1.5
"""What the load gets to end once its lease is over. Less than leaders add to a lease before
they have somebody else go on."""

_OVER = signal.SIGRTMAX - 4  # not one that user code is likely to use
_NS = 1_000_000_000


def boottime_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class LeaseWatch:
    """One part's permission to generate load. `on_over` is called between two instructions
    of whatever runs, so it may only set flags and call `loop.call_soon`."""

    def __init__(self, on_over: Callable[[], None]) -> None:
        self._on_over = on_over
        self._deadline_ns: int | None = None
        self._is_told = False
        self._timer, self._killer = _timers()
        signal.signal(_OVER, self._on_signal)

    @property
    def is_over(self) -> bool:
        return self._deadline_ns is not None and boottime_ns() >= self._deadline_ns

    def renew(self, deadline_boottime_ns: int) -> None:
        """Until then. A lease that is over stays over: it is not renewed but ended."""
        if self.is_over:
            return
        self._is_told = False
        self._deadline_ns = deadline_boottime_ns
        if self._timer is not None and self._killer is not None:
            self._timer.set(deadline_boottime_ns)
            self._killer.set(deadline_boottime_ns + round(KILL_S * _NS))

    def check(self) -> None:
        """For those who do not trust the signal to arrive: user code may have taken it."""
        if self.is_over and not self._is_told:
            self._is_told = True
            self._on_over()

    def end(self) -> None:
        """What ran under the lease has ended: nothing is halted and nobody killed."""
        self._deadline_ns = None
        for timer in (self._timer, self._killer):
            if timer is not None:
                timer.clear()

    def _on_signal(self, _number: int, _frame: object) -> None:
        self.check()  # it may have been renewed since


def _timers() -> "tuple[KernelTimer | None, KernelTimer | None]":
    """One that tells, one that kills."""
    from hyperscale.execution.timers import KernelTimer  # noqa: PLC0415 - few need it

    try:
        return KernelTimer(_OVER), KernelTimer(signal.SIGKILL)
    except (OSError, AttributeError) as error:  # a sandbox; the pulse of the part is left
        complain(f"no timer for the lease, it is kept to a twentieth of a second: {error}\n")
        return None, None
