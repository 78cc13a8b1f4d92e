import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wcwidth import wcswidth

from hyperscale.ui.text import (
    cell_width,
    clean,
    clip,
    format_bytes,
    format_clock,
    format_ms,
    format_rate,
    format_short,
    wrap_words,
)

any_text = st.text(st.characters(), max_size=60)


@given(any_text)
def test_cleaned_text_holds_nothing_a_terminal_would_act_on(text: str) -> None:
    cleaned = clean(text)
    assert not any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in cleaned)
    assert not any(c in "\u202a\u202e\u2066\u2069\u200b\u200d\ufeff\u2028\u2029" for c in cleaned)
    cleaned.encode("utf-8")


@given(any_text)
def test_cleaned_text_for_an_ascii_terminal_is_ascii(text: str) -> None:
    assert clean(text, unicode=False).isascii()


@given(any_text)
@example("\u10390")
def test_no_terminal_needs_more_cells_than_are_counted(text: str) -> None:
    cleaned = clean(text)
    assert wcswidth(cleaned) <= cell_width(cleaned)


@pytest.mark.parametrize(
    "text", ["login", "日本語テスト", "naïve", "cafe\u0301", "🚀 launch", "─┤⣿▇"]
)
def test_common_text_is_counted_as_terminals_draw_it(text: str) -> None:
    cleaned = clean(text)
    assert cell_width(cleaned) == wcswidth(cleaned)


@given(any_text, st.integers(0, 30))
def test_clipped_text_fits(text: str, width: int) -> None:
    assert cell_width(clip(clean(text), width)) <= width


def test_text_that_fits_is_not_clipped_and_text_that_does_not_says_so() -> None:
    assert clip("checkout", 8) == "checkout"
    assert clip("checkout", 7) == "checko…"
    assert clip("日本語", 5) == "日本…"
    assert clip("日本語", 4) == "日…"


def test_colours_in_captured_output_vanish_and_broken_sequences_show() -> None:
    assert clean("\x1b[1;31mred\x1b[0m") == "red"
    assert clean("\x1b]0;title\x07text") == "text"
    assert clean("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\") == "link"
    assert clean("\x1b") == "�"
    assert clean("a\tb\nc\rd") == "a b c d"


@given(any_text, st.integers(2, 30))
def test_wrapped_words_fit_and_nothing_is_lost(text: str, width: int) -> None:
    cleaned = clean(text)
    lines = wrap_words(cleaned, width)
    assert all(cell_width(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == cleaned.replace(" ", "")


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (None, "-"),
        (float("nan"), "-"),
        (0.0, "0us"),
        (0.085, "85us"),
        (0.0999, "0.10ms"),
        (3.14159, "3.14ms"),
        (9.999, "10.0ms"),
        (99.96, "100ms"),
        (250.0, "250ms"),
        (999.7, "1.00s"),
        (1250.0, "1.25s"),
        (59_999.0, "60.0s"),
        (125_000.0, "2m05s"),
        (3_599_900.0, "60m00s"),
    ],
)
def test_latencies_read_with_their_unit(milliseconds: float | None, text: str) -> None:
    assert format_ms(milliseconds) == text


def test_rates_clocks_and_sizes_read_as_people_write_them() -> None:
    assert [format_rate(r) for r in (0.0, 0.314, 42.46, 99.96, 12345.6)] == [
        "0",
        "0.31",
        "42.5",
        "100.0",
        "12,346",
    ]
    assert [format_clock(s) for s in (-1.0, 37.9, 3723.0, 273906.0)] == [
        "00:00",
        "00:37",
        "1:02:03",
        "3d 04:05:06",
    ]
    assert [format_bytes(n) for n in (0, 999, 1536, 2_790_000_000)] == [
        "0 B",
        "999 B",
        "1.54 kB",
        "2.79 GB",
    ]


@given(st.floats(0, 1e12))
@example(0.0078125)
@example(0.9996)
def test_short_numbers_are_short(value: float) -> None:
    assert len(format_short(value)) <= 5
