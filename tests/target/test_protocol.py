"""HTTP/1.1 as the target speaks it, seen from a raw socket."""

import errno
import socket
from contextlib import ExitStack

import pytest

from hyperscale._native import Target
from tests.conftest import RunningTarget
from tests.lab.waiting import until
from tests.target.wire import Wire, request

HELLO = b"Hello from the Hyperscale target\n"


def test_a_connection_carries_many_requests(target: RunningTarget) -> None:
    with Wire(target.port) as wire:
        for _ in range(100):
            wire.send(request("GET", "/"))
            assert wire.response()[2] == HELLO
    assert target.counts()["connections"]["total"] == 1


def test_pipelined_requests_are_answered_in_order(target: RunningTarget) -> None:
    with Wire(target.port) as wire:
        wire.send(b"".join(request("POST", "/echo?raw", b"%d" % n) for n in range(200)))
        assert [wire.response()[2] for _ in range(200)] == [b"%d" % n for n in range(200)]


def test_a_request_may_come_byte_by_byte(target: RunningTarget) -> None:
    with Wire(target.port) as wire:
        for byte in request("POST", "/echo?raw", b"slowly"):
            wire.send(bytes([byte]))
        assert wire.response()[2] == b"slowly"


def test_requests_behind_a_delayed_one_wait_their_turn(target: RunningTarget) -> None:
    with Wire(target.port) as wire:
        wire.send(request("GET", "/delay/30") + request("GET", "/status/404"))
        assert [wire.response()[0], wire.response()[0]] == [200, 404]


def test_more_than_is_read_ahead_waits_in_the_network(target: RunningTarget) -> None:
    bodies = [b"%d" % number * 20_000 for number in range(10)]
    with Wire(target.port) as wire:
        wire.send(request("GET", "/delay/30"))
        wire.send(b"".join(request("POST", "/echo?raw", body) for body in bodies))
        wire.response()
        assert [wire.response()[2] for _ in bodies] == bodies


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET /close HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_the_last_response_says_close_and_is_followed_by_the_end(
    target: RunningTarget, head: bytes
) -> None:
    with Wire(target.port) as wire:
        wire.send(head)
        received = wire.read_to_end()
        assert b"\r\nConnection: close\r\n" in received
        assert received.endswith(HELLO)


def test_an_http_1_0_client_may_keep_its_connection(target: RunningTarget) -> None:
    with Wire(target.port) as wire:
        for _ in range(2):
            wire.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert wire.response()[1]["connection"] == "keep-alive"


def test_the_response_arrives_even_if_more_was_pipelined_behind_a_close(
    target: RunningTarget,
) -> None:
    with Wire(target.port) as wire:
        wire.send(request("GET", "/", Connection="close") + request("GET", "/json") * 1000)
        assert wire.read_to_end().endswith(HELLO)


def test_a_client_that_stops_sending_still_gets_its_answer(target: RunningTarget) -> None:
    with Wire(target.port) as wire:
        wire.send(request("GET", "/delay/20"))
        wire.socket.shutdown(socket.SHUT_WR)
        assert wire.read_to_end().endswith(HELLO)


def test_a_client_may_wait_for_the_go_ahead(target: RunningTarget) -> None:
    with Wire(target.port) as wire:
        head, body = request("POST", "/echo?raw", b"body", Expect="100-continue")[:-4], b"body"
        wire.send(head)
        wire.read_until(lambda data: data == b"HTTP/1.1 100 Continue\r\n\r\n")
        wire.received.clear()
        wire.send(body)
        assert wire.response()[2] == body


def test_reset_resets(target: RunningTarget) -> None:
    with Wire(target.port) as wire:
        wire.send(request("GET", "/reset"))
        with pytest.raises(ConnectionResetError):
            wire.read_to_end()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nBad Header: y\r\n\r\n", b"400"),
        (b"GET / HTTP/3.0\r\n\r\n", b"505"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-A: b\r\n" * 101 + b"\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 1_000_000, b"431"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 67108865\r\n\r\n", b"413"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: br\r\n\r\n", b"501"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nExpect: more\r\n\r\n", b"417"),
    ],
)
def test_what_cannot_be_read_gets_a_reason_and_the_end(
    target: RunningTarget, data: bytes, status: bytes
) -> None:
    with Wire(target.port) as wire:
        wire.send(data)
        received = wire.read_to_end()
        assert received.startswith(b"HTTP/1.1 " + status)
        assert b"\r\nConnection: close\r\n" in received
    counts = target.counts()
    assert (counts["malformed"], counts["total"]) == (1, 0)


def test_a_refused_upload_can_read_why(target: RunningTarget) -> None:
    with Wire(target.port) as wire:
        wire.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n")
        wire.send(b"a" * 5_000_000)
        assert wire.response()[0] == 413


def test_a_client_that_does_not_read_holds_up_nobody_else(target: RunningTarget) -> None:
    with Wire(target.port) as stuck, Wire(target.port) as lively:
        stuck.send(request("GET", "/bytes/30000000"))
        for _ in range(20):
            lively.send(request("GET", "/"))
            assert lively.response()[0] == 200
        assert len(stuck.response()[2]) == 30_000_000


def test_a_connection_lost_in_the_middle_of_anything_is_forgotten(target: RunningTarget) -> None:
    for data in [
        b"",
        b"GET / HT",
        request("POST", "/echo", b"whole body")[:-3],
        request("GET", "/delay/60000"),
        request("GET", "/bytes/100000000"),
        request("GET", "/slow/60000/10"),
        request("GET", "/broken/no-response"),
        request("GET", "/broken/drip"),
        request("GET", "/broken/endless-headers"),
    ]:
        with Wire(target.port) as wire:
            wire.send(data)
            if b"delay" in data:
                # A half-closed client would still be answered; a reset leaves no doubt.
                wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                until(lambda: target.counts()["in_flight"]["current"] == 1)

    def all_gone() -> bool:
        counts = target.counts()
        open_now = counts["connections"]["current"] + counts["connections"]["silent"]
        return (open_now, counts["in_flight"]["current"]) == (0, 0)

    until(all_gone)


def test_many_connections_are_served_at_once() -> None:
    server = Target(threads=2)
    try:
        with ExitStack() as stack:
            wires = [stack.enter_context(Wire(server.port)) for _ in range(400)]
            for wire in wires:
                wire.send(request("GET", "/delay/50"))
            assert all(wire.response()[0] == 200 for wire in wires)
    finally:
        server.stop()


def test_stopping_ends_every_connection(target: RunningTarget) -> None:
    with Wire(target.port) as wire:
        wire.send(request("GET", "/delay/60000"))
        until(lambda: target.counts()["in_flight"]["current"] == 1)
        target.server.stop()
        assert wire.read_to_end() == b""
    with pytest.raises(ConnectionRefusedError):
        Wire(target.port)
    target.server.stop()


def test_ipv6_is_served() -> None:
    server = Target("::1")
    try:
        with Wire(server.port, host="::1") as wire:
            wire.send(request("GET", "/"))
            assert wire.response()[0] == 200
    finally:
        server.stop()


def test_a_port_in_use_is_an_error_with_its_number(target: RunningTarget) -> None:
    with pytest.raises(OSError, match="Address already in use") as caught:
        Target("127.0.0.1", target.port)
    assert caught.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize(
    "options", [{"host": "no.such.host.invalid"}, {"threads": 0}, {"tls_cert_pem": b"x"}]
)
def test_what_cannot_be_used_is_a_value_error(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"resolved|threads|certificate"):
        Target(**options)  # type: ignore[arg-type]  # wrong on purpose, and of mixed types
