"""Results of runs on a worker's disk, until they are acknowledged.

A file is complete or not there: written under another name, synced, then renamed. Everything
here blocks; whoever calls it does so in a thread.
"""

import hashlib
import os
from pathlib import Path

import msgspec

from hyperscale.jobs.messages import AttemptId, DeliverResult
from hyperscale.nodes.bundle_store import sync_directory

_finished = msgspec.msgpack.Decoder(DeliverResult)


class ResultStore:
    """Results of runs, one file each."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self) -> tuple[list[DeliverResult], list[Path]]:
        """What an earlier life left, and the files nobody can read."""
        results, broken = [], []
        for path in sorted(self._directory.glob("*.result")):
            try:
                results.append(_finished.decode(path.read_bytes()))
            except (OSError, ValueError):
                broken.append(path)
        for leftover in self._directory.glob("*.part"):
            leftover.unlink(missing_ok=True)
        return results, broken

    def store(self, result: DeliverResult) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._path(result.run)
        temporary = path.with_suffix(".part")
        with temporary.open("wb") as file:
            file.write(msgspec.msgpack.encode(result))
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
        sync_directory(self._directory)

    def erase(self, run: AttemptId) -> None:
        self._path(run).unlink(missing_ok=True)

    def _path(self, run: AttemptId) -> Path:
        name = hashlib.sha256(msgspec.msgpack.encode(run)).hexdigest()
        return self._directory / f"{name[:40]}.result"
