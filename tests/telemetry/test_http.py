"""The HTTP endpoint of a node."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus

import pytest

from hyperscale.errors import InputError
from hyperscale.telemetry.http import (
    CONNECTIONS_MAX,
    HEAD_BYTES_MAX,
    REQUEST_S,
    Response,
    bind_http,
    plain,
    respond,
    serve_http,
)


@asynccontextmanager
async def endpoint() -> AsyncIterator[tuple[str, int]]:
    bound = bind_http("127.0.0.1", 0)
    with bound:
        async with serve_http(bound, {"/healthz": lambda: plain(HTTPStatus.OK, "well")}):
            yield bound.getsockname()[:2]


async def exchange(address: tuple[str, int], request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request)
    try:
        return await asyncio.wait_for(reader.read(), 30)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("request_bytes", "status", "body"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 200, b"well\n"),
        (b"GET /healthz?verbose=1 HTTP/1.0\r\n\r\n", 200, b"well\n"),
        (b"HEAD /healthz HTTP/1.1\r\n\r\n", 200, b""),
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404, b"not found; this node serves /healthz\n"),
        (b"POST /healthz HTTP/1.1\r\n\r\n", 405, b"only GET and HEAD are served\n"),
        (b"\x16\x03\x01\n\n", 400, b"this is not an HTTP/1 request\n"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * HEAD_BYTES_MAX, 431, b"the request is too large\n"),
    ],
)
def test_requests_are_answered_or_refused(request_bytes: bytes, status: int, body: bytes) -> None:
    async def ask() -> bytes:
        async with endpoint() as address:
            return await exchange(address, request_bytes)

    head, _, got = asyncio.run(ask()).partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"Connection: close" in head
    assert got == body


def test_a_request_may_arrive_byte_by_byte() -> None:
    async def ask() -> bytes:
        async with endpoint() as address:
            reader, writer = await asyncio.open_connection(*address)
            for byte in b"GET /healthz HTTP/1.1\r\n\r\n":
                writer.write(bytes([byte]))
                await writer.drain()
            answer = await asyncio.wait_for(reader.read(), 30)
            writer.close()
            return answer

    assert asyncio.run(ask()).endswith(b"well\n")


def test_a_route_that_fails_is_answered_with_500_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> Response:
        raise ZeroDivisionError

    response, _ = respond(b"GET /metrics HTTP/1.1\r\n\r\n", {"/metrics": fail})
    assert response.status == 500
    assert [record.message for record in caplog.records] == ["request.failed"]


def test_a_probe_is_answered_however_many_connections_are_silent() -> None:
    async def crowd() -> bytes:
        async with endpoint() as address:
            idle = [await asyncio.open_connection(*address) for _ in range(4 * CONNECTIONS_MAX)]
            served = await exchange(address, b"GET /healthz HTTP/1.1\r\n\r\n")
            async with asyncio.timeout(REQUEST_S / 2):  # the oldest one made room at once
                with suppress(ConnectionError):
                    await idle[0][0].read()
            for _, writer in idle:
                writer.close()
            return served

    assert asyncio.run(crowd()).endswith(b"well\n")


def test_an_http_port_in_use_is_an_input_error() -> None:
    with bind_http("127.0.0.1", 0) as taken, pytest.raises(InputError, match="--http-port"):
        bind_http("127.0.0.1", taken.getsockname()[1])
