"""Request parts are plain values, read-only, and checked when they are made."""

import base64
import copy
import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.errors import InputError
from hyperscale.testing import arguments
from hyperscale.testing.arguments import OptimizedArg, UrlValue

# For type checkers these names are plain types; at run time they are classes.
URL, Headers, Params, Cookies, Auth, Data, File = (
    getattr(arguments, name)
    for name in ("URL", "Headers", "Params", "Cookies", "Auth", "Data", "File")
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
bodies = st.dictionaries(st.text(), json_values, max_size=4) | st.lists(json_values, max_size=4)


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("http://a.test", "a.test:80"),
        ("https://a.test/x?y#z", "a.test:443"),
        ("HTTP://A.test:8080/", "a.test:8080"),
        ("http://[::1]:8080/", "[::1]:8080"),
        ("http://user:pw@a.test/", "a.test:80"),
    ],
)
def test_a_url_is_text_that_knows_its_authority(url: str, authority: str) -> None:
    value = URL.wrap(url)
    assert value == url
    assert f"{value}/x" == f"{url}/x"
    assert value.authority == authority
    assert value.optimized is None


@pytest.mark.parametrize(
    "url",
    [
        *("", "a.test", "/path", "a.test:80/x", "gopher://a.test", "http://", "http:///x", None, 7),
        *("http://:80", "http://a.test:x", "http://a.test:99999", "http://a.test:0"),
        *("http://[::1", "http://a b.test", "http://a.test/\n"),
    ],
)
def test_a_url_that_is_not_absolute_http_is_refused(url: object) -> None:
    with pytest.raises(InputError):
        URL.wrap(url)


@given(bodies)
def test_a_body_equals_the_value_it_was_made_from(body: Any) -> None:
    value = Data.wrap(body)
    assert value == body
    assert isinstance(value, OptimizedArg | type(body))
    assert msgspec.json.decode(msgspec.json.encode(value)) == body
    assert json.loads(json.dumps(value)) == body
    for copied in (copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert copied == body
        assert type(copied) in (dict, list)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(a=1),
        lambda d: d.__setitem__("a", 1),
        lambda d: d.pop("a"),
        lambda d: d.popitem(),
        lambda d: d.setdefault("b", 1),
        lambda d: d.clear(),
        lambda d: d.__delitem__("a"),
        lambda d: d.__ior__({"a": 1}),
        lambda d: d["list"].append(1),
        lambda d: d["list"].sort(),
        lambda d: d["list"].__iadd__([1]),
        lambda d: d["list"][0].update(x=1),
        lambda d: d["inner"].update(x=1),
    ],
)
def test_a_body_is_read_only_at_any_depth(change: Any) -> None:
    value = Data.wrap({"a": 0, "list": [{}], "inner": {}})
    with pytest.raises(TypeError, match=r"encoded once before the run.*copy it first"):
        change(value)


def test_copies_are_plain_and_can_be_changed() -> None:
    value = Data.wrap({"a": 0})
    for copied in (dict(value), value.copy(), value | {"b": 1}, copy.copy(value)):
        copied["a"] = 1
    assert value == {"a": 0}
    listed = Data.wrap([1])
    for changed in (list(listed), listed.copy(), listed + [2], listed[:], copy.copy(listed)):  # noqa: RUF005 - the operator is what is tested
        changed.append(3)
    assert listed == [1]


def test_bodies_of_text_bytes_and_objects() -> None:
    @dataclass
    class Login:
        user: str
        tags: list[str]

    class Point(msgspec.Struct):
        x: int

    class Model:
        def model_dump(self, mode: str) -> dict[str, str]:
            return {"mode": mode}

    assert Data.wrap("text") == "text"
    assert Data.wrap(bytearray(b"raw")) == b"raw"
    assert Data.wrap(Login("x", ["a"])) == {"user": "x", "tags": ["a"]}
    assert Data.wrap(Point(1)) == {"x": 1}
    assert Data.wrap((1, 2)) == [1, 2]
    assert Data.wrap(Model()) == {"mode": "json"}
    assert Data({"a": 1}) == {"a": 1}
    with pytest.raises(InputError, match="not a request body"):
        Data.wrap(7)
    with pytest.raises(InputError, match="not a request body"):
        Data.wrap(Login)


def test_headers_are_text_by_name() -> None:
    headers = Headers.wrap({"X-Id": 7, "Accept": b"text/html"})
    assert headers == {"X-Id": "7", "Accept": "text/html"}
    with pytest.raises(TypeError, match="Headers is encoded once"):
        headers["a"] = "b"


@pytest.mark.parametrize(
    "headers",
    [{"a b": "x"}, {"": "x"}, {"a": "x\r\ny: z"}, {"a": None}, {"a": True}, {1: "x"}, [], "a: b"],
)
def test_headers_that_cannot_be_sent_are_refused(headers: object) -> None:
    with pytest.raises(InputError):
        Headers.wrap(headers)


def test_params_and_cookies_that_cannot_be_sent_are_refused() -> None:
    assert Params.wrap({"q": "x", "n": [1, 2], "none": None}) == {
        "q": "x",
        "n": [1, 2],
        "none": None,
    }
    assert Cookies.wrap({"a": "b"}) == {"a": "b"}
    for kind, wrong in (
        (Params, {"q": {}}),
        (Params, {1: "x"}),
        (Cookies, {"a": "b;c"}),
        (Cookies, {"a b": "c"}),
        (Cookies, {"a": 1}),
    ):
        with pytest.raises(InputError):
            kind.wrap(wrong)


def test_credentials_become_an_authorization_header() -> None:
    basic = "Basic " + base64.b64encode(b"user:pa:ss").decode()
    assert Auth.wrap(("user", "pa:ss")) == basic
    assert Auth.wrap("user:pa:ss") == basic
    assert Auth.wrap("token-1") == "Bearer token-1"
    assert Auth.wrap("Digest qop=1") == "Digest qop=1"
    assert Auth.wrap("Bearer a:b") == "Bearer a:b"


@pytest.mark.parametrize("auth", ["", ("a",), ("a", 1), ("a:b", "c"), "a\nb", None, 7])
def test_bad_credentials_are_refused_without_showing_them(auth: object) -> None:
    with pytest.raises(InputError) as caught:
        Auth.wrap(auth)
    assert "a\nb" not in str(caught.value)


def test_a_file_is_read_and_has_its_name(tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    path.write_bytes(b"\x89PNG")
    value = File.wrap(str(path))
    assert value == b"\x89PNG"
    assert (value.filename, value.content_type, value.path) == ("photo.png", "image/png", path)
    assert File(path) == value


@pytest.mark.parametrize("path", ["nowhere.bin", ".", "a\0b", 7])
def test_a_file_that_cannot_be_read_is_refused(path: object) -> None:
    with pytest.raises(InputError):
        File.wrap(path)


def test_a_url_stays_text_when_pickled() -> None:
    value = UrlValue.wrap("http://a.test/")
    assert pickle.loads(pickle.dumps(value)) == value
