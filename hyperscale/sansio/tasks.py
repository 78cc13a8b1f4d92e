"""The tasks of one node: the failure of each is logged and ends its request or the node."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from hyperscale.errors import RunError

_Work = Coroutine[Any, Any, Any]

_log = logging.getLogger("hyperscale.tasks")


class TaskSupervisor:
    """Starts tasks, watches them, and ends them together."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.failed: asyncio.Future[None] = self._loop.create_future()
        """Raises the first error that must end the node."""

    def spawn(self, work: _Work, name: str) -> asyncio.Task[Any]:
        """Start a task the node cannot do without: if it fails, the node ends."""
        return self._start(work, name, ends_node=True)

    def spawn_every(self, period_s: float, work: Callable[[], Any], name: str) -> None:
        """Start a task that calls `work` every `period_s` seconds: if it fails, the node ends."""

        async def repeat() -> None:
            while True:
                await asyncio.sleep(period_s)
                work()

        self.spawn(repeat(), name)

    def spawn_request(self, work: _Work, name: str) -> asyncio.Task[Any]:
        """Start a task that serves one request or connection: if it fails, only that ends."""
        return self._start(work, name, ends_node=False)

    def fail(self, error: BaseException) -> None:
        """End the node because of `error`."""
        if not self.failed.done():
            # A `RunError` names its cause (a full disk, a peer); anything else is a bug.
            trace = None if isinstance(error, RunError) else error
            _log.error("node.failed: %s", error, exc_info=trace)
            self.failed.set_exception(error)

    def cancel(self) -> None:
        """Ask every task to end, without waiting for it."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Cancel every task and wait until each has ended."""
        while self._tasks:
            self.cancel()
            await asyncio.wait(self._tasks)
        if not self.failed.done():
            self.failed.cancel()

    def _start(self, work: _Work, name: str, *, ends_node: bool) -> asyncio.Task[Any]:
        def on_end(task: asyncio.Task[Any]) -> None:
            self._tasks.discard(task)
            error = None if task.cancelled() else task.exception()
            if error is not None and ends_node:
                self.fail(error)
            elif error is not None:
                _log.error("request.failed: %s", error, exc_info=error, extra={"task": name})

        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(on_end)
        return task
