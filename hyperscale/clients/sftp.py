"""`self.client.sftp`: SFTP through asyncssh."""

from typing import Any

import asyncssh

from hyperscale.clients.connections import LibraryConnection
from hyperscale.clients.library import Reply
from hyperscale.clients.ssh import SSHConnection, SSHFileClient, connect, server_text
from hyperscale.clients.transfers import (
    CHUNK_BYTES,
    ENTRIES_MAX,
    Download,
    carried,
    content_of,
    path_under,
    received,
)
from hyperscale.testing.protocols import ServiceUrl
from hyperscale.testing.responses import RemoteFile, SFTPResponse


class SFTPConnection(SSHConnection):
    """An SSH connection with one SFTP session."""

    __slots__ = ("session",)

    def __init__(self, link: asyncssh.SSHClientConnection, session: asyncssh.SFTPClient) -> None:
        super().__init__(link)
        self.session = session


# --- operations on a connection ------------------------------------------------------------


async def _upload(connection: SFTPConnection, path: str, content: bytes) -> None:
    async with connection.session.open(path, "wb") as file:
        await file.write(content)


async def _download(connection: SFTPConnection, path: str, keep: bool) -> Download:
    download = Download(keep=keep)
    async with connection.session.open(path, "rb") as file:
        while chunk := await file.read(CHUNK_BYTES):
            download.add(chunk if isinstance(chunk, bytes) else chunk.encode())
    return download


async def _list(connection: SFTPConnection, path: str) -> list[RemoteFile]:
    found: list[RemoteFile] = []
    async for entry in connection.session.scandir(path or "."):
        name = entry.filename if isinstance(entry.filename, str) else entry.filename.decode()
        if name in (".", ".."):
            continue
        if len(found) >= ENTRIES_MAX:
            raise ValueError(f"list: the directory has more than {ENTRIES_MAX:,} entries")
        is_directory = entry.attrs.type == asyncssh.FILEXFER_TYPE_DIRECTORY
        found.append(RemoteFile(name, entry.attrs.size or 0, is_directory))
    return found


async def _delete(connection: SFTPConnection, path: str) -> None:
    await connection.session.remove(path)


async def _make_directory(connection: SFTPConnection, path: str) -> None:
    await connection.session.mkdir(path)


async def _rename(connection: SFTPConnection, path: str, new_path: str) -> None:
    await connection.session.rename(path, new_path)


async def _ping(connection: SFTPConnection) -> str:
    await connection.session.realpath(".")
    return f"SFTP version {connection.session.version} of {server_text(connection.link)}"


class SFTPClient(SSHFileClient):
    """The SFTP client of one virtual user.

    The URL is `sftp://user:password@host:22/directory`; `?key=FILE` logs in with a private key,
    `?known_hosts=FILE` checks the key of the host, which is not checked otherwise. Paths are
    relative to the directory of the URL, or to the user's home without one.
    """

    __slots__ = ()
    protocol = "sftp"

    def upload(
        self, url: str, path: str, data: bytes | str, *, timeout: str | float | None = None
    ) -> Reply[SFTPResponse]:
        """Write a file."""
        place, content = self._place(url), content_of(data)
        args = (path_under(place.url.path, path), content)
        return self._call(place, _upload, args, carried(SFTPResponse, content), timeout)

    def download(
        self, url: str, path: str, *, keep: bool = True, timeout: str | float | None = None
    ) -> Reply[SFTPResponse]:
        """Read a file, at most 64 MiB; `keep=False` only counts the bytes of any size."""
        place = self._place(url)
        args = (path_under(place.url.path, path), keep)
        return self._call(place, _download, args, received(SFTPResponse), timeout)

    def list(
        self, url: str, path: str = "", *, timeout: str | float | None = None
    ) -> Reply[SFTPResponse]:
        """Read the entries of a directory."""
        return self._on_path(url, _list, path, timeout=timeout)

    def delete(
        self, url: str, path: str, *, timeout: str | float | None = None
    ) -> Reply[SFTPResponse]:
        """Delete a file."""
        return self._on_path(url, _delete, path, timeout=timeout)

    def make_directory(
        self, url: str, path: str, *, timeout: str | float | None = None
    ) -> Reply[SFTPResponse]:
        """Make a directory."""
        return self._on_path(url, _make_directory, path, timeout=timeout)

    def rename(
        self, url: str, path: str, new_path: str, *, timeout: str | float | None = None
    ) -> Reply[SFTPResponse]:
        """Rename or move a file."""
        return self._on_path(url, _rename, path, new_path, timeout=timeout)

    def ping(self, url: str, *, timeout: str | float | None = None) -> Reply[SFTPResponse]:
        """Ask for the path of the home directory; the value describes the server."""
        return self._call(self._place(url), _ping, (), SFTPResponse, timeout)

    def _on_path(
        self, url: str, operation: Any, *paths: str, timeout: str | float | None
    ) -> Reply[SFTPResponse]:
        place = self._place(url)
        args = tuple(path_under(place.url.path, path) for path in paths)
        return self._call(place, operation, args, SFTPResponse, timeout)

    async def _connect(self, url: ServiceUrl, options: Any) -> LibraryConnection:
        link = await connect(url)
        try:
            return SFTPConnection(link, await link.start_sftp_client())
        except BaseException:
            link.abort()
            raise


CLIENT = SFTPClient
