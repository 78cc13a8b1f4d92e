"""Cancelled at any point, a call leaves nothing behind on either side."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

import pytest

from hyperscale.wire.calls import InboundCall
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.messages import Chunk
from hyperscale.wire.server import PeerServer
from tests.lab.loops import run
from tests.lab.peers import Answer, Fetch, Question, echoing, server
from tests.lab.waiting import soon, until_async


class Slow:
    """A handler that says when it began and how it ended."""

    def __init__(self) -> None:
        self.begun = 0
        self.cancelled = 0
        self.handlers = Handlers()
        self.handlers.add(Question, self.answer)

    async def answer(self, _call: InboundCall, _question: Question) -> Answer:
        self.begun += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Answer("never")


def is_quiet(*nodes: PeerServer) -> bool:
    """Nothing pending, nothing running, nothing admitted, nothing queued."""
    return all(
        node.admission.in_flight == [0, 0, 0, 0]
        and all(
            not c.session.pending.by_id and not c.session.inbound and not c.session.outbox
            for c in node.connections
        )
        for node in nodes
    )


def test_a_cancelled_call_ends_its_handler_and_the_connection_is_as_before() -> None:
    async def main() -> None:
        slow = Slow()
        slow.handlers.add(Fetch, lambda _, fetch: Answer(str(fetch.parts)))
        async with server("a") as a, server("b", handlers=slow.handlers) as b:
            link = a.link(*await b.listen("127.0.0.1", 0))
            for turn in range(1, 6):
                call = asyncio.ensure_future(link.call(Question("x"), Answer, deadline_s=soon()))
                await until_async(lambda turn=turn: slow.begun == turn)
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
                await until_async(lambda turn=turn: slow.cancelled == turn)
            await until_async(lambda: is_quiet(a, b))
            assert await link.call(Fetch(3), Answer, deadline_s=soon()) == Answer("3")

    run(main)


def test_a_call_cancelled_before_it_is_sent_is_never_sent() -> None:
    async def main() -> None:
        slow = Slow()
        slow.handlers.add(Fetch, lambda _, fetch: Answer(str(fetch.parts)))
        async with server("a") as a, server("b", handlers=slow.handlers) as b:
            link = a.link(*await b.listen("127.0.0.1", 0))
            await link.call(Fetch(1), Answer, deadline_s=soon())
            connection = a.connections[0]
            connection.pause_writing()  # as if the peer took nothing just now
            call = asyncio.ensure_future(link.call(Question("x"), Answer, deadline_s=soon()))
            await until_async(lambda: connection.session.outbox)
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call
            assert not connection.session.outbox
            connection.resume_writing()
            await link.call(Fetch(1), Answer, deadline_s=soon())
            assert slow.begun == 0
            assert is_quiet(a, b)

    run(main)


@pytest.mark.parametrize("turns", range(8))
def test_cancelled_after_any_number_of_turns(turns: int) -> None:
    async def main() -> None:
        async with server("a") as a, server("b", handlers=echoing()) as b:
            link = a.link(*await b.listen("127.0.0.1", 0))
            for _ in range(10):
                call = asyncio.ensure_future(link.call(Question("x"), Answer, deadline_s=soon()))
                for _ in range(turns):
                    await asyncio.sleep(0)
                call.cancel()
                with suppress(asyncio.CancelledError):
                    await call
            await until_async(lambda: link.connection is not None)
            await until_async(lambda: is_quiet(a, b))
            assert await link.call(Question("y"), Answer, deadline_s=soon()) == Answer("Y")

    run(main)


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 20, 60])
def test_a_stream_left_early_is_closed_at_its_source(turns: int) -> None:
    async def main() -> None:
        open_streams = 0

        async def parts(_call: InboundCall, fetch: Fetch) -> AsyncGenerator[Chunk, None]:
            nonlocal open_streams
            open_streams += 1
            try:
                for _ in range(fetch.parts):
                    yield Chunk(bytes(fetch.part_bytes))
            finally:
                open_streams -= 1

        handlers = Handlers()
        handlers.add(Fetch, parts)
        async with server("a") as a, server("b", handlers=handlers) as b:
            link = a.link(*await b.listen("127.0.0.1", 0))
            stream = await link.stream(Fetch(parts=100_000), Chunk, deadline_s=soon(60))
            async with stream as received:
                for _ in range(turns):
                    await anext(received)
            await until_async(lambda: open_streams == 0)
            await until_async(lambda: is_quiet(a, b))

    run(main)


def test_a_reader_cancelled_in_the_middle_of_a_stream() -> None:
    async def main() -> None:
        closed = asyncio.Event()

        async def parts(_call: InboundCall, _fetch: Fetch) -> AsyncGenerator[Chunk, None]:
            try:
                yield Chunk(b"one")
                await asyncio.Event().wait()
            finally:
                closed.set()

        handlers = Handlers()
        handlers.add(Fetch, parts)
        async with server("a") as a, server("b", handlers=handlers) as b:
            link = a.link(*await b.listen("127.0.0.1", 0))
            heard = asyncio.Event()

            async def read() -> None:
                async with await link.stream(Fetch(2), Chunk, deadline_s=soon()) as received:
                    async for _ in received:
                        heard.set()

            task = asyncio.ensure_future(read())
            await heard.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await closed.wait()
            await until_async(lambda: is_quiet(a, b))

    run(main)


@pytest.mark.parametrize("turns", range(0, 40, 3))
def test_a_dial_cancelled_after_any_number_of_turns_leaves_no_socket(turns: int) -> None:
    async def main() -> None:
        async with server("a") as a, server("b") as b:
            address = await b.listen("127.0.0.1", 0)
            dial = asyncio.ensure_future(a.dial(*address))
            for _ in range(turns):
                await asyncio.sleep(0)
            dial.cancel()
            with suppress(asyncio.CancelledError):
                await dial
            if dial.cancelled():
                await until_async(lambda: not a.connection_count)

    run(main)


@pytest.mark.parametrize("turns", range(0, 40, 3))
def test_a_node_stopped_after_any_number_of_turns_leaves_nothing(turns: int) -> None:
    async def main() -> None:
        async with server("b", handlers=echoing()) as b:
            address = await b.listen("127.0.0.1", 0)
            async with server("a") as a:
                link = a.link(*address)
                call = asyncio.ensure_future(link.call(Question("x"), Answer, deadline_s=soon()))
                for _ in range(turns):
                    await asyncio.sleep(0)
            await asyncio.wait([call])
            call.exception()

    run(main)


def test_a_node_whose_owner_is_cancelled_still_closes_everything() -> None:
    async def main() -> None:
        slow = Slow()

        async def owner(address: "asyncio.Future[tuple[str, int]]") -> None:
            async with server("b", handlers=slow.handlers) as b:
                address.set_result(await b.listen("127.0.0.1", 0))
                await asyncio.Event().wait()

        async with server("a") as a:
            address: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
            task = asyncio.ensure_future(owner(address))
            link = a.link(*await address)
            call = asyncio.ensure_future(link.call(Question("x"), Answer, deadline_s=soon(0.5)))
            await until_async(lambda: slow.begun)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait([call])
            assert call.exception() is not None
            assert slow.cancelled == 1

    run(main)
