"""The cluster secret: checking, creating, reading and writing it.

There is no default secret. During a rotation a node accepts two: it seals with `current` and opens
with `current` or `previous`. To rotate without losing a message, change the files of all nodes
three times: add the new secret as `previous`, swap the two, remove the old one.
"""

import os
import secrets
import stat
from pathlib import Path

from hyperscale.errors import InputError

SECRET_CHARS_MIN = 16
SECRET_FILE_BYTES_MAX = 4096
_MADE_BYTES = 32


class Secrets:
    """The current secret and, during a rotation, the previous one. `repr` does not show them."""

    __slots__ = ("_current", "_previous")

    def __init__(self, current: str, previous: str | None = None) -> None:
        self._current = _checked(current, "the cluster secret")
        self._previous = None if previous is None else _checked(previous, "the previous secret")

    @property
    def current(self) -> bytes:
        return self._current

    @property
    def accepted(self) -> tuple[bytes, ...]:
        """The secrets that open a frame, the current one first."""
        if self._previous is None or self._previous == self._current:
            return (self._current,)
        return (self._current, self._previous)

    def __repr__(self) -> str:
        return f"<Secrets: {len(self.accepted)}>"

    def __reduce__(self) -> str:
        raise TypeError("secrets cannot be pickled")


def make_secret() -> str:
    """Create a secret of 256 random bits, in letters, digits, - and _."""
    return secrets.token_urlsafe(_MADE_BYTES)


def check_private(path: Path, what: str) -> None:
    """Raise `InputError` if users other than the owner can read a file that holds a secret."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:  # the reader of the file says what is wrong with it
        return
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InputError(
            f"{what} {path} is open to other users: mode {mode:o}",
            hint=f"chmod 600 {path}, or allow it with --insecure-files true",
        )


def read_secret_file(path: Path, *, is_lenient: bool = False) -> str:
    """Read the secret in a file, without the line end that an editor has added."""
    if not is_lenient:
        check_private(path, "the secret file")
    try:
        with path.open("rb") as file:
            data = file.read(SECRET_FILE_BYTES_MAX + 1)
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError)
        raise InputError(
            f"the secret file {path} cannot be read: {error.strerror}",
            hint=f"make one with 'hyperscale secret --out {path}'" if is_missing else "",
        ) from error
    if len(data) > SECRET_FILE_BYTES_MAX:
        raise InputError(
            f"the secret file {path} has more than {SECRET_FILE_BYTES_MAX} bytes",
            hint="it must hold the secret and nothing else",
        )
    try:
        secret = data.decode().strip()
    except UnicodeDecodeError as error:
        raise InputError(f"the secret file {path} is not text") from error
    if not secret:
        raise InputError(
            f"the secret file {path} is empty", hint="'hyperscale secret' makes what belongs there"
        )
    _checked(secret, f"the secret in {path}")
    return secret


def write_secret_file(path: Path, secret: str) -> None:
    """Write a file that only its owner can read. An existing file is not overwritten."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise InputError(
            f"{path} exists already", hint="choose another name, or remove the file first"
        ) from error
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            os.fchmod(file.fileno(), 0o600)  # independent of the umask
            file.write(secret + "\n")
    except OSError as error:
        path.unlink()  # it may hold a part of the secret
        raise InputError(f"{path} cannot be written: {error.strerror}") from error


def _checked(secret: str, what: str) -> bytes:
    if len(secret) < SECRET_CHARS_MIN:
        raise InputError(
            f"{what} has {len(secret)} characters, at least {SECRET_CHARS_MIN} are needed",
            hint="make a strong one with 'hyperscale secret'",
        )
    return secret.encode()
