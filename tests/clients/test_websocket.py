"""WebSockets against `websockets`, a server that is not ours, and against misbehaving servers."""

import asyncio
import base64
import contextlib
import gc
import hashlib
import json
import resource
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosedError

from hyperscale.clients import RequestError
from hyperscale.clients.websocket import WebsocketClient
from hyperscale.errors import InputError
from hyperscale.testing import WebsocketResponse
from tests.conftest import RunningTarget
from tests.lab.clients import Lab, in_lab
from tests.lab.command import results, run
from tests.lab.waiting import until


@dataclass
class Peer:
    """A server of the package `websockets`, and what it received."""

    port: int = 0
    received: list[str | bytes] = field(default_factory=list)
    closes: list[tuple[int, str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/"


Handle = Callable[[ServerConnection], Awaitable[None]]


@contextmanager
def serving_sockets(handle: Handle, **options: Any) -> Iterator[int]:
    """Serve sockets in a thread; yields the port."""
    ready = threading.Event()
    serving: list[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def main() -> None:
        stop = asyncio.Event()
        async with serve(handle, "127.0.0.1", 0, **options) as server:
            port = server.sockets[0].getsockname()[1]
            serving.append((port, asyncio.get_running_loop(), stop))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert ready.wait(30)
    port, loop, stop = serving[0]
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()

    async def echo(connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosedError):
            async for message in connection:
                peer.received.append(message)
                await connection.send(message)
        peer.closes.append((connection.close_code or 0, connection.close_reason or ""))

    def choose(_: ServerConnection, offered: Sequence[Any]) -> Any:
        return "shop.v2" if "shop.v2" in offered else None

    with serving_sockets(echo, select_subprotocol=choose, max_size=None) as port:
        peer.port = port
        yield peer


def websocket(lab: Lab, number: int = 0) -> WebsocketClient:
    return lab.hub.client(number).websocket


@pytest.mark.parametrize("compress", [False, True])
def test_messages_of_every_kind_and_size_come_back(peer: Peer, compress: bool) -> None:
    messages: list[dict[str, Any]] = [
        {"text": "hello"},
        {"text": ""},
        {"text": "ä" * 70_000},
        {"data": b"\x00\xff"},
        {"data": bytes(range(256)) * 1000},
        {"json": {"id": 7, "tags": ["new"]}},
    ]

    async def work(lab: Lab) -> tuple[list[WebsocketResponse], int]:
        client = websocket(lab)
        replies = [await client.exchange(peer.url, compress=compress, **each) for each in messages]
        return replies, lab.sent

    replies, sent = in_lab(work)
    expected = [each.get("text", each.get("data")) for each in messages[:-1]]
    assert [reply.message for reply in replies[:-1]] == expected
    assert replies[-1].json() == {"id": 7, "tags": ["new"]}
    assert sent == len(messages) == len(peer.received)
    assert replies[0].phases.connect_s is not None
    assert all(reply.phases.connect_s is None for reply in replies[1:])


def test_a_socket_is_kept_by_its_user_and_not_shared(peer: Peer) -> None:
    async def work(lab: Lab) -> list[float | None]:
        return [
            (await websocket(lab, number).exchange(peer.url, text="x")).phases.connect_s
            for number in (0, 1, 0)
        ]

    first, second, again = in_lab(work)
    assert (first is not None, second is not None, again) == (True, True, None)


def test_the_handshake_chooses_a_subprotocol_and_a_close_is_answered(peer: Peer) -> None:
    async def work(lab: Lab) -> tuple[WebsocketResponse, WebsocketResponse]:
        opened = await websocket(lab).connect(peer.url, subprotocols=["shop.v3", "shop.v2"])
        options = {"subprotocols": ["shop.v3", "shop.v2"]}
        closed = await websocket(lab).close(peer.url, 3005, "enough", **options)  # type: ignore[arg-type]
        return opened, closed

    opened, closed = in_lab(work)
    assert (opened.status, opened.subprotocol) == (101, "shop.v2")
    assert closed.close_code == 3005
    until(lambda: peer.closes, what="the server to see the close")
    assert peer.closes == [(3005, "enough")]


def test_messages_that_came_before_the_call_are_received_in_order(target: RunningTarget) -> None:
    url = f"ws://127.0.0.1:{target.port}/ws/1/100000"

    async def work(lab: Lab) -> list[Any]:
        client = websocket(lab)
        await client.connect(url)
        two = await client.receive(url, count=2)
        await asyncio.sleep(0.05)
        return [*two.messages, *(await client.receive(url, count=3)).messages]

    assert in_lab(work) == [f"message {n}" for n in range(1, 6)]


def test_listening_collects_what_comes_in_a_time(target: RunningTarget) -> None:
    url = f"ws://127.0.0.1:{target.port}/ws/20/1000"

    async def work(lab: Lab) -> tuple[WebsocketResponse, WebsocketResponse]:
        client = websocket(lab)
        return await client.listen(url, duration="0.5s"), await client.receive(url)

    heard, after = in_lab(work)
    assert list(heard.messages[:2]) == ["message 1", "message 2"]
    assert len(heard.gaps_s) == len(heard.messages) - 1
    assert after.message == f"message {len(heard.messages) + 1}"


def test_a_ping_is_answered(peer: Peer) -> None:
    async def work(lab: Lab) -> WebsocketResponse:
        return await websocket(lab).ping(peer.url)

    assert in_lab(work).elapsed_s > 0


def test_pings_of_the_server_are_answered_while_a_call_waits() -> None:
    async def handle(connection: ServerConnection) -> None:
        pong = await connection.ping()
        await pong
        await connection.send("got the pong")
        await connection.wait_closed()

    async def work(lab: Lab, port: int) -> WebsocketResponse:
        return await websocket(lab).receive(f"ws://127.0.0.1:{port}/")

    with serving_sockets(handle) as port:
        assert in_lab(lambda lab: work(lab, port)).text == "got the pong"


def test_a_refused_handshake_is_a_response_with_its_status(target: RunningTarget) -> None:
    async def work(lab: Lab) -> WebsocketResponse:
        return await websocket(lab).exchange(f"ws://127.0.0.1:{target.port}/nothing", text="x")

    response = in_lab(work)
    assert (response.status, response.ok, list(response.messages)) == (404, False, [])


def failure(work: Callable[[Lab], Awaitable[Any]]) -> tuple[str, str]:
    with pytest.raises(RequestError) as failed:
        in_lab(work)
    return failed.value.error, str(failed.value)


def test_silence_is_a_timeout_and_the_late_reply_is_not_that_to_the_next_message() -> None:
    async def handle(connection: ServerConnection) -> None:
        async for message in connection:
            if message == "slow":
                await asyncio.sleep(0.3)
            await connection.send(message)

    async def work(lab: Lab, port: int) -> Any:
        client, url = websocket(lab), f"ws://127.0.0.1:{port}/"
        with pytest.raises(RequestError, match="timeout"):
            await client.exchange(url, text="slow", timeout="0.1s")
        await asyncio.sleep(0.4)
        return (await client.exchange(url, text="quick")).message

    with serving_sockets(handle) as port:
        assert in_lab(lambda lab: work(lab, port)) == "quick"


def test_a_close_of_the_server_is_a_reset_with_its_code() -> None:
    async def handle(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.close(4001, "go away")

    with serving_sockets(handle) as port:
        url = f"ws://127.0.0.1:{port}/"
        error, text = failure(lambda lab: websocket(lab).exchange(url, text="x"))
    assert error == "reset"
    assert "4001 go away" in text


def test_a_closed_socket_is_opened_again_by_the_next_call() -> None:
    async def handle(connection: ServerConnection) -> None:
        await connection.send(await connection.recv())

    async def work(lab: Lab, port: int) -> list[Any]:
        url = f"ws://127.0.0.1:{port}/"
        replies = []
        for text in ("one", "two"):
            replies.append((await websocket(lab).exchange(url, text=text)).message)
            await asyncio.sleep(0.2)  # the server closes
        return replies

    with serving_sockets(handle) as port:
        assert in_lab(lambda lab: work(lab, port)) == ["one", "two"]


# --- servers that misbehave ---------------------------------------------------------------------

HELLO = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: %s\r\n\r\n"
)


@contextmanager
def scripted(after: bytes, *, hello: bytes = HELLO) -> Iterator[str]:
    """Serve one connection that answers the handshake and then says `after`; yields the URL."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve_one() -> None:
        connection, _ = listener.accept()
        with connection:
            head = b""
            while b"\r\n\r\n" not in head:
                head += connection.recv(4096)
            key = head.partition(b"Sec-WebSocket-Key: ")[2].partition(b"\r\n")[0]
            made = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
            reply = hello.replace(b"%s", base64.b64encode(made))
            connection.sendall(reply + after)
            connection.settimeout(5)
            try:
                while connection.recv(4096):
                    pass
            except OSError:
                pass

    thread = threading.Thread(target=serve_one, daemon=True)
    thread.start()
    try:
        yield f"ws://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        listener.close()
        thread.join(10)


@pytest.mark.parametrize(
    ("said", "error", "what"),
    [
        (b"\x83\x00", "protocol", "unknown opcode"),
        (b"\x81\x81\x00\x00\x00\x00x", "protocol", "masked"),
        (b"\xf1\x00", "protocol", "reserved"),
        (b"\xc1\x01x", "protocol", "reserved"),
        (b"\x80\x00", "protocol", "continues nothing"),
        (b"\x01\x01a\x81\x01b", "protocol", "inside another"),
        (b"\x09\x01a", "protocol", "control frame"),
        (b"\x89\x7e\x01\x00", "protocol", "control frame"),
        (b"\x88\x01\x03", "protocol", "half a code"),
        (b"\x88\x02\x00\x01", "protocol", "close code 1"),
        (b"\x81\x02\xff\xfe", "protocol", "UTF-8"),
        (b"\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xff", "too_large", "over"),
        (b"\x82\x7e\x27\x11", "too_large", "over"),
        (b"\x88\x02\x03\xe8", "reset", "1000"),
    ],
)
def test_a_frame_that_the_standard_forbids_is_a_classified_failure(
    said: bytes, error: str, what: str
) -> None:
    with scripted(said) as url:
        found, text = failure(lambda lab: websocket(lab).receive(url, body_limit=10_000))
    assert (found, what in text) == (error, True), text


@pytest.mark.parametrize(
    ("hello", "what"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", "status 200"),
        (b"HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n", "status 302"),
        (b"garbage\r\n\r\n", "not HTTP"),
        (HELLO.replace(b"%s", b"wrong"), "another handshake"),
        (HELLO.replace(b"Upgrade: websocket\r\n", b""), "another protocol"),
        (HELLO.replace(b"\r\n\r\n", b"\r\nSec-WebSocket-Protocol: x\r\n\r\n"), "not offered"),
        (
            HELLO.replace(b"\r\n\r\n", b"\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"),
            "not offered",
        ),
        (b"HTTP/1.1 101 S\r\n" + b"X: y\r\n" * 20_000, "over 64 KiB"),
    ],
)
def test_a_handshake_that_goes_wrong_is_a_protocol_failure(hello: bytes, what: str) -> None:
    with scripted(b"", hello=hello) as url:
        error, text = failure(lambda lab: websocket(lab).connect(url))
    assert (error, what in text) == ("protocol", True), text


def test_a_flood_of_messages_nobody_receives_ends_the_socket() -> None:
    with scripted(b"\x81\x01x" * 5000) as url:
        error, text = failure(lambda lab: websocket(lab).ping(url))
    assert (error, "that no call received" in text) == ("too_large", True)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda c: c.exchange("http://h/", text="x"), "the scheme is not ws or wss"),
        (lambda c: c.exchange("ws://h/"), "no message is given"),
        (lambda c: c.exchange("ws://h/", text="x", json={}), "several messages"),
        (lambda c: c.exchange("ws://h/", text=b"x"), "not a str"),
        (lambda c: c.send("ws://h/", data="x"), "not bytes"),
        (lambda c: c.receive("ws://h/", count=0), "count=0"),
        (lambda c: c.close("ws://h/", 1005), "1005"),
        (lambda c: c.connect("ws://h/", subprotocols="one"), "subprotocols is a text"),
        (lambda c: c.connect("ws://h/", redirects=1), "unknown argument 'redirects'"),
    ],
)
def test_wrong_arguments_are_refused_in_words(call: Any, said: str) -> None:
    async def work(lab: Lab) -> None:
        await call(websocket(lab))

    with pytest.raises(InputError) as refused:
        in_lab(work)
    assert said in str(refused.value)


def test_tls_and_its_failures(tls_target: RunningTarget, tmp_path: Any) -> None:
    (tmp_path / "ca.pem").write_text(tls_target.certificate_pem or "")
    url = f"wss://127.0.0.1:{tls_target.port}/ws"

    async def work(lab: Lab) -> WebsocketResponse:
        return await websocket(lab).exchange(url, text="secret", ca=str(tmp_path / "ca.pem"))

    response = in_lab(work)
    assert response.text == "secret"
    assert response.phases.tls_s is not None
    assert failure(lambda lab: websocket(lab).connect(url))[0] == "tls"


def test_the_counts_of_the_target_are_those_of_the_recorder(target: RunningTarget) -> None:
    url = f"ws://127.0.0.1:{target.port}/ws"

    async def work(lab: Lab) -> int:
        async def user(number: int) -> None:
            for turn in range(50):
                reply = await websocket(lab, number).exchange(url, json={"n": turn})
                assert json.loads(reply.text) == {"n": turn}

        await asyncio.gather(*(user(number) for number in range(20)))
        return lab.sent

    assert in_lab(work) == 1000
    counts = target.counts()
    assert counts["streams"]["websocket"]["messages_in"] == 1000
    assert counts["routes"] == {"/ws": {"GET": 20}}


def test_an_idle_socket_takes_less_than_4_kb(target: RunningTarget) -> None:
    url, count = f"ws://127.0.0.1:{target.port}/ws", 1000

    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    async def work(lab: Lab) -> float:
        clients = [websocket(lab, number) for number in range(count)]
        await clients[0].connect(url)
        before = resident()
        for at in range(1, count, 100):
            await asyncio.gather(*(client.connect(url) for client in clients[at : at + 100]))
        assert lab.hub.connections == count
        return (resident() - before) / count

    # The server's side of each socket is in this process too.
    assert in_lab(work) < 2 * 4096


@pytest.mark.parametrize("flags", [(), ("--no-compile",)])
def test_a_run_counts_what_the_target_counts(
    target: RunningTarget, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    (tmp_path / "chat.py").write_text(CHAT.replace("PORT", str(target.port)))
    done = run("run", "chat.py", *flags, "--json", "r.json", cwd=tmp_path)
    assert done.code == 0, done.stdout + done.stderr
    step = results(tmp_path / "r.json")["workflows"][0]["steps"][0]
    assert (step["ok"], step["sent"], step["failed"]) == (2000, 2000, 0)
    counts = target.counts()
    assert counts["streams"]["websocket"]["messages_in"] == 2000
    assert counts["connections"]["peak"] == 10


CHAT = """
from hyperscale import Workflow, step
from hyperscale.testing import URL, WebsocketResponse


class Chat(Workflow):
    vus = 10
    duration = "2m"
    iterations = 2000

    @step()
    async def say(self, url: URL = "ws://127.0.0.1:PORT/ws") -> WebsocketResponse:
        return await self.client.websocket.exchange(url, text="hello")
"""
