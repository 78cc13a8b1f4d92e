"""What certificates say, and where nodes may listen."""

import pytest

from hyperscale.errors import InputError
from hyperscale.wire.certificate_identity import (
    CertificateIdentity,
    check_name,
    identity_from_uris,
    uris_of,
)
from hyperscale.wire.errors import PeerProtocolError, RefusalReason
from hyperscale.wire.roles import Role
from hyperscale.wire.security import Security, is_loopback
from tests.lab.peers import secured


def test_an_identity_survives_a_certificate() -> None:
    vouched = CertificateIdentity(
        frozenset({Role.MANAGER, Role.GATE}), "acme", "prod", "eu-1", "m1"
    )
    assert identity_from_uris(uris_of(vouched)) == vouched
    assert "hyperscale://role/gate" in uris_of(vouched)
    assert "hyperscale://dc/eu-1" in uris_of(vouched)


@pytest.mark.parametrize(
    ("uris", "missing"),
    [
        ([], "role"),
        (["hyperscale://role/king", "hyperscale://cluster/c", "hyperscale://env/e"], "role"),
        (["hyperscale://role/worker", "hyperscale://env/e"], "cluster"),
        (["hyperscale://role/worker", "hyperscale://cluster/c"], "env"),
        (["https://role/worker", "spiffe://x"], "role"),
    ],
)
def test_a_certificate_must_say_role_cluster_and_environment(uris: list[str], missing: str) -> None:
    with pytest.raises(PeerProtocolError, match=f"hyperscale://{missing}") as caught:
        identity_from_uris(uris)
    assert caught.value.reason is RefusalReason.IDENTITY


def test_a_certificate_of_two_clusters_is_refused() -> None:
    uris = ["hyperscale://role/worker", "hyperscale://cluster/a", "hyperscale://cluster/b"]
    with pytest.raises(PeerProtocolError, match="2 values of cluster"):
        identity_from_uris([*uris, "hyperscale://env/e"])


def test_names_are_checked_where_they_are_written() -> None:
    assert check_name("eu-1.prod:7", where="--cluster") == "eu-1.prod:7"
    for bad in ("", "-x", "a b", "x" * 65, "ü"):
        with pytest.raises(InputError, match="--cluster"):
            check_name(bad, where="--cluster")


def test_without_secret_and_certificates_a_node_listens_on_loopback_only() -> None:
    nothing = Security()
    for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost"):
        nothing.check_bind(host)
        nothing.check_datagrams(host)
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""):
        with pytest.raises(InputError, match="loopback only"):
            nothing.check_bind(host)
        with pytest.raises(InputError, match="loopback only"):
            nothing.check_datagrams(host)
        secured().check_bind(host)
        secured().check_datagrams(host)


def test_a_scoped_address_may_be_loopback_and_a_name_of_a_domain_is_not() -> None:
    assert is_loopback("::1%lo")
    assert not is_loopback("localhost.example.org")
