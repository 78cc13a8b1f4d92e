"""The UDP socket of a node."""

import asyncio
import os
from typing import Any

import pytest

from hyperscale.errors import InputError, InvariantError
from hyperscale.membership.messages import Gossip, Sender
from hyperscale.wire.cluster_secret import Secrets, make_secret
from hyperscale.wire.datagrams import DatagramSocket, bind_datagrams
from hyperscale.wire.sealing import DatagramSealer
from tests.lab.waiting import until_async

HELLO = Gossip(Sender("127.0.0.1:1"))


class Post:
    """The UDP sockets of two nodes, and the datagrams that the second one received."""

    def __init__(self, secrets: Secrets | None = None, other: Secrets | None = None) -> None:
        self.sockets = [bind_datagrams("127.0.0.1", 0) for _ in range(2)]
        given = (secrets, other or secrets)
        self.ends = [
            DatagramSocket(bound, DatagramSealer(each, name, 7))
            for bound, each, name in zip(self.sockets, given, "ab", strict=True)
        ]
        self.address = f"127.0.0.1:{self.sockets[1].getsockname()[1]}"
        self.received: list[tuple[str, str, int, Any]] = []

    def __enter__(self) -> "Post":
        self.ends[1].listen(lambda *item: self.received.append(item))
        return self

    def __exit__(self, *_: object) -> None:
        for end in self.ends:
            end.__exit__(None, None, None)


@pytest.mark.parametrize("secrets", [None, Secrets(make_secret())])
def test_a_datagram_arrives_with_its_sender(secrets: Secrets | None) -> None:
    async def send() -> tuple[str, str, int, Any]:
        with Post(secrets) as post:
            post.ends[0].send(post.address, HELLO)
            await until_async(lambda: post.received)
            return post.received[0]

    source, node, incarnation, message = asyncio.run(send())
    assert (node, incarnation, message) == ("a", 7, HELLO)
    assert source.startswith("127.0.0.1:")


def test_datagrams_that_cannot_be_opened_are_counted_and_dropped() -> None:
    async def send() -> tuple[list[Any], int, int]:
        with Post(Secrets(make_secret()), Secrets(make_secret())) as post:
            post.ends[0].send(post.address, HELLO)
            for junk in (b"", b"\x01", b"x" * 1400, os.urandom(9000)):
                post.sockets[0].sendto(junk, post.sockets[1].getsockname())
            await until_async(lambda: post.ends[1].counts["received"] == 5)
            return post.received, sum(post.ends[1].refusals.counts.values()), 5

    received, refused, sent = asyncio.run(send())
    assert received == []
    assert refused == sent


def test_drain_reads_all_waiting_datagrams() -> None:
    async def drain() -> int:
        with Post() as post:
            for _ in range(300):
                post.ends[0].send(post.address, HELLO)
            post.ends[1].drain()  # the event loop does not run in between
            return len(post.received)

    assert asyncio.run(drain()) == 300


@pytest.mark.parametrize("address", ["nowhere.invalid:1", "[::1]:1", "127.0.0.1:x", "x", ""])
def test_sending_to_an_impossible_address_is_counted_and_raises_nothing(address: str) -> None:
    async def send() -> int:
        with Post() as post:
            post.ends[0].send(address, HELLO)
            return post.ends[0].counts["failed"]

    assert asyncio.run(send()) == 1


def test_a_renewed_sealer_uses_a_new_key_and_keeps_the_windows_of_others() -> None:
    secrets = Secrets(make_secret())
    one, other = (DatagramSealer(secrets, name, 7) for name in "ab")
    early = one.seal(b"early")
    assert other.open(early).plain == b"early"
    other.renew(8)
    one.renew(9)
    assert other.open(one.seal(b"late")) == ("a", 9, b"late")
    assert one.open(other.seal(b"hi")) == ("b", 8, b"hi")
    with pytest.raises(Exception, match="9 is known"):
        other.open(early)  # the replay window of the first incarnation is kept
    with pytest.raises(InvariantError):
        one.renew(9)


def test_a_udp_port_in_use_is_an_input_error() -> None:
    with bind_datagrams("127.0.0.1", 0) as taken, pytest.raises(InputError, match="--port"):
        bind_datagrams("127.0.0.1", taken.getsockname()[1])


def test_a_dual_stack_socket_exchanges_datagrams_with_an_ipv4_socket() -> None:
    async def send() -> tuple[str, Any]:
        both, old = bind_datagrams("::", 0), bind_datagrams("127.0.0.1", 0)
        heard: list[tuple[str, str, int, Any]] = []
        with (
            DatagramSocket(both, DatagramSealer(None, "both", 1)) as here,
            DatagramSocket(old, DatagramSealer(None, "old", 1)) as there,
        ):
            here.listen(lambda *item: heard.append(item))
            there.listen(lambda *item: heard.append(item))
            there.send(f"127.0.0.1:{both.getsockname()[1]}", HELLO)
            async with asyncio.timeout(30):
                while len(heard) < 1:
                    await asyncio.sleep(0.001)
                here.send(heard[0][0], HELLO)
                while len(heard) < 2:
                    await asyncio.sleep(0.001)
            return heard[0][0], heard[1][3]

    source, message = asyncio.run(send())
    assert source.startswith("127.0.0.1:")
    assert message == HELLO
