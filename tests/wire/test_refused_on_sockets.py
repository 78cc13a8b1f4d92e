"""Everything a stranger, a misconfigured node or an attacker can send to real sockets.

Each is refused under its reason, counted, logged once per peer, and harms nobody: a friend is
served before, during and after. Datagrams and certificates have files of their own.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hyperscale.wire.errors import PeerProtocolError, PeerRefusedError, RefusalReason
from hyperscale.wire.frames import FRAME_BYTES_MAX, encode_head
from hyperscale.wire.handshake import PROTOCOL
from hyperscale.wire.handshake_door import DoorLimits
from hyperscale.wire.listener import ServerLimits
from hyperscale.wire.registry import REGISTRY, SizeClass
from hyperscale.wire.roles import Role
from hyperscale.wire.server import PeerServer
from tests.lab.loops import run
from tests.lab.peers import Answer, Question, echoing, server
from tests.lab.waiting import soon, until_async
from tests.wire.raw_peer import Raw

OTHER = "another secret, long enough"
Attack = Callable[["Target"], Awaitable[None]]


class Target:
    """A node under attack and a friend of it."""

    def __init__(self, node: PeerServer, address: tuple[str, int]) -> None:
        self.node, self.address = node, address


def attacked(
    attack: Attack, reason: RefusalReason, caplog: pytest.LogCaptureFixture, **options: Any
) -> None:
    """Three times the same attack: three counts, one log line, and a friend unharmed."""

    async def main() -> None:
        async with (
            server("target", handlers=echoing(), **options) as node,
            server("friend") as friend,
        ):
            address = await node.listen("127.0.0.1", 0)
            link = friend.link(*address)
            await link.call(Question("before"), Answer, deadline_s=soon())
            with caplog.at_level(logging.INFO, "hyperscale.wire"):
                for count in range(1, 4):
                    await attack(Target(node, address))
                    await until_async(lambda count=count: node.refusals.counts[reason] == count)
                    await link.call(Question("between"), Answer, deadline_s=soon())
            assert node.refusals.counts.keys() == {reason}
            lines = [r for r in caplog.records if r.message.startswith("peer.refused")]
            assert [line.__dict__["reason"] for line in lines] == [str(reason)]
            await until_async(lambda: len(node.connections) == 1)
            assert node.admission.in_flight == [0, 0, 0, 0]

    run(main)


def dialling(node_id: str = "stranger", role: Role = Role.MANAGER, **options: Any) -> Attack:
    """A node of ours, configured differently, that tries to join."""

    async def attack(target: Target) -> None:
        async with server(node_id, role, **options) as stranger:
            with pytest.raises(PeerRefusedError):
                await stranger.dial(*target.address)

    return attack


def saying(data: bytes, *, is_half: bool = False) -> Attack:
    """Bytes on a fresh connection; `is_half` ends it there."""

    async def attack(target: Target) -> None:
        raw = await Raw.dial(target.address)
        raw.writer.write(data)
        if is_half:
            raw.writer.write_eof()
        await raw.until_closed()
        await raw.close()

    return attack


def after_handshake(build: Callable[[Raw], bytes], *, is_half: bool = False) -> Attack:
    """Bytes on a connection whose handshake was honest."""

    async def attack(target: Target) -> None:
        raw = await (await Raw.dial(target.address)).shake()
        raw.writer.write(build(raw))
        if is_half:
            raw.writer.write_eof()
        await raw.until_closed()
        await raw.close()

    return attack


QUESTION = REGISTRY.by_type[Question].kind
ASKED = REGISTRY.encode(Question("hi"))


def _replayed(raw: Raw) -> bytes:
    return raw.frame(QUESTION, ASKED) * 2


def _reordered(raw: Raw) -> bytes:
    first, second = raw.frame(QUESTION, ASKED, 1), raw.frame(QUESTION, ASKED, 3)
    return second + first


def _altered(raw: Raw) -> bytes:
    frame = bytearray(raw.frame(QUESTION, ASKED))
    frame[-1] ^= 1
    return bytes(frame)


def _altered_head(raw: Raw) -> bytes:
    frame = bytearray(raw.frame(QUESTION, ASKED))
    frame[11] ^= 4  # another request id
    return bytes(frame)


TCP: dict[str, tuple[Attack, RefusalReason]] = {
    "a wrong secret": (dialling(secret=OTHER), RefusalReason.SECRET),
    "no secret": (dialling(secret=None), RefusalReason.UNSEALED),
    "another cluster": (dialling(intro={"cluster": "other"}), RefusalReason.CLUSTER),
    "another environment": (dialling(intro={"environment": "other"}), RefusalReason.ENVIRONMENT),
    "another major version": (dialling(protocol=(PROTOCOL[0] + 1, 0)), RefusalReason.VERSION),
    "our own node id": (dialling("target"), RefusalReason.LOOPED),
    "another protocol": (saying(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"), RefusalReason.OVERSIZED),
    "a frame over every limit": (
        saying((FRAME_BYTES_MAX + 1).to_bytes(4, "big")),
        RefusalReason.OVERSIZED,
    ),
    "a handshake frame over its limit": (
        saying(encode_head(1, 0, 0, 0, 20_000)),
        RefusalReason.OVERSIZED,
    ),
    "a call instead of a handshake": (
        saying(encode_head(QUESTION, 1, 0, 2, len(ASKED)) + ASKED),
        RefusalReason.UNEXPECTED,
    ),
    "an introduction before the hello": (
        saying(encode_head(2, 0, 0, 0, 4) + b"\x81\xa1ab"),
        RefusalReason.UNEXPECTED,
    ),
    "a hello that is not one": (
        saying(encode_head(1, 0, 0, 0, 4) + b"junk"),
        RefusalReason.MALFORMED,
    ),
    "a truncated hello": (
        saying(encode_head(1, 0, 0, 0, 50) + b"x", is_half=True),
        RefusalReason.TRUNCATED,
    ),
    "nothing at all": (saying(b"", is_half=True), RefusalReason.TRUNCATED),
    "another frame version": (saying(b"\0\0\0\x0c\x09" + bytes(11)), RefusalReason.VERSION),
    "a replayed frame": (after_handshake(_replayed), RefusalReason.TAMPERED),
    "reordered frames": (after_handshake(_reordered), RefusalReason.TAMPERED),
    "an altered frame": (after_handshake(_altered), RefusalReason.TAMPERED),
    "an altered header": (after_handshake(_altered_head), RefusalReason.TAMPERED),
    "an unsealed frame": (
        after_handshake(lambda _: encode_head(QUESTION, 1, 0, 2, len(ASKED)) + ASKED),
        RefusalReason.TAMPERED,
    ),
    "a frame over its class": (
        after_handshake(lambda _: encode_head(QUESTION, 1, 0, 2, SizeClass.SMALL + 17)),
        RefusalReason.OVERSIZED,
    ),
    "a truncated frame": (
        after_handshake(lambda raw: raw.frame(QUESTION, ASKED)[:-3], is_half=True),
        RefusalReason.TRUNCATED,
    ),
    "a handshake within a session": (
        after_handshake(lambda raw: raw.frame(1, b"", 0)),
        RefusalReason.UNEXPECTED,
    ),
    "a request twice": (
        # The first is still being carried out when the second comes: both are in one read.
        after_handshake(lambda raw: raw.frame(QUESTION, ASKED, 5) + raw.frame(QUESTION, ASKED, 5)),
        RefusalReason.UNEXPECTED,
    ),
}


@pytest.mark.parametrize("what", TCP)
def test_a_peer_that_breaks_the_protocol_is_refused_and_others_are_served(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    attack, reason = TCP[what]
    attacked(attack, reason, caplog)


def test_a_role_that_may_not_connect_here_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    attacked(dialling(role=Role.WORKER), RefusalReason.ROLE, caplog, role=Role.GATE)


def test_the_old_secret_is_refused_once_the_rotation_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def during() -> None:
        async with server("target", previous=OTHER) as node, server("late", secret=OTHER) as late:
            assert (await late.dial(*await node.listen("127.0.0.1", 0))).is_usable

    run(during)
    attacked(dialling(secret=OTHER), RefusalReason.SECRET, caplog)


def test_a_dialer_with_a_secret_is_refused_by_a_node_without_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with server("target", secret=None) as node, server("stranger") as stranger:
            address = await node.listen("127.0.0.1", 0)
            with pytest.raises(PeerRefusedError, match="'secret', the acceptor by 'none'"):
                await stranger.dial(*address)
            assert node.refusals.counts == {RefusalReason.SEALED: 1}

    run(main)


def test_a_refusal_names_the_values_of_both_sides() -> None:
    async def main() -> None:
        async with (
            server("target", intro={"cluster": "theirs"}) as node,
            server("stranger", intro={"cluster": "mine"}) as stranger,
        ):
            address = await node.listen("127.0.0.1", 0)
            link = stranger.link(*address)
            await until_async(lambda: "'mine'" in link.last_error and "'theirs'" in link.last_error)
            assert stranger.refusals.rejections[RefusalReason.CLUSTER] >= 1
            assert not stranger.refusals.counts

    run(main)


def test_a_slow_handshake_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    attacked(saying(b"\0"), RefusalReason.SLOW, caplog, limits=ServerLimits(handshake_s=0.1))


def test_handshakes_are_bounded_and_accepted_again_afterwards() -> None:
    async def main() -> None:
        async with (
            server(
                "target",
                handlers=echoing(),
                limits=ServerLimits(door=DoorLimits(pending_max=5, reserved=0)),
            ) as node,
            server("friend") as friend,
        ):
            address = await node.listen("127.0.0.1", 0)
            crowd = [await Raw.dial(address) for _ in range(20)]
            await until_async(lambda: node.refusals.counts[RefusalReason.CROWDED] == 15)
            for raw in crowd:
                await raw.close()
            assert await friend.link(*address).call(Question("x"), Answer, deadline_s=soon())

    run(main)


def test_a_client_of_an_overloaded_node_is_told_so() -> None:
    async def main() -> None:
        limits = ServerLimits(door=DoorLimits(pending_max=2, pending_per_host_max=2, reserved=0))
        async with server("target", limits=limits) as node, server("friend") as friend:
            address = await node.listen("127.0.0.1", 0)
            crowd = [await Raw.dial(address) for _ in range(2)]
            await until_async(lambda: node.connection_count == 2)
            with pytest.raises(PeerRefusedError, match="the node is overloaded") as refused:
                await friend.dial(*address)
            assert refused.value.reason is RefusalReason.CROWDED
            for raw in crowd:
                await raw.close()

    run(main)


def test_a_silent_handshake_makes_room_for_a_new_one() -> None:
    async def main() -> None:
        door = DoorLimits(pending_max=4, pending_per_host_max=4, reserved=0, silent_s=0.0)
        limits = ServerLimits(handshake_s=60.0, door=door)
        async with (
            server("target", handlers=echoing(), limits=limits) as node,
            server("friend") as friend,
        ):
            address = await node.listen("127.0.0.1", 0)
            crowd = [await Raw.dial(address) for _ in range(4)]
            await until_async(lambda: node.connection_count == 4)
            assert await friend.link(*address).call(Question("x"), Answer, deadline_s=soon())
            assert node.refusals.counts[RefusalReason.SLOW]
            for raw in crowd:
                await raw.close()

    run(main)


def test_connections_of_one_host_are_bounded() -> None:
    async def main() -> None:
        async with server("target", limits=ServerLimits(connections_per_host_max=3)) as node:
            address = await node.listen("127.0.0.1", 0)
            crowd = [await (await Raw.dial(address)).shake() for _ in range(1)]
            more = [await Raw.dial(address) for _ in range(5)]
            await until_async(lambda: node.refusals.counts[RefusalReason.CROWDED] == 3)
            for raw in crowd + more:
                await raw.close()
            await until_async(lambda: not node.connection_count)
            await (await (await Raw.dial(address)).shake()).close()

    run(main)


def test_random_bytes_never_crash_a_node() -> None:
    async def main() -> None:
        rng = random.Random(7)
        async with server("target", handlers=echoing()) as node, server("friend") as friend:
            address = await node.listen("127.0.0.1", 0)
            link = friend.link(*address)
            for turn in range(150):
                raw = await Raw.dial(address)
                if turn % 2:
                    await raw.shake()
                data = rng.randbytes(rng.randrange(1, 3000))
                if turn % 3:  # a plausible head, so that more of the decoder is reached
                    head = encode_head(
                        rng.choice([1, 2, 3, 10, 12, 13, 14, 17, QUESTION, 999]),
                        rng.randrange(8),
                        rng.randrange(1000),
                        rng.randrange(4),
                        len(data),
                    )
                    data = head + data
                raw.writer.write(data)
                raw.writer.write_eof()
                await raw.until_closed()
                await raw.close()
            assert sum(node.refusals.counts.values()) >= 140
            assert await link.call(Question("well"), Answer, deadline_s=soon()) == Answer("WELL")

    run(main)


def test_an_unexpected_error_ends_the_connection_it_occurred_on_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with server("target", handlers=echoing()) as node, server("friend") as friend:
            address = await node.listen("127.0.0.1", 0)
            node.security.tls = SimpleNamespace(server="no context")  # type: ignore[assignment]
            raw = await Raw.dial(address)
            assert await raw.until_closed() == b""
            await raw.close()
            node.security.tls = None
            await until_async(lambda: not node.connection_count)
            link = friend.link(*address)
            assert await link.call(Question("well"), Answer, deadline_s=soon()) == Answer("WELL")

    run(main)
    assert any("connection.failed" in record.message for record in caplog.records)


def test_the_dialer_gets_a_typed_error_from_a_peer_of_another_protocol() -> None:
    async def main() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 smtp.example.org ready\r\n")
            await reader.read()
            writer.close()

        smtp = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with smtp, server("a") as a:
            with pytest.raises(PeerProtocolError) as caught:
                await a.dial(*smtp.sockets[0].getsockname())
            assert caught.value.reason is RefusalReason.OVERSIZED
            assert a.refusals.counts == {RefusalReason.OVERSIZED: 1}
        await smtp.wait_closed()

    run(main)
