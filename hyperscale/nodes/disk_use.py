"""How much of its disk a node uses, as metrics: measured now and then, on a thread."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from hyperscale.nodes.member import MemberNode, NodeService
from hyperscale.telemetry.metrics import Family, by, gauge

MEASURE_EVERY_S = 15.0


class DiskFigures(Struct, frozen=True):
    """What a measurement found; None: the file system does not say."""

    used_bytes: Mapping[str, int]
    """By content of the data directory."""
    free_bytes: int | None
    size_bytes: int | None


class DiskUse(NodeService):
    """Measures the data directory of a node every 15 s, off the event loop: a disk may hang."""

    def __init__(self, member: MemberNode, contents: Mapping[str, str]) -> None:
        self._member = member
        self._directory = Path(member.config.node.data_dir)
        self._contents = contents  # content -> directory below the data directory
        self._found = DiskFigures({}, None, None)

    async def start(self) -> None:
        self._member.tasks.spawn(self._measure_forever(), "disk-use")

    async def _measure_forever(self) -> None:
        while True:
            self._found = await asyncio.to_thread(measure, self._directory, self._contents)
            await asyncio.sleep(MEASURE_EVERY_S)

    def collect(self) -> list[Family]:
        found = self._found
        free, size = (
            [] if each is None else [each] for each in (found.free_bytes, found.size_bytes)
        )
        return [
            gauge(
                "hyperscale_disk_used_bytes",
                "Size of the files in the data directory of this node, by content",
                *by("content", found.used_bytes, found.used_bytes),
            ),
            gauge(
                "hyperscale_disk_free_bytes",
                "Free bytes on the disk of the data directory",
                *free,
            ),
            gauge("hyperscale_disk_size_bytes", "Size of the disk of the data directory", *size),
        ]


def measure(directory: Path, contents: Mapping[str, str]) -> DiskFigures:
    """Measure a data directory and its disk. Blocks."""
    used = {content: _used_bytes(directory / below) for content, below in contents.items()}
    try:
        disk = os.statvfs(directory)
    except OSError:
        return DiskFigures(used, None, None)
    return DiskFigures(used, disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize)


def _used_bytes(directory: Path) -> int:
    total = 0
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    total += entry.stat(follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue  # removed meanwhile
    except FileNotFoundError:
        return 0  # nothing was stored yet
    except OSError:
        return total
    return total
