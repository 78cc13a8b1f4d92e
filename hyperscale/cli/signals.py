"""Signals that ask a command to end, while it has something better to do than to end at once.

Handlers, not masks: a mask holds for one thread, and a signal picks any that lets it through.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from hyperscale.ui.stream import write_through

EXIT_INTERRUPTED = 130
_ASKING_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_HELD_S = 5.0

_T = TypeVar("_T")


@contextlib.contextmanager
def cancelled_by_signals(task: "asyncio.Task[Any]") -> Iterator[None]:
    """They cancel the task instead, while this is open."""
    loop = asyncio.get_running_loop()
    before = _handlers()
    for number in before:
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number, previous in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, previous)


async def unless_interrupted(work: Coroutine[Any, Any, _T], *, name: str) -> _T | None:
    """What it returns; None if it was cancelled by a signal."""
    task = asyncio.create_task(work, name=name)
    with cancelled_by_signals(task):
        try:
            return await task
        except asyncio.CancelledError:
            return None


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Somebody who presses Ctrl-C once more does not lose what was measured. Who still does
    after a few seconds has waited long enough."""
    before = _handlers()
    first_s: float | None = None

    def hold(number: int, frame: Any) -> None:
        nonlocal first_s
        now_s = time.monotonic()
        first_s = now_s if first_s is None else first_s
        if now_s - first_s < _HELD_S:
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
def leaving_with(text: str) -> Iterator[None]:
    """Ctrl-C says this and leaves at once: there is nothing to clean up."""

    def leave(_number: int, _frame: Any) -> None:
        write_through(sys.stderr, f"hyperscale: {text}\n")
        os._exit(EXIT_INTERRUPTED)

    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _handlers() -> dict[signal.Signals, Any]:
    """Of those that are not ignored, as under nohup: that is the user's wish."""
    found = {number: signal.getsignal(number) for number in _ASKING_TO_END}
    return {number: handler for number, handler in found.items() if handler != signal.SIG_IGN}
