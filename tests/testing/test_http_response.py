"""The attributes of a response."""

from dataclasses import dataclass, field

import pytest

from hyperscale.graph.analysis import BODILESS
from hyperscale.testing import CallResult, CustomResult, HTTPResponse


@dataclass
class Recorded:
    """An exchange with the attributes of the engine's."""

    status: int = 200
    reason: str = "OK"
    version: str = "HTTP/1.1"
    raw_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    url: str = "http://a.test/"
    method: str = "GET"
    redirects: int = 0
    latency_ns: int = 2_500_000
    blocked_ns: int | None = 1_000
    connect_ns: int | None = None
    tls_ns: int | None = None
    first_byte_ns: int | None = 2_000_000
    bytes_sent: int = 10
    bytes_received: int = 20
    remote: str | None = "127.0.0.1:80"
    tls_version: str | None = None
    tls_cipher: str | None = None

    def header(self, name: str) -> str | None:
        wanted = name.encode()
        return next((v.decode("latin-1") for k, v in self.raw_headers if k.lower() == wanted), None)


def test_status_has_both_names_and_is_ok_below_400() -> None:
    response = HTTPResponse(Recorded(status=204))
    assert (response.status, response.status_code, response.ok) == (204, 204, True)
    assert not HTTPResponse(Recorded(status=400)).ok


def test_headers_are_found_in_any_case_and_repeat() -> None:
    raw = [
        (b"Content-Type", b"text/html"),
        (b"Set-Cookie", b"a=1; Path=/"),
        (b"SET-COOKIE", b"b=2"),
    ]
    response = HTTPResponse(Recorded(raw_headers=raw))
    assert response.headers["content-TYPE"] == "text/html"
    assert "Set-cookie" in response.headers
    assert 7 not in response.headers
    assert response.headers.get_list("set-cookie") == ["a=1; Path=/", "b=2"]
    assert response.headers.get_list("absent") == []
    assert response.headers.get("absent") is None
    assert dict(response.headers) == {"content-type": "text/html", "set-cookie": "a=1; Path=/, b=2"}
    assert response.cookies == {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    ("content_type", "body", "text"),
    [
        (b"text/plain", "é".encode(), "é"),
        (b"text/plain; charset=latin-1", b"\xe9", "é"),
        (b'text/plain; charset="utf-16"', "é".encode("utf-16"), "é"),
        (b"text/plain; charset=nonsense", "é".encode(), "é"),
        (b"text/plain; charset=", "é".encode(), "é"),
        (b"text/plain", b"\xff", "\ufffd"),
    ],
)
def test_text_is_decoded_with_the_charset_of_the_response(
    content_type: bytes, body: bytes, text: str
) -> None:
    response = HTTPResponse(Recorded(raw_headers=[(b"content-type", content_type)], body=body))
    assert response.text == text


def test_a_body_that_is_not_json_raises_value_error() -> None:
    assert HTTPResponse(Recorded(body=b'{"a": [1]}')).json() == {"a": [1]}
    with pytest.raises(ValueError, match=r"body of GET http://a\.test/ is not JSON"):
        HTTPResponse(Recorded(body=b"{")).json()


def test_times_are_in_seconds() -> None:
    response = HTTPResponse(Recorded())
    assert response.elapsed_s == 0.0025
    assert response.phases == (1e-6, None, None, 0.002)


def test_a_response_has_slots_and_a_short_repr() -> None:
    response = HTTPResponse(Recorded())
    assert not hasattr(response, "__dict__")
    assert repr(response) == "<HTTPResponse GET http://a.test/ 200>"
    assert isinstance(response, CallResult)


def test_a_custom_result_is_ok_by_default() -> None:
    @dataclass
    class Mine(CustomResult):
        value: int

    result = Mine(3)
    assert result.ok
    result.ok, result.error = False, "mismatch"
    assert (result.ok, Mine(4).ok) == (False, True)


def test_attributes_that_need_no_body_do_not_read_it() -> None:
    class Unread(Recorded):
        @property
        def body(self) -> bytes:  # type: ignore[override]
            raise AssertionError("the body was read")

        @body.setter
        def body(self, value: bytes) -> None: ...

    response = HTTPResponse(Unread())
    assert {name for name in BODILESS if getattr(response, name, ...) is not ...} == BODILESS
    assert {"status", "ok", "headers", "cookies", "phases"} < BODILESS
