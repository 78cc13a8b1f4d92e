"""WebSockets, server-sent events, TCP and UDP of the target, seen by clients that are not ours."""

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosedError, ConnectionClosedOK, InvalidStatus
from websockets.sync.client import connect

from hyperscale._native import Target
from tests.conftest import RunningTarget
from tests.lab.waiting import until

DEADLINE_S = 20.0


def websocket_url(target: RunningTarget, path: str = "/ws") -> str:
    return f"ws{target.scheme.removeprefix('http')}://127.0.0.1:{target.port}{path}"


@pytest.mark.parametrize("compression", [None, "deflate"])
def test_a_websocket_echoes_every_message_and_counts_it(
    target: RunningTarget, compression: str | None
) -> None:
    messages: list[str | bytes] = ["", "hello", "ä" * 500, b"\x00\xff", b"x" * 200_000]
    with connect(websocket_url(target), compression=compression, max_size=None) as peer:
        for message in messages:
            peer.send(message)
        assert [peer.recv(DEADLINE_S) for _ in messages] == messages
        assert peer.ping().wait(DEADLINE_S)
    counts = target.counts()
    assert counts["routes"] == {"/ws": {"GET": 1}}
    websocket = counts["streams"]["websocket"]
    assert websocket["messages_in"] == websocket["messages_out"] == len(messages)
    assert websocket["bytes_in"] == websocket["bytes_out"] == 0 + 5 + 1000 + 2 + 200_000


def test_fragments_are_echoed_as_one_message(target: RunningTarget) -> None:
    with connect(websocket_url(target)) as peer:
        peer.send(iter(["one ", "message ", "in parts"]))
        assert peer.recv(DEADLINE_S) == "one message in parts"
    assert target.counts()["streams"]["websocket"]["messages_in"] == 1


def test_the_first_subprotocol_is_chosen_and_a_close_is_answered(target: RunningTarget) -> None:
    with connect(websocket_url(target), subprotocols=["graphql-ws", "other"]) as peer:  # type: ignore[list-item]
        assert peer.subprotocol == "graphql-ws"
        peer.close(3001, "enough")
        with pytest.raises(ConnectionClosedError) as closed:
            peer.recv(DEADLINE_S)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 3001


def test_a_websocket_sends_messages_of_its_own_and_then_closes(target: RunningTarget) -> None:
    with connect(websocket_url(target, "/ws/5/3")) as peer:
        peer.send("between")
        received = sorted(str(peer.recv(DEADLINE_S)) for _ in range(4))
        assert received == ["between", "message 1", "message 2", "message 3"]
        with pytest.raises(ConnectionClosedOK):
            peer.recv(DEADLINE_S)


def test_a_request_without_a_handshake_is_refused(target: RunningTarget) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=DEADLINE_S)
    connection.request("GET", "/ws")
    response = connection.getresponse()
    assert (response.status, b"WebSocket" in response.read()) == (400, True)
    connection.close()
    with pytest.raises(InvalidStatus):
        connect(websocket_url(target, "/ws/x/3"))


def test_a_websocket_over_tls(tls_target: RunningTarget) -> None:
    context = ssl.create_default_context(cadata=tls_target.certificate_pem)
    with connect(websocket_url(tls_target), ssl=context) as peer:
        peer.send("secret")
        assert peer.recv(DEADLINE_S) == "secret"


def read_events(target: RunningTarget, path: str, **headers: str) -> tuple[list[str], bool]:
    """Return the events, and whether the stream ended as it should."""
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=DEADLINE_S)
    with contextlib.closing(connection):
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        assert response.headers["Content-Type"] == "text/event-stream"
        try:
            body, is_whole = response.read(), True
        except http.client.IncompleteRead as cut:
            body, is_whole = cut.partial, False
        return body.decode().split("\n\n")[:-1], is_whole


def test_events_come_with_their_ids_and_go_on_after_the_last_one_seen(
    target: RunningTarget,
) -> None:
    events, is_whole = read_events(target, "/sse/1/3")
    assert is_whole
    assert events == [f"id: {n}\ndata: event {n}" for n in (1, 2, 3)]
    events, _ = read_events(target, "/sse/1/3", **{"Last-Event-ID": "2"})
    assert events == ["id: 3\ndata: event 3"]
    events, is_whole = read_events(target, "/sse/0/5?break=2", **{"Last-Event-ID": "1"})
    assert not is_whole
    assert events == [f"id: {n}\ndata: event {n}" for n in (2, 3)]
    assert target.counts()["streams"]["sse"]["messages_out"] == 3 + 1 + 2


@pytest.fixture
def echo_ports() -> Iterator[Target]:
    server = Target(tcp_port=0, udp_port=0)
    yield server
    server.stop()


def test_raw_connections_get_back_what_they_send(echo_ports: Target) -> None:
    assert echo_ports.tcp_port is not None
    data = b"line\n" * 100_000
    with socket.create_connection(("127.0.0.1", echo_ports.tcp_port), DEADLINE_S) as peer:
        received = bytearray()
        for at in range(0, len(data), 10_000):
            peer.sendall(data[at : at + 10_000])
            while len(received) < min(at + 10_000, len(data)):
                received += peer.recv(1 << 16)
    assert received == data
    tcp = json.loads(echo_ports.counts())["streams"]["tcp"]
    assert tcp["messages_in"] == tcp["messages_out"] == 100_000
    assert tcp["bytes_in"] == tcp["bytes_out"] == len(data)


def test_datagrams_get_back_what_they_send_unless_they_ask_to_be_lost(echo_ports: Target) -> None:
    assert echo_ports.udp_port is not None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.settimeout(DEADLINE_S)
        peer.connect(("127.0.0.1", echo_ports.udp_port))
        peer.send(b"!drop me")
        peer.send(b"hello")
        assert peer.recv(100) == b"hello"
    until(lambda: json.loads(echo_ports.counts())["streams"]["udp"]["messages_out"] == 1)
    assert json.loads(echo_ports.counts())["streams"]["udp"]["messages_in"] == 2
