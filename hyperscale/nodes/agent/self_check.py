"""A worker checks itself: its data directory, disk, descriptors and executors.

`jobs.agent.fitness` judges what is measured here. An unfit worker is not ready and gets no part;
it is fit again as soon as a check finds no fault.
"""

import asyncio
import errno
import logging
import os
import resource
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hyperscale.errors import RunError
from hyperscale.jobs.agent.fitness import Measured, WorkerFault, faults
from hyperscale.nodes.member import MemberNode, NodeService
from hyperscale.telemetry.metrics import Family, by, gauge

CHECK_EVERY_S = 60.0
CHECK_UNFIT_EVERY_S = 5.0  # a repaired worker should not wait for a minute
WRITE_S = 20.0  # a disk that takes longer for a few bytes hangs

_FILE = ".self-check"
_STOP_S = 2.0

_log = logging.getLogger("hyperscale.agent")


class DiskProbe(NamedTuple):
    """What a probe of the data directory found."""

    write_error: str  # why nothing can be written; empty if something can
    free_bytes: int | None  # None: the file system does not say


class SelfCheck(NodeService):
    """Checks its worker at start, each minute, when its disk fails, and more often while it is
    unfit."""

    def __init__(
        self,
        member: MemberNode,
        *,
        start_executors: Callable[[], Awaitable[None]],
        disk_failed: asyncio.Event,
        on_checked: Callable[[tuple[str, ...]], None],
    ) -> None:
        self._member = member
        self._directory = Path(member.config.node.data_dir)
        self._start_executors = start_executors
        self._disk_failed = disk_failed
        self._on_checked = on_checked
        self._probing: asyncio.Future[DiskProbe] | None = None
        self._faults: dict[WorkerFault, str] = {}

    async def start(self) -> None:
        self._note(faults(await self._measure(executor_error="")))
        self._member.tasks.spawn(self._check_forever(), "self-check")

    async def stop(self) -> None:
        """Wait for a probe that is under way, but not for a disk that hangs."""
        if self._probing is not None:
            await asyncio.wait([self._probing], timeout=_STOP_S)

    def why_not_ready(self) -> tuple[str, ...]:
        return tuple(self._faults.values())

    def collect(self) -> list[Family]:
        found = {fault: float(fault in self._faults) for fault in WorkerFault}
        about = "1 if this worker gets no part because of this fault"
        return [gauge("hyperscale_worker_unfit", about, *by("fault", found, WorkerFault))]

    async def _check_forever(self) -> None:
        while True:
            executor_error = ""
            try:
                await self._start_executors()
            except RunError as error:
                executor_error = error.message
            self._note(faults(await self._measure(executor_error=executor_error)))
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_UNFIT_EVERY_S if self._faults else CHECK_EVERY_S):
                    await self._disk_failed.wait()
            self._disk_failed.clear()

    async def _measure(self, *, executor_error: str) -> Measured:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        disk = await self._probe_disk()
        return Measured(
            directory=str(self._directory),
            write_error=disk.write_error,
            free_bytes=disk.free_bytes,
            descriptors_open=open_descriptors(),
            descriptors_soft=soft,
            descriptors_hard=hard,
            executor_error=executor_error,
        )

    async def _probe_disk(self) -> DiskProbe:
        """Probe the disk on a thread: it may hang, and the agent must go on."""
        if self._probing is None:  # else the probe of an earlier check still hangs
            self._probing = asyncio.ensure_future(asyncio.to_thread(probe_disk, self._directory))
        done, _ = await asyncio.wait([self._probing], timeout=WRITE_S)
        if not done:
            return DiskProbe(f"a write takes longer than {WRITE_S:g} s", None)
        found, self._probing = self._probing.result(), None
        return found

    def _note(self, found: dict[WorkerFault, str]) -> None:
        before, self._faults = self._faults, found
        for fault, reason in found.items():
            if fault not in before:
                _log.error("worker.unfit: %s", reason, extra={"fault": fault.value})
        if before and not found:
            _log.info("worker.fit", extra={"faults": [fault.value for fault in before]})
        if found != before:
            self._on_checked(tuple(found.values()))
            self._member.announce()


def write_error(directory: Path) -> str:
    """Write, sync and delete a small file; return why that failed, empty if it did not. Blocks."""
    path = directory / _FILE
    try:
        with path.open("wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(bytes(4096))  # a block: an empty file fits on a full disk
            file.flush()
            os.fsync(file.fileno())
        path.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def probe_disk(directory: Path) -> DiskProbe:
    """Write to a directory and read how much room its disk has. Blocks."""
    return DiskProbe(write_error(directory), _free_bytes(directory))


def _free_bytes(directory: Path) -> int | None:
    try:
        found = os.statvfs(directory)
    except OSError:
        return None  # then nothing can be written either
    return found.f_bavail * found.f_frsize


def open_descriptors() -> int:
    """Return how many descriptors this process has open; its limit if not one more can be."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
