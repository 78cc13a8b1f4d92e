"""Values between workflows are decoded exactly as they were encoded."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.errors import RunError
from hyperscale.execution.values import pack_value, unpack_value

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.sets(st.integers(), max_size=4)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


@dataclass
class Token:
    text: str


def same(left: object, right: object) -> bool:
    """Return True if both are equal and have equal types at every depth."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return all(map(same, left, right)) and all(same(left[key], right[key]) for key in left)
    return left == right


@given(plain)
def test_a_value_arrives_with_every_type_it_had(value: object) -> None:
    assert same(unpack_value(pack_value(value, where="x"), where="x"), value)


def test_plain_data_is_not_pickled_and_objects_are() -> None:
    assert pack_value({"a": [1, None]}, where="x").startswith(b"m")
    packed = pack_value(Token("t"), where="x")
    assert packed.startswith(b"p")
    assert unpack_value(packed, where="x") == Token("t")


def test_a_value_that_cannot_be_pickled_is_refused_by_name() -> None:
    with pytest.raises(RunError, match=r"Seed\.lock: a generator cannot be passed on"):
        pack_value((n for n in ()), where="Seed.lock")


def test_a_value_too_large_to_be_context_is_refused_with_its_size() -> None:
    with pytest.raises(RunError, match=r"Seed\.blob: its value takes 2,0\d\d,\d\d\d bytes"):
        pack_value(bytes(2_000_000), where="Seed.blob")
