"""The file that names the clients of a cluster, on managers and gates.

[alice]
role = "submitter"
secret = "..."      # from 'hyperscale secret'; without one, a certificate must prove the name
jobs = 5            # the most that may not have ended
"""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from hyperscale.errors import InputError
from hyperscale.wire.certificate_identity import CertificateIdentity, check_name
from hyperscale.wire.client_access import ClientRole, Principal
from hyperscale.wire.cluster_secret import SECRET_CHARS_MIN, check_private
from hyperscale.wire.roles import Role

CLIENTS_MAX = 256
"""A node tries the secrets of all clients in each handshake."""
CLIENTS_FILE_BYTES_MAX = 1024 * 1024

_Count = Annotated[int, Meta(ge=1, le=1_000_000)]


class _Entry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    role: ClientRole
    secret: str = ""
    jobs: _Count | None = None
    cores: _Count | None = None


class Clients:
    """The named clients of a cluster. `repr` does not show their secrets."""

    def __init__(
        self, principals: Mapping[str, Principal], secrets: Mapping[bytes, Principal]
    ) -> None:
        self._principals = dict(principals)
        self._secrets = dict(secrets)

    @property
    def secrets(self) -> Iterator[tuple[bytes, Principal]]:
        """The secrets of clients, and whom each proves."""
        return iter(self._secrets.items())

    def of_certificate(self, identity: CertificateIdentity) -> Principal | None:
        """Return the client that a certificate names; None if it names none.

        The file can lower the role in a certificate, and has the quotas."""
        if not identity.client:
            return None
        proven = ClientRole.SUBMITTER if identity.client_role is None else identity.client_role
        if identity.client_role is None and Role.OPERATOR in identity.roles:
            proven = ClientRole.OPERATOR
        known = self._principals.get(identity.client)
        if known is None:
            return Principal(name=identity.client, role=proven)
        ranks = list(ClientRole)
        lower = min(proven, known.role, key=ranks.index)
        return msgspec.structs.replace(known, role=lower)

    def __repr__(self) -> str:
        return f"<Clients: {len(self._principals)}>"

    def __reduce__(self) -> str:
        raise TypeError("secrets cannot be pickled")


NO_CLIENTS = Clients({}, {})


def read_clients(path: Path, *, is_lenient: bool = False) -> Clients:
    """Read and check the clients of a file."""
    if not is_lenient:
        check_private(path, "the clients file")
    try:
        with path.open("rb") as file:
            data = file.read(CLIENTS_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InputError(f"the clients file {path} cannot be read: {error.strerror}") from error
    if len(data) > CLIENTS_FILE_BYTES_MAX:
        raise InputError(f"the clients file {path} has more than {CLIENTS_FILE_BYTES_MAX:,} bytes")
    try:
        tables = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"the clients file {path} is not TOML: {error}") from error
    if len(tables) > CLIENTS_MAX:
        raise InputError(f"{path} names {len(tables)} clients, at most {CLIENTS_MAX} are possible")
    principals: dict[str, Principal] = {}
    secrets: dict[bytes, Principal] = {}
    for name, table in tables.items():
        entry = _entry(path, name, table)
        principal = Principal(
            name=name, role=entry.role, jobs_max=entry.jobs or 0, cores_max=entry.cores or 0
        )
        principals[name] = principal
        if entry.secret:
            other = secrets.setdefault(entry.secret.encode(), principal)
            if other is not principal:
                raise InputError(
                    f"{path}: {other.name} and {name} have the same secret",
                    hint="make one for each with 'hyperscale secret'",
                )
    return Clients(principals, secrets)


def _entry(path: Path, name: str, table: object) -> _Entry:
    check_name(name, where=str(path))
    try:
        entry = msgspec.convert(table, _Entry)
    except msgspec.ValidationError as error:
        roles = ", ".join(ClientRole)
        raise InputError(
            f"{path}: [{name}]: {error}",
            hint=f"a client has a role ({roles}) and may have a secret, jobs and cores",
        ) from error
    if entry.secret and len(entry.secret) < SECRET_CHARS_MIN:
        raise InputError(
            f"{path}: the secret of {name} has {len(entry.secret)} characters, at least "
            f"{SECRET_CHARS_MIN} are needed",
            hint="make a strong one with 'hyperscale secret'",
        )
    return entry
