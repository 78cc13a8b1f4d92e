"""The gate for what older versions do not know."""

import gc
from enum import Enum

import msgspec
import pytest
from msgspec import Struct, field

import hyperscale.nodes.gate
import hyperscale.nodes.manager  # noqa: F401  defines every event, decision and record
from hyperscale.wire import versions
from hyperscale.wire.versions import (
    CURRENT,
    FEATURES,
    VERSION,
    AboveVersionError,
    Version,
    admitted,
    parse_version,
)

OLD, NEW = Version(1, 1), Version(1, 2)


class Colour(Enum):
    RED = "red"
    ULTRAVIOLET = "ultraviolet"


class Wheel(Struct, frozen=True):
    size: int
    colour: Colour = Colour.RED
    spokes: int = 0
    marks: list[str] = field(default_factory=list)


class Car(Struct, frozen=True, tag="car"):
    wheels: list[Wheel]
    spare: Wheel | None = None


class Plane(Struct, frozen=True, tag="plane"):
    wheels: int = 3


@pytest.fixture(autouse=True)
def features(monkeypatch: pytest.MonkeyPatch) -> None:
    table = dict.fromkeys(("Plane", "Wheel.spokes", "Wheel.marks", "Colour.ULTRAVIOLET"), NEW)
    monkeypatch.setattr(versions, "FEATURES", table)


def test_fields_above_the_version_get_their_defaults_at_any_depth() -> None:
    car = Car([Wheel(1, spokes=5, marks=["a"])], spare=Wheel(2, spokes=6))
    assert admitted(car, OLD) == Car([Wheel(1)], spare=Wheel(2))
    assert admitted(car, NEW) is car


def test_a_kind_above_the_version_is_refused_naming_both_versions() -> None:
    with pytest.raises(AboveVersionError, match=r"Plane needs version 1.2.*version is 1.1"):
        admitted(Plane(), OLD)
    assert admitted(Plane(), NEW) == Plane()


def test_a_member_of_an_enumeration_above_the_version_is_refused() -> None:
    with pytest.raises(AboveVersionError, match=r"Colour.ULTRAVIOLET needs version 1.2"):
        admitted(Car([Wheel(1, Colour.ULTRAVIOLET)]), OLD)


def test_a_strict_gate_refuses_a_field_that_is_used_and_passes_its_default() -> None:
    with pytest.raises(AboveVersionError, match=r"Wheel.spokes needs version 1.2"):
        admitted(Car([Wheel(1, spokes=5)]), OLD, is_strict=True)
    assert admitted(Car([Wheel(1)]), OLD, is_strict=True) == Car([Wheel(1)])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.4.2", Version(1, 4)),
        ("0.1.0rc1", Version(0, 1)),
        ("12.30", Version(12, 30)),
        ("", None),
        ("1", None),
        ("one.two", None),
        ("1." + "9" * 64, None),
    ],
)
def test_major_and_minor_number_are_read_from_a_version(
    text: str, expected: Version | None
) -> None:
    assert parse_version(text) == expected


def test_neighbours_are_one_minor_version_apart() -> None:
    assert Version(1, 2).is_next_to(Version(1, 1))
    assert Version(1, 1).is_next_to(Version(1, 2))
    assert not Version(1, 3).is_next_to(Version(1, 1))
    assert not Version(2, 1).is_next_to(Version(1, 1))


def test_the_table_of_features_names_what_exists_with_a_default() -> None:
    """Every name of the product's table is a class, a field with a default, or a member."""
    assert parse_version(VERSION) == CURRENT
    known = {cls.__name__: cls for cls in gc.get_objects() if isinstance(cls, type)}
    for name, version in FEATURES.items():
        kind, _, member = name.partition(".")
        assert version <= CURRENT, f"{name} is of a version to come"
        if member and issubclass(known[kind], Struct):
            found = {each.name: each for each in msgspec.structs.fields(known[kind])}[member]
            assert not found.required, f"{name} has no default"
        elif member:
            assert member in known[kind].__members__
