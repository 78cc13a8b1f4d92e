"""HTTPS: certificates are verified unless the user turns that off."""

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import trustme

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
