"""The HTTP/2 client: against the built-in target, nginx, and servers that misbehave."""

import asyncio
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hyperscale.clients import RequestError
from hyperscale.errors import InputError
from hyperscale.testing import HTTP2Response, HTTPResponse
from tests.conftest import RunningTarget
from tests.lab.clients import Lab, in_lab
from tests.lab.command import results, run
from tests.lab.ports import free_port
from tests.lab.waiting import until


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_every_method_arrives_over_http2(target: RunningTarget, method: str) -> None:
    async def work(lab: Lab) -> HTTP2Response:
        return await lab.http2.request(method, f"{target.url}/echo", headers={"X-One": "1"})

    response = in_lab(work)
    echoed = response.json()
    assert type(response) is HTTP2Response
    assert (response.status, response.version) == (200, "HTTP/2")
    assert (echoed["method"], echoed["version"]) == (method, "HTTP/2")
    assert ["x-one", "1"] in echoed["headers"]
    assert response.phases.first_byte_s


def test_bodies_of_any_size_go_both_ways(target: RunningTarget) -> None:
    content = bytes(range(256)) * 12_000

    async def work(lab: Lab) -> list[HTTPResponse]:
        url = f"{target.url}/echo?raw"
        return [
            await lab.http2.post(url, data=content),
            await lab.http2.post(url, data=iter([b"ab", b"cd"])),
            await lab.http2.get(f"{target.url}/bytes/20000000"),
            await lab.http2.head(f"{target.url}/bytes/500"),
        ]

    echoed, chunks, large, head = in_lab(work)
    assert echoed.content == content
    assert chunks.content == b"abcd"
    assert len(large.content) == 20_000_000
    assert (head.content, head.headers["content-length"]) == (b"", "500")


@pytest.mark.parametrize(("streams", "connections"), [(100, 1), (5, 2)])
def test_requests_made_together_share_a_connection_up_to_the_limit_of_streams(
    target: RunningTarget, streams: int, connections: int
) -> None:
    async def work(lab: Lab) -> None:
        await lab.http2.get(f"{target.url}/")
        calls = [lab.http2.get(f"{target.url}/delay/100") for _ in range(10)]
        await asyncio.gather(*calls)

    in_lab(work, streams=streams)
    assert target.counts()["connections"]["total"] == connections


def test_users_share_connections_if_asked_to(target: RunningTarget) -> None:
    async def work(lab: Lab) -> None:
        users = [lab.hub.client(number).http2 for number in range(20)]
        await users[0].get(f"{target.url}/")
        await asyncio.gather(*(user.get(f"{target.url}/delay/100") for user in users))

    in_lab(work, connections="shared", streams=10)
    assert target.counts()["connections"]["total"] == 2


def test_redirects_cookies_and_encodings_work_as_over_http1(target: RunningTarget) -> None:
    async def work(lab: Lab) -> list[HTTPResponse]:
        return [
            await lab.http2.get(f"{target.url}/redirect/3"),
            await lab.http2.get(f"{target.url}/cookies/set?a=1"),
            await lab.http2.get(f"{target.url}/cookies", cookies={"b": "2"}),
            await lab.http2.get(f"{target.url}/gzip"),
            await lab.http2.get(f"{target.url}/status/503"),
        ]

    redirected, _, cookies, encoded, unavailable = in_lab(work)
    assert (redirected.status, redirected.redirects) == (200, 3)
    assert cookies.json() == {"cookies": {"b": "2", "a": "1"}}
    assert json.loads(encoded.content)
    assert (unavailable.status, unavailable.ok) == (503, False)


def test_a_timeout_ends_its_stream_and_spares_the_connection(target: RunningTarget) -> None:
    async def work(lab: Lab) -> str:
        await lab.http2.get(f"{target.url}/")
        slow = asyncio.ensure_future(lab.http2.get(f"{target.url}/delay/300"))
        with pytest.raises(RequestError) as caught:
            await lab.http2.get(f"{target.url}/delay/20000", timeout="100ms")
        assert (await slow).status == 200
        return caught.value.error

    assert in_lab(work) == "timeout"
    assert target.counts()["connections"]["total"] == 1


def test_a_stream_reset_by_the_server_is_a_failure_by_its_code(target: RunningTarget) -> None:
    async def work(lab: Lab) -> RequestError:
        with pytest.raises(RequestError) as caught:
            await lab.http2.get(f"{target.url}/reset")
        assert (await lab.http2.get(f"{target.url}/")).status == 200
        return caught.value

    error = in_lab(work)
    assert error.error == "reset"
    assert "INTERNAL_ERROR" in str(error)


def test_a_server_that_goes_away_is_followed_by_a_new_connection(target: RunningTarget) -> None:
    async def work(lab: Lab) -> list[int]:
        return [(await lab.http2.get(f"{target.url}/close")).status for _ in range(3)]

    assert in_lab(work) == [200, 200, 200]
    assert target.counts()["connections"]["total"] == 3


def test_tls_servers_are_asked_for_http2_by_alpn(tls_target: RunningTarget) -> None:
    async def work(lab: Lab) -> list[str]:
        url = f"{tls_target.url}/"
        calls = [
            lab.http2.get(url, verify=False),
            lab.http.get(url, verify=False),
            lab.http.get(url, verify=False, version="auto"),
            lab.http.get(url, verify=False, version=2),
            lab.http.get(url, verify=False, version=1.1),
        ]
        return [(await call).version for call in calls]

    assert in_lab(work) == ["HTTP/2", "HTTP/1.1", "HTTP/2", "HTTP/2", "HTTP/1.1"]


def test_plain_text_with_version_auto_is_http1(target: RunningTarget) -> None:
    async def work(lab: Lab) -> str:
        return (await lab.http.get(f"{target.url}/", version="auto")).version

    assert in_lab(work) == "HTTP/1.1"


@pytest.mark.parametrize("version", [4, "2.1", "http2", True])
def test_an_impossible_version_is_refused_with_a_hint(
    target: RunningTarget, version: object
) -> None:
    async def work(lab: Lab) -> None:
        await lab.http.get(f"{target.url}/", version=version)  # type: ignore[typeddict-item]

    with pytest.raises(InputError, match="is not possible"):
        in_lab(work)


# --- nginx -------------------------------------------------------------------------------

_NGINX = """\
daemon off;
master_process off;
pid {directory}/nginx.pid;
error_log {directory}/error.log;
events {{ worker_connections 256; }}
http {{
    log_format requests '$server_protocol $request_method $status';
    access_log {directory}/access.log requests;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    keepalive_requests 50;
    ssl_certificate {directory}/cert.pem;
    ssl_certificate_key {directory}/key.pem;
    server {{
        listen 127.0.0.1:{port} http2;
        listen 127.0.0.1:{tls_port} ssl http2;
        location / {{ return 200 "ok"; }}
        location /body {{ client_max_body_size 10m; return 200 "taken"; }}
    }}
}}
"""


class Nginx:
    def __init__(self, directory: Path, identity: tuple[str, str]) -> None:
        self.directory = directory
        port, tls_port = free_port(), free_port()
        self.url, self.tls_url = f"http://127.0.0.1:{port}", f"https://127.0.0.1:{tls_port}"
        (directory / "cert.pem").write_text(identity[0])
        (directory / "key.pem").write_text(identity[1])
        config = _NGINX.format(directory=directory, port=port, tls_port=tls_port)
        (directory / "nginx.conf").write_text(config)
        self.process = subprocess.Popen(
            ["/usr/sbin/nginx", "-p", str(directory), "-c", "nginx.conf"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until((directory / "nginx.pid").exists, what="nginx has started")

    def log(self) -> list[str]:
        """Stop the server, so that its log is complete, and return the lines."""
        self.process.terminate()
        self.process.wait(20)
        return (self.directory / "access.log").read_text().splitlines()


@pytest.fixture
def nginx(tmp_path: Path, target_identity: tuple[str, str]) -> Iterator[Nginx]:
    server = Nginx(tmp_path, target_identity)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def test_nginx_logs_what_was_sent_although_it_ends_connections(nginx: Nginx) -> None:
    """It sends GOAWAY after 50 requests; what it did not process is sent again."""

    async def work(lab: Lab) -> tuple[list[int], int]:
        async def loop(url: str) -> list[int]:
            calls = [lab.http2.get(url, verify=False) for _ in range(20)]
            return [response.status for response in await asyncio.gather(*calls)]

        seen = []
        for _ in range(8):
            seen += await loop(f"{nginx.url}/")
            seen += await loop(f"{nginx.tls_url}/")
        posted = await lab.http2.post(f"{nginx.url}/body", data=b"x" * 1_000_000)
        return [*seen, posted.status], lab.sent

    statuses, sent = in_lab(work)
    lines = nginx.log()
    assert statuses == [200] * 321
    assert len(lines) == 321
    assert set(lines) == {"HTTP/2.0 GET 200", "HTTP/2.0 POST 200"}
    # A request that the server refused unseen was handed to the kernel all the same.
    assert sent >= 321


# --- servers that misbehave --------------------------------------------------------------

_SETTINGS = bytes.fromhex("000000 04 00 00000000")


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
    )


_OK = frame(1, 4, 1, b"\x88")  # :status 200
_MISBEHAVIOURS: dict[str, tuple[bytes, str]] = {
    "http1": (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "protocol"),
    "garbage": (b"\xff" * 100, "protocol"),
    "no settings": (_OK, "protocol"),
    "closes at once": (b"", "reset"),
    "closes in the head": (_SETTINGS + _OK[:10], "reset"),
    "closes in the body": (_SETTINGS + _OK + frame(0, 0, 1, b"half"), "reset"),
    "ping flood": (_SETTINGS + frame(6, 0, 0, bytes(8)) * 5000, "protocol"),
    "settings flood": (_SETTINGS * 5000, "protocol"),
    "empty data flood": (_SETTINGS + _OK + frame(0, 0, 1) * 5000, "protocol"),
    "continuation flood": (_SETTINGS + frame(1, 0, 1) + frame(9, 0, 1) * 5000, "too_large"),
    "endless head": (_SETTINGS + frame(1, 0, 1) + frame(9, 0, 1, bytes(16384)) * 20, "too_large"),
    "header bomb": (
        _SETTINGS + frame(1, 4, 1, b"\x88\x40\x01a\x7f\xa1\x1e" + b"x" * 4000 + b"\xbe" * 10_000),
        "too_large",
    ),
    "push": (_SETTINGS + frame(5, 4, 1, b"\0\0\0\2\x82"), "protocol"),
    "unknown stream": (_SETTINGS + frame(1, 5, 99, b"\x88"), "protocol"),
    "body before head": (_SETTINGS + frame(0, 1, 1, b"x"), "protocol"),
    "broken compression": (_SETTINGS + frame(1, 5, 1, b"\xff\xff\xff\xff\xff\x7f"), "protocol"),
    "no status": (_SETTINGS + frame(1, 5, 1, b"\x0f\x27\x01x"), "protocol"),
    "too large a frame": (_SETTINGS + _OK + b"\xff\xff\xff\0\0\0\0\0\1", "protocol"),
    "window overflow": (_SETTINGS + frame(8, 0, 0, b"\x7f\xff\xff\xff") * 2, "protocol"),
    "zero window": (_SETTINGS + frame(8, 0, 0, bytes(4)), "protocol"),
    "wrong length": (
        _SETTINGS + frame(1, 4, 1, b"\x88\x0f\x0d\x019") + frame(0, 1, 1, b"x"),
        "protocol",
    ),
    "reset": (_SETTINGS + frame(3, 0, 1, b"\0\0\0\2"), "reset"),
    "goaway with error": (_SETTINGS + frame(7, 0, 0, bytes(7) + b"\2"), "reset"),
    "refused for ever": (_SETTINGS + frame(3, 0, 1, b"\0\0\0\7"), "reset"),
}


async def _serve(script: bytes) -> tuple[asyncio.Server, str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(24)  # the preface, after which the client has sent its request too
        writer.write(script)
        try:
            await writer.drain()
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    return server, f"http://{host}:{port}/"


@pytest.mark.parametrize("name", _MISBEHAVIOURS)
def test_a_server_that_misbehaves_ends_in_a_classified_error(name: str) -> None:
    script, expected = _MISBEHAVIOURS[name]

    async def work(lab: Lab) -> str:
        server, url = await _serve(script)
        async with server:
            with pytest.raises(RequestError) as caught:
                await lab.http2.post(url, timeout=10)
        return caught.value.error

    assert in_lab(work) == expected


def test_a_silent_server_times_out() -> None:
    async def work(lab: Lab) -> str:
        with (
            socket.create_server(("127.0.0.1", 0)) as silent,
            pytest.raises(RequestError) as caught,
        ):
            await lab.http2.get(f"http://127.0.0.1:{silent.getsockname()[1]}/", timeout="200ms")
        return caught.value.error

    assert in_lab(work) == "timeout"


# --- runs --------------------------------------------------------------------------------

_WORKFLOW = """\
from hyperscale import Workflow, step
from hyperscale.testing import URL, GRPCResponse, HTTP2Response, Protobuf


class Both(Workflow):
    vus = 20
    duration = "1s"
    streams = 5
    connections = "shared"

    @step()
    async def page(self, url: URL = "{url}/") -> HTTP2Response:
        return await self.client.http2.get(url)

    @step()
    async def call(
        self, url: URL = "{url}", message: Protobuf = b"\\x0a\\x05hello"
    ) -> GRPCResponse:
        return await self.client.grpc.unary(url, "hyperscale.Echo/Unary", message)

    @step()
    async def missing(self, url: URL = "{url}", message: Protobuf = b"\\x28\\x05") -> GRPCResponse:
        return await self.client.grpc.unary(url, "hyperscale.Echo/Unary", message)
"""


@pytest.mark.parametrize("flags", [(), ("--no-compile",)], ids=["native", "python"])
def test_a_run_counts_what_the_target_received(
    tmp_path: Path, target: RunningTarget, flags: tuple[str, ...]
) -> None:
    (tmp_path / "both.py").write_text(_WORKFLOW.format(url=target.url))
    done = run("run", "both.py", *flags, "--json", "r.json", cwd=tmp_path)
    assert done.code == 0, done.stdout + done.stderr
    (workflow,) = results(tmp_path / "r.json")["workflows"]
    page, call, missing = workflow["steps"]
    counts = target.counts()
    assert page["sent"] == counts["protocols"]["http/2"] > 0
    assert call["sent"] + missing["sent"] == counts["protocols"]["grpc"] > 0
    assert page["sent"] == page["ok"] + page["cut"]
    assert missing["errors"] == {"grpc_not_found": missing["failed"]}
