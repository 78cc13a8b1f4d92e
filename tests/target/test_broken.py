"""The broken routes break in exactly the way their name says."""

import gzip
import zlib
from contextlib import suppress

import pytest

from tests.conftest import RunningTarget
from tests.target.wire import Wire, request


@pytest.fixture
def wire(target: RunningTarget) -> Wire:
    return Wire(target.port)


@pytest.mark.parametrize(
    ("fault", "sign"),
    [
        ("bad-chunk", b"5\r\nhello\r\nxyz\r\n"),
        ("bad-content-length", b"Content-Length: 12abc\r\n\r\n"),
        ("two-content-lengths", b"Content-Length: 5\r\nContent-Length: 7\r\n\r\nhello!!"),
        ("chunk-overflow", b"\r\n\r\nfffffffffffffffff\r\n"),
        ("garbage", b"this is not HTTP"),
        ("drip", b"1\r\n.\r\n1\r\n.\r\n"),
    ],
)
def test_lies_are_told_and_the_connection_stays_open(wire: Wire, fault: str, sign: bytes) -> None:
    with wire:
        wire.send(request("GET", f"/broken/{fault}"))
        wire.read_until(lambda data: sign in data)
        wire.socket.setblocking(False)
        with suppress(BlockingIOError):
            assert wire.socket.recv(100) != b""


@pytest.mark.parametrize("fault", ["endless-headers", "endless-interim"])
def test_endless_heads_do_not_end(wire: Wire, fault: str) -> None:
    with wire:
        wire.send(request("GET", f"/broken/{fault}"))
        received = wire.read_until(lambda data: len(data) > 3_000_000)
        assert b"\r\n\r\n" not in received.replace(b"HTTP/1.1 103 Early Hints\r\n\r\n", b"")


def test_early_close_ends_before_its_length(wire: Wire) -> None:
    with wire:
        wire.send(request("GET", "/broken/early-close"))
        assert wire.read_to_end().endswith(b"Content-Length: 1000\r\n\r\n0123456789")


def test_a_huge_header_is_a_mebibyte(wire: Wire) -> None:
    with wire:
        wire.send(request("GET", "/broken/huge-header"))
        assert len(wire.response()[1]["x-huge"]) == 1 << 20


def test_interim_responses_come_before_the_final_one(wire: Wire) -> None:
    with wire:
        wire.send(request("GET", "/broken/interim"))
        statuses = [wire.response()[0] for _ in range(4)]
        assert statuses == [100, 102, 103, 200]
        wire.send(request("GET", "/"))
        assert wire.response()[0] == 200


def test_a_redirect_loop_points_at_itself(wire: Wire) -> None:
    with wire:
        wire.send(request("GET", "/broken/redirect-loop"))
        assert wire.response()[1]["location"] == "/broken/redirect-loop"


def test_the_bomb_is_small_and_opens_to_much(wire: Wire) -> None:
    with wire:
        wire.send(request("GET", "/broken/gzip-bomb"))
        _, headers, body = wire.response()
        assert headers["content-encoding"] == "gzip"
        assert len(body) < 2 << 20
        opened = zlib.decompressobj(wbits=31).decompress(body, 20 << 20)
        assert opened == bytes(20 << 20)


def test_truncated_gzip_cannot_be_opened(wire: Wire) -> None:
    with wire:
        wire.send(request("GET", "/broken/truncated-gzip"))
        with pytest.raises(EOFError):
            gzip.decompress(wire.response()[2])


def test_no_response_is_counted_and_says_nothing(target: RunningTarget, wire: Wire) -> None:
    with wire, Wire(target.port) as other:
        wire.send(request("GET", "/broken/no-response"))
        other.send(request("GET", "/"))
        assert other.response()[0] == 200
        wire.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            wire.socket.recv(1)
    assert target.counts()["routes"]["/broken/{fault}"] == {"GET": 1}


def test_an_unknown_fault_is_an_unknown_path(wire: Wire) -> None:
    with wire:
        wire.send(request("GET", "/broken/heart"))
        assert wire.response()[0] == 404
