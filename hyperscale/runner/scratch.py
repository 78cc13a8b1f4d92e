"""The temporary directory of a run. Directories of runs that were killed are removed.

A run holds a lock on its directory, which the kernel releases when the process ends: a directory
without a lock is abandoned.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hyperscale.errors import RunError

_PREFIX = "hyperscale-run-"


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """Make a directory that is removed afterwards. Raises RunError if that is impossible."""
    try:
        _remove_abandoned(tempfile.gettempdir())
        path, lock = _make()
    except OSError as error:
        raise RunError(
            f"the temporary directory of the run cannot be made: {error}",
            hint="free some disk space, or set TMPDIR to another directory",
        ) from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _make() -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            lock = _lock(path)
        except OSError:  # another directory would fail in the same way
            shutil.rmtree(path, ignore_errors=True)
            raise
        # Before it was locked, another run that began may have removed it as abandoned.
        if lock is not None and path.exists():
            return path, lock
        if lock is not None:
            os.close(lock)


def _remove_abandoned(parent: str) -> None:
    with os.scandir(parent) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(_PREFIX)]
    for name in names:
        path = Path(parent, name)
        try:
            lock = _lock(path)
        except OSError:  # a link, no directory, or not accessible: not known to be abandoned
            continue
        if lock is not None:
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _lock(path: Path) -> int | None:
    """Lock a directory and return its descriptor; None if it is locked or does not exist.

    Raises OSError if it cannot be locked at all.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        os.close(descriptor)
        raise OSError(error.errno, f"flock: {error.strerror}", str(path)) from error
    return descriptor
