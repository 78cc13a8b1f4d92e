"""Results of attempts on a worker's disk, until they are acknowledged.

A file is complete or absent: written under another name, synced, then renamed. Every function
blocks; call it in a thread.
"""

import hashlib
import os
from pathlib import Path

import msgspec

from hyperscale.execution.bundle_store import sync_directory
from hyperscale.jobs.messages import AttemptId, DeliverResult

_decoder = msgspec.msgpack.Decoder(DeliverResult)


class ResultStore:
    """Results of attempts, one file each."""

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
