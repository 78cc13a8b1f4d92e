"""Backups of a ledger: an archive with the state and the history of all its groups.

The archive is a zip file. `manifest.json` names the ledger and its groups and has a digest of every
other file; `N.state` is the state of group N as in a snapshot, `N.history` has its history rows.
Group 0 is the topology. `rebuild` makes a new ledger of a backup.
"""

import hashlib
import zipfile
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec
from msgspec import Struct

from hyperscale.errors import InputError
from hyperscale.ledger.replica import HistoryRow

FORMAT: Final = 1
"""Of the archive. A reader refuses any other."""
_MANIFEST = "manifest.json"
_FILE_BYTES_MAX = 2**31
_NO_BACKUP = "give a file that 'hyperscale ledger backup' has written"

_encode = msgspec.msgpack.Encoder().encode
_decode_rows = msgspec.msgpack.Decoder(list[HistoryRow]).decode


class GroupBackup(Struct, frozen=True, kw_only=True):
    """One group, up to one committed entry."""

    group: int
    index: int
    term: int
    state: bytes
    history: list[HistoryRow]


class GroupDigests(Struct, frozen=True, kw_only=True):
    """One group in a manifest."""

    group: int
    index: int
    term: int
    history_rows: int
    state_sha256: str
    history_sha256: str


class BackupManifest(Struct, frozen=True, kw_only=True):
    """What a backup is of, and what is in it."""

    format: int = FORMAT
    role: str
    """Of the nodes: managers or gates."""
    version: str
    """The version of Hyperscale that wrote the backup."""
    layout: int
    """Of states and history rows."""
    ledger: str
    scope: str
    taken_at: str
    groups: list[GroupDigests] = []


class BackupWriter:
    """Writes an archive group by group. The file has its name only once it is complete."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = path.with_name(f".{path.name}.partial")
        self._groups: list[GroupDigests] = []
        if path.exists():
            raise InputError(f"{path} exists already", hint="choose another name for the backup")
        try:
            self._partial.touch(mode=0o600)
            self._archive = zipfile.ZipFile(self._partial, "w", zipfile.ZIP_DEFLATED)
        except OSError as error:
            raise _unwritable(path, error) from error

    def add(self, group: GroupBackup) -> None:
        history = _encode(group.history)
        try:
            self._archive.writestr(f"{group.group}.state", group.state)
            self._archive.writestr(f"{group.group}.history", history)
        except OSError as error:
            raise _unwritable(self._path, error) from error
        self._groups.append(
            GroupDigests(
                group=group.group,
                index=group.index,
                term=group.term,
                history_rows=len(group.history),
                state_sha256=_sha256(group.state),
                history_sha256=_sha256(history),
            )
        )

    def finish(self, manifest: BackupManifest) -> BackupManifest:
        """Write the manifest and give the file its name."""
        complete = msgspec.structs.replace(manifest, groups=self._groups)
        try:
            self._archive.writestr(_MANIFEST, msgspec.json.format(msgspec.json.encode(complete)))
            self._archive.close()
            self._partial.replace(self._path)
        except OSError as error:
            raise _unwritable(self._path, error) from error
        return complete

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: Any, _trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._archive.close()
        self._partial.unlink(missing_ok=True)


def read_backup(path: Path, *, layout: int) -> tuple[BackupManifest, list[GroupBackup]]:
    """Return what an archive holds; raise `InputError` if it is none, damaged, or of a version
    that this one cannot read."""
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = _manifest(path, archive)
            if manifest.format != FORMAT or manifest.layout != layout:
                raise InputError(
                    f"{path} was written by Hyperscale {manifest.version} (format "
                    f"{manifest.format}, layout {manifest.layout}); this version reads format "
                    f"{FORMAT}, layout {layout}",
                    hint="restore it with the version that wrote it, then upgrade",
                )
            return manifest, [_group(path, archive, entry) for entry in manifest.groups]
    except zipfile.BadZipFile as error:
        raise InputError(f"{path} is not a backup: {error}", hint=_NO_BACKUP) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def _manifest(path: Path, archive: zipfile.ZipFile) -> BackupManifest:
    try:
        return msgspec.json.decode(_file(path, archive, _MANIFEST), type=BackupManifest)
    except msgspec.MsgspecError as error:
        raise InputError(
            f"{path} is not a backup: its manifest: {error}", hint=_NO_BACKUP
        ) from error


def _group(path: Path, archive: zipfile.ZipFile, entry: GroupDigests) -> GroupBackup:
    state = _file(path, archive, f"{entry.group}.state")
    rows = _file(path, archive, f"{entry.group}.history")
    if _sha256(state) != entry.state_sha256 or _sha256(rows) != entry.history_sha256:
        raise _damaged(path, f"group {entry.group} differs from its digest")
    try:
        history = _decode_rows(rows)
    except msgspec.MsgspecError as error:
        raise _damaged(path, f"the history of group {entry.group}: {error}") from error
    return GroupBackup(
        group=entry.group, index=entry.index, term=entry.term, state=state, history=history
    )


def _file(path: Path, archive: zipfile.ZipFile, name: str) -> bytes:
    try:
        info = archive.getinfo(name)
        if info.file_size > _FILE_BYTES_MAX:
            raise _damaged(path, f"{name} has {info.file_size:,} bytes")
        return archive.read(info)
    except KeyError:
        raise InputError(f"{path} is not a backup: it has no {name}", hint=_NO_BACKUP) from None
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError) as error:
        raise _damaged(path, f"{name}: {error}") from error


def _damaged(path: Path, what: str) -> InputError:
    return InputError(f"the backup {path} is damaged: {what}", hint="use another backup")


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path} cannot be written: {error.strerror or error}")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
