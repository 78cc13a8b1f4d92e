"""How connections reach their servers: given addresses, source addresses, Unix sockets, proxies.

These are settings of a workflow, and arguments of single calls of the engine's clients.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from os import fspath
from typing import Any, Self, TypedDict
from urllib.parse import unquote, urlsplit

from hyperscale.config.addresses import format_address, parse_address
from hyperscale.errors import InputError

_PROXY_PORTS = {"http": 3128, "socks5": 1080}
_PROXY_HINT = 'write "http://host:3128" or "socks5://user:password@host:1080"'
_PATH_BYTES_MAX = 107  # of a Unix socket on Linux
_CREDENTIAL_BYTES_MAX = 255  # of a user or a password, for SOCKS5


class NetworkOptions(TypedDict, total=False):
    """How the connections of a call reach their server, instead of what the workflow says.

    None means: not as the workflow says, but in the plain way.
    """

    resolve: Mapping[str, str | Collection[str]] | None
    """Addresses of hosts that are not looked up: `{"shop.test": "127.0.0.1"}`."""
    bind: str | Collection[str] | None
    """Local addresses that connections come from, in turn."""
    proxy: str | None
    """A proxy to go through: "http://host:3128" (CONNECT) or "socks5://user:password@host"."""
    unix_socket: str | None
    """The path of a Unix socket to connect to, whatever the host in the URL."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that connections go through."""

    kind: str  # "http" or "socks5"
    host: str
    port: int
    user: str | None = None
    password: str = ""

    @property
    def parts(self) -> tuple[str, str, int, tuple[str, str] | None]:
        """Kind, host, port, and user and password."""
        credentials = None if self.user is None else (self.user, self.password)
        return self.kind, self.host, self.port, credentials

    def __repr__(self) -> str:
        """Show everything but the user and the password."""
        return f"Proxy({self.kind}://{format_address(self.host, self.port)})"


@dataclass(frozen=True, slots=True)
class Network:
    """The way of connections; the default is the plain way."""

    resolve: tuple[tuple[str, tuple[str, ...]], ...] = ()
    bind: tuple[str, ...] = ()
    proxy: Proxy | None = None
    unix_socket: str | None = None

    def with_options(self, options: Mapping[str, Any], at: Callable[[str], str]) -> Self:
        """Return the network with other options; those that are missing stay as they are.

        `at` says where an option of a name was given. Raises InputError.
        """
        network = replace(
            self,
            **{
                name: read(options[name], where=at(name))
                for name, read in _READERS.items()
                if name in options
            },
        )
        if network.unix_socket is not None and (network.proxy or network.bind):
            other = "proxy" if network.proxy else "bind"
            raise InputError(
                f"{at('unix_socket')}: it excludes {other}",
                hint=f"remove one of them, or write {other}=None in the call",
            )
        return network

    def dialled(self, authority: str) -> str | None:
        """Return the "host:port" that connections to a server go to; None for a Unix socket."""
        if self.unix_socket is not None:
            return None
        if self.proxy is not None:
            authority = format_address(self.proxy.host, self.proxy.port)
        host, _, port = authority.rpartition(":")
        for name, addresses in self.resolve:
            if name.lower() == host.strip("[]").lower():
                return format_address(addresses[0], int(port))
        return authority


def _resolve(value: object, *, where: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    hint = 'write {"shop.test": "127.0.0.1"}'
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: {value!r} is not a dict of hosts and addresses", hint=hint)
    found = []
    for host, given in value.items():
        if not isinstance(host, str) or not host.strip() or "/" in host or ":" in host:
            raise InputError(f"{where}: {host!r} is not the name of a host", hint=hint)
        found.append((host, _addresses(given, where=f"{where}: {host}", hint=hint)))
    return tuple(found)


def _bind(value: object, *, where: str) -> tuple[str, ...]:
    if value is None or (isinstance(value, Collection) and not value):
        return ()
    return _addresses(value, where=where, hint='write ["127.0.0.2", "127.0.0.3"]')


def _addresses(value: object, *, where: str, hint: str) -> tuple[str, ...]:
    """Return one or several IP addresses."""
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, Collection) or isinstance(texts, bytes) or not texts:
        raise InputError(f"{where}: {value!r} is not an address", hint=hint)
    for text in texts:
        try:
            ip_address(text)
        except ValueError:
            raise InputError(f"{where}: {text!r} is not an IP address", hint=hint) from None
    return tuple(texts)


def _proxy(value: object, *, where: str) -> Proxy | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise InputError(f"{where}: {value!r} is not the URL of a proxy", hint=_PROXY_HINT)
    # Messages show nothing of a user and a password.
    scheme, mark, rest = value.partition("://")
    shown = f"{scheme}{mark}{rest.rpartition('@')[2]}"
    try:
        split = urlsplit(value)
    except ValueError as error:
        raise InputError(f"{where}: {shown!r} is not a URL: {error}", hint=_PROXY_HINT) from None
    if split.scheme not in _PROXY_PORTS or not mark:
        raise InputError(
            f"{where}: {shown!r} is neither an HTTP nor a SOCKS5 proxy", hint=_PROXY_HINT
        )
    if split.path not in ("", "/") or split.query or split.fragment:
        raise InputError(f"{where}: {shown!r} has more than a host and a port", hint=_PROXY_HINT)
    place = split.netloc.rpartition("@")[2]
    host, port = parse_address(place, default_port=_PROXY_PORTS[split.scheme], where=where)
    user = None if split.username is None else unquote(split.username)
    password = unquote(split.password or "")
    longest = max(len((user or "").encode()), len(password.encode()))
    if longest > _CREDENTIAL_BYTES_MAX:
        raise InputError(f"{where}: a user or a password has more than 255 bytes")
    return Proxy(split.scheme, host, port, user, password)


def _unix_socket(value: object, *, where: str) -> str | None:
    if value is None:
        return None
    hint = 'write the path of the socket: "/run/app.sock"'
    try:
        path = fspath(value)  # type: ignore[call-overload]  # a TypeError is what is asked for
    except TypeError:
        raise InputError(f"{where}: {value!r} is not a path", hint=hint) from None
    if not isinstance(path, str) or not path or "\0" in path:
        raise InputError(f"{where}: {value!r} is not a path", hint=hint)
    if len(path.encode()) > _PATH_BYTES_MAX:
        raise InputError(f"{where}: {path!r} is longer than {_PATH_BYTES_MAX} bytes")
    return path


_READERS: Mapping[str, Callable[..., Any]] = {
    "resolve": _resolve,
    "bind": _bind,
    "proxy": _proxy,
    "unix_socket": _unix_socket,
}
NETWORK_OPTIONS = tuple(_READERS)
