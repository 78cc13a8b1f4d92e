"""Wait for a condition with a deadline."""

import asyncio
import itertools
import time
from collections.abc import Callable

WAIT_S = 60.0


def until(
    condition: Callable[[], object], *, what: str = "the condition", within_s: float = WAIT_S
) -> None:
    """Block until `condition()` is true; for conditions of other threads and processes."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"waited {within_s:.0f} s in vain for: {what}")
        time.sleep(0.01)


async def until_async(
    condition: Callable[[], object], *, what: str = "the condition", within_s: float = WAIT_S
) -> None:
    """Wait until `condition()` is true while the event loop runs."""
    deadline_s = time.monotonic() + within_s
    for turn in itertools.count():
        if condition():
            return
        if time.monotonic() > deadline_s:
            raise AssertionError(f"waited {within_s:.0f} s in vain for: {what}")
        await asyncio.sleep(0 if turn < 100 else 0.005)


def soon(within_s: float = 10.0) -> float:
    """Return a deadline on the clock of the running event loop."""
    return asyncio.get_running_loop().time() + within_s
