"""Writing a report so that a crash leaves the old file or the new one, never half of one.

Write to a temporary name beside the target, flush to disk, rename. What is not a regular
file (a pipe, `/dev/stdout`) is written to directly.
"""

import errno
import os
import stat
from pathlib import Path

from hyperscale.errors import HyperscaleError, InputError


class OutputError(HyperscaleError):
    """A report could not be written. The run and its other outputs stand."""


def write_file(path: Path | str, content: bytes) -> None:
    """Replaces `path` by `content`, creating its directories."""
    target = Path(path)
    try:
        if _is_special(target):
            target.write_bytes(content)
            return
        # A link keeps pointing where it did; the file behind it is replaced.
        target = target.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, content)
    except OSError as error:
        raise OutputError(_reason(path, error), hint=_advice(error)) from error


def ensure_writable(path: Path | str, *, where: str) -> None:
    """Refuses, before anything runs, a path that could not be written at the end.

    Creates the directories; leaves no file behind. `where` is the flag that named it.
    """
    target = Path(path)
    try:
        if target.is_dir():
            raise InputError(f"{where}: {path} is a directory", hint="name a file in it")
        if _is_special(target):
            return
        target = target.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        probe = _temporary(target)
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        probe.unlink()
    except OSError as error:
        raise InputError(f"{where}: {_reason(path, error)}", hint=_advice(error)) from error


def _replace(target: Path, content: bytes) -> None:
    temporary = _temporary(target)
    try:
        # Not a private temporary file: the umask decides who may read a report.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(target.parent)


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name[:64]}.{os.getpid()}.{os.urandom(4).hex()}.tmp")


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_special(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _reason(path: Path | str, error: OSError) -> str:
    return f"cannot write {path}: {error.strerror or error}"


def _advice(error: OSError) -> str:
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "make room, or choose another path" if is_full else "choose a path you may write to"
