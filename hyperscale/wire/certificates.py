"""Creating and reading certificates, for clusters without a certificate authority of their own.

The authority signs certificates and nothing else; the certificates of nodes name role, cluster and
environment among their subject alternative names. Keys are P-256. Running nodes do not use this
module.
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


class CertificateAndKey(Struct, frozen=True):
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes


def make_authority(
    cluster: str, *, days: int, now: datetime.datetime | None = None
) -> CertificateAndKey:
    """Create a self-signed authority for one cluster."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"Hyperscale authority of {cluster}")
    begins, ends = _validity(now, days)
    builder = _builder(key, name, is_authority=True)
    builder = builder.issuer_name(name).not_valid_before(begins).not_valid_after(ends)
    return _signed(builder, key, key)


def make_certificate(
    authority: CertificateAndKey,
    identity: CertificateIdentity,
    *,
    name: str,
    hosts: Sequence[str] = (),
    days: int,
    now: datetime.datetime | None = None,
) -> CertificateAndKey:
    """Create a certificate, signed by `authority`, for an identity and its hosts."""
    issuer, issuer_key = _load(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [_host(host) for host in hosts]
    names += [x509.UniformResourceIdentifier(uri) for uri in uris_of(identity)]
    begins, ends = _validity(now, days)
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    builder = (
        _builder(key, _name(name), is_authority=False)
        .issuer_name(issuer.subject)
        .not_valid_before(begins)
        .not_valid_after(min(ends, issuer.not_valid_after_utc))
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(issuer_id, critical=False)
    )
    return _signed(builder, key, issuer_key)


def read_certificate(pem: bytes) -> CertificateIdentity:
    """Return the identity in the first certificate of a file; its chain may follow."""
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
        raise InputError(f"the files of the authority cannot be read: {error}") from error
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


def _builder(
    key: ec.EllipticCurvePrivateKey, subject: x509.Name, *, is_authority: bool
) -> x509.CertificateBuilder:
    constraints = x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None)
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        key_encipherment=False,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(constraints, critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _signed(
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
) -> CertificateAndKey:
    return CertificateAndKey(
        certificate=builder.sign(issuer_key, SHA256()).public_bytes(Encoding.PEM),
        key=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
