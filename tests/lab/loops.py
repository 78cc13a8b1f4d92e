"""Run coroutines of tests on an event loop."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import uvloop

from tests.lab.processes import open_sockets
from tests.lab.waiting import WAIT_S

_T = TypeVar("_T")


def run(main: Callable[[], Awaitable[_T]]) -> _T:
    """Run `main` on uvloop; fail if a task, a socket or an unhandled exception is left behind."""

    async def checked() -> _T:
        loop = asyncio.get_running_loop()
        problems: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: problems.append(context))
        async with asyncio.timeout(2 * WAIT_S):
            result = await main()
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks left behind: {left}"
        assert not problems, f"exceptions that nothing handled: {problems}"
        return result

    before = len(open_sockets())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(checked())
    assert len(open_sockets()) == before, "sockets left behind"
    return result


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test function of a coroutine function."""

    @functools.wraps(test)
    def run_test(*arguments: Any, **fixtures: Any) -> None:
        asyncio.run(test(*arguments, **fixtures))

    return run_test


def run_in_thread(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end in another thread: also callable while a loop runs here."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
