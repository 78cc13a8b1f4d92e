"""The HTTP/1.1 client against the built-in target."""

import asyncio
import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest

from hyperscale._native import Target
from hyperscale.clients import RequestError
from hyperscale.errors import InputError
from hyperscale.testing import HTTPResponse
from tests.conftest import RunningTarget
from tests.lab.clients import Lab, in_lab


def echo_of(response: HTTPResponse) -> dict[str, object]:
    echoed: dict[str, object] = msgspec.json.decode(response.content)
    return echoed


def header_of(echoed: dict[str, object], name: str) -> str | None:
    headers = echoed["headers"]
    pairs = headers.items() if isinstance(headers, dict) else headers
    return next((str(v) for key, v in pairs if key.lower() == name), None)  # type: ignore[union-attr, attr-defined]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_every_method_arrives_unchanged(target: RunningTarget, method: str) -> None:
    async def work(lab: Lab) -> HTTPResponse:
        return await lab.http.request(method, f"{target.url}/echo")

    response = in_lab(work)
    assert response.status == 200
    assert echo_of(response)["method"] == method


def test_a_response_to_head_has_headers_and_no_body(target: RunningTarget) -> None:
    async def work(lab: Lab) -> tuple[HTTPResponse, HTTPResponse]:
        head = await lab.http.head(f"{target.url}/bytes/500")
        return head, await lab.http.get(f"{target.url}/")

    head, after = in_lab(work)
    assert (head.status, head.content, head.headers["content-length"]) == (200, b"", "500")
    assert after.status == 200


def test_headers_params_cookies_and_auth_arrive(target: RunningTarget) -> None:
    async def work(lab: Lab) -> HTTPResponse:
        return await lab.http.get(
            f"{target.url}/echo?first=1",
            headers={"X-One": "1"},
            params={"q": "a b", "many": [1, 2], "none": None},
            cookies={"c": "d"},
            auth=("user", "secret"),
        )

    echoed = echo_of(in_lab(work))
    assert str(echoed["path"]).endswith("?first=1&q=a+b&many=1&many=2") or "q=a+b" in str(echoed)
    assert header_of(echoed, "x-one") == "1"
    assert header_of(echoed, "cookie") == "c=d"
    assert header_of(echoed, "authorization") == "Basic dXNlcjpzZWNyZXQ="


@pytest.mark.parametrize(
    ("call", "content_type", "body"),
    [
        ({"json": {"a": 1}}, "application/json", b'{"a":1}'),
        ({"data": {"a": 1}}, "application/json", b'{"a":1}'),
        ({"data": "text"}, "text/plain; charset=utf-8", b"text"),
        ({"data": b"\x00\xff"}, "application/octet-stream", b"\x00\xff"),
        (
            {"form": {"a": "b c", "d": [1, 2]}},
            "application/x-www-form-urlencoded",
            b"a=b+c&d=1&d=2",
        ),
        ({"data": iter([b"one", b"", b"two"])}, "application/octet-stream", b"onetwo"),
        ({"data": "x", "headers": {"Content-Type": "a/b"}}, "a/b", b"x"),
    ],
)
def test_bodies_arrive_with_their_content_type(
    target: RunningTarget, call: dict[str, object], content_type: str, body: bytes
) -> None:
    async def work(lab: Lab) -> tuple[HTTPResponse, HTTPResponse]:
        again = dict(call)
        if "data" in call and hasattr(call["data"], "__next__"):
            call["data"], again["data"] = iter([b"one", b"", b"two"]), iter([b"one", b"", b"two"])
        plain = await lab.http.post(f"{target.url}/echo", **call)  # type: ignore[arg-type]
        return plain, await lab.http.post(f"{target.url}/echo?raw", **again)  # type: ignore[arg-type]

    described, raw = in_lab(work)
    assert header_of(echo_of(described), "content-type") == content_type
    assert raw.content == body


def test_a_multipart_body_holds_fields_and_files(target: RunningTarget) -> None:
    async def work(lab: Lab) -> HTTPResponse:
        return await lab.http.post(
            f"{target.url}/echo?raw",
            form={"field": "value"},
            files={"doc": ('a"b.txt', b"content", "text/plain"), "raw": b"\x01"},
        )

    body = in_lab(work).content
    assert b'name="field"\r\n\r\nvalue\r\n' in body
    assert (
        b'name="doc"; filename="a%22b.txt"\r\nContent-Type: text/plain\r\n\r\ncontent\r\n' in body
    )
    assert body.rstrip().endswith(b"--")


def test_a_body_larger_than_any_buffer_is_echoed_completely(
    target: RunningTarget,
) -> None:
    content = bytes(range(256)) * 8192  # 2 MiB

    async def work(lab: Lab) -> HTTPResponse:
        return await lab.http.put(f"{target.url}/echo?raw", data=content)

    assert in_lab(work).content == content


@pytest.mark.parametrize("size", [0, 1, 100, 65_536, 1_000_000])
@pytest.mark.parametrize("query", ["", "?chunked"])
def test_response_bodies_of_any_size_and_framing_are_read(
    target: RunningTarget, size: int, query: str
) -> None:
    async def work(lab: Lab) -> HTTPResponse:
        return await lab.http.get(f"{target.url}/bytes/{size}{query}")

    assert len(in_lab(work).content) == size


def test_every_content_encoding_decodes_to_the_same_document(target: RunningTarget) -> None:
    codings = ("gzip", "deflate", "brotli", "zstd")

    async def work(lab: Lab) -> list[HTTPResponse]:
        return [await lab.http.get(f"{target.url}/{coding}") for coding in codings]

    responses = in_lab(work)
    assert [r.headers["content-encoding"] for r in responses] == ["gzip", "deflate", "br", "zstd"]
    documents = [response.json() for response in responses]
    assert documents[0]["text"].startswith("Gr\u00fc\u00dfe")
    assert all(document == documents[0] for document in documents)


def test_redirects_are_followed_counted_and_limited(target: RunningTarget) -> None:
    async def work(lab: Lab) -> tuple[HTTPResponse, HTTPResponse, RequestError, int]:
        end = await lab.http.get(f"{target.url}/redirect/3")
        sent = lab.sent
        first = await lab.http.get(f"{target.url}/redirect/3", redirects=0)
        with pytest.raises(RequestError) as caught:
            await lab.http.get(f"{target.url}/redirect/5", redirects=2)
        return end, first, caught.value, sent

    end, first, error, sent = in_lab(work)
    assert (end.status, end.redirects, sent) == (200, 3, 4)
    assert (first.status, first.redirects) == (302, 0)
    assert error.error == "protocol"
    assert "2 redirects" in str(error)


@pytest.mark.parametrize(
    ("code", "method", "becomes"),
    [
        (301, "POST", "GET"),
        (302, "POST", "GET"),
        (303, "PUT", "GET"),
        (307, "POST", "POST"),
        (308, "PUT", "PUT"),
    ],
)
def test_a_redirect_keeps_or_drops_method_and_body(
    target: RunningTarget, code: int, method: str, becomes: str
) -> None:
    async def work(lab: Lab) -> HTTPResponse:
        return await lab.http.request(method, f"{target.url}/redirect/1?code={code}", data="x")

    response = in_lab(work)
    assert (response.method, response.redirects) == (becomes, 1)


def test_a_redirect_loop_ends(target: RunningTarget) -> None:
    async def work(lab: Lab) -> str:
        with pytest.raises(RequestError) as caught:
            await lab.http.get(f"{target.url}/broken/redirect-loop")
        return caught.value.error

    assert in_lab(work) == "protocol"


def test_cookies_belong_to_one_virtual_user(target: RunningTarget) -> None:
    async def work(lab: Lab) -> list[str]:
        await lab.http.get(f"{target.url}/cookies/set?name=one")
        mine = await lab.http.get(f"{target.url}/cookies")
        given = await lab.http.get(f"{target.url}/cookies", cookies={"name": "mine"})
        theirs = await lab.user(1).get(f"{target.url}/cookies")
        return [mine.text, given.text, theirs.text]

    mine, given, theirs = in_lab(work)
    assert "one" in mine
    assert "mine" in given
    assert "one" not in given
    assert "one" not in theirs


def test_connections_are_kept_shared_or_new_as_configured(target: RunningTarget) -> None:
    async def work(lab: Lab) -> int:
        for user in range(3):
            for _ in range(4):
                await lab.user(user).get(f"{target.url}/")
        return int(target.counts()["connections"]["total"])

    opened = {}
    for mode in ("per-vu", "shared", "per-request"):
        target.reset()
        before = int(target.counts()["connections"]["total"])
        opened[mode] = in_lab(work, connections=mode) - before
    assert opened == {"per-vu": 3, "shared": 1, "per-request": 12}


def test_many_calls_at_once_use_a_connection_each(target: RunningTarget) -> None:
    async def work(lab: Lab) -> list[HTTPResponse]:
        return await asyncio.gather(*(lab.http.get(f"{target.url}/delay/20") for _ in range(20)))

    assert [response.status for response in in_lab(work)] == [200] * 20
    assert target.counts()["connections"]["peak"] == 20


def test_shared_connections_queue_beyond_their_limit(target: RunningTarget) -> None:
    async def work(lab: Lab) -> list[HTTPResponse]:
        calls = (lab.user(user).get(f"{target.url}/delay/5") for user in range(400))
        return await asyncio.gather(*calls)

    assert all(response.ok for response in in_lab(work, connections="shared"))
    assert target.counts()["connections"]["peak"] == 128


def test_responses_with_error_statuses_do_not_raise(target: RunningTarget) -> None:
    async def work(lab: Lab) -> list[int]:
        codes = (200, 204, 304, 400, 404, 500, 503)
        return [(await lab.http.get(f"{target.url}/status/{code}")).status for code in codes]

    assert in_lab(work) == [200, 204, 304, 400, 404, 500, 503]


def test_a_body_that_no_code_reads_is_not_kept(target: RunningTarget) -> None:
    async def work(lab: Lab) -> HTTPResponse:
        return await lab.http.get(f"{target.url}/bytes/1000")

    response = in_lab(work, sees_body=False)
    assert (response.status, response.content) == (200, b"")
    assert response.headers["content-length"] == "1000"


def test_interim_responses_are_skipped(target: RunningTarget) -> None:
    async def work(lab: Lab) -> int:
        return (await lab.http.get(f"{target.url}/broken/interim")).status

    assert in_lab(work) == 200


@pytest.mark.parametrize(
    ("route", "classes"),
    [
        ("endless-headers", {"too_large"}),
        ("huge-header", {"too_large"}),
        ("bad-chunk", {"protocol"}),
        ("chunk-overflow", {"protocol"}),
        ("early-close", {"reset"}),
        ("garbage", {"protocol"}),
        ("bad-content-length", {"protocol"}),
        ("two-content-lengths", {"protocol"}),
        ("endless-interim", {"protocol"}),
        ("truncated-gzip", {"protocol"}),
        ("gzip-bomb", {"too_large"}),
        ("no-response", {"timeout"}),
        ("drip", {"timeout"}),
    ],
)
def test_a_broken_server_is_a_classified_error(
    target: RunningTarget, route: str, classes: set[str]
) -> None:
    async def work(lab: Lab) -> tuple[str, int]:
        with pytest.raises(RequestError) as caught:
            await lab.http.get(f"{target.url}/broken/{route}", timeout=1, body_limit=1_000_000)
        after = await lab.http.get(f"{target.url}/")
        return caught.value.error, after.status

    error, after = in_lab(work)
    assert error in classes
    assert after == 200


def test_a_reset_connection_is_reported_as_reset(target: RunningTarget) -> None:
    async def work(lab: Lab) -> str:
        with pytest.raises(RequestError) as caught:
            await lab.http.post(f"{target.url}/reset")
        return caught.value.error

    assert in_lab(work) == "reset"


def test_a_response_that_closes_its_connection_is_accepted(target: RunningTarget) -> None:
    async def work(lab: Lab) -> list[int]:
        return [(await lab.http.get(f"{target.url}/close")).status for _ in range(3)]

    assert in_lab(work) == [200, 200, 200]


@pytest.mark.parametrize(
    ("url", "error"),
    [("http://127.0.0.1:1/", "connect"), ("http://no-such-host.invalid/", "dns")],
)
def test_unreachable_targets_are_classified_errors(url: str, error: str) -> None:
    async def work(lab: Lab) -> list[str]:
        seen = []
        for _ in range(2):
            with pytest.raises(RequestError) as caught:
                await lab.http.get(url)
            seen.append(caught.value.error)
        return seen

    assert in_lab(work) == [error, error]


@pytest.fixture
def silent() -> Iterator[int]:
    """Return a port that accepts no connection beyond its backlog."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        port = server.getsockname()[1]
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
            fillers.append(filler)
        yield port
        for filler in fillers:
            filler.close()


def test_each_timeout_names_what_was_waited_for(target: RunningTarget, silent: int) -> None:
    async def work(lab: Lab) -> list[tuple[str, str]]:
        seen = []
        for url, options in (
            (f"{target.url}/delay/5000", {"timeout": 0.2}),
            (f"{target.url}/delay/5000", {"read_timeout": "200ms"}),
            (f"http://127.0.0.1:{silent}/", {"connect_timeout": 0.2}),
        ):
            with pytest.raises(RequestError) as caught:
                await lab.http.get(url, **options)  # type: ignore[arg-type]
            seen.append((caught.value.error, str(caught.value)))
        return seen

    whole, silence, connect = in_lab(work)
    assert [whole[0], silence[0], connect[0]] == ["timeout"] * 3
    assert "the response was not complete within 0.2 s" in whole[1]
    assert "silence for 0.2 s" in silence[1]
    assert "no connection within 0.2 s" in connect[1]


def test_a_cancelled_call_releases_its_connection(target: RunningTarget) -> None:
    async def work(lab: Lab) -> tuple[int, int]:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await lab.http.get(f"{target.url}/delay/5000")
        in_flight = lab.hub.in_flight
        return in_flight, (await lab.http.get(f"{target.url}/")).status

    assert in_lab(work) == (0, 200)


def test_a_call_can_be_made_a_task_gathered_and_bounded(target: RunningTarget) -> None:
    async def work(lab: Lab) -> list[int]:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(lab.http.get(f"{target.url}/status/201"))
        both = await asyncio.gather(
            lab.http.get(f"{target.url}/status/202"), lab.http.get(f"{target.url}/status/203")
        )
        bounded = await asyncio.wait_for(lab.http.get(f"{target.url}/"), 5)
        return [task.result().status, *(response.status for response in both), bounded.status]

    assert in_lab(work) == [201, 202, 203, 200]


def test_a_cancelled_task_of_a_call_releases_its_connection(target: RunningTarget) -> None:
    async def work(lab: Lab) -> tuple[bool, int]:
        task = asyncio.create_task(lab.http.get(f"{target.url}/delay/5000"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        return task.cancelled(), lab.hub.in_flight

    assert in_lab(work) == (True, 0)


def test_a_call_from_another_thread_is_refused(target: RunningTarget) -> None:
    async def work(lab: Lab) -> None:
        with pytest.raises(RuntimeError, match="another thread"):
            await asyncio.to_thread(lab.http.get, f"{target.url}/")

    in_lab(work)
    assert target.counts()["total"] == 0


def test_cutting_cancels_tasks_that_await_a_response(target: RunningTarget) -> None:
    async def work(lab: Lab) -> list[bool]:
        calls = [asyncio.ensure_future(_wait(lab, target.url)) for _ in range(5)]
        while lab.hub.in_flight < 5:
            await asyncio.sleep(0)
        lab.hub.cut()
        await asyncio.wait(calls)
        return [call.cancelled() for call in calls]

    assert in_lab(work) == [True] * 5


async def _wait(lab: Lab, url: str) -> HTTPResponse:
    return await lab.http.get(f"{url}/delay/5000")


def test_every_address_of_a_name_is_used_in_turn(target: RunningTarget) -> None:
    """`localhost` may have two addresses, of which only one listens."""

    async def work(lab: Lab) -> list[int]:
        url = f"http://localhost:{target.port}/"
        return [(await lab.user(user).get(url)).status for user in range(4)]

    assert in_lab(work) == [200] * 4


def test_ipv6_targets_work() -> None:
    try:
        server = Target(host="::1")
    except OSError:
        pytest.skip("no IPv6 loopback on this machine")

    async def work(lab: Lab) -> HTTPResponse:
        return await lab.http.get(f"http://[::1]:{server.port}/")

    try:
        assert in_lab(work).status == 200
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("url", "call", "message"),
    [
        ("http://h/", {"json": 1, "data": 2}, "both data and json"),
        ("http://h/", {"headers": {"A": "b\r\nEvil: 1"}}, "line break"),
        ("http://h/", {"timeout": "soon"}, "not a duration"),
        ("http://h/", {"redirekts": 1}, "unknown argument 'redirekts'"),
        ("http://h/", {"json": object()}, "cannot be sent as JSON"),
        ("ftp://h/", {}, "neither http nor https"),
        ("/relative", {}, "not a URL"),
        ("https://h/", {"ca": "/no/such/file"}, "No such file"),
        ("http://h/", {"redirects": "x"}, "redirects"),
        ("http://h/", {"files": {"a": 3}}, "not a file"),
    ],
)
def test_a_wrong_call_is_refused_with_its_reason(
    url: str, call: dict[str, object], message: str
) -> None:
    async def work(lab: Lab) -> str:
        with pytest.raises(InputError) as caught:
            await lab.http.post(url, **call)  # type: ignore[arg-type]
        return str(caught.value)

    assert message in in_lab(work)


def test_a_kept_connection_that_the_server_closed_is_no_failure() -> None:
    """The server answers one request per connection, then closes it without announcing that."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for _ in range(3):
            connection, _ = server.accept()
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            connection.close()

    thread = threading.Thread(target=serve)
    thread.start()

    async def work(lab: Lab) -> list[str]:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        return [(await lab.http.get(url)).text for _ in range(3)]

    try:
        assert in_lab(work) == ["ok"] * 3
    finally:
        server.close()
        thread.join()
