"""The bundles of a node, as files named by their SHA-256: managers send them, workers run them.

The file of a bundle is complete or missing: it is written under another name, synced and renamed.
All calls block, so call them in a thread.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Self

from hyperscale.errors import RunError
from hyperscale.plan.limits import BUNDLE_BYTES_MAX

BUNDLES_KEPT = 64
"""Unless the configuration says otherwise (`bundles.keep`)."""


class BundleStore:
    """The bundles of one node."""

    def __init__(self, directory: Path, *, kept: int = BUNDLES_KEPT) -> None:
        self._directory = directory
        self._kept = kept

    def open(self) -> None:
        """Remove bundles whose transfer was interrupted."""
        for leftover in self._directory.glob("*.part"):
            leftover.unlink(missing_ok=True)

    def find(self, sha256: str) -> Path | None:
        """Return the path of a bundle and mark it as used; None if it is missing."""
        path = self._path(sha256)
        try:
            os.utime(path)
        except FileNotFoundError:
            return None
        return path

    def receive(self, sha256: str) -> "IncomingBundle":
        """Return a file for the bytes of a bundle while they arrive."""
        self._directory.mkdir(parents=True, exist_ok=True)
        return IncomingBundle(self._directory, sha256, self._path(sha256))

    def trim(self, keep: Iterable[str]) -> None:
        """Remove the least recently used bundles beyond the limit, but none of `keep`."""
        kept = {self._path(sha256) for sha256 in keep}
        found = []
        for path in self._directory.glob("*.zip"):
            with contextlib.suppress(FileNotFoundError):  # trimmed by another thread
                found.append((path.stat().st_mtime, path))
        for _, path in sorted(found, reverse=True)[self._kept :]:
            if path not in kept:
                path.unlink(missing_ok=True)

    def _path(self, sha256: str) -> Path:
        return self._directory / f"{sha256}.zip"


class IncomingBundle:
    """A bundle that is being received: hashed as it is written, stored only if the hash fits."""

    def __init__(self, directory: Path, sha256: str, path: Path) -> None:
        self._sha256 = sha256
        self._path = path
        self._hash = hashlib.sha256()
        self._size = 0
        self._file: IO[bytes] = tempfile.NamedTemporaryFile(  # noqa: SIM115  see __exit__
            dir=directory, prefix=sha256[:16], suffix=".part", delete=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._file.close()  # writes what is buffered, which a full disk refuses
        finally:
            Path(self._file.name).unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        """Append bytes; raise `RunError` beyond the size limit."""
        self._size += len(data)
        if self._size > BUNDLE_BYTES_MAX:
            raise RunError(
                f"bundle {self._sha256[:12]} is over {BUNDLE_BYTES_MAX // 2**20} MiB",
                hint="the sender announced a smaller bundle",
            )
        self._hash.update(data)
        self._file.write(data)

    def finish(self) -> Path:
        """Store the bundle and return its path; raise `RunError` if the hash differs."""
        found = self._hash.hexdigest()
        if found != self._sha256:
            raise RunError(
                f"bundle {self._sha256[:12]}: the {self._size:,} bytes received are {found[:12]}",
                hint="they were changed on the way, or a disk is damaged",
            )
        self._file.flush()
        os.fsync(self._file.fileno())
        os.rename(self._file.name, self._path)
        sync_directory(self._path.parent)
        return self._path


def sync_directory(directory: Path) -> None:
    """Make renames in a directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # some file systems do not support it
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
