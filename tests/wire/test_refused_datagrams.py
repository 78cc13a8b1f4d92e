"""Everything a stranger, a misconfigured node or an attacker can send to a node's UDP socket.

Each is refused under its reason, counted, logged once per peer and never answered; a friend is
heard all the while.
"""

import logging
import random
import socket
from collections.abc import Callable
from typing import Any

import pytest

from hyperscale.wire.cluster_secret import Secrets
from hyperscale.wire.datagrams import DatagramSocket, bind_datagrams
from hyperscale.wire.errors import RefusalReason
from hyperscale.wire.registry import REGISTRY
from hyperscale.wire.sealing import DATAGRAM_BYTES_MAX, DatagramSealer
from tests.lab.loops import run
from tests.lab.peers import SECRET, Question
from tests.lab.waiting import until_async

OTHER = "another secret, long enough"
QUESTION = REGISTRY.by_type[Question].kind


def sealer(
    secret: str | None, node: str, cluster: str = "acme", incarnation: int = 1
) -> DatagramSealer:
    secrets = None if secret is None else Secrets(secret)
    return DatagramSealer(secrets, node, incarnation, cluster=cluster, environment="test")


def said(secret: str | None, node: str, cluster: str = "acme") -> bytes:
    return sealer(secret, node, cluster).seal(REGISTRY.pack(Question("hi")))


def altered() -> bytes:
    datagram = bytearray(said(SECRET, "a"))
    datagram[-1] ^= 1
    return bytes(datagram)


def of_an_earlier_life() -> list[bytes]:
    now, before = sealer(SECRET, "a", incarnation=2), sealer(SECRET, "a", incarnation=1)
    packed = REGISTRY.pack(Question("hi"))
    return [now.seal(packed), before.seal(packed), before.seal(packed)]


def not_messages() -> list[bytes]:
    one = sealer(SECRET, "a")
    return [one.seal(QUESTION.to_bytes(2, "big") + junk) for junk in (b"\xc1", b"", b"\x80")]


UDP: dict[str, tuple[Callable[[], list[bytes]], RefusalReason]] = {
    "a wrong secret": (lambda: [said(OTHER, "a")] * 3, RefusalReason.SECRET),
    "no secret": (lambda: [said(None, "a")] * 3, RefusalReason.UNSEALED),
    "another cluster": (lambda: [said(SECRET, "a", "other")] * 3, RefusalReason.CLUSTER),
    "a replay": (lambda: [said(SECRET, "a")] * 4, RefusalReason.REPLAYED),
    "a truncated one": (lambda: [said(SECRET, "a")[:10]] * 3, RefusalReason.TRUNCATED),
    "an empty one": (lambda: [b""] * 3, RefusalReason.TRUNCATED),
    "an oversized one": (lambda: [bytes(9000)] * 3, RefusalReason.OVERSIZED),
    "an altered one": (lambda: [altered()] * 3, RefusalReason.SECRET),
    "another version": (lambda: [b"\x07" + said(SECRET, "a")[1:]] * 3, RefusalReason.VERSION),
    "our own": (lambda: [said(SECRET, "target")] * 3, RefusalReason.LOOPED),
    "an earlier life": (of_an_earlier_life, RefusalReason.INCARNATION),
    "no message": (not_messages, RefusalReason.MALFORMED),
    "an unknown kind": (lambda: [sealer(SECRET, "a").seal(b"\xff\xfe\x80")], RefusalReason.UNKNOWN),
}


def attacked(
    build: Callable[[], list[bytes]],
    reason: RefusalReason,
    caplog: pytest.LogCaptureFixture,
    secret: str | None = SECRET,
) -> None:
    caplog.set_level(logging.INFO, "hyperscale.wire")

    async def main() -> None:
        heard: list[str] = []
        bound = bind_datagrams("127.0.0.1", 0)
        with (
            DatagramSocket(bound, sealer(secret, "target")) as port,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end,
        ):
            port.listen(lambda _address, node_id, _incarnation, _message: heard.append(node_id))
            end.bind(("127.0.0.1", 0))
            end.setblocking(False)
            datagrams = build()
            for datagram in datagrams:
                end.sendto(datagram, bound.getsockname())
            await until_async(lambda: port.counts["received"] == len(datagrams))
            assert port.refusals.counts.keys() == {reason}
            friend = sealer(secret, "friend")
            end.sendto(friend.seal(REGISTRY.pack(Question("hi"))), bound.getsockname())
            await until_async(lambda: heard and heard[-1] == "friend")
            with pytest.raises(BlockingIOError):
                end.recv(100)  # not a word to anyone
        lines = [r for r in caplog.records if r.message.startswith("peer.refused")]
        assert [line.__dict__["reason"] for line in lines] == [str(reason)]

    run(main)


@pytest.mark.parametrize("what", UDP)
def test_a_foreign_datagram_gets_no_answer_and_the_node_goes_on(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    build, reason = UDP[what]
    attacked(build, reason, caplog)


def test_a_sealed_datagram_is_refused_by_a_node_without_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    attacked(lambda: [said(SECRET, "a")] * 3, RefusalReason.SEALED, caplog, secret=None)


def test_reordered_datagrams_are_accepted_and_random_ones_refused() -> None:
    async def main() -> None:
        heard: list[Any] = []
        rng = random.Random(5)
        one = sealer(SECRET, "a")
        good = [one.seal(REGISTRY.pack(Question(str(n)))) for n in range(50)]
        bad = [rng.randbytes(rng.randrange(DATAGRAM_BYTES_MAX + 100)) for _ in range(200)]
        mixed = good + bad
        rng.shuffle(mixed)
        bound = bind_datagrams("127.0.0.1", 0)
        with (
            DatagramSocket(bound, sealer(SECRET, "target")) as port,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end,
        ):
            port.listen(lambda _address, _node, _incarnation, message: heard.append(message.text))
            for datagram in mixed:
                end.sendto(datagram, bound.getsockname())
            port.drain()  # at once, without a turn of the loop
            assert sorted(heard, key=int) == [str(n) for n in range(50)]
            assert port.refusals.counts.total() == 200

    run(main)
