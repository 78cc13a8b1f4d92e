"""The same server over TLS."""

import ssl

import pytest
import trustme

from hyperscale._native import Target
from tests.conftest import RunningTarget
from tests.lab.waiting import until
from tests.target.wire import Wire, request


def trusting(pem: str | None) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=pem)


def test_its_own_certificate_is_trusted_when_given(tls_target: RunningTarget) -> None:
    with Wire(tls_target.port, tls=trusting(tls_target.certificate_pem)) as wire:
        wire.send(request("POST", "/echo?raw", b"secret" * 50_000))
        assert wire.response()[2] == b"secret" * 50_000
        wire.send(request("GET", "/bytes/3000000"))
        assert len(wire.response()[2]) == 3_000_000
        wire.send(request("GET", "/slow/20/3", Connection="close"))
        assert wire.read_to_end().endswith(b"012")
    counts = tls_target.counts()
    assert (counts["total"], counts["tls_failures"]) == (3, 0)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_current_versions_are_spoken(
    tls_target: RunningTarget, version: ssl.TLSVersion
) -> None:
    context = trusting(tls_target.certificate_pem)
    context.minimum_version = context.maximum_version = version
    with Wire(tls_target.port, tls=context) as wire:
        wire.send(request("GET", "/") * 3)
        assert [wire.response()[0] for _ in range(3)] == [200] * 3


def test_its_own_certificate_is_not_trusted_otherwise(tls_target: RunningTarget) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        Wire(tls_target.port, tls=ssl.create_default_context())
    until(lambda: bool(tls_target.counts()["connections"]["silent"] == 0))


def test_plain_http_on_a_tls_port_is_a_failed_handshake(tls_target: RunningTarget) -> None:
    with Wire(tls_target.port) as wire:
        wire.send(request("GET", "/"))
        wire.read_to_end()
    counts = tls_target.counts()
    assert (counts["tls_failures"], counts["total"], counts["malformed"]) == (1, 0, 0)


def test_client_certificates_can_be_demanded() -> None:
    authority = trustme.CA()
    server_identity = authority.issue_cert("127.0.0.1")
    server = Target(
        tls_cert_pem=b"".join(blob.bytes() for blob in server_identity.cert_chain_pems),
        tls_key_pem=server_identity.private_key_pem.bytes(),
        tls_client_ca_pem=authority.cert_pem.bytes(),
    )
    context = ssl.create_default_context()
    authority.configure_trust(context)
    try:
        # TLS 1.3 clients learn of the refusal only when they read.
        with Wire(server.port, tls=context) as wire, pytest.raises((ssl.SSLError, ConnectionError)):
            wire.response()
        authority.issue_cert("client@example.org").configure_cert(context)
        with Wire(server.port, tls=context) as wire:
            wire.send(request("GET", "/"))
            assert wire.response()[0] == 200
    finally:
        server.stop()


@pytest.mark.parametrize(
    "key", [b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
)
def test_a_bad_key_is_a_value_error(target_identity: tuple[str, str], key: bytes) -> None:
    with pytest.raises(ValueError, match="key"):
        Target(tls_cert_pem=target_identity[0].encode(), tls_key_pem=key)
