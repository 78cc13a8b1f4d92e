"""What a process introduces itself with: version, incarnation, role, secrets and certificates."""

import time
from importlib.metadata import version
from pathlib import Path

from hyperscale.config.schema import Hidden, NodeConfig
from hyperscale.errors import InputError
from hyperscale.wire.cluster_secret import Secrets, read_secret_file
from hyperscale.wire.errors import PeerProtocolError
from hyperscale.wire.roles import Role
from hyperscale.wire.security import Security, TlsFiles

VERSION = version("hyperscale")


def incarnation_now() -> int:
    """This life of a node: the wall clock in milliseconds, so that it outranks all earlier ones."""
    return time.time_ns() // 1_000_000


def security_of(config: NodeConfig) -> Security:
    """Reads secrets and certificates; raises what is wrong with them."""
    section = config.security
    current = _secret(config.secret, section.secret_file)
    previous = _secret(config.previous_secret, section.previous_secret_file)
    found = None if current is None else Secrets(current, previous)
    tls = None
    if section.certificate:
        tls = TlsFiles(
            certificate=Path(section.certificate),
            key=Path(section.key),
            authority=Path(section.authority),
            verify_hostname=section.verify_hostname,
        )
    return Security(secrets=found, tls=tls)


def asking_role(config: NodeConfig) -> Role:
    """Return the role of a process that is not a node: operator if it has an operator's certificate
    (operators may do all that clients may), else client."""
    section = config.security
    if not section.certificate:
        return Role.CLIENT
    # Most clients have no certificate, and this takes longer than the rest of them.
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


def _secret(hidden: Hidden | None, file: str) -> str | None:
    if hidden is not None:
        return hidden.reveal()
    return read_secret_file(Path(file)) if file else None
