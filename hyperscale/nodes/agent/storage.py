"""A worker's data directory: results until they are acknowledged, and bundles of managers."""

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

import msgspec

from hyperscale.errors import HyperscaleError, RunError
from hyperscale.execution.bundle_store import BUNDLES_KEPT, BundleStore, sync_directory
from hyperscale.jobs.messages import (
    AttemptId,
    DeliverResult,
    FetchBlob,
    FetchSecrets,
    FetchSecretsReply,
)
from hyperscale.nodes.agent.manager_links import ManagerLinks, SpawnTask
from hyperscale.plan.secrets import secrets_id, unpack_secrets
from hyperscale.wire.errors import CallError, UnreachableError
from hyperscale.wire.messages import Chunk

FETCH_S = 60.0
FIRST_CHUNK_S = 5.0
"""A silent manager is given up soon enough to fetch the bundle from another one."""
STALL_S = 15.0

_P = ParamSpec("_P")
_R = TypeVar("_R")
_log = logging.getLogger("hyperscale.agent")
_decoder = msgspec.msgpack.Decoder(DeliverResult)


class ResultStore:
    """Results of attempts until they are acknowledged, one file each. Every method blocks.

    A file is complete or absent: written under another name, synced, then renamed.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self) -> tuple[list[DeliverResult], list[Path]]:
        """Return the stored results, and the files that are damaged."""
        results, unreadable = [], []
        for path in sorted(self._directory.glob("*.result")):
            try:
                results.append(_decoder.decode(path.read_bytes()))
            except (OSError, ValueError):
                unreadable.append(path)
        for leftover in self._directory.glob("*.part"):
            leftover.unlink(missing_ok=True)
        return results, unreadable

    def store(self, result: DeliverResult) -> None:
        """Write a result and sync it."""
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._path(result.attempt_id)
        temporary = path.with_suffix(".part")
        with temporary.open("wb") as file:
            file.write(msgspec.msgpack.encode(result))
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
        sync_directory(self._directory)

    def erase(self, attempt_id: AttemptId) -> None:
        """Delete a result, if it is there."""
        self._path(attempt_id).unlink(missing_ok=True)

    def _path(self, attempt_id: AttemptId) -> Path:
        name = hashlib.sha256(msgspec.msgpack.encode(attempt_id)).hexdigest()
        return self._directory / f"{name[:40]}.result"


class WorkerStorage:
    """Results and bundles on disk. One thread writes and erases them, so the order is kept."""

    def __init__(self, directory: Path, *, bundles_kept: int = BUNDLES_KEPT) -> None:
        self.bundles = BundleStore(directory / "bundles", kept=bundles_kept)
        self._directory = directory
        self.results = ResultStore(directory / "results")
        self.has_failed = asyncio.Event()
        """Set when something could not be written: the worker should check itself."""
        self._thread = ThreadPoolExecutor(1, "worker-storage")

    async def open(self) -> tuple[DeliverResult, ...]:
        """Return the results that were not acknowledged before this worker was started."""
        try:
            await self.run(self.bundles.open)
            results, unreadable = await self.run(self.results.open)
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

    def run(
        self, work: Callable[_P, _R], *arguments: _P.args, **_: _P.kwargs
    ) -> asyncio.Future[_R]:
        """Call a blocking function in the storage thread, after all earlier calls.

        It is called even if the caller is cancelled: a stopping node still writes its results."""
        loop = asyncio.get_running_loop()
        return asyncio.shield(loop.run_in_executor(self._thread, work, *arguments))


class BundleError(HyperscaleError):
    """The bundle or the secrets of an attempt are not here, since no manager sent them or the disk
    failed: a retry on another worker may succeed."""


class BundleFetcher:
    """Fetches each bundle once, for however many attempts need it."""

    def __init__(self, storage: WorkerStorage, managers: ManagerLinks, spawn: SpawnTask) -> None:
        self._storage = storage
        self._managers = managers
        self._spawn = spawn
        self._fetches: dict[str, asyncio.Task[Path | BundleError]] = {}  # by SHA-256

    async def fetch(self, sha256: str, leader: str) -> Path:
        """Return the path of a bundle; raise `BundleError` if no manager sends it, or it cannot be
        written."""
        if sha256 not in self._fetches:
            task = self._spawn(self._find_or_receive(sha256, leader), f"fetch:{sha256[:12]}")
            self._fetches[sha256] = task
            task.add_done_callback(lambda _: self._fetches.pop(sha256, None))
        fetched = await asyncio.shield(self._fetches[sha256])
        if isinstance(fetched, BundleError):
            raise fetched
        return fetched

    async def _find_or_receive(self, sha256: str, leader: str) -> Path | BundleError:
        try:
            return await self._find_or_ask_all(sha256, leader)
        except OSError as error:  # a full or read-only disk ends this attempt, not the worker
            _log.error("bundle.not_stored: %s", error, extra={"bundle": sha256[:12]})
            self._storage.has_failed.set()
            return BundleError(
                f"bundle {sha256[:12]} cannot be written: {error.strerror or error}",
                hint="'hyperscale workers' says what the worker finds",
            )

    async def _find_or_ask_all(self, sha256: str, leader: str) -> Path | BundleError:
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


async def fetch_secrets(managers: ManagerLinks, sha256: str, leader: str) -> dict[str, str]:
    """Return the secret parameters of a job; they are never written to a disk of the worker.

    Raises `BundleError` if no manager sends them."""
    if not sha256:
        return {}
    problem = ""
    for node in [leader, *(node for node in managers.all() if node != leader)]:
        try:
            reply = await managers.call(node, FetchSecrets(sha256), FetchSecretsReply)
        except CallError as error:
            problem = problem or f"{node}: {error}"
            continue
        if secrets_id(reply.packed) == sha256:
            return unpack_secrets(reply.packed)
    problem = problem or "none has them"
    raise BundleError(f"no manager sent the secret parameters {sha256[:12]}; {problem}")
