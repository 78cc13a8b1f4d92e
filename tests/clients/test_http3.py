"""The HTTP/3 client: against the built-in target, aioquic, lost datagrams, and bad servers."""

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hyperscale.clients import RequestError
from hyperscale.errors import InputError
from hyperscale.testing import HTTP3Response, HTTPResponse
from tests.conftest import RunningTarget
from tests.lab.clients import Lab, in_lab
from tests.lab.command import results, run
from tests.lab.http3 import LossyRelay, PageServer, scripted, serving
from tests.lab.ports import free_port

Identity = tuple[str, str]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_every_method_arrives_over_http3(http3_target: RunningTarget, method: str) -> None:
    async def work(lab: Lab) -> HTTP3Response:
        url = f"{http3_target.url}/echo"
        return await lab.http3.request(method, url, headers={"X-One": "1"}, verify=False)

    response = in_lab(work)
    echoed = response.json()
    assert type(response) is HTTP3Response
    assert (response.status, response.version) == (200, "HTTP/3")
    assert (echoed["method"], echoed["version"]) == (method, "HTTP/3")
    assert ["x-one", "1"] in echoed["headers"]
    assert response.phases.connect_s is not None  # the handshake, which is TLS as well
    assert response.phases.tls_s is None
    assert response.phases.first_byte_s
    assert response.tls_version == "TLSv1_3"
    assert http3_target.counts()["protocols"]["http/3"] == 1


def test_bodies_of_any_size_go_both_ways(http3_target: RunningTarget) -> None:
    content = bytes(range(256)) * 8_000

    async def work(lab: Lab) -> list[HTTPResponse]:
        url = f"{http3_target.url}/echo?raw"
        return [
            await lab.http3.post(url, data=content, verify=False),
            await lab.http3.post(url, data=iter([b"ab", b"cd"]), verify=False),
            await lab.http3.get(f"{http3_target.url}/bytes/6000000", verify=False),
            await lab.http3.head(f"{http3_target.url}/bytes/500", verify=False),
        ]

    echoed, chunks, large, head = in_lab(work)
    assert echoed.content == content
    assert chunks.content == b"abcd"
    assert len(large.content) == 6_000_000
    assert (head.content, head.headers["content-length"]) == (b"", "500")


@pytest.mark.parametrize(("streams", "connections"), [(100, 1), (5, 2)])
def test_requests_made_together_share_a_connection_up_to_the_limit_of_streams(
    http3_target: RunningTarget, streams: int, connections: int
) -> None:
    async def work(lab: Lab) -> None:
        await lab.http3.get(f"{http3_target.url}/", verify=False)
        url = f"{http3_target.url}/delay/300"
        await asyncio.gather(*(lab.http3.get(url, verify=False) for _ in range(10)))

    in_lab(work, streams=streams)
    assert http3_target.counts()["connections"]["total"] == connections


def test_users_share_connections_if_asked_to(http3_target: RunningTarget) -> None:
    async def work(lab: Lab) -> None:
        users = [lab.hub.client(number).http3 for number in range(20)]
        await users[0].get(f"{http3_target.url}/", verify=False)
        url = f"{http3_target.url}/delay/300"
        await asyncio.gather(*(user.get(url, verify=False) for user in users))

    in_lab(work, connections="shared", streams=10)
    assert http3_target.counts()["connections"]["total"] == 2


def test_redirects_cookies_and_encodings_work_as_over_http1(http3_target: RunningTarget) -> None:
    url = http3_target.url

    async def work(lab: Lab) -> list[HTTPResponse]:
        return [
            await lab.http3.get(f"{url}/redirect/3", verify=False),
            await lab.http3.get(f"{url}/cookies/set?a=1", verify=False),
            await lab.http3.get(f"{url}/cookies", cookies={"b": "2"}, verify=False),
            await lab.http3.get(f"{url}/gzip", verify=False),
            await lab.http3.get(f"{url}/status/503", verify=False),
        ]

    redirected, _, cookies, encoded, unavailable = in_lab(work)
    assert (redirected.status, redirected.redirects) == (200, 3)
    assert cookies.json() == {"cookies": {"b": "2", "a": "1"}}
    assert json.loads(encoded.content)
    assert (unavailable.status, unavailable.ok) == (503, False)


def test_a_timeout_ends_its_stream_and_spares_the_connection(http3_target: RunningTarget) -> None:
    url = http3_target.url

    async def work(lab: Lab) -> str:
        await lab.http3.get(f"{url}/", verify=False)
        slow = asyncio.ensure_future(lab.http3.get(f"{url}/delay/300", verify=False))
        with pytest.raises(RequestError) as caught:
            await lab.http3.get(f"{url}/delay/20000", timeout="100ms", verify=False)
        assert (await slow).status == 200
        return caught.value.error

    assert in_lab(work) == "timeout"
    assert http3_target.counts()["connections"]["total"] == 1


def test_a_stream_reset_by_the_server_is_a_failure_by_its_code(http3_target: RunningTarget) -> None:
    async def work(lab: Lab) -> RequestError:
        with pytest.raises(RequestError) as caught:
            await lab.http3.get(f"{http3_target.url}/reset", verify=False)
        assert (await lab.http3.get(f"{http3_target.url}/", verify=False)).status == 200
        return caught.value

    error = in_lab(work)
    assert error.error == "reset"
    assert "H3_INTERNAL_ERROR" in str(error)


def test_a_server_that_goes_away_is_followed_by_a_new_connection(
    http3_target: RunningTarget,
) -> None:
    async def work(lab: Lab) -> list[int]:
        url = http3_target.url
        first = await lab.http3.get(f"{url}/close", verify=False)
        second = await lab.http3.get(f"{url}/", verify=False)
        return [first.status, second.status]

    assert in_lab(work) == [200, 200]
    assert http3_target.counts()["connections"]["total"] == 2


def test_version_3_of_the_http_client_is_http3(http3_target: RunningTarget) -> None:
    async def work(lab: Lab) -> HTTPResponse:
        return await lab.http.get(f"{http3_target.url}/", version=3, verify=False)

    assert in_lab(work).version == "HTTP/3"


# --- wrong input and servers that are not there -------------------------------------------


def test_a_plain_url_and_another_version_are_refused() -> None:
    async def work(lab: Lab) -> None:
        with pytest.raises(InputError, match='scheme "http" is not https'):
            await lab.http3.get("http://127.0.0.1:1/")
        with pytest.raises(InputError, match="use 3"):
            await lab.http3.get("https://127.0.0.1:1/", version=2)

    in_lab(work)


def test_a_port_without_a_server_is_a_connect_error() -> None:
    async def work(lab: Lab) -> RequestError:
        with pytest.raises(RequestError) as caught:
            await lab.http3.get(f"https://127.0.0.1:{free_port()}/", verify=False)
        return caught.value

    error = in_lab(work)
    assert error.error == "connect"
    assert "connection refused" in str(error)


def test_a_silent_port_times_out() -> None:
    async def work(lab: Lab) -> str:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            url = f"https://127.0.0.1:{silent.getsockname()[1]}/"
            with pytest.raises(RequestError) as caught:
                await lab.http3.get(url, timeout="300ms", verify=False)
        return caught.value.error

    assert in_lab(work) == "timeout"


def test_a_certificate_is_verified(http3_target: RunningTarget, tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text(http3_target.certificate_pem or "")

    async def work(lab: Lab) -> tuple[int, RequestError]:
        with pytest.raises(RequestError) as caught:
            await lab.http3.get(f"{http3_target.url}/")
        good = await lab.http3.get(f"{http3_target.url}/", ca=str(authority))
        return good.status, caught.value

    status, error = in_lab(work)
    assert (status, error.error) == (200, "tls")
    assert "unknown issuer: pass ca=" in str(error)


def test_a_server_without_http3_is_a_tls_error(tmp_path: Path, target_identity: Identity) -> None:
    async def work(lab: Lab) -> RequestError:
        protocol = scripted(lambda *_: None)
        async with serving(tmp_path, target_identity, protocol, alpn=["hq-interop"]) as address:
            with pytest.raises(RequestError) as caught:
                await lab.http3.get("https://{}:{}/".format(*address), verify=False)
        return caught.value

    error = in_lab(work)
    assert error.error == "tls"
    assert "does not offer HTTP/3" in str(error)


# --- aioquic, and lost datagrams ----------------------------------------------------------


def test_aioquic_receives_what_was_sent(tmp_path: Path, target_identity: Identity) -> None:
    class Server(PageServer):
        requests: list[str] = []  # noqa: RUF012 - of all its connections

    async def work(lab: Lab) -> tuple[list[HTTP3Response], HTTP3Response, int]:
        async with serving(tmp_path, target_identity, Server) as address:
            url = "https://{}:{}".format(*address)
            pages = []
            for _ in range(10):
                calls = (lab.http3.get(f"{url}/page", verify=False) for _ in range(20))
                pages += await asyncio.gather(*calls)
            posted = await lab.http3.post(f"{url}/body", data=b"x" * 200_000, verify=False)
            return pages, posted, lab.sent

    pages, posted, sent = in_lab(work)
    assert {page.text for page in pages} == {"GET /page\n"}
    assert pages[0].headers["x-own"] == "a" * 300
    assert pages[0].trailers["x-checksum"] == "7"
    assert posted.text == "POST /body\n" + "x" * 200_000
    assert len(Server.requests) == sent == 201


def test_no_request_is_lost_or_sent_twice_although_datagrams_are_lost(
    http3_target: RunningTarget,
) -> None:
    async def work(lab: Lab) -> tuple[list[HTTP3Response], int, int]:
        loop = asyncio.get_running_loop()
        server = ("127.0.0.1", http3_target.port)
        transport, relay = await loop.create_datagram_endpoint(
            lambda: LossyRelay(server, every=10), local_addr=("127.0.0.1", 0)
        )
        host, port = transport.get_extra_info("sockname")
        url = f"https://{host}:{port}"
        try:
            calls = [lab.http3.get(f"{url}/bytes/20000", verify=False) for _ in range(30)]
            calls += [
                lab.http3.post(f"{url}/echo?raw", data=b"y" * 5000, verify=False) for _ in range(30)
            ]
            return await asyncio.gather(*calls), lab.sent, relay.dropped
        finally:
            relay.close()

    responses, sent, dropped = in_lab(work)
    assert [len(response.content) for response in responses] == [20_000] * 30 + [5000] * 30
    assert dropped > 0
    assert http3_target.counts()["protocols"]["http/3"] == sent == 60


# --- servers that misbehave ---------------------------------------------------------------

Script = Callable[[Any, int], None]

_HEAD = b"\x01\x03\x00\x00\xd9"  # HEADERS: :status 200


def _control(quic: Any, frames: bytes) -> None:
    quic.send_stream_data(quic.get_next_available_stream_id(is_unidirectional=True), frames)


def _answer(data: bytes, *, end: bool = True) -> Script:
    def script(quic: Any, stream: int) -> None:
        _control(quic, b"\x00\x04\x00")  # its control stream, with no settings
        quic.send_stream_data(stream, data, end_stream=end)

    return script


def _on_control(frames: bytes) -> Script:
    def script(quic: Any, stream: int) -> None:
        _control(quic, frames)

    return script


def _number(value: int) -> bytes:
    return (value | 0x80000000).to_bytes(4, "big")


_MISBEHAVIOURS: dict[str, tuple[Script, str]] = {
    "garbage": (_answer(b"\xff" * 100), "protocol"),
    "a frame of HTTP/2": (_answer(b"\x06\x00"), "protocol"),
    "a body before the head": (_answer(b"\x00\x01x"), "protocol"),
    "no response": (_answer(b""), "protocol"),
    "no status": (_answer(b"\x01\x02\x00\x00"), "protocol"),
    "a frame that is cut off": (_answer(_HEAD + b"\x00\x10half"), "protocol"),
    "a body shorter than announced": (
        _answer(b"\x01\x06\x00\x00\xd9\x54\x019" + b"\x00\x01x"),
        "protocol",
    ),
    "a body longer than announced": (
        _answer(b"\x01\x06\x00\x00\xd9\x54\x011" + b"\x00\x02xx"),
        "protocol",
    ),
    "a dynamic table": (_answer(b"\x01\x03\x02\x00\x80"), "protocol"),
    "broken compression": (_answer(b"\x01\x04\x00\x00\xff\xff"), "protocol"),
    "settings on a request": (_answer(b"\x04\x00"), "protocol"),
    "a push": (_answer(b"\x05\x03\x00\x00\x00"), "protocol"),
    "headers after trailers": (_answer(_HEAD + _HEAD.replace(b"\xd9", b"") * 2), "protocol"),
    "a head of 100,000 bytes": (_answer(b"\x01" + _number(100_000) + bytes(1000)), "too_large"),
    "a header bomb": (
        _answer(b"\x01" + _number(10_003) + b"\x00\x00\xd9" + b"\xe9" * 10_000),
        "too_large",
    ),
    "empty data flood": (_answer(_HEAD + b"\x00\x00" * 5000), "too_large"),
    "unknown frames flood": (_answer(_HEAD + b"\x21\x00" * 5000), "too_large"),
    "no settings": (_on_control(b"\x00\x07\x01\x00"), "protocol"),
    "settings of HTTP/2": (_on_control(b"\x00\x04\x02\x02\x00"), "protocol"),
    "a push stream": (_on_control(b"\x01\x00"), "protocol"),
    "entries for the table": (_on_control(b"\x02\x3f\xe1\x1f"), "protocol"),
    "a stream that is reset": (lambda quic, stream: quic.reset_stream(stream, 0x102), "reset"),
    "rejected for ever": (lambda quic, stream: quic.reset_stream(stream, 0x10B), "reset"),
    "a connection that is closed": (lambda quic, _: quic.close(0x102, reason_phrase="no"), "reset"),
    "silence": (lambda *_: None, "timeout"),
}


@pytest.mark.parametrize("name", _MISBEHAVIOURS)
def test_a_server_that_misbehaves_ends_in_a_classified_error(
    name: str, tmp_path: Path, target_identity: Identity
) -> None:
    script, expected = _MISBEHAVIOURS[name]
    timeout = "300ms" if expected == "timeout" else "10s"

    async def work(lab: Lab) -> str:
        async with serving(tmp_path, target_identity, scripted(script)) as address:
            url = "https://{}:{}/".format(*address)
            with pytest.raises(RequestError) as caught:
                await lab.http3.post(url, timeout=timeout, verify=False)
        return caught.value.error

    assert in_lab(work) == expected


# --- runs ---------------------------------------------------------------------------------

_WORKFLOW = """\
from hyperscale import Workflow, step
from hyperscale.testing import URL, HTTP3Response


class Page(Workflow):
    vus = 20
    duration = "1s"
    streams = 5
    connections = "shared"

    @step()
    async def page(self, url: URL = "{url}/") -> HTTP3Response:
        return await self.client.http3.get(url, verify=False)

    @step()
    async def data(self, url: URL = "{url}/json") -> HTTP3Response:
        return await self.client.http3.get(url, verify=False)
"""


@pytest.mark.parametrize("flags", [(), ("--no-compile",)], ids=["native", "python"])
def test_a_run_counts_what_the_target_received(
    tmp_path: Path, http3_target: RunningTarget, flags: tuple[str, ...]
) -> None:
    (tmp_path / "page.py").write_text(_WORKFLOW.format(url=http3_target.url))
    done = run("run", "page.py", *flags, "--json", "r.json", cwd=tmp_path)
    assert done.code == 0, done.stdout + done.stderr
    (workflow,) = results(tmp_path / "r.json")["workflows"]
    page, data = workflow["steps"]
    assert page["sent"] + data["sent"] == http3_target.counts()["protocols"]["http/3"] > 0
    assert page["sent"] == page["ok"] + page["cut"]


def test_ping_shows_a_request_over_http3(http3_target: RunningTarget, tmp_path: Path) -> None:
    done = run("ping", "http3", f"{http3_target.url}/json", "--insecure", cwd=tmp_path)
    assert done.code == 0, done.stdout + done.stderr
    assert "HTTP/3 200" in done.stdout
    assert "TLSv1_3" in done.stdout


def test_a_target_for_http3_needs_a_certificate(tmp_path: Path) -> None:
    done = run("target", "--http3-port", "0", cwd=tmp_path)
    assert done.code == 2
    assert "--http3-port needs a server certificate" in done.stderr
