"""Writing a report so that a crash leaves the old file or the new one, never half of one.

A report is written to a temporary file beside the target, flushed to disk and renamed. A path that
is not a regular file (a pipe, `/dev/stdout`) is written to directly.
"""

import errno
import os
import stat
from pathlib import Path

from hyperscale.errors import HyperscaleError, InputError


class OutputError(HyperscaleError):
    """A report could not be written. The run and its other outputs stand."""


def write_file(path: Path | str, content: bytes) -> None:
    """Replace `path` by `content`, creating its directories."""
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
    """Refuse, before anything runs, a path that could not be written at the end.

    Creates the directories; leaves no file behind. `where` is the flag that named the path.
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
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise InputError(f"{where}: {_reason(path, error)}", hint=_advice(error)) from error


def _replace(target: Path, content: bytes) -> None:
    temporary = _temporary(target)
    try:
        # Not a private temporary file: the umask decides who may read a report.
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    descriptor = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name[:64]}.{os.getpid()}.{os.urandom(4).hex()}.tmp")


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
