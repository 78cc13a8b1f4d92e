from hypothesis import given
from hypothesis import strategies as st

from hyperscale.ui.full import read_keys


def test_keys_arrive_one_by_one_whatever_a_read_holds() -> None:
    assert read_keys(b"qo\t") == ["q", "o", "\t"]
    assert read_keys(b"\x1b[A\x1b[B\x1bOA\x1b[Z") == ["up", "down", "up", "back-tab"]
    assert read_keys(b"\x1b") == ["escape"]
    assert read_keys(b"\x1bq") == ["escape", "q"]


def test_unknown_sequences_press_no_key() -> None:
    # A mouse report, a bracketed paste and a function key hold letters that are keys elsewhere.
    for sequence in (b"\x1b[<0;10;20M", b"\x1b[200~", b"\x1b[15~", b"\x1b[1;5Q"):
        assert read_keys(sequence) == [""]


@given(st.binary(max_size=40))
def test_any_bytes_can_be_read_as_keys(typed: bytes) -> None:
    read_keys(typed)
