"""A worker's data directory: results until they are acknowledged, and bundles.

One thread does all the work, so that results are written and erased in the order in which that
was decided.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from hyperscale.errors import RunError
from hyperscale.execution.bundle_store import BundleStore
from hyperscale.jobs.messages import AttemptId, DeliverResult
from hyperscale.nodes.agent.result_store import ResultStore

_P = ParamSpec("_P")
_R = TypeVar("_R")
_log = logging.getLogger("hyperscale.agent")


class WorkerStorage:
    """Results and bundles on disk, written by one thread."""

    def __init__(self, directory: Path) -> None:
        self.bundles = BundleStore(directory / "bundles")
        self._directory = directory
        self._results = ResultStore(directory / "results")
        self._thread = ThreadPoolExecutor(1, "worker-storage")

    async def open(self) -> tuple[DeliverResult, ...]:
        """Return the results that were not acknowledged before this worker was started."""
        try:
            await self.run(self.bundles.open)
            results, unreadable = await self.run(self._results.open)
        except OSError as error:
            raise RunError(
                f"{self._directory}: {error.strerror or error}",
                hint="choose with --data-dir where this worker keeps its results",
            ) from error
        for path in unreadable:
            _log.error("result.unreadable: %s", path, extra={"file": str(path)})
        if results:
            _log.info("results.found", extra={"results": len(results)})
        return tuple(results)

    async def close(self) -> None:
        """Wait until everything is written."""
        await asyncio.to_thread(self._thread.shutdown)

    def store(self, result: DeliverResult) -> asyncio.Future[None]:
        """Write a result; it is written even if the caller does not wait for it."""
        return self.run(self._results.store, result)

    def erase(self, attempt_id: AttemptId) -> asyncio.Future[None]:
        """Delete a result."""
        return self.run(self._results.erase, attempt_id)

    def run(
        self, work: Callable[_P, _R], *arguments: _P.args, **_: _P.kwargs
    ) -> asyncio.Future[_R]:
        """Call a blocking function in the storage thread."""
        return asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
