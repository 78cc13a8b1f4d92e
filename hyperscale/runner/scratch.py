"""A run's directory for what its executors read; those of runs that were killed are removed.

Who uses a directory holds a lock on it, which the kernel drops with the process, so nobody
has to guess from a process number whether its owner still lives.
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
    """A new directory, gone afterwards. RunError if this machine has no place for it."""
    try:
        _remove_abandoned(tempfile.gettempdir())
        path, lock = _make()
    except OSError as error:
        raise RunError(
            f"no temporary directory could be made: {error}",
            hint="make room, or name another place in TMPDIR",
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
        except OSError:  # another would fare no better
            shutil.rmtree(path, ignore_errors=True)
            raise
        # Until it was locked it looked abandoned to any other run that began just then.
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
        except OSError:  # a link, no directory, or not ours to open: not known to be abandoned
            continue
        if lock is not None:
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _lock(path: Path) -> int | None:
    """A descriptor that holds the directory; None if another has it, or there is none.

    OSError if it cannot be locked at all.
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
