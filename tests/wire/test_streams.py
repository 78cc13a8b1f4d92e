"""Answers in parts between real nodes: in order, held back by a slow reader, ended by either."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import ConnectionLostError, RemoteError, RemoteErrorCode
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.messages import Chunk
from tests.lab.loops import run
from tests.lab.peers import Answer, Fetch, Question, ask, server
from tests.lab.waiting import soon, until_async


def serving(log: list[str]) -> Handlers:
    async def parts(_call: InboundCall, fetch: Fetch) -> AsyncGenerator[Chunk, None]:
        try:
            for number in range(fetch.parts):
                yield Chunk(bytes([number % 256]) * fetch.part_bytes)
                log.append("yielded")
        finally:
            log.append("closed")

    handlers = Handlers()
    handlers.add(Fetch, parts)
    return handlers


def test_sixty_four_megabytes_arrive_in_parts_and_in_order() -> None:
    async def main() -> None:
        log: list[str] = []
        async with server("a") as a, server("b", handlers=serving(log)) as b:
            link = a.link(*await b.listen("127.0.0.1", 0))
            total, number = 0, 0
            asked = Fetch(parts=128, part_bytes=512 * 1024)
            async with await link.stream(asked, Chunk, deadline_s=soon(60)) as parts:
                async for part in parts:
                    assert part.data[0] == number % 256
                    total += len(part.data)
                    number += 1
            assert total == 64 * 1024 * 1024
            assert log[-1] == "closed"

    run(main)


def test_a_slow_reader_holds_the_writer_back() -> None:
    async def main() -> None:
        log: list[str] = []
        async with server("a") as a, server("b", handlers=serving(log)) as b:
            link = a.link(*await b.listen("127.0.0.1", 0))
            asked = Fetch(parts=1000, part_bytes=256 * 1024)
            async with await link.stream(asked, Chunk, deadline_s=soon(60)) as parts:
                await anext(parts)
                before = -1
                while before != len(log):  # until_async the writer stands still
                    before = len(log)
                    await asyncio.sleep(0.1)
                assert len(log) < 40  # the window, 4 MiB, and a little on the way
                for _ in range(50):
                    await anext(parts)
            await until_async(lambda: log[-1] == "closed")
            assert len(log) < 120

    run(main)


def test_other_calls_are_answered_while_a_stream_runs() -> None:
    async def main() -> None:
        handlers = serving([])
        handlers.add(Question, lambda _, question: Answer(question.text))
        async with server("a") as a, server("b", handlers=handlers) as b:
            link = a.link(*await b.listen("127.0.0.1", 0))
            asked = Fetch(parts=200, part_bytes=256 * 1024)
            async with await link.stream(asked, Chunk, deadline_s=soon(60)) as parts:
                async for _ in parts:
                    await link.call(ask(), Answer, deadline_s=soon())

    run(main)


def test_a_failing_stream_raises_after_its_items() -> None:
    async def main() -> None:
        async def parts(_call: InboundCall, _fetch: Fetch) -> AsyncGenerator[Chunk, None]:
            yield Chunk(b"one")
            await asyncio.sleep(0.05)
            raise RemoteError("disk gone", code=RemoteErrorCode.FAILED)

        handlers = Handlers()
        handlers.add(Fetch, parts)
        async with server("a") as a, server("b", handlers=handlers) as b:
            link = a.link(*await b.listen("127.0.0.1", 0))
            stream = await link.stream(Fetch(2), Chunk, deadline_s=soon())
            async with stream as received:
                assert (await anext(received)).data == b"one"
                with pytest.raises(RemoteError, match="disk gone"):
                    await anext(received)
            assert b.admission.in_flight == [0, 0, 0, 0]

    run(main)


def test_a_lost_connection_ends_the_stream() -> None:
    async def main() -> None:
        async def parts(_call: InboundCall, _fetch: Fetch) -> AsyncGenerator[Chunk, None]:
            yield Chunk(b"one")
            await asyncio.Event().wait()

        handlers = Handlers()
        handlers.add(Fetch, parts)
        async with server("a") as a, server("b", handlers=handlers) as b:
            link = a.link(*await b.listen("127.0.0.1", 0))
            async with await link.stream(Fetch(2), Chunk, deadline_s=soon()) as received:
                await anext(received)
                b.connections[0].abort("pulled")
                with pytest.raises(ConnectionLostError):
                    await anext(received)

    run(main)
