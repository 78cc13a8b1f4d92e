"""Given addresses, source addresses, Unix sockets and proxies, over the protocols of the engine."""

import asyncio
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hyperscale.clients import RequestError
from hyperscale.errors import InputError
from hyperscale.testing.network import Network
from tests.conftest import RunningTarget
from tests.lab.clients import Lab, in_lab
from tests.lab.command import run
from tests.lab.ports import free_port
from tests.lab.waiting import until

# It expects the event loop that asyncio made on its own before Python 3.12.
_RUN_PPROXY = """
import asyncio, sys
sys.modules["uvloop"] = None
asyncio.set_event_loop(asyncio.new_event_loop())
from pproxy.server import main
main()
"""


class Proxies:
    """Pproxy: an HTTP and SOCKS5 proxy, with a user and without one."""

    def __init__(self, log: Path) -> None:
        pytest.importorskip("pproxy")
        self.port, self.guarded_port, self._log = free_port(), free_port(), log
        listeners = (
            f"http+socks5://127.0.0.1:{self.port}",
            f"http+socks5://127.0.0.1:{self.guarded_port}#user:pass:word",
        )
        command = [sys.executable, "-u", "-c", _RUN_PPROXY, "-v"]
        for listener in listeners:
            command += ["-l", listener]
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output)
        until(lambda: all(map(_listens, (self.port, self.guarded_port))), what="pproxy listens")

    def connections(self, port: int) -> int:
        """Return how many connections to this port were passed on."""
        return self._log.read_text().count(f" -> 127.0.0.1:{port}")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def proxies(tmp_path: Path) -> Iterator[Proxies]:
    started = Proxies(tmp_path / "pproxy.log")
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()


def failure(url: str, **network: object) -> RequestError:
    async def work(lab: Lab) -> RequestError:
        with pytest.raises(RequestError) as caught:
            await lab.http.get(url, timeout=5)
        return caught.value

    return in_lab(work, network=network)


@pytest.mark.parametrize("scheme", ["http", "socks5"])
def test_every_protocol_of_tcp_goes_through_a_proxy(
    target: RunningTarget, tls_target: RunningTarget, proxies: Proxies, scheme: str
) -> None:
    async def work(lab: Lab) -> list[object]:
        client = lab.hub.client(0)
        place = target.url.removeprefix("http://")
        plain = await lab.http.get(f"{target.url}/json")
        secure = await lab.http2.get(f"{tls_target.url}/json", verify=False)
        called = await lab.grpc.unary(target.url, "hyperscale.target.Echo/Unary", b"")
        echoed = await client.websocket.exchange(f"ws://{place}/ws", text="hello")
        line = await client.tcp.exchange(f"tcp://{place}", data=b"GET / HTTP/1.0\r\n\r\n")
        phases = secure.exchange
        assert phases.connect_ns
        assert phases.tls_ns
        assert plain.exchange.remote == f"127.0.0.1:{proxies.port}"
        return [plain.status, secure.status, called.status, echoed.text, line.content[:8]]

    network = {"proxy": f"{scheme}://127.0.0.1:{proxies.port}"}
    assert in_lab(work, network=network) == [200, 200, 200, "hello", b"HTTP/1.1"]
    assert proxies.connections(target.port) == 4
    assert proxies.connections(tls_target.port) == 1


@pytest.mark.parametrize("scheme", ["http", "socks5"])
def test_a_proxy_takes_the_right_user_and_refuses_others(
    target: RunningTarget, proxies: Proxies, scheme: str
) -> None:
    place = f"127.0.0.1:{proxies.guarded_port}"

    async def work(lab: Lab) -> int:
        return (await lab.http.get(f"{target.url}/")).status

    for proxy in (f"{scheme}://{place}", f"{scheme}://user:wrong@{place}"):
        refused = failure(f"{target.url}/", proxy=proxy)
        assert refused.error == "proxy"
        assert "word" not in str(refused).replace("password", "")
    # Last: from now on, pproxy knows the address.
    assert in_lab(work, network={"proxy": f"{scheme}://user:pass%3Aword@{place}"}) == 200


def test_a_proxy_that_is_missing_or_none_is_a_failure_of_its_own_class(
    target: RunningTarget,
) -> None:
    closed = free_port()
    missing = failure(f"{target.url}/", proxy=f"http://127.0.0.1:{closed}")
    assert (missing.error, f"refused by proxy 127.0.0.1:{closed}" in str(missing)) == (
        "proxy",
        True,
    )
    unknown = failure(f"{target.url}/", proxy="http://proxy.invalid")
    assert unknown.error == "proxy"
    # The target is no SOCKS5 proxy, and as an HTTP server refuses CONNECT.
    for scheme in ("http", "socks5"):
        refused = failure(f"{target.url}/", proxy=f"{scheme}://127.0.0.1:{target.port}")
        assert refused.error == "proxy"


@pytest.mark.parametrize("script", [b"", b"HTTP/1.1 200 ", b"HTTP/1.1 403 No\r\n\r\n", b"\0" * 64])
def test_a_proxy_that_misbehaves_ends_in_a_classified_error(script: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(script)
        writer.close()

    async def work(lab: Lab) -> str:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            with pytest.raises(RequestError) as caught:
                await lab.http.get("http://shop.test/", proxy=f"http://127.0.0.1:{port}")
        return caught.value.error

    assert in_lab(work) == "proxy"


def test_given_addresses_replace_the_look_up_and_redirects_keep_them(
    target: RunningTarget,
) -> None:
    async def work(lab: Lab) -> list[object]:
        url = f"http://shop.test:{target.port}"
        one = await lab.http.get(f"{url}/echo")
        two = await lab.http.get(f"{url}/redirect/2")
        three = await lab.user(1).get(
            f"http://else.test:{target.port}/",
            resolve={
                "else.test": ["127.0.0.1"],
            },
        )
        with pytest.raises(RequestError) as caught:
            await lab.http.get(f"{url}/", resolve=None)
        return [one.json()["headers"], two.redirects, three.status, caught.value.error]

    headers, redirects, status, error = in_lab(
        work, network={"resolve": {"Shop.test": "127.0.0.1"}}
    )
    assert isinstance(headers, list)
    assert ["Host", f"shop.test:{target.port}"] in headers
    assert (redirects, status, error) == (2, 200, "dns")


def test_connections_come_from_the_source_addresses_in_turn() -> None:
    seen: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer.get_extra_info("peername")[0])
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        writer.close()

    async def work(lab: Lab) -> str:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with server:
            for _ in range(4):
                await lab.http.get(url)
            with pytest.raises(RequestError) as caught:
                await lab.http.get(url, bind=["192.0.2.1"])
        return str(caught.value)

    text = in_lab(work, network={"bind": ["127.0.0.2", "127.0.0.3"]})
    assert seen == ["127.0.0.2", "127.0.0.3"] * 2
    assert "connect: 127.0.0.1" in text
    assert "source address 192.0.2.1" in text


_NGINX = """\
daemon off;
master_process off;
pid {directory}/nginx.pid;
error_log {directory}/error.log;
events {{ worker_connections 64; }}
http {{
    log_format requests '$host $request_method $status';
    access_log {directory}/access.log requests;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server {{
        listen unix:{directory}/app.sock;
        location / {{ return 200 "ok"; }}
    }}
}}
"""


def test_nginx_on_a_unix_socket_logs_every_request(tmp_path: Path) -> None:
    (tmp_path / "nginx.conf").write_text(_NGINX.format(directory=tmp_path))
    process = subprocess.Popen(
        ["/usr/sbin/nginx", "-p", str(tmp_path), "-c", "nginx.conf"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    async def work(lab: Lab) -> list[object]:
        many = [await lab.http.get("http://shop.test/") for _ in range(5)]
        assert {response.exchange.remote for response in many} == {None}
        assert lab.hub.connections == 1
        with pytest.raises(RequestError) as missing:
            await lab.http.get("http://shop.test/", unix_socket=str(tmp_path / "none"))
        return [*(response.status for response in many), str(missing.value)]

    try:
        until((tmp_path / "nginx.pid").exists, what="nginx has started")
        path = str(tmp_path / "app.sock")
        *statuses, missing = in_lab(work, network={"unix_socket": path})
    finally:
        process.terminate()
        process.wait(20)
    assert statuses == [200] * 5
    assert f"connect: no Unix socket {tmp_path}/none" in str(missing)
    assert (tmp_path / "access.log").read_text().splitlines() == ["shop.test GET 200"] * 5


def test_datagrams_take_no_proxy_and_no_unix_socket() -> None:
    async def work(lab: Lab) -> None:
        await lab.hub.client(0).udp.exchange("udp://127.0.0.1:9", data=b"x", proxy="socks5://h")

    with pytest.raises(InputError, match="go neither through a proxy"):
        in_lab(work)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"resolve": "127.0.0.1"}, "resolve: '127.0.0.1' is not a dict"),
        ({"resolve": {"shop.test": "shop"}}, "resolve: shop.test: 'shop' is not an IP address"),
        ({"resolve": {"http://shop.test": "127.0.0.1"}}, "is not the name of a host"),
        ({"resolve": {"shop.test": []}}, "is not an address"),
        ({"bind": "localhost"}, "bind: 'localhost' is not an IP address"),
        ({"bind": 7}, "bind: 7 is not an address"),
        ({"proxy": "proxy:3128"}, "proxy: 'proxy:3128' is neither an HTTP nor a SOCKS5 proxy"),
        ({"proxy": "https://u:secret@proxy"}, "'https://proxy' is neither"),
        ({"proxy": "http://proxy/path"}, "has more than a host and a port"),
        ({"proxy": "socks5://proxy:0"}, "is not a port"),
        ({"proxy": f"socks5://{'u' * 256}@proxy"}, "more than 255 bytes"),
        ({"proxy": 3128}, "is not the URL of a proxy"),
        ({"unix_socket": 3}, "unix_socket: 3 is not a path"),
        ({"unix_socket": "/" + "x" * 200}, "longer than 107 bytes"),
        ({"unix_socket": "/a", "proxy": "http://h"}, "unix_socket: it excludes proxy"),
        ({"unix_socket": "/a", "bind": "127.0.0.1"}, "unix_socket: it excludes bind"),
    ],
)
def test_wrong_network_options_are_refused_with_their_name(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError) as caught:
        Network().with_options(options, lambda name: f"Shop.{name}")
    assert f"Shop.{next(iter(options))}" in str(caught.value)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ('proxy = "ftp://proxy"', "shop.py: Shop.proxy: 'ftp://proxy' is neither an HTTP nor"),
        ('bind = ["192.0.2.1"]', "shop.py: Shop.bind: 192.0.2.1 is no address of this machine"),
        ('unix_socket = "none.sock"', "shop.py: Shop.unix_socket: none.sock is not a Unix socket"),
        ('proxy = "http://proxy.invalid"', "host 'proxy.invalid' cannot be resolved"),
    ],
)
def test_a_wrong_network_setting_ends_the_run_before_it_starts(
    tmp_path: Path, setting: str, words: str
) -> None:
    text = f"""
from hyperscale import Workflow, step

class Shop(Workflow):
    vus = 1
    duration = "1s"
    {setting}

    @step()
    async def home(self):
        return await self.client.http.get("http://127.0.0.1:1/")
"""
    (tmp_path / "shop.py").write_text(text)
    done = run("run", "shop.py", cwd=tmp_path)
    assert done.code == 2
    assert words in re.sub(r":\d+: ", ": ", re.sub(r"\s+", " ", done.stderr))
