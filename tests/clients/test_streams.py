"""Server-sent events, streamed bodies, TCP and UDP."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from hyperscale._native import Target
from hyperscale.clients import RequestError
from hyperscale.errors import InputError
from hyperscale.testing.streams import Event, SSEResponse
from tests.conftest import RunningTarget
from tests.lab.asgi import serving
from tests.lab.clients import Lab, in_lab


def failure(work: Callable[[Lab], Awaitable[Any]]) -> tuple[str, str]:
    with pytest.raises(RequestError) as failed:
        in_lab(work)
    return failed.value.error, str(failed.value)


# --- server-sent events -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "event"),
    [
        (b"data: one\n", Event("one")),
        (b"data:one\ndata: two\nid: 7\n", Event("one\ntwo", id="7")),
        (b": comment\nevent: add\nretry: 500\ndata: x\n", Event("x", "add", retry_ms=500)),
        (b"data\nid: a\0b\nretry: soon\nunknown: 1\n", Event("")),
        (b"event: x\r\ndata: y\r\n", Event("y", "x")),
    ],
)
def test_an_event_is_read_as_browsers_do(block: bytes, event: Event) -> None:
    assert Event.parse(block) == event


def test_events_are_read_by_number_and_by_time(target: RunningTarget) -> None:
    async def work(lab: Lab) -> tuple[SSEResponse, SSEResponse, SSEResponse]:
        sse = lab.hub.client(0).sse
        return (
            await sse.read(f"{target.url}/sse/5/100", events=3),
            await sse.read(f"{target.url}/sse/5/1000", duration="0.3s"),
            await sse.read(f"{target.url}/sse/1/4", events=100),
        )

    three, timed, ended = in_lab(work)
    assert [event.data for event in three.events] == ["event 1", "event 2", "event 3"]
    assert len(three.gaps_s) == 2
    assert three.first_s is not None
    assert timed.status == 200
    assert timed.events[0].id == "1"
    assert [event.id for event in ended.events] == ["1", "2", "3", "4"]


def test_a_broken_stream_goes_on_after_the_last_event(target: RunningTarget) -> None:
    async def work(lab: Lab) -> list[SSEResponse]:
        url = f"{target.url}/sse/1/10?break=4"
        return await lab.hub.client(0).sse.follow(url, events=10, within="20s")

    responses = in_lab(work)
    assert [event.id for each in responses for event in each.events] == [
        str(number) for number in range(1, 11)
    ]
    assert target.counts()["routes"]["/sse/{ms}/{n}"] == {"GET": 3}
    assert target.counts()["streams"]["sse"]["messages_out"] == 10


async def tokens(scope: Any, receive: Any, send: Any) -> None:
    """Reply with ten pieces, as an LLM does."""
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for number in range(10):
        body = f"data: token {number}\n\n".encode()
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await asyncio.sleep(0.01)
    await send({"type": "http.response.body", "body": b""})


def test_a_server_that_is_not_ours_streams_events_and_bodies() -> None:
    async def work(lab: Lab, url: str) -> tuple[Any, Any, Any]:
        client = lab.hub.client(0)
        whole = await client.http.get(url)
        return await client.sse.read(url, events=10), await client.http.stream(url), whole

    with serving(tokens) as port:
        events, streamed, whole = in_lab(lambda lab: work(lab, f"http://127.0.0.1:{port}/"))
    assert [event.data for event in events.events] == [f"token {n}" for n in range(10)]
    assert streamed.content == whole.content
    assert len(streamed.chunks) > 1
    assert streamed.first_s < streamed.elapsed_s
    assert streamed.rate > 0


def test_a_post_can_be_streamed_and_a_refusal_has_its_status(target: RunningTarget) -> None:
    async def work(lab: Lab) -> tuple[Any, Any, Any]:
        client = lab.hub.client(0)
        return (
            await client.http.stream(f"{target.url}/echo", method="POST", json={"prompt": "hi"}),
            await client.http.stream(f"{target.url}/status/503"),
            await client.sse.read(f"{target.url}/status/404", events=1),
        )

    echoed, refused, missing = in_lab(work)
    assert echoed.json()["body"] == '{"prompt":"hi"}'
    assert (refused.status, refused.ok) == (503, False)
    assert (missing.status, list(missing.events)) == (404, [])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "give either events or duration"),
        ({"events": 1, "duration": "1s"}, "give either events or duration"),
        ({"events": 0}, "events=0"),
        ({"events": 1, "json": {}}, "unknown argument 'json'"),
    ],
)
def test_wrong_arguments_of_sse_are_refused(options: dict[str, Any], said: str) -> None:
    async def work(lab: Lab) -> None:
        await lab.hub.client(0).sse.read("http://h/", **options)

    with pytest.raises(InputError, match=said):
        in_lab(work)


# --- TCP and UDP --------------------------------------------------------------------------------


@pytest.fixture
def echo() -> Iterator[Target]:
    server = Target(tcp_port=0, udp_port=0)
    yield server
    server.stop()


def test_tcp_receives_by_delimiter_by_length_and_as_it_comes(echo: Target) -> None:
    """What is there already is received at once: no call here comes near its timeout."""
    url = f"tcp://127.0.0.1:{echo.tcp_port}"

    async def work(lab: Lab) -> list[Any]:
        tcp = lab.hub.client(0).tcp
        found = [
            (await tcp.exchange(url, data=b"a line\nthe rest", until=b"\n")).message,
            (await tcp.receive(url, length=3)).message,
            (await tcp.receive(url, length=5)).message,
            (await tcp.exchange(url, text="x" * 100_000, length=100_000)).message,
            (await tcp.exchange(url, text="one\ntwo\n", until=b"\n", count=2)).messages,
            (await tcp.exchange(url, data=b"plain")).message,
        ]
        await tcp.send(url, data=b"sent\n")
        found += [(await tcp.receive(url, until=b"\n")).message, lab.sent]
        await tcp.close(url)
        found.append(lab.hub.connections)
        return found

    assert in_lab(work, timeout_s=300.0) == [
        b"a line\n",
        b"the",
        b" rest",
        b"x" * 100_000,
        [b"one\n", b"two\n"],
        b"plain",
        b"sent\n",
        5,
        0,
    ]


def test_tls_over_tcp(target_identity: tuple[str, str], tmp_path: Any) -> None:
    certificate, key = target_identity
    (tmp_path / "ca.pem").write_text(certificate)
    server = Target(tls_cert_pem=certificate.encode(), tls_key_pem=key.encode(), tcp_port=0)
    url = f"tls://localhost:{server.tcp_port}"

    async def work(lab: Lab) -> Any:
        return await lab.hub.client(0).tcp.exchange(url, data=b"x", ca=str(tmp_path / "ca.pem"))

    try:
        response = in_lab(work)
        assert response.content == b"x"
        assert response.phases.tls_s is not None
        assert failure(lambda lab: lab.hub.client(0).tcp.connect(url))[0] == "tls"
    finally:
        server.stop()


def test_a_datagram_without_a_reply_is_lost_and_its_late_reply_is_dropped(echo: Target) -> None:
    url = f"udp://127.0.0.1:{echo.udp_port}"

    async def work(lab: Lab) -> list[Any]:
        udp = lab.hub.client(0).udp
        with pytest.raises(RequestError) as lost:
            await udp.exchange(url, data=b"!drop", timeout="0.1s")
        replies = [await udp.exchange(url, text=f"number {n}") for n in range(20)]
        return [lost.value.error, *(reply.text for reply in replies), lab.sent]

    assert in_lab(work) == ["lost", *(f"number {n}" for n in range(20)), 21]


@contextlib.contextmanager
def scripted(said: bytes) -> Iterator[str]:
    """Serve one TCP connection that says something and closes; yields the URL."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve_one() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(said)

    thread = threading.Thread(target=serve_one, daemon=True)
    thread.start()
    try:
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
        thread.join(10)


def test_tcp_failures_have_their_classes(echo: Target) -> None:
    with scripted(b"half a li") as url:
        assert failure(lambda lab: lab.hub.client(0).tcp.receive(url, until=b"\n"))[0] == "reset"
    with scripted(b"x" * 100_000) as url:
        work = lambda lab: lab.hub.client(0).tcp.receive(url, until=b"\n", body_limit=1000)  # noqa: E731
        assert failure(work)[0] == "too_large"
    quiet = f"tcp://127.0.0.1:{echo.tcp_port}"
    work = lambda lab: lab.hub.client(0).tcp.receive(quiet, timeout="0.1s")  # noqa: E731
    assert failure(work)[0] == "timeout"
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    assert failure(lambda lab: lab.hub.client(0).tcp.connect(nobody))[0] == "connect"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda c: c.tcp.exchange("udp://h:1", data=b"x"), "the scheme is not tcp or tls"),
        (lambda c: c.udp.exchange("dtls://h:1", data=b"x"), "the scheme is not udp"),
        (lambda c: c.tcp.receive("tcp://h:1", length=0), "length=0"),
        (lambda c: c.tcp.receive("tcp://h:1", length=1, until=b"x"), "both length and until"),
        (lambda c: c.tcp.receive("tcp://h:1", until="x"), "is not bytes"),
        (lambda c: c.tcp.exchange("tcp://h:1"), "no message is given"),
        (lambda c: c.udp.receive("udp://h:1", count=0), "count=0"),
    ],
)
def test_wrong_arguments_of_raw_calls_are_refused(call: Any, said: str) -> None:
    async def work(lab: Lab) -> None:
        await call(lab.hub.client(0))

    with pytest.raises(InputError, match=said):
        in_lab(work)
