"""A node's data directory: its path, the name and key of its node, its permissions, its one owner.

Only the node's own user reads and writes it. What others could read is closed when the node
starts. What others could have written, or a symbolic link that leads out of it, is refused: the
node would trust data that is not its own. `security.insecure_files` turns the refusal off, for file
systems without permissions.
"""

import fcntl
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hyperscale.config.schema import NodeConfig
from hyperscale.errors import InputError
from hyperscale.wire.certificate_identity import is_name

_NAME_FILE = "node-id"
_KEY_FILE = "node-key"
_KEY_BYTES = 32
_FINGERPRINT_BYTES = 8
_LOCK_FILE = "node.lock"
_PRIVATE_DIRECTORY = 0o700
_PRIVATE_FILE = 0o600
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_HINT = "give another one with --data-dir"
_INSECURE_HINT = (
    "remove the cause and check the directory's content, or start with --insecure-files true"
)


def node_id_of(config: NodeConfig) -> str:
    """Return the configured name, the name stored in the data directory, or a new random one."""
    if config.node.id:
        return config.node.id
    known = _known_directory(config)
    remembered = None if known is None else _remembered_name(known)
    return remembered or f"{config.role}-{secrets.token_hex(4)}"


def data_directory(config: NodeConfig, name: str) -> Path:
    """Return the directory in which a node of this name keeps its data."""
    return _known_directory(config) or Path("hyperscale-data") / name


@contextmanager
def hold_data_directory(config: NodeConfig) -> Iterator[str]:
    """Make the data directory private, store the node's name in it and keep other processes out.

    Yield the fingerprint of the node's key: random, made with the directory, and so different for
    any two directories of which none is a copy of the other."""
    directory = Path(config.node.data_dir)
    with ExitStack() as held:
        try:
            directory.mkdir(mode=_PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            _make_private(directory, is_lenient=config.security.insecure_files)
            path = directory / _LOCK_FILE
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE_FILE)
            held.callback(os.close, lock)
            _lock(lock, directory)
            _refuse_other_name(directory, config.node.id)
            remember_name(directory, config.node.id)
            key = _key_of(directory)
        except OSError as error:
            raise InputError(
                f"the data directory {directory} cannot be written: {error.strerror or error}",
                hint=_HINT,
            ) from error
        yield _fingerprint(key)


@contextmanager
def new_data_directory(directory: Path, name: str) -> Iterator[tuple[Path, str]]:
    """Make a data directory for a node of this name, which appears once the block has succeeded.

    Yield where it is made, and the fingerprint of the node's key."""
    if directory.exists():
        raise InputError(
            f"{directory} exists already",
            hint="name a directory that does not exist: nothing is ever written over data",
        )
    partial = directory.with_name(f".{directory.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)  # of an attempt that was interrupted
        partial.mkdir(mode=_PRIVATE_DIRECTORY, parents=True)
        remember_name(partial, name)
        yield partial, _fingerprint(_key_of(partial))
        partial.replace(directory)
    except OSError as error:
        raise InputError(f"{directory} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def problem_of_data_directory(config: NodeConfig) -> InputError | None:
    """Return why a node could not use its data directory; None if it could. Changes nothing."""
    directory = data_directory(config, node_id_of(config))
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return InputError(f"the data directory {directory} cannot be written", hint=_HINT)
    if existing == directory:
        try:
            if not config.security.insecure_files:
                for path, found in _entries(directory):
                    _refuse_insecure(path, found)
            if (owner := _owner_of_lock(directory)) is not None:
                return _in_use(directory, owner)
            _refuse_other_name(directory, config.node.id)
        except InputError as problem:
            return problem
    return None


def remember_name(directory: Path, name: str) -> None:
    """Store the name of a node in its data directory, so that it keeps it after a restart."""
    _write(directory / _NAME_FILE, f"{name}\n".encode())


def _fingerprint(key: bytes) -> str:
    return hashlib.blake2b(key, digest_size=_FINGERPRINT_BYTES).hexdigest()


def _key_of(directory: Path) -> bytes:
    """Return the key of a data directory; make it if the directory is new."""
    path = directory / _KEY_FILE
    if not path.exists():
        _write(path, secrets.token_bytes(_KEY_BYTES))
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise InputError(
            f"{path} does not hold the key of a node: it has {len(key)} bytes, not {_KEY_BYTES}",
            hint="restore it from a backup, or delete it: the node then gets another key",
        )
    return key


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(f".{path.name}")
    with partial.open("wb") as file:
        os.fchmod(file.fileno(), _PRIVATE_FILE)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _known_directory(config: NodeConfig) -> Path | None:
    """Return the data directory; None if its path depends on a random name."""
    node = config.node
    if node.data_dir:
        return Path(node.data_dir)
    # Without a name, the port identifies a node on its machine, also after a restart.
    name = node.id or (f"{config.role}-{config.listen.port}" if config.listen.port else "")
    return Path("hyperscale-data") / name if name else None


def _remembered_name(directory: Path) -> str | None:
    path = directory / _NAME_FILE
    try:
        name = path.read_text("utf-8", "replace").strip()
    except OSError:  # the node is new; an unreadable directory is refused when it is written
        return None
    if not is_name(name):
        raise InputError(
            f"{path} does not hold the name of a node",
            hint="give the name that the node had with --node-id (its log shows it); with another "
            "--data-dir it joins as a new node",
        )
    return name


def _refuse_other_name(directory: Path, name: str) -> None:
    """Raise `InputError` if the directory holds the data of a node of another name."""
    remembered = _remembered_name(directory)
    if name and remembered is not None and remembered != name:
        raise InputError(
            f"the data directory {directory} belongs to the node {remembered!r}, not to {name!r}",
            hint=f"start it with --node-id {remembered}, or give another --data-dir",
        )


# Permissions.


def _make_private(directory: Path, *, is_lenient: bool) -> None:
    """Take the permissions of other users away; refuse what they could have changed."""
    for path, found in _entries(directory):
        if not is_lenient:
            _refuse_insecure(path, found)
        if found.st_mode & _OPEN_TO_OTHERS and not stat.S_ISLNK(found.st_mode):
            is_directory = stat.S_ISDIR(found.st_mode)
            try:
                path.chmod(_PRIVATE_DIRECTORY if is_directory else _PRIVATE_FILE)
            except PermissionError:
                if not is_lenient:
                    raise


def _entries(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the directory and everything in it, symbolic links unresolved."""
    yield directory, directory.stat()  # the directory itself may be reached by a link
    for parent, folders, files in os.walk(directory):
        for name in (*folders, *files):
            path = Path(parent, name)
            yield path, path.lstat()


def _refuse_insecure(path: Path, found: os.stat_result) -> None:
    """Raise `InputError` if another user could have written the file, or it is a link."""
    if stat.S_ISLNK(found.st_mode):
        raise InputError(f"{path} is a symbolic link", hint=_INSECURE_HINT)
    if found.st_mode & _WRITABLE_BY_OTHERS:
        mode = stat.S_IMODE(found.st_mode)
        raise InputError(
            f"{path} can be written by other users: mode {mode:o}", hint=_INSECURE_HINT
        )
    if found.st_uid not in (0, os.geteuid()):
        raise InputError(f"{path} belongs to user {found.st_uid}", hint=_INSECURE_HINT)


# One process for each directory.


def _lock(descriptor: int, directory: Path) -> None:
    """Lock the directory and write this process's id; raise `InputError` if another holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _in_use(directory, os.pread(descriptor, 32, 0)) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)


def _owner_of_lock(directory: Path) -> bytes | None:
    """Return the process id in the lock of a directory that is in use; None if it is free."""
    try:
        descriptor = os.open(directory / _LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(descriptor, 32, 0)
    finally:
        os.close(descriptor)
    return None


def _in_use(directory: Path, owner: bytes) -> InputError:
    by = f" (process {owner.decode()})" if owner.isdigit() else ""
    return InputError(
        f"another process uses the data directory {directory}{by}",
        hint="stop the other process or give another --data-dir",
    )
