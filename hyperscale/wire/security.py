"""How a process proves its identity: certificates, the cluster secret, or nothing (loopback only).

TCP is secured by certificates if they are configured, else by the secret; UDP always uses the
secret. TLS contexts are built once, which checks the files.
"""

import ipaddress
import ssl
import time
from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import Struct

from hyperscale.config.schema import Hidden, NodeConfig, SecuritySection
from hyperscale.errors import InputError
from hyperscale.wire.certificate_identity import CertificateIdentity, identity_from_uris
from hyperscale.wire.clients_file import NO_CLIENTS, Clients, read_clients
from hyperscale.wire.cluster_secret import Secrets, check_private, read_secret_file
from hyperscale.wire.errors import PeerProtocolError
from hyperscale.wire.roles import Role


class SecurityMode(StrEnum):
    """How a TCP connection is secured; both sides must use the same mode."""

    TLS = "tls"
    SECRET = "secret"  # noqa: S105  a name, not a secret
    NONE = "none"


class TlsFiles(Struct, frozen=True):
    """A node's certificate (with its chain), its key, and the authority it trusts."""

    certificate: Path
    key: Path
    authority: Path
    verify_hostname: bool = True


class TlsContexts:
    """The TLS contexts of both directions."""

    def __init__(self, files: TlsFiles) -> None:
        self.server = _context(ssl.PROTOCOL_TLS_SERVER, files)
        self.server.verify_mode = ssl.CERT_REQUIRED
        self.client = _context(ssl.PROTOCOL_TLS_CLIENT, files)
        self.client.check_hostname = files.verify_hostname
        self._file = files.certificate
        self._certificate = files.certificate.read_bytes()  # the file may be exchanged meanwhile

    def expiry(self) -> str:
        """Return that the certificate of this side is not valid now, in words; empty if it is."""
        # Slow to import, and needed only once peers refuse this side.
        from hyperscale.wire.certificate_check import validity_problem  # noqa: PLC0415

        return validity_problem(self._file, self._certificate)


class Security:
    """The secrets and certificates that secure the connections of this process."""

    def __init__(
        self,
        *,
        secrets: Secrets | None = None,
        tls: TlsFiles | None = None,
        clients: Clients = NO_CLIENTS,
    ) -> None:
        self.secrets = secrets
        self.clients = clients
        self.tls = None if tls is None else TlsContexts(tls)
        if self.tls is not None:
            self.mode = SecurityMode.TLS
        else:
            self.mode = SecurityMode.NONE if secrets is None else SecurityMode.SECRET

    def check_bind(self, host: str) -> None:
        """Raise if this node may not listen on `host`."""
        if self.mode is SecurityMode.NONE and not is_loopback(host):
            raise InputError(
                f"without a cluster secret or certificates a node listens on loopback only, "
                f"not on {host}",
                hint="make a secret with 'hyperscale secret', or certificates with "
                "'hyperscale certs'",
            )

    def check_datagrams(self, host: str) -> None:
        """Raise if this node may not send and receive datagrams on `host`."""
        if self.secrets is None and not is_loopback(host):
            raise InputError(
                f"datagrams are always sealed with the cluster secret; without one a node uses "
                f"loopback only, not {host}",
                hint="give every node the secret, also with certificates: 'hyperscale secret'",
            )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def certificate_identity(certificate: dict[str, Any] | None) -> CertificateIdentity:
    """Return the identity in the certificate of an established TLS connection."""
    names = (certificate or {}).get("subjectAltName", ())
    return identity_from_uris(value for kind, value in names if kind == "URI")


def _context(protocol: int, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    for what, path in (("certificate", files.certificate), ("key", files.key)):
        if not path.is_file():
            raise InputError(
                f"the {what} file {path} does not exist", hint="make them with 'hyperscale certs'"
            )
    try:
        context.load_cert_chain(files.certificate, files.key, password="")
    except (ssl.SSLError, OSError) as error:
        raise InputError(
            f"{files.certificate} and {files.key} are not a certificate and its key: {error}",
            hint="both must be PEM, the key unencrypted",
        ) from error
    try:
        context.load_verify_locations(files.authority)
    except (ssl.SSLError, OSError) as error:
        raise InputError(
            f"the authority file {files.authority} cannot be used: {error}",
            hint="it is the ca.pem that 'hyperscale certs' made",
        ) from error
    return context


def incarnation_now() -> int:
    """Return a new incarnation: the wall clock in milliseconds, which outranks earlier ones."""
    return time.time_ns() // 1_000_000


def security_of(config: NodeConfig) -> Security:
    """Read the secrets and certificates of a client; raise if they are invalid."""
    return _security_of(config)


def security_of_node(config: NodeConfig) -> Security:
    """Read the secrets and certificates of a node, and those of the clients that it knows."""
    security = _security_of(config)
    security.clients = _clients(config.security, security.secrets)
    return security


def _security_of(config: NodeConfig) -> Security:
    section = config.security
    is_lenient = section.insecure_files
    current = _secret(config.secret, section.secret_file, is_lenient=is_lenient)
    previous = _secret(config.previous_secret, section.previous_secret_file, is_lenient=is_lenient)
    secrets = None if current is None else Secrets(current, previous)
    tls = None
    if section.certificate:
        if not is_lenient:
            check_private(Path(section.key), "the key file")
        tls = TlsFiles(
            certificate=Path(section.certificate),
            key=Path(section.key),
            authority=Path(section.authority),
            verify_hostname=section.verify_hostname,
        )
    return Security(secrets=secrets, tls=tls)


def _clients(section: SecuritySection, secrets: Secrets | None) -> Clients:
    """Read the clients file; raise if its secrets could prove nothing."""
    if not section.clients_file:
        return NO_CLIENTS
    path = Path(section.clients_file)
    clients = read_clients(path, is_lenient=section.insecure_files)
    named = [principal.name for _, principal in clients.secrets]
    if section.certificate and named:
        raise InputError(
            f"{path} has a secret of {named[0]}, but this node accepts certificates only",
            hint="remove the secrets, and make certificates with 'hyperscale certs --client'",
        )
    if not section.certificate and secrets is None:
        raise InputError(
            f"{path} names clients, but this node has no secret and no certificate",
            hint="make a secret with 'hyperscale secret', or certificates with 'hyperscale certs'",
        )
    for secret, principal in clients.secrets:
        if secrets is not None and secret in secrets.accepted:
            raise InputError(
                f"{path}: the secret of {principal.name} is the cluster secret",
                hint="make another one with 'hyperscale secret'",
            )
    return clients


def asking_role(config: NodeConfig) -> Role:
    """Return the role of a process that is not a node: operator if it has an operator's certificate
    (operators may do all that clients may), else client."""
    section = config.security
    if not section.certificate:
        return Role.CLIENT
    # Most clients have no certificate, and this import is slow.
    from hyperscale.wire.certificates import read_certificate  # noqa: PLC0415

    file = Path(section.certificate)
    try:
        roles = read_certificate(file.read_bytes()).roles
    except OSError as error:
        raise InputError(
            f"the certificate file {file} cannot be read: {error.strerror or error}"
        ) from error
    except PeerProtocolError as error:
        raise InputError(f"{file}: {error.message}", hint=error.hint) from error
    is_operator = Role.OPERATOR in roles and Role.CLIENT not in roles
    return Role.OPERATOR if is_operator else Role.CLIENT


def _secret(hidden: Hidden | None, file: str, *, is_lenient: bool) -> str | None:
    if hidden is not None:
        return hidden.reveal()
    return read_secret_file(Path(file), is_lenient=is_lenient) if file else None
