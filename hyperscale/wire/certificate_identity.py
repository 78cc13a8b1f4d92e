"""What a certificate vouches for, written as URIs among its subject alternative names.

    hyperscale://role/worker   hyperscale://cluster/acme   hyperscale://env/prod
    hyperscale://dc/eu-1       hyperscale://node/worker-7

Role, cluster and environment are required; datacenter and node bind further where present. This
module reads and compares names; it checks no signature (TLS has done that).
"""

import re
from collections.abc import Iterable

from msgspec import Struct

from hyperscale.errors import InputError
from hyperscale.wire.errors import PeerProtocolError, RefusalReason
from hyperscale.wire.messages import Introduction
from hyperscale.wire.roles import Role

_SCHEME = "hyperscale://"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
NAME_HINT = "1 to 64 letters, digits, '.', '_', ':' or '-', beginning with a letter or digit"


def is_name(text: str) -> bool:
    """Whether `text` can name a cluster, an environment, a datacenter or a node."""
    return _NAME.fullmatch(text) is not None


def check_name(text: str, *, where: str) -> str:
    if not is_name(text):
        raise InputError(f"{where}: {text!r} is not a name", hint=NAME_HINT)
    return text


class CertificateIdentity(Struct, frozen=True):
    """Everything a certificate says about its holder."""

    roles: frozenset[Role]
    cluster: str
    environment: str
    datacenter: str = ""
    node_id: str = ""


def uris_of(vouched: CertificateIdentity) -> list[str]:
    """The subject alternative names that say so."""
    pairs = [
        *(("role", str(role)) for role in sorted(vouched.roles)),
        ("cluster", vouched.cluster),
        ("env", vouched.environment),
        ("dc", vouched.datacenter),
        ("node", vouched.node_id),
    ]
    return [f"{_SCHEME}{key}/{value}" for key, value in pairs if value]


def identity_from_uris(uris: Iterable[str]) -> CertificateIdentity:
    """Reads them back; a certificate that leaves a required one out is refused."""
    said: dict[str, list[str]] = {}
    for uri in uris:
        if uri.startswith(_SCHEME):
            key, _, value = uri.removeprefix(_SCHEME).partition("/")
            said.setdefault(key, []).append(value)
    roles = frozenset(role for role in Role if str(role) in said.get("role", ()))
    single = {}
    for key in ("cluster", "env", "dc", "node"):
        values = said.get(key, [""])
        if len(values) != 1:
            raise _refusal(f"the certificate names {len(values)} values of {key}: {values}")
        single[key] = values[0]
    missing = [key for key in ("cluster", "env") if not single[key]]
    if not roles:
        missing.insert(0, "role")
    if missing:
        raise _refusal(
            f"the certificate has no {' and no '.join(f'{_SCHEME}{key}/...' for key in missing)}",
            hint="make certificates with 'hyperscale certs'",
        )
    return CertificateIdentity(
        roles=roles,
        cluster=single["cluster"],
        environment=single["env"],
        datacenter=single["dc"],
        node_id=single["node"],
    )


def check_identity(peer: Introduction, vouched: CertificateIdentity) -> None:
    """Raises where a peer says it is something its certificate does not say."""
    if peer.role not in vouched.roles:
        named = ", ".join(sorted(vouched.roles))
        raise _refusal(f"the peer says it is a {peer.role}, its certificate says {named}")
    pairs = (
        ("cluster", peer.cluster, vouched.cluster),
        ("environment", peer.environment, vouched.environment),
        ("datacenter", peer.datacenter, vouched.datacenter or peer.datacenter),
        ("node id", peer.node_id, vouched.node_id or peer.node_id),
    )
    for what, said, vouched_for in pairs:
        if said != vouched_for:
            raise _refusal(
                f"the peer says its {what} is {said!r}, its certificate says {vouched_for!r}"
            )


def _refusal(message: str, *, hint: str = "") -> PeerProtocolError:
    return PeerProtocolError(message, reason=RefusalReason.IDENTITY, hint=hint)
