"""What is wrong with the certificate of a node, found before a peer refuses it.

Checks what peers check in a handshake, and how long the certificate is valid. Importing this takes
a tenth of a second: nodes without certificates do not.
"""

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from hyperscale.config.schema import NodeConfig
from hyperscale.errors import InputError
from hyperscale.wire.certificates import read_certificate
from hyperscale.wire.errors import PeerProtocolError

_NEW_HINT = "make a new one with 'hyperscale certs'"
_CLOCK_HINT = "check the clock of this machine"


class CertificateCheck:
    """The certificate of a node and the authority that it trusts, as files say now."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._path = Path(config.security.certificate)
        self._certificate = _load(self._path, "certificate")
        self._authority = _load(Path(config.security.authority), "authority")

    @property
    def expires_at(self) -> datetime.datetime:
        return self._certificate.not_valid_after_utc

    def problems(self, now: datetime.datetime) -> list[InputError]:
        """Return every reason why other nodes would refuse the certificate."""
        return [*self._invalid(now), *self._unsigned(), *self._misnamed()]

    def _invalid(self, now: datetime.datetime) -> list[InputError]:
        problem = _validity_problem(self._path, self._certificate, now)
        hint = _CLOCK_HINT if now < self._certificate.not_valid_before_utc else _NEW_HINT
        return [InputError(problem, hint=hint)] if problem else []

    def _unsigned(self) -> list[InputError]:
        try:
            self._certificate.verify_directly_issued_by(self._authority)
        except (InvalidSignature, ValueError, TypeError):
            authority = self._config.security.authority
            # A chain of intermediate certificates is left to TLS.
            if self._path.read_bytes().count(b"BEGIN CERTIFICATE") > 1:
                return []
            return [
                InputError(
                    f"{self._path} is not signed by the authority {authority}",
                    hint="security.authority must be the ca.pem that the certificate was made with",
                )
            ]
        return []

    def _misnamed(self) -> list[InputError]:
        try:
            identity = read_certificate(self._path.read_bytes())
        except PeerProtocolError as error:
            return [InputError(f"{self._path}: {error.message}", hint=error.hint)]
        node, role = self._config.node, self._config.role
        found = []
        if role not in identity.roles:
            named = ", ".join(sorted(identity.roles))
            found.append(f"is for the role {named}, this node is a {role}")
        for what, configured, proven in (
            ("cluster", node.cluster, identity.cluster),
            ("environment", node.environment, identity.environment),
            ("datacenter", node.datacenter, identity.datacenter),
            ("node", node.id, identity.node_id),
        ):
            if configured and proven and configured != proven:
                found.append(f"is for the {what} {proven!r}, this node has {configured!r}")
        return [InputError(f"{self._path} {text}", hint=_NEW_HINT) for text in found]


def validity_problem(path: Path, certificate: bytes) -> str:
    """Return that a certificate (PEM), read from `path`, is not valid now; empty if it is."""
    now = datetime.datetime.now(datetime.UTC)
    return _validity_problem(path, x509.load_pem_x509_certificate(certificate), now)


def _validity_problem(path: Path, certificate: x509.Certificate, now: datetime.datetime) -> str:
    begins_at, expires_at = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins_at:
        return f"{path} is not valid before {begins_at:%Y-%m-%d %H:%M} UTC"
    if now >= expires_at:
        return f"{path} expired on {expires_at:%Y-%m-%d %H:%M} UTC"
    return ""


def _load(path: Path, what: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise InputError(f"the {what} file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"the {what} file {path} holds no certificate: {error}") from error
