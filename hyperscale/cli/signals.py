"""How commands react to SIGINT, SIGTERM and SIGHUP while they still have work to finish.

Uses handlers, not masks: a mask holds for one thread only, and the kernel delivers a signal to
any thread that does not block it.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from hyperscale.cli.printing import print_warning
from hyperscale.reporting.exit_codes import ExitCode

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_HOLD_S = 5.0

_T = TypeVar("_T")


async def unless_interrupted(work: Coroutine[Any, Any, _T], *, name: str) -> _T | None:
    """Return what `work` returns, or None if a stop signal cancelled it."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work, name=name)
    before = _handlers()
    for number in before:
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        return None
    finally:
        for number, previous in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, previous)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore stop signals, so that pressing Ctrl-C again does not lose results.

    A signal that arrives more than a few seconds after the first one takes effect again.
    """
    before = _handlers()
    first_s: float | None = None

    def hold(number: int, frame: Any) -> None:
        nonlocal first_s
        now_s = time.monotonic()
        first_s = now_s if first_s is None else first_s
        if now_s - first_s < _HOLD_S:
            return
        previous = before[signal.Signals(number)]
        if callable(previous):
            previous(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in before:
        signal.signal(number, hold)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextlib.contextmanager
def exit_on_interrupt(text: str) -> Iterator[None]:
    """Exit at once on Ctrl-C, with this message: there is nothing to clean up."""

    def leave(_number: int, _frame: Any) -> None:
        print_warning(text)
        os._exit(ExitCode.INTERRUPTED)

    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _handlers() -> dict[signal.Signals, Any]:
    """Return the handlers of the stop signals, without ignored ones (as under nohup)."""
    found = {number: signal.getsignal(number) for number in _STOP_SIGNALS}
    return {number: handler for number, handler in found.items() if handler != signal.SIG_IGN}
