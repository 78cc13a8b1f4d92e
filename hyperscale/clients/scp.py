"""`self.client.scp`: copies of files by the program `scp` of the server, through asyncssh."""

import shlex
from posixpath import basename
from typing import Any

import asyncssh

from hyperscale.clients.connections import LibraryConnection
from hyperscale.clients.library import Failure, Reply
from hyperscale.clients.ssh import SSHConnection, SSHFileClient, connect, server_text
from hyperscale.clients.transfers import (
    CHUNK_BYTES,
    Download,
    carried,
    content_of,
    path_under,
    received,
)
from hyperscale.testing.protocols import ServiceUrl
from hyperscale.testing.responses import SCPResponse

_HEADER_BYTES_MAX = 4096


class SCPRefusedError(Exception):
    """The server's `scp` has reported an error; the connection can be used again."""


class SCPBrokenError(Exception):
    """The server's `scp` said something that is not its protocol."""


class Copy:
    """One run of `scp` at the server: its input and output."""

    def __init__(self, process: "asyncssh.SSHClientProcess[bytes]") -> None:
        self._process = process

    async def confirm(self) -> None:
        """Wait until `scp` has accepted what it was sent. Raises SCPRefusedError."""
        signal = await self._process.stdout.read(1)
        if signal != b"\0":
            await self._refuse(signal)

    async def header(self) -> int:
        """Return the size of the file that `scp` is about to send."""
        line = await self._process.stdout.readline()
        if not line.startswith(b"C"):
            await self._refuse(line)
        words = line.split(b" ", 2)
        if len(words) != 3 or len(line) > _HEADER_BYTES_MAX or not words[1].isdigit():
            raise SCPBrokenError(f"scp sent {line[:80]!r} in place of a file")
        return int(words[1])

    async def write(self, data: bytes) -> None:
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def read(self, size: int) -> bytes:
        chunk = await self._process.stdout.read(min(size, CHUNK_BYTES))
        if not chunk:
            raise SCPBrokenError(f"scp ended {size:,} bytes before the end of the file")
        return chunk

    async def _refuse(self, start: bytes) -> None:
        """Raise the error that `scp` reports on its output, or on its error output."""
        process = self._process
        if start[:1] in (b"\1", b"\2"):
            line = start if start.endswith(b"\n") else start + await process.stdout.readline()
            raise SCPRefusedError(line[1:].decode(errors="replace").strip())
        if start:
            raise SCPBrokenError(f"scp sent {start[:80]!r} in place of a confirmation")
        said = (await process.stderr.read(_HEADER_BYTES_MAX)).decode(errors="replace").strip()
        if process.channel.get_connection().is_closed():
            raise ConnectionResetError(said or "the connection was lost")
        raise SCPRefusedError(said or "scp ended without a word")


# --- operations on a connection ------------------------------------------------------------


async def _upload(connection: SSHConnection, path: str, content: bytes) -> None:
    command = f"scp -t {shlex.quote(path)}"
    async with connection.link.create_process(command, encoding=None) as process:
        copy = Copy(process)
        await copy.confirm()
        await copy.write(b"C0644 %d %s\n" % (len(content), basename(path).encode()))
        await copy.confirm()
        for start in range(0, len(content), CHUNK_BYTES):
            await copy.write(content[start : start + CHUNK_BYTES])
        await copy.write(b"\0")
        await copy.confirm()
        process.stdin.write_eof()


async def _download(connection: SSHConnection, path: str, keep: bool) -> Download:
    download = Download(keep=keep)
    command = f"scp -f {shlex.quote(path)}"
    async with connection.link.create_process(command, encoding=None) as process:
        copy = Copy(process)
        await copy.write(b"\0")
        size = await copy.header()
        await copy.write(b"\0")
        while download.size < size:
            download.add(await copy.read(size - download.size))
        await copy.confirm()
        await copy.write(b"\0")
    return download


async def _ping(connection: SSHConnection) -> str:
    await connection.link.run("true")
    return f"scp of {server_text(connection.link)}"


class SCPClient(SSHFileClient):
    """The SCP client of one virtual user; every copy runs `scp` at the server.

    The URL is that of `sftp`, with the scheme `scp`.
    """

    __slots__ = ()
    protocol = "scp"

    def upload(
        self, url: str, path: str, data: bytes | str, *, timeout: str | float | None = None
    ) -> Reply[SCPResponse]:
        """Write a file."""
        place, content = self._place(url), content_of(data)
        args = (path_under(place.url.path, path), content)
        return self._call(place, _upload, args, carried(SCPResponse, content), timeout)

    def download(
        self, url: str, path: str, *, keep: bool = True, timeout: str | float | None = None
    ) -> Reply[SCPResponse]:
        """Read a file, at most 64 MiB; `keep=False` only counts the bytes of any size."""
        place = self._place(url)
        args = (path_under(place.url.path, path), keep)
        return self._call(place, _download, args, received(SCPResponse), timeout)

    def ping(self, url: str, *, timeout: str | float | None = None) -> Reply[SCPResponse]:
        """Run `true` at the server; the value describes the server."""
        return self._call(self._place(url), _ping, (), SCPResponse, timeout)

    async def _connect(self, url: ServiceUrl, options: Any) -> LibraryConnection:
        return SSHConnection(await connect(url))

    def _classify(self, error: BaseException) -> Failure | None:
        match error:
            case SCPRefusedError():
                return Failure("server", str(error))
            case SCPBrokenError():
                return Failure("protocol", str(error))
        return super()._classify(error)


CLIENT = SCPClient
