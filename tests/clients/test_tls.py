"""HTTPS: certificates are verified unless the user turns that off."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import ip_address
from pathlib import Path
from uuid import uuid4

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hyperscale.clients import RequestError
from hyperscale.testing import HTTPResponse
from tests.conftest import RunningTarget
from tests.lab.clients import Lab, in_lab


@pytest.fixture
def ca_file(tls_target: RunningTarget, tmp_path: Path) -> str:
    path = tmp_path / "ca.pem"
    assert tls_target.certificate_pem is not None
    path.write_text(tls_target.certificate_pem)
    return str(path)


def test_an_unknown_authority_is_refused_by_default(tls_target: RunningTarget) -> None:
    async def work(lab: Lab) -> str:
        with pytest.raises(RequestError) as caught:
            await lab.http.get(f"{tls_target.url}/")
        return caught.value.error

    assert in_lab(work) == "tls"


def test_verify_false_and_a_custom_ca_accept_the_certificate(
    tls_target: RunningTarget, ca_file: str
) -> None:
    async def work(lab: Lab) -> list[HTTPResponse]:
        trusting = await lab.http.get(f"{tls_target.url}/", verify=False)
        return [trusting, await lab.user(1).get(f"{tls_target.url}/", ca=ca_file)]

    trusting, trusted = in_lab(work)
    assert trusting.status == trusted.status == 200
    assert trusted.exchange.tls_version == "TLSv1_3"
    assert trusted.exchange.tls_cipher


def test_large_bodies_are_sent_and_received_over_tls(tls_target: RunningTarget) -> None:
    content = bytes(range(256)) * 4096

    async def work(lab: Lab) -> HTTPResponse:
        return await lab.http.post(f"{tls_target.url}/echo?raw", data=content, verify=False)

    assert in_lab(work).content == content


def test_redirects_stay_within_their_tls_options(tls_target: RunningTarget) -> None:
    async def work(lab: Lab) -> HTTPResponse:
        return await lab.http.get(f"{tls_target.url}/redirect/2", verify=False)

    assert in_lab(work).redirects == 2


def test_plain_http_on_a_tls_port_and_the_reverse_are_errors(
    tls_target: RunningTarget, target: RunningTarget
) -> None:
    async def work(lab: Lab) -> list[RequestError]:
        seen = []
        for url in (f"http://127.0.0.1:{tls_target.port}/", f"https://127.0.0.1:{target.port}/"):
            with pytest.raises(RequestError) as caught:
                await lab.http.get(url, timeout=5)
            seen.append(caught.value)
        return seen

    plain, secure = in_lab(work)
    assert plain.error in {"protocol", "reset"}
    assert secure.error == "tls"
    assert "does not speak TLS" in str(secure)


class _Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def strict_server(tmp_path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Start a server that requires a client certificate; return the files of a client."""
    ca = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    ca.configure_trust(context)
    ca.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    client = ca.issue_cert("client@example.test")
    files = {name: str(tmp_path / f"{name}.pem") for name in ("ca", "cert", "key", "both")}
    ca.cert_pem.write_to_path(files["ca"])
    client.cert_chain_pems[0].write_to_path(files["cert"])
    client.private_key_pem.write_to_path(files["key"])
    client.private_key_and_cert_chain_pem.write_to_path(files["both"])
    server = HTTPServer(("127.0.0.1", 0), _Hello)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port, files
    server.shutdown()
    thread.join()
    server.server_close()


def test_client_certificates_are_accepted(strict_server: tuple[int, dict[str, str]]) -> None:
    port, files = strict_server

    async def work(lab: Lab) -> tuple[str, list[int]]:
        url = f"https://localhost:{port}/"
        with pytest.raises(RequestError) as caught:
            await lab.http.get(url, ca=files["ca"])
        two = await lab.user(1).get(url, ca=files["ca"], cert=files["cert"], key=files["key"])
        one = await lab.user(2).get(url, ca=files["ca"], cert=files["both"])
        return caught.value.error, [two.status, one.status]

    error, statuses = in_lab(work)
    assert error in {"tls", "reset"}
    assert statuses == [200, 200]


def test_the_wrong_name_is_refused(
    strict_server: tuple[int, dict[str, str]], tmp_path: Path
) -> None:
    port, files = strict_server

    async def work(lab: Lab) -> str:
        with pytest.raises(RequestError) as caught:
            await lab.http.get(f"https://127.0.0.2:{port}/", ca=files["ca"], cert=files["both"])
        return caught.value.error

    # Only 127.0.0.1 listens, so the certificate is refused after a connection was.
    assert in_lab(work) in {"tls", "connect"}


def self_signed(tmp_path: Path, *, name: str = "127.0.0.1", days: int = 1) -> Path:
    """Return a file with key and certificate, as `openssl req -x509` makes it: an authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=10))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address(name))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / f"{uuid4().hex}.pem"
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + certificate.public_bytes(pem))
    return path


@contextmanager
def serving(certificate: Path) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = HTTPServer(("127.0.0.1", 0), _Hello)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def outcome(url: str, ca: Path) -> int | str:
    async def work(lab: Lab) -> int | str:
        try:
            return (await lab.http.get(url, ca=str(ca))).status
        except RequestError as error:
            return error.error

    return in_lab(work)


def test_a_self_signed_certificate_given_as_ca_is_trusted_for_its_name_and_time(
    tmp_path: Path,
) -> None:
    right, other = self_signed(tmp_path), self_signed(tmp_path)
    wrong_name = self_signed(tmp_path, name="10.0.0.1")
    expired = self_signed(tmp_path, days=-1)
    with serving(right) as url:
        assert outcome(url, right) == 200
        assert outcome(url, other) == "tls", "another certificate with the same name"
    with serving(wrong_name) as url:
        assert outcome(url, wrong_name) == "tls"
    with serving(expired) as url:
        assert outcome(url, expired) == "tls"
