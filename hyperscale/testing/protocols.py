"""The protocols that a library speaks for us: their URLs, and the extra that installs the library.

A row here and a module of the same name in `hyperscale.clients` add a client. The core installs no
library; a client imports its own when it is first used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

from hyperscale.errors import InputError


@dataclass(frozen=True, slots=True)
class Protocol:
    """A client under `self.client` that uses a library."""

    name: str  # under `self.client`, and of the module in `hyperscale.clients`
    library: str  # the package to import
    extra: str  # `pip install 'hyperscale[extra]'`
    ports: Mapping[str, int]  # scheme of a URL -> default port
    example: str  # a URL, for hints

    @property
    def install(self) -> str:
        """The command that installs the library."""
        return f"pip install 'hyperscale[{self.extra}]'"


NATIVE_PROTOCOLS = ("http", "http2", "http3", "grpc")
"""Clients that the engine itself serves. Their steps can be static."""

PROTOCOLS: Mapping[str, Protocol] = MappingProxyType(
    {
        row.name: row
        for row in (
            Protocol(
                "postgres",
                "asyncpg",
                "postgres",
                {"postgres": 5432, "postgresql": 5432},
                "postgresql://user:password@host/database",
            ),
            Protocol(
                "redis",
                "redis",
                "redis",
                {"redis": 6379, "rediss": 6379},
                "redis://host:6379/0",
            ),
            Protocol(
                "mysql",
                "asyncmy",
                "mysql",
                {"mysql": 3306, "mariadb": 3306},
                "mysql://user:password@host/database",
            ),
            Protocol(
                "mongodb",
                "pymongo",
                "mongodb",
                {"mongodb": 27017, "mongodb+srv": 27017},
                "mongodb://user:password@host/database",
            ),
            Protocol(
                "kafka",
                "aiokafka",
                "kafka",
                {"kafka": 9092, "kafkas": 9092},
                "kafka://host:9092",
            ),
            Protocol(
                "rabbitmq",
                "aio_pika",
                "rabbitmq",
                {"amqp": 5672, "amqps": 5671},
                "amqp://user:password@host/",
            ),
            Protocol(
                "mqtt",
                "aiomqtt",
                "mqtt",
                {"mqtt": 1883, "mqtts": 8883},
                "mqtt://user:password@host:1883",
            ),
            Protocol(
                "smtp",
                "aiosmtplib",
                "smtp",
                {"smtp": 25, "smtps": 465},
                "smtp://user:password@host:25",
            ),
            Protocol(
                "ftp",
                "aioftp",
                "ftp",
                {"ftp": 21, "ftps": 990},
                "ftp://user:password@host/directory",
            ),
            Protocol(
                "sftp", "asyncssh", "ssh", {"sftp": 22}, "sftp://user:password@host/directory"
            ),
            Protocol(
                "browser",
                "playwright",
                "browser",
                {"http": 80, "https": 443},
                "https://shop.test/",
            ),
            Protocol("scp", "asyncssh", "ssh", {"scp": 22}, "scp://user:password@host/directory"),
        )
    }
)


def protocol_of(scheme: str) -> Protocol | None:
    """Return the protocol whose URLs have this scheme; None for those of HTTP."""
    if scheme in ("http", "https"):  # of the browser as well, which is asked for by name
        return None
    return next((row for row in PROTOCOLS.values() if scheme in row.ports), None)


@dataclass(frozen=True, slots=True)
class ServiceUrl:
    """The parts of a URL that names a server: `scheme://user:password@host:port/path?query`."""

    url: str
    scheme: str
    hosts: tuple[tuple[str, int], ...]  # clusters may name several, separated by commas
    user: str | None
    password: str | None
    path: str  # decoded, without the leading slash
    query: str

    @property
    def host(self) -> str:
        return self.hosts[0][0]

    @property
    def port(self) -> int:
        return self.hosts[0][1]

    @property
    def shown(self) -> str:
        """The URL without its password and its query, which may have another."""
        where, _, _ = self.url.partition("?")
        if self.password is None:
            return where
        scheme, _, rest = where.partition("://")
        credentials, _, place = rest.rpartition("@")
        return f"{scheme}://{credentials.partition(':')[0]}:***@{place}"


def split_service_url(value: str, protocol: Protocol) -> ServiceUrl:
    """Return the parts of a URL of this protocol. Raises InputError; messages show no password."""
    hint = f'write a URL such as "{protocol.example}"'
    what = f"{protocol.name}: the URL"
    if not isinstance(value, str):
        raise InputError(f"{what} is a {type(value).__name__}, not a text", hint=hint)
    if any(character.isspace() or ord(character) < 0x20 for character in value):
        raise InputError(f"{what} has a blank or control character", hint=hint)
    parts = urlsplit(value)
    if parts.scheme not in protocol.ports:
        scheme = f"scheme {parts.scheme!r}" if "://" in value else "no scheme"
        raise InputError(
            f"{what} has {scheme}; {protocol.name} takes {' or '.join(protocol.ports)}", hint=hint
        )
    credentials, _, places = parts.netloc.rpartition("@")
    user, colon, password = credentials.partition(":")
    default = protocol.ports[parts.scheme]
    return ServiceUrl(
        url=value,
        scheme=parts.scheme,
        hosts=tuple(_host_and_port(place, default, what, hint) for place in places.split(",")),
        user=unquote(user) if user else None,
        password=unquote(password) if colon else None,
        path=unquote(parts.path.removeprefix("/")),
        query=parts.query,
    )


def _host_and_port(place: str, default: int, what: str, hint: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{place}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InputError(f"{what} is wrong: {error}", hint=hint) from None
    if not host:
        raise InputError(f"{what} has no host", hint=hint)
    if port == 0:
        raise InputError(f"{what} has port 0, which cannot be reached", hint=hint)
    return host, default if port is None else port
