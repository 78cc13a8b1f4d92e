"""Making certificates, for people without an authority of their own, and reading them.

An authority that signs certificates and nothing else, and leaf certificates that say role,
cluster and environment in their subject alternative names. Keys are P-256. Nothing here is
needed by a running node.
"""

import datetime
import ipaddress
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from hyperscale.errors import InputError
from hyperscale.wire.certificate_identity import CertificateIdentity, identity_from_uris, uris_of

_SKEW = datetime.timedelta(minutes=10)  # a node whose clock is a little behind still accepts it
_NOTHING_SIGNED = {
    "content_commitment": False,
    "data_encipherment": False,
    "key_agreement": False,
    "key_encipherment": False,
    "encipher_only": False,
    "decipher_only": False,
}


class CertificateAndKey(Struct, frozen=True):
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes


def make_authority(
    cluster: str, *, days: int, now: datetime.datetime | None = None
) -> CertificateAndKey:
    """A self-signed authority for one cluster."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"Hyperscale authority of {cluster}")
    begins, ends = _validity(now, days)
    usage = x509.KeyUsage(
        digital_signature=False, key_cert_sign=True, crl_sign=True, **_NOTHING_SIGNED
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, SHA256())
    )
    return _made(certificate, key)


def make_certificate(
    authority: CertificateAndKey,
    vouched: CertificateIdentity,
    *,
    name: str,
    hosts: Sequence[str] = (),
    days: int,
    now: datetime.datetime | None = None,
) -> CertificateAndKey:
    """A certificate signed by `authority` that vouches for role, cluster and environment."""
    issuer, issuer_key = _load(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [_host(host) for host in hosts]
    names += [x509.UniformResourceIdentifier(uri) for uri in uris_of(vouched)]
    begins, ends = _validity(now, days)
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=False, crl_sign=False, **_NOTHING_SIGNED
    )
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(min(ends, issuer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .sign(issuer_key, SHA256())
    )
    return _made(certificate, key)


def read_certificate(pem: bytes) -> CertificateIdentity:
    """What a certificate of one's own says: the first of the file, which is not the chain's."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return identity_from_uris([])
    except ValueError as error:
        raise InputError(f"the certificate cannot be read: {error}") from error
    return identity_from_uris(names.get_values_for_type(x509.UniformResourceIdentifier))


def _load(authority: CertificateAndKey) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate(authority.certificate)
        key = load_pem_private_key(authority.key, password=None)
    except (ValueError, TypeError) as error:
        raise InputError(f"the authority's files cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(
            "the authority's key is not an elliptic curve key",
            hint="use an authority made by 'hyperscale certs'",
        )
    if certificate.public_key() != key.public_key():
        raise InputError("the authority's certificate and key do not belong together")
    return certificate, key


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _validity(
    now: datetime.datetime | None, days: int
) -> tuple[datetime.datetime, datetime.datetime]:
    moment = now or datetime.datetime.now(datetime.UTC)
    return moment - _SKEW, moment + datetime.timedelta(days=days)


def _made(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> CertificateAndKey:
    return CertificateAndKey(
        certificate=certificate.public_bytes(Encoding.PEM),
        key=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
