"""How this node proves who it is: certificates, the cluster secret, or nothing (loopback only).

Certificates secure TCP where they are configured, the secret where they are not; UDP always
uses the secret. Contexts are built once, and what is wrong with the files is said then.
"""

import ipaddress
import ssl
from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import Struct

from hyperscale.errors import InputError
from hyperscale.wire.certificate_identity import CertificateIdentity, identity_from_uris
from hyperscale.wire.cluster_secret import Secrets


class SecurityMode(StrEnum):
    """How a TCP connection is secured; both sides must say the same."""

    TLS = "tls"
    SECRET = "secret"  # noqa: S105  a word, not a secret
    NONE = "none"


class TlsFiles(Struct, frozen=True):
    """A node's certificate (with its chain), its key, and the authority it trusts."""

    certificate: Path
    key: Path
    authority: Path
    verify_hostname: bool = True


class TlsContexts:
    """The two contexts made of the files."""

    def __init__(self, files: TlsFiles) -> None:
        self.server = _context(ssl.PROTOCOL_TLS_SERVER, files)
        self.server.verify_mode = ssl.CERT_REQUIRED
        self.client = _context(ssl.PROTOCOL_TLS_CLIENT, files)
        self.client.check_hostname = files.verify_hostname


class Security:
    """What secures this node's connections."""

    def __init__(self, *, secrets: Secrets | None = None, tls: TlsFiles | None = None) -> None:
        self.secrets = secrets
        self.tls = None if tls is None else TlsContexts(tls)
        if self.tls is not None:
            self.mode = SecurityMode.TLS
        else:
            self.mode = SecurityMode.NONE if secrets is None else SecurityMode.SECRET

    def check_bind(self, host: str) -> None:
        """Raises if this node may not listen there."""
        if self.mode is SecurityMode.NONE and not is_loopback(host):
            raise InputError(
                f"without a cluster secret or certificates a node listens on loopback only, "
                f"not on {host}",
                hint="make a secret with 'hyperscale secret', or certificates with "
                "'hyperscale certs'",
            )

    def check_datagrams(self, host: str) -> None:
        """Raises if this node may not send and receive datagrams there."""
        if self.secrets is None and not is_loopback(host):
            raise InputError(
                f"datagrams are always sealed with the cluster secret; without one a node uses "
                f"loopback only, not {host}",
                hint="give every node the secret, also beside certificates: 'hyperscale secret'",
            )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def certificate_identity(certificate: dict[str, Any] | None) -> CertificateIdentity:
    """What the certificate of an established TLS connection vouches for."""
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
