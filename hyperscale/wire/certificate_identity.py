"""The identity in a certificate: URIs among its subject alternative names.

    hyperscale://role/worker   hyperscale://cluster/acme   hyperscale://env/prod
    hyperscale://dc/eu-1       hyperscale://node/worker-7   hyperscale://client/alice
    hyperscale://client-role/viewer

Role, cluster and environment are required; the others are optional. This module compares
names and checks no signature: TLS has done that.
"""

import re
from collections.abc import Iterable

from msgspec import Struct

from hyperscale.errors import InputError
from hyperscale.wire.client_access import ClientRole
from hyperscale.wire.errors import PeerProtocolError, RefusalReason
from hyperscale.wire.messages import Introduction
from hyperscale.wire.roles import Role

_SCHEME = "hyperscale://"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
NAME_HINT = "1 to 64 letters, digits, '.', '_', ':' or '-', beginning with a letter or digit"


def is_name(text: str) -> bool:
    """Return True if `text` can name a cluster, an environment, a datacenter or a node."""
    return _NAME.fullmatch(text) is not None


def check_name(text: str, *, where: str) -> str:
    if not is_name(text):
        raise InputError(f"{where}: {text!r} is not a name", hint=NAME_HINT)
    return text


class CertificateIdentity(Struct, frozen=True):
    """The roles and names that a certificate proves."""

    roles: frozenset[Role]
    cluster: str
    environment: str
    datacenter: str = ""
    node_id: str = ""
    client: str = ""
    """The name of a client or an operator."""
    client_role: ClientRole | None = None


def uris_of(identity: CertificateIdentity) -> list[str]:
    """Return the subject alternative names of an identity."""
    pairs = [
        *(("role", str(role)) for role in sorted(identity.roles)),
        ("cluster", identity.cluster),
        ("env", identity.environment),
        ("dc", identity.datacenter),
        ("node", identity.node_id),
        ("client", identity.client),
        ("client-role", str(identity.client_role or "")),
    ]
    return [f"{_SCHEME}{key}/{value}" for key, value in pairs if value]


def identity_from_uris(uris: Iterable[str]) -> CertificateIdentity:
    """Return the identity in subject alternative names; raise if it is incomplete."""
    found: dict[str, list[str]] = {}
    for uri in uris:
        if uri.startswith(_SCHEME):
            key, _, value = uri.removeprefix(_SCHEME).partition("/")
            found.setdefault(key, []).append(value)
    roles = frozenset(role for role in Role if str(role) in found.get("role", ()))
    single = {}
    for key in ("cluster", "env", "dc", "node", "client", "client-role"):
        values = found.get(key, [""])
        if len(values) != 1:
            raise _refusal(f"the certificate names {len(values)} values of {key}: {values}")
        single[key] = values[0]
    required = {"role": roles, "cluster": single["cluster"], "env": single["env"]}
    missing = [f"{_SCHEME}{key}/..." for key, value in required.items() if not value]
    if missing:
        raise _refusal(
            f"the certificate has no {' and no '.join(missing)}",
            hint="make certificates with 'hyperscale certs'",
        )
    client_role = single.pop("client-role")
    if client_role and client_role not in set(ClientRole):
        raise _refusal(f"the certificate names {client_role!r}, which is no role of clients")
    return CertificateIdentity(
        roles=roles,
        cluster=single["cluster"],
        environment=single["env"],
        datacenter=single["dc"],
        node_id=single["node"],
        client=single["client"],
        client_role=ClientRole(client_role) if client_role else None,
    )


def check_identity(peer: Introduction, identity: CertificateIdentity) -> None:
    """Raise if the introduction of a peer differs from the identity in its certificate."""
    if peer.role not in identity.roles:
        named = ", ".join(sorted(identity.roles))
        raise _refusal(f"the peer says it is a {peer.role}, its certificate says {named}")
    for what, claimed, proven in (
        ("cluster", peer.cluster, identity.cluster),
        ("environment", peer.environment, identity.environment),
        ("datacenter", peer.datacenter, identity.datacenter or peer.datacenter),
        ("node id", peer.node_id, identity.node_id or peer.node_id),
    ):
        if claimed != proven:
            raise _refusal(
                f"the peer says its {what} is {claimed!r}, its certificate says {proven!r}"
            )


def _refusal(message: str, *, hint: str = "") -> PeerProtocolError:
    return PeerProtocolError(message, RefusalReason.IDENTITY, hint=hint)
