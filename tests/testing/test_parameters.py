"""Parameters: names, types and values, and the masks of secrets."""

import base64
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hyperscale.errors import InputError
from hyperscale.testing import Param
from hyperscale.testing.parameters import (
    GivenParameters,
    Mask,
    ParameterScope,
    declared_in,
    resolving,
)


@pytest.fixture
def scope() -> Iterator[ParameterScope]:
    values = {
        "base": "http://b",
        "count": "7",
        "share": "2",
        "on": "yes",
        "limit": 3,
        "key": "abcd",
    }
    environment = {"REGION": "eu", "BASE": "http://ignored"}
    opened = ParameterScope(GivenParameters(values, "--set ", environment, "SET_"))
    with resolving(opened):
        yield opened


def test_a_parameter_is_a_plain_value_of_the_type_of_its_default(scope: ParameterScope) -> None:
    class Shop:
        base = Param("http://a")
        count = Param(1)
        share = Param(0.5)
        on = Param(False)
        limit: float = Param(1.0)
        region = Param("us")
        other = Param("default")
        key = Param(secret=True)
        url = f"{base}/login"

    assert (Shop.base, Shop.count, Shop.share, Shop.on) == ("http://b", 7, 2.0, True)
    assert (Shop.limit, type(Shop.limit)) == (3.0, float)
    assert (Shop.region, Shop.other, Shop.url) == ("eu", "default", "http://b/login")
    assert scope.secrets == {"key": "abcd"}
    assert scope.shown["key"] == "***"
    scope.refuse_unknown("shop.py")


def test_without_a_scope_a_parameter_has_its_default_and_is_noted() -> None:
    class Shop:
        where = Param("here")
        needed = Param(type=int)

    assert (Shop.where, Shop.needed) == ("here", 0)
    found = {each.name: each for each in declared_in([__name__])}
    assert found["needed"].default is None
    with pytest.raises(InputError, match="'needed' has no default and was not set"):
        ParameterScope().resolve(found["needed"])


def test_a_parameter_needs_a_name_of_its_own() -> None:
    with pytest.raises(InputError, match="assigned to a name of its own"):
        [Param("a"), Param("b")]
    assert Param("a", name="given") == "a"


def test_what_cannot_be_a_parameter_is_refused() -> None:
    wrong: list[tuple[object, dict[str, object], str]] = [
        ([1], {}, "a list cannot be set"),
        (1, {"secret": True}, "a secret is a text"),
        ("abc", {"secret": True}, "at least 4 characters"),
        ("x", {"name": "a-b"}, "is not a name"),
        (float("inf"), {}, "not a finite number"),
        (2**70, {}, "more than 64 bits"),
    ]
    for default, options, message in wrong:
        with pytest.raises(InputError, match=message):
            Param(default, **{"name": "x", **options})  # type: ignore[call-overload]  # wrong


def test_values_that_do_not_fit_are_refused() -> None:
    wrong: list[tuple[object, object, str]] = [
        (1, "ten", "'ten' is not a whole number"),
        (1, True, "True is not a whole number"),
        (1, 1.5, "1.5 is not a whole number"),
        (1.0, "nan", "not a finite number"),
        (True, "maybe", "'maybe' is not a bool"),
        ("a", 5, "5 is not a text"),
        ("a", "\udcff", "not UTF-8"),
        ("a", "x" * 70_000, "70,000 bytes, more than 65,536"),
    ]
    for default, value, message in wrong:
        opened = ParameterScope(GivenParameters({"x": value}))
        with pytest.raises(InputError, match=f"params: x: .*{message}"), resolving(opened):
            Param(default, name="x")  # type: ignore[call-overload]  # an object to mypy


def test_errors_never_show_a_secret() -> None:
    opened = ParameterScope(GivenParameters({"key": "hunter2-hunter2"}))

    def load() -> None:
        key = Param(name="key", secret=True)
        raise InputError(f"{key!r} is not a URL", hint=f"write {key}")

    with pytest.raises(InputError) as raised, resolving(opened):
        load()
    assert str(raised.value) == "'***' is not a URL (hint: write ***)"
    assert raised.value.__suppress_context__
    with pytest.raises(InputError) as raised, resolving(ParameterScope(GivenParameters({"n": 5}))):
        Param(name="n", secret=True)
    assert "5" not in raised.value.message


@given(some.text(min_size=6, alphabet=some.characters(codec="utf-8")), some.text(), some.text())
def test_no_form_of_a_secret_passes_a_mask(secret: str, before: str, after: str) -> None:
    mask = Mask([secret])
    around = f"{before}{secret}{after}".encode("utf-8", "replace")
    for shown in (secret, quote(secret), repr(secret)[1:-1]):
        if len(shown) >= 4:
            assert shown not in mask.text(f"<{shown}>") or shown in "***"
    encoded = base64.b64encode(around).decode()
    assert "***" in mask.text(encoded)
