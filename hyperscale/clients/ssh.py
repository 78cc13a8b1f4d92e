"""What `sftp` and `scp` share: connections of asyncssh and what their errors mean."""

import os
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qs

import asyncssh

from hyperscale.clients.connections import LibraryConnection
from hyperscale.clients.library import Failure, LibraryClient
from hyperscale.errors import InputError
from hyperscale.testing.protocols import ServiceUrl

_OPTIONS = ("key", "known_hosts")


class SSHConnection(LibraryConnection):
    """A connection of asyncssh, logged in."""

    __slots__ = ("link",)

    def __init__(self, link: asyncssh.SSHClientConnection) -> None:
        self.link = link

    @property
    def is_usable(self) -> bool:
        return not self.link.is_closed()

    async def close(self) -> None:
        self.link.close()
        await self.link.wait_closed()

    def abort(self) -> bool:
        self.link.abort()
        return True


async def connect(url: ServiceUrl) -> asyncssh.SSHClientConnection:
    """Open a connection and log in."""
    return await asyncssh.connect(url.host, url.port, options=_options(url))


@lru_cache(maxsize=64)
def _options(url: ServiceUrl) -> asyncssh.SSHClientConnectionOptions:
    """Return the settings of a URL's connections; they are made once, as a key has to be read."""
    query = parse_qs(url.query)
    for name in query:
        if name not in _OPTIONS:
            raise InputError(
                f"{url.shown}: the option {name!r} is unknown", hint=f"one of {', '.join(_OPTIONS)}"
            )
    key, known_hosts = (query.get(name, [None])[0] for name in _OPTIONS)
    for path in (key, known_hosts):
        if path is not None and not os.access(path, os.R_OK):
            raise InputError(f"{url.shown}: the file {path!r} cannot be read")
    try:
        # Nothing comes from the user's own ssh: not its configuration, its keys or its agent.
        return asyncssh.SSHClientConnectionOptions(
            username=url.user or "anonymous",
            password=url.password,
            client_keys=[key] if key else None,
            known_hosts=known_hosts,  # None: any host key is accepted
            config=None,
            agent_path=None,
            gss_auth=False,
            compression_algs=None,
            connect_timeout=None,  # the call has a deadline
            login_timeout=0,
        )
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError, ValueError) as error:
        raise InputError(f"{url.shown}: {error}") from error


class SSHFileClient(LibraryClient):
    """Base of the clients that transfer files over SSH."""

    __slots__ = ()

    def _classify(self, error: BaseException) -> Failure | None:
        match error:
            case asyncssh.PermissionDenied():
                return Failure("auth", str(error))
            case asyncssh.HostKeyNotVerifiable():
                return Failure("tls", str(error))
            case asyncssh.SFTPNoConnection() | asyncssh.SFTPConnectionLost():
                return Failure("reset", str(error))
            case asyncssh.SFTPError():
                return Failure("server", str(error), str(error.code))
            case asyncssh.ChannelOpenError() if "connection closed" in str(error):
                return Failure("reset", str(error))  # asyncssh's own words, not the server's
            case asyncssh.ChannelOpenError():
                return Failure("server", str(error), str(error.code))
            case asyncssh.ProtocolError() | asyncssh.KeyExchangeFailed():
                return Failure("protocol", str(error))
            case asyncssh.DisconnectError():
                return Failure("reset", str(error))
        return None


def server_text(link: Any) -> str:
    """Return how the server introduced itself, such as `SSH-2.0-OpenSSH_9.2p1`."""
    return str(link.get_extra_info("server_version") or "SSH server")
