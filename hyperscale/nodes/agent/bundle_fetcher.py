"""Bundles for a worker's attempts: from its disk, else from the job leader or another manager."""

import asyncio
from pathlib import Path

from hyperscale.errors import HyperscaleError, RunError
from hyperscale.jobs.messages import FetchBlob
from hyperscale.nodes.agent.manager_links import ManagerLinks, SpawnTask
from hyperscale.nodes.agent.storage import WorkerStorage
from hyperscale.wire.errors import CallError, UnreachableError
from hyperscale.wire.messages import Chunk

FETCH_S = 60.0
FIRST_CHUNK_S = 5.0
"""A silent manager is given up soon enough to fetch the bundle from another one."""
STALL_S = 15.0


class BundleError(HyperscaleError):
    """No manager sent the bundle of an attempt: a retry on another worker may succeed."""


class BundleFetcher:
    """Fetches each bundle once, for however many attempts need it."""

    def __init__(self, storage: WorkerStorage, managers: ManagerLinks, spawn: SpawnTask) -> None:
        self._storage = storage
        self._managers = managers
        self._spawn = spawn
        self._fetches: dict[str, asyncio.Task[Path | BundleError]] = {}  # by SHA-256

    async def fetch(self, sha256: str, leader: str) -> Path:
        """Return the path of a bundle; raise `BundleError` if no manager sends it."""
        if sha256 not in self._fetches:
            task = self._spawn(self._find_or_receive(sha256, leader), f"fetch:{sha256[:12]}")
            self._fetches[sha256] = task
            task.add_done_callback(lambda _: self._fetches.pop(sha256, None))
        fetched = await asyncio.shield(self._fetches[sha256])
        if isinstance(fetched, BundleError):
            raise fetched
        return fetched

    async def _find_or_receive(self, sha256: str, leader: str) -> Path | BundleError:
        found = await self._storage.run(self._storage.bundles.find, sha256)
        if found is not None:
            return found
        others = [node for node in self._managers.all() if node != leader]
        problem = ""
        for node in [leader, *others]:
            try:
                path = await self._receive(sha256, node)
            except (CallError, RunError) as error:
                problem = problem or f"{node}: {error}"
            else:
                await self._storage.run(self._storage.bundles.trim, [sha256])
                return path
        return BundleError(f"no manager sent bundle {sha256[:12]}; {problem}")

    async def _receive(self, sha256: str, node: str) -> Path:
        loop, storage = asyncio.get_running_loop(), self._storage
        deadline_s = loop.time() + FETCH_S
        request = FetchBlob(sha256)
        with await storage.run(storage.bundles.receive, sha256) as receiving:
            try:
                async with asyncio.timeout(FIRST_CHUNK_S) as timeout:
                    stream = await self._managers.stream(
                        node, request, Chunk, deadline_s=deadline_s
                    )
                    async with stream as chunks:
                        async for chunk in chunks:
                            timeout.reschedule(loop.time() + STALL_S)
                            await storage.run(receiving.write, chunk.data)
            except TimeoutError:
                raise UnreachableError("sent no data of the bundle in time") from None
            return await storage.run(receiving.finish)
