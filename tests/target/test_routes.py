"""Each route of the target answers as its help says."""

import base64
import gzip
import http.client
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conftest import RunningTarget

LINE = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+\n"


@dataclass
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Client:
    connection: http.client.HTTPConnection

    def __call__(self, method: str, path: str, **options: Any) -> Answer:
        self.connection.request(method, path, **options)
        response = self.connection.getresponse()
        return Answer(response.status, response.headers, response.read())


@pytest.fixture
def ask(target: RunningTarget) -> Iterator[Client]:
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=10)
    yield Client(connection)
    connection.close()


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_every_method_gets_the_small_text_at_the_root(ask: Client, method: str) -> None:
    answer = ask(method, "/")
    assert (answer.status, answer.body) == (200, b"Hello from the Hyperscale target\n")


def test_head_gets_the_headers_of_get_and_no_body(ask: Client) -> None:
    for path in ["/", "/json", "/bytes/5000", "/echo", "/status/404"]:
        whole, head = ask("GET", path), ask("HEAD", path)
        assert head.status == whole.status
        assert head.body == b""
        if path != "/echo":  # it names the method, so its length differs
            assert head.headers["Content-Length"] == whole.headers["Content-Length"]


def test_json_is_json(ask: Client) -> None:
    answer = ask("GET", "/json")
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json()["ok"] is True


def test_echo_shows_what_was_sent(ask: Client) -> None:
    headers = {"X-Test": 'quote " and \\', "Content-Type": "text/plain"}
    answer = ask("POST", "/echo?a=1&b=%20", body="grüße\n".encode(), headers=headers)
    shown = answer.json()
    assert (shown["method"], shown["path"], shown["query"]) == ("POST", "/echo", "a=1&b=%20")
    assert (shown["body"], shown["body_bytes"]) == ("grüße\n", 8)
    assert ["X-Test", 'quote " and \\'] in shown["headers"]


def test_echo_shows_bytes_that_are_no_text_as_base64(ask: Client) -> None:
    shown = ask("POST", "/echo", body=b"\xff\x00").json()
    assert shown["body_base64"] == "/wA="
    assert "body" not in shown


def test_echo_raw_returns_the_body_and_its_type(ask: Client) -> None:
    body = bytes(range(256)) * 1000
    answer = ask("PUT", "/echo?raw", body=body, headers={"Content-Type": "image/x-test"})
    assert (answer.body, answer.headers["Content-Type"]) == (body, "image/x-test")


def test_a_chunked_request_body_is_read_whole(ask: Client) -> None:
    pieces = [b"one", b"", b"two" * 50_000, b"!"]
    answer = ask("POST", "/echo?raw", body=iter(pieces), encode_chunked=True)
    assert answer.body == b"".join(pieces)


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 65_536, 65_537, 1_000_000])
@pytest.mark.parametrize("query", ["", "?chunked"])
def test_bytes_have_the_length_asked_for_and_a_known_pattern(
    ask: Client, count: int, query: str
) -> None:
    answer = ask("GET", f"/bytes/{count}{query}")
    assert answer.body == (LINE * (count // 64 + 1))[:count]
    assert (answer.headers["Transfer-Encoding"] == "chunked") == bool(query)


@pytest.mark.parametrize("code", [200, 201, 400, 404, 429, 500, 503, 599, 999])
def test_status_is_the_one_asked_for(ask: Client, code: int) -> None:
    assert ask("GET", f"/status/{code}").status == code


@pytest.mark.parametrize("code", [204, 304])
def test_a_status_without_body_has_no_length_either(ask: Client, code: int) -> None:
    answer = ask("GET", f"/status/{code}")
    assert (answer.status, answer.body, answer.headers["Content-Length"]) == (code, b"", None)
    assert ask("GET", "/").status == 200


def test_delay_does_not_answer_early(ask: Client, target: RunningTarget) -> None:
    assert ask("GET", "/delay/30").status == 200
    assert target.counts()["residence"]["min_ns"] >= 30_000_000


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_redirects_count_down_to_the_root(ask: Client, code: int) -> None:
    path, hops = f"/redirect/3?code={code}", 0
    while (answer := ask("GET", path)).status != 200:
        assert answer.status == code
        path, hops = answer.headers["Location"], hops + 1
    assert (path, hops) == ("/", 3)


@pytest.mark.parametrize(
    "path",
    ["/delay/x", "/delay/3600001", "/status/100", "/bytes/-1", "/redirect/2?code=200", "/slow/1/"],
)
def test_a_bad_parameter_is_a_400_that_says_why(ask: Client, path: str) -> None:
    answer = ask("GET", path)
    assert answer.status == 400
    assert b"must be" in answer.body


def test_an_unknown_path_is_a_404(ask: Client, target: RunningTarget) -> None:
    assert ask("GET", "/nowhere").status == 404
    assert target.counts()["routes"] == {"*": {"GET": 1}}


def test_cookies_are_set_and_shown(ask: Client) -> None:
    answer = ask("GET", "/cookies/set?a=1&b=two")
    assert answer.headers.get_all("Set-Cookie") == ["a=1; Path=/", "b=two; Path=/"]
    shown = ask("GET", "/cookies", headers={"Cookie": "a=1; b=two; c=x=y"})
    assert shown.json() == {"cookies": {"a": "1", "b": "two", "c": "x=y"}}
    assert ask("GET", "/cookies").json() == {"cookies": {}}
    assert ask("GET", "/cookies/set").status == 400


def test_gzip_and_deflate_decode_to_the_same_document(ask: Client) -> None:
    zipped, deflated = ask("GET", "/gzip"), ask("GET", "/deflate")
    assert (zipped.headers["Content-Encoding"], deflated.headers["Content-Encoding"]) == (
        "gzip",
        "deflate",
    )
    assert gzip.decompress(zipped.body) == zlib.decompress(deflated.body)
    assert len(json.loads(gzip.decompress(zipped.body))["items"]) == 32


@pytest.mark.parametrize(("path", "name"), [("/brotli", "br"), ("/zstd", "zstd")])
def test_the_other_encodings_are_named(ask: Client, path: str, name: str) -> None:
    assert ask("GET", path).headers["Content-Encoding"] == name


def test_basic_auth_wants_this_user_and_password(ask: Client) -> None:
    path = "/basic-auth/me/p%3Ass"
    right = {"Authorization": "Basic " + base64.b64encode(b"me:p:ss").decode()}
    wrong = {"Authorization": "Basic " + base64.b64encode(b"me:p").decode()}
    assert ask("GET", path, headers=right).json() == {"authenticated": True, "user": "me"}
    for headers in ({}, wrong, {"Authorization": "Bearer x"}):
        answer = ask("GET", path, headers=headers)
        assert (answer.status, answer.headers["WWW-Authenticate"][:5]) == (401, "Basic")


def test_headers_are_shown_in_order_with_repetitions(ask: Client) -> None:
    ask.connection.putrequest("GET", "/headers", skip_host=True, skip_accept_encoding=True)
    for name, value in [("Host", "x"), ("X-A", "1"), ("X-a", "2")]:
        ask.connection.putheader(name, value)
    ask.connection.endheaders()
    shown = json.loads(ask.connection.getresponse().read())
    assert shown == {"headers": [["Host", "x"], ["X-A", "1"], ["X-a", "2"]]}


def test_slow_bytes_take_their_time(ask: Client, target: RunningTarget) -> None:
    assert ask("GET", "/slow/30/100").body == (LINE * 2)[:100]
    assert ask("GET", "/slow/0/5").body == LINE[:5]
    assert ask("GET", "/slow/5/0").body == b""
    assert target.counts()["residence"]["max_ns"] >= 30_000_000
