"""Calls of gRPC in which messages go both ways while the call is under way, and bodies that are
read as they arrive."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from hyperscale.clients import RequestError
from hyperscale.testing import GRPCCode, StreamedResponse
from tests.conftest import RunningTarget
from tests.lab.clients import Lab, in_lab

BIDI = "hyperscale.Echo/BidiStream"


class Conversation(grpc.GenericRpcHandler):  # type: ignore[misc]  # has no types
    """Answers every message before it reads the next, and ends as the client asks."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def service(self, details: Any) -> Any:
        methods = {
            "/test.Talk/Bidi": grpc.stream_stream_rpc_method_handler(self.bidi),
            "/test.Talk/Client": grpc.stream_unary_rpc_method_handler(self.client),
        }
        return methods.get(details.method)

    def bidi(self, messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
        context.add_callback(self.cancelled.set)
        for message in messages:
            if message == b"fail":
                context.abort(grpc.StatusCode.ABORTED, "as asked")
            if message == b"bye":
                return
            yield message.upper()

    def client(self, messages: Iterator[bytes], _context: Any) -> bytes:
        return b"+".join(messages)


@pytest.fixture
def talk() -> Iterator[tuple[Conversation, str]]:
    conversation = Conversation()
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((conversation,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield conversation, f"http://127.0.0.1:{port}"
    server.stop(None).wait()


def test_a_server_of_grpcio_answers_before_the_next_message(
    talk: tuple[Conversation, str],
) -> None:
    _, url = talk

    async def work(lab: Lab) -> tuple[list[bytes], GRPCCode, int]:
        seen = []
        async with lab.grpc.stream(url, "test.Talk/Bidi") as stream:
            text = b"a"
            for _ in range(5):
                await stream.send(text)
                text = await stream.receive() + b"b"
                seen.append(text)
        assert (stream.sent, stream.received) == (5, 5)
        return seen, stream.response.code, lab.sent

    seen, code, sent = in_lab(work)
    assert seen == [b"A" + b"B" * n + b"b" for n in range(5)]
    assert (code, sent) == (GRPCCode.OK, 1)


def test_a_client_stream_and_replies_of_any_size_go_by_turns(
    talk: tuple[Conversation, str],
) -> None:
    _, url = talk
    large = b"x" * 300_000  # more than any window

    async def work(lab: Lab) -> list[object]:
        async with lab.grpc.stream(url, "test.Talk/Client") as one:
            await one.send(b"a")
            await one.send(b"b")
            await one.end()
            joined = await one.receive()
            nothing = await one.receive()
        async with lab.grpc.stream(url, "test.Talk/Bidi") as two:
            await two.send(large)
            echoed = await two.receive()
            await two.send(b"")
            empty = await two.receive()
            await two.send(b"bye")
            rest = [reply async for reply in two]
        return [joined, nothing, echoed == large.upper(), empty, rest, two.response.ok]

    assert in_lab(work) == [b"a+b", None, True, b"", [], True]


async def _leave(lab: Lab, url: str) -> None:
    async with lab.grpc.stream(url, "test.Talk/Bidi") as left:
        await left.send(b"a")
        await left.receive()
        raise ZeroDivisionError


async def _ask(lab: Lab, url: str) -> None:
    async with lab.grpc.stream(url, BIDI) as stream:
        await stream.send(b"a")
        await stream.receive()


def test_a_call_that_fails_says_so_and_one_that_is_left_is_cancelled(
    talk: tuple[Conversation, str],
) -> None:
    conversation, url = talk

    async def work(lab: Lab) -> list[object]:
        async with lab.grpc.stream(url, "test.Talk/Bidi") as stream:
            await stream.send(b"fail")
            ended = await stream.receive()
        failed = stream.response
        conversation.cancelled.clear()
        with pytest.raises(ZeroDivisionError):
            await _leave(lab, url)
        await asyncio.to_thread(conversation.cancelled.wait, 20)
        unknown = lab.grpc.stream(url, "test.Talk/None")
        async with unknown:
            assert await unknown.receive() is None
        return [ended, failed.code, failed.details, unknown.response.code]

    assert in_lab(work) == [None, GRPCCode.ABORTED, "as asked", GRPCCode.UNIMPLEMENTED]
    assert conversation.cancelled.is_set()


def test_a_stream_without_a_server_raises_and_a_silent_one_times_out(
    target: RunningTarget,
) -> None:
    async def work(lab: Lab) -> list[str]:
        found = []
        with pytest.raises(RequestError) as refused:
            await _ask(lab, "http://127.0.0.1:1")
        found.append(refused.value.error)
        with pytest.raises(RequestError) as late:
            async with lab.grpc.stream(target.url, BIDI, timeout=0.2) as stream:
                await stream.receive()
        found.append(late.value.error)
        with pytest.raises(TimeoutError):
            async with lab.grpc.stream(target.url, BIDI) as stream, asyncio.timeout(0.1):
                await stream.receive()
        stream = lab.grpc.stream(target.url, BIDI)
        for wrong in (stream.receive(), stream.send(b"x"), stream.end()):
            with pytest.raises(RuntimeError, match="not open"):
                await wrong
        with pytest.raises(RuntimeError, match="has not ended"):
            stream.response  # noqa: B018 - it raises
        return found

    assert in_lab(work) == ["connect", "timeout"]


def test_streams_by_turns_share_a_connection_and_are_counted_by_the_target(
    target: RunningTarget,
) -> None:
    async def talk(lab: Lab) -> int:
        async with lab.grpc.stream(target.url, BIDI) as stream:
            for _ in range(4):
                await stream.send(b"\x0a\x01x")
                assert await stream.receive() == b"\x0a\x01x"
        return stream.response.code

    async def work(lab: Lab) -> int:
        codes = await asyncio.gather(*(talk(lab) for _ in range(10)))
        assert set(codes) == {0}
        return lab.hub.connections

    assert in_lab(work) == 1
    assert target.counts()["streams"]["grpc"]["messages_in"] == 40


def test_a_body_is_read_as_it_arrives_and_its_response_has_the_times() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send each piece only after the client has asked for it, over another connection."""
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in pieces:
            await asked.get()
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        writer.write(b"0\r\n\r\n")
        writer.close()

    pieces = [b"one", b"two", b"three"]
    asked: asyncio.Queue[None] = asyncio.Queue()

    async def work(lab: Lab) -> tuple[list[bytes], StreamedResponse]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        seen = []
        async with server:
            asked.put_nowait(None)
            stream = lab.http.stream(url)
            async for chunk in stream:
                seen.append(chunk)
                asked.put_nowait(None)
            response = await stream
        assert len(response.times_s) == 3
        return seen, response

    seen, response = in_lab(work)
    assert seen == pieces
    assert (response.status, response.chunks) == (200, pieces)


def test_a_stream_can_be_left_early_or_be_made_a_task(target: RunningTarget) -> None:
    async def work(lab: Lab) -> list[object]:
        stream = lab.http.stream(f"{target.url}/slow/100/50")
        async for _ in stream:
            break
        response = await stream
        task = asyncio.create_task(lab.http.stream(f"{target.url}/bytes/10"))
        refused = lab.http.stream(f"{target.url}/status/503")
        nothing = [chunk async for chunk in refused]
        return [
            sum(map(len, response.chunks)),
            sum(map(len, (await task).chunks)),
            nothing,
            (await refused).status,
        ]

    assert in_lab(work) == [50, 10, [], 503]
