"""`self.client.ftp`: FTP through aioftp."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aioftp

from hyperscale.clients.connections import LibraryConnection
from hyperscale.clients.library import Failure, LibraryClient, Reply, classify_os_error
from hyperscale.clients.service_tls import tls_context, wanted_tls
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
from hyperscale.testing.responses import FTPResponse, RemoteFile

_CLOSING = "421"  # the server ends the connection after this reply
_NOT_LOGGED_IN = {"530", "532"}


class FTPConnection(LibraryConnection):
    """A control connection of aioftp, logged in."""

    __slots__ = ("greeting", "link")

    def __init__(self, link: aioftp.Client, greeting: str) -> None:
        self.link = link
        self.greeting = greeting

    @property
    def is_usable(self) -> bool:
        stream = self.link.stream
        return not (stream.writer.is_closing() or stream.reader.at_eof())

    async def close(self) -> None:
        await self.link.quit()

    def abort(self) -> bool:
        _drop(self.link)
        return True


def _drop(link: Any) -> None:
    if link._stream is not None:  # it got as far as a connection
        link._stream.writer.transport.abort()


# --- operations on a connection ------------------------------------------------------------


@asynccontextmanager
async def _data(
    connection: FTPConnection, command: str
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open the data connection of a command; afterwards, wait for the reply to the command."""
    link = connection.link
    reader, writer = await link.get_passive_connection("I")
    try:
        await link.command(command, "1xx")
        yield reader, writer
        writer.close()
        await link.command(None, "2xx", "1xx")
    except BaseException:
        writer.transport.abort()
        raise


async def _upload(connection: FTPConnection, path: str, content: bytes) -> None:
    async with _data(connection, f"STOR {path}") as (_, writer):
        for start in range(0, len(content), CHUNK_BYTES):
            writer.write(content[start : start + CHUNK_BYTES])
            await writer.drain()


async def _download(connection: FTPConnection, path: str, keep: bool) -> Download:
    download = Download(keep=keep)
    async with _data(connection, f"RETR {path}") as (reader, _):
        while chunk := await reader.read(CHUNK_BYTES):
            download.add(chunk)
    return download


async def _list(connection: FTPConnection, path: str) -> list[RemoteFile]:
    found: list[RemoteFile] = []
    async with _data(connection, f"MLSD {path}".strip()) as (reader, _):
        while line := await reader.readline():
            name, facts = connection.link.parse_mlsx_line(line)
            if len(found) >= ENTRIES_MAX:
                raise ValueError(f"list: the directory has more than {ENTRIES_MAX:,} entries")
            if facts.get("type") in ("file", "dir"):
                size = int(facts.get("size", 0))
                found.append(RemoteFile(str(name), size, facts["type"] == "dir"))
    return found


async def _command(connection: FTPConnection, command: str) -> str:
    _, lines = await connection.link.command(command, ("2xx", "3xx"))
    return "\n".join(line.strip() for line in lines)


async def _rename(connection: FTPConnection, path: str, new_path: str) -> None:
    await connection.link.command(f"RNFR {path}", "350")
    await connection.link.command(f"RNTO {new_path}", "2xx")


async def _ping(connection: FTPConnection) -> str:
    await connection.link.command("NOOP", "2xx")
    return f"FTP server {connection.greeting}"


class FTPClient(LibraryClient):
    """The FTP client of one virtual user, with passive data connections.

    The URL is `ftp://user:password@host:21/directory`, or `ftps://` with TLS from the start;
    `ftp://…?tls=required` encrypts with AUTH TLS, `?tls=verify` also checks the certificate. Paths
    are relative to the directory of the URL.
    """

    __slots__ = ()
    protocol = "ftp"

    def upload(
        self, url: str, path: str, data: bytes | str, *, timeout: str | float | None = None
    ) -> Reply[FTPResponse]:
        """Write a file (STOR)."""
        place, content = self._place(url), content_of(data)
        args = (path_under(place.url.path, path), content)
        return self._call(place, _upload, args, carried(FTPResponse, content), timeout)

    def download(
        self, url: str, path: str, *, keep: bool = True, timeout: str | float | None = None
    ) -> Reply[FTPResponse]:
        """Read a file (RETR), at most 64 MiB; `keep=False` only counts the bytes of any size."""
        place = self._place(url)
        args = (path_under(place.url.path, path), keep)
        return self._call(place, _download, args, received(FTPResponse), timeout)

    def list(
        self, url: str, path: str = "", *, timeout: str | float | None = None
    ) -> Reply[FTPResponse]:
        """Read the entries of a directory (MLSD)."""
        place = self._place(url)
        return self._call(place, _list, (path_under(place.url.path, path),), FTPResponse, timeout)

    def delete(
        self, url: str, path: str, *, timeout: str | float | None = None
    ) -> Reply[FTPResponse]:
        """Delete a file (DELE)."""
        return self._command(url, "DELE", path, timeout)

    def make_directory(
        self, url: str, path: str, *, timeout: str | float | None = None
    ) -> Reply[FTPResponse]:
        """Make a directory (MKD)."""
        return self._command(url, "MKD", path, timeout)

    def rename(
        self, url: str, path: str, new_path: str, *, timeout: str | float | None = None
    ) -> Reply[FTPResponse]:
        """Rename or move a file (RNFR, RNTO)."""
        place = self._place(url)
        args = (path_under(place.url.path, path), path_under(place.url.path, new_path))
        return self._call(place, _rename, args, FTPResponse, timeout)

    def ping(self, url: str, *, timeout: str | float | None = None) -> Reply[FTPResponse]:
        """Send NOOP; the value is the greeting of the server."""
        return self._call(self._place(url), _ping, (), FTPResponse, timeout)

    def _command(
        self, url: str, command: str, path: str, timeout: str | float | None
    ) -> Reply[FTPResponse]:
        place = self._place(url)
        line = f"{command} {path_under(place.url.path, path)}"
        return self._call(place, _command, (line,), FTPResponse, timeout)

    async def _connect(self, url: ServiceUrl, options: Any) -> LibraryConnection:
        upgrade = wanted_tls(url)
        link = aioftp.Client(ssl=tls_context(verify=True) if url.scheme == "ftps" else None)
        try:
            greeting = await link.connect(url.host, url.port)
            if upgrade is not None:
                await link.upgrade_to_tls(upgrade)
            await link.login(url.user or "anonymous", url.password or "anonymous@")
        except BaseException:
            _drop(link)
            raise
        return FTPConnection(link, " ".join(line.strip() for line in greeting))

    def _classify(self, error: BaseException) -> Failure | None:
        if isinstance(error, aioftp.StatusCodeError):
            code = str(error.received_codes[-1])
            detail = f"{code} {' '.join(str(line).strip() for line in error.info)}"
            if code in _NOT_LOGGED_IN:
                return Failure("auth", detail, code)
            return Failure("reset" if code == _CLOSING else "server", detail, code)
        if isinstance(error, ConnectionResetError) and not str(error):
            return Failure("reset", "the server closed the connection")
        if isinstance(error, aioftp.AIOFTPException):
            return classify_os_error(error.__cause__ or error, is_connecting=False) or Failure(
                "protocol", str(error)
            )
        return None


CLIENT = FTPClient
