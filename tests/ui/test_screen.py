import pyte
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.ui.full import Screen

COLUMNS, ROWS = 20, 6
frames = st.lists(
    st.lists(
        st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=COLUMNS - 1),
        max_size=ROWS,
    ),
    min_size=1,
    max_size=6,
)


def terminal() -> tuple[pyte.Screen, pyte.ByteStream]:
    shown = pyte.Screen(COLUMNS, ROWS)
    return shown, pyte.ByteStream(shown)


@given(frames)
def test_after_any_frames_the_terminal_shows_the_last_one(script: list[list[str]]) -> None:
    shown, stream = terminal()
    screen = Screen()
    for lines in script:
        stream.feed(screen.draw(lines, columns=COLUMNS, rows=ROWS))
    expected = [line.ljust(COLUMNS) for line in script[-1]]
    assert shown.display == expected + [" " * COLUMNS] * (ROWS - len(expected))


def test_only_what_changed_is_sent() -> None:
    screen = Screen()
    screen.draw(["one", "two", "three"], columns=COLUMNS, rows=ROWS)
    update = screen.draw(["one", "TWO", "three"], columns=COLUMNS, rows=ROWS)
    assert b"TWO" in update
    assert b"one" not in update
    assert screen.draw(["one", "TWO", "three"], columns=COLUMNS, rows=ROWS) == b""


def test_a_new_size_or_a_lost_screen_is_drawn_whole() -> None:
    screen = Screen()
    screen.draw(["one"], columns=COLUMNS, rows=ROWS)
    assert b"one" in screen.draw(["one"], columns=COLUMNS + 1, rows=ROWS)
    screen.forget()
    assert b"one" in screen.draw(["one"], columns=COLUMNS + 1, rows=ROWS)


def test_a_frame_is_one_synchronized_update_that_never_scrolls() -> None:
    frame = Screen().draw(["x"] * 50, columns=COLUMNS, rows=ROWS)
    assert frame.startswith(b"\x1b[?2026h")
    assert frame.endswith(b"\x1b[?2026l")
    assert b"\n" not in frame
    assert b"\x1b[2J" not in frame  # a cleared screen is what flicker is made of
