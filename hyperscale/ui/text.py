"""Text for terminals: its width, removing control characters, and numbers for people.

Everything that can come from outside (names, user output, error messages) passes through
`clean` before it is drawn, so nothing a test author or a target writes can move the cursor,
change a colour or retitle a window. This module knows no colours, no layout and no terminal.
"""

import math
import re
import unicodedata
from collections import deque
from functools import lru_cache

# Whole escape sequences (mostly colours in captured logs) are removed; the escape character of a
# broken sequence shows as a replacement character.
_ESCAPE_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movement
    r"|\x1b[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # OSC, DCS and kin, terminated
    r"|\x1b[ -/]*[0-OQ-WYZ\\`-~]"  # two-character escapes
)
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# Wide since Unicode 16, so newer terminals draw two cells where older tables say one.
_NEWLY_WIDE = re.compile("[\u2630-\u2637\u268a-\u268f\u4dc0-\u4dff]")
_VIRAMA = 9  # the combining class of the signs that join letters, in Brahmic scripts
# A name is cut to this before anything else looks at it: no hostile name costs more.
_NAME_CHARS_MAX = 4096


def clean(text: str, *, unicode: bool = True) -> str:
    """Return `text` as one line without control characters; with `unicode` off, in ASCII."""
    if text.isascii() and text.isprintable():
        return text
    return _clean(text[:_NAME_CHARS_MAX], unicode)


@lru_cache(maxsize=1024)
def _clean(text: str, unicode: bool) -> str:
    text = _ESCAPE_SEQUENCE.sub("", text)
    text = unicodedata.normalize("NFC", text)
    text = "".join(map(_clean_character, text))
    if not unicode:
        return "".join(c if c.isascii() else "?" for c in text)
    return text


def _clean_character(character: str) -> str:
    kind = unicodedata.category(character)
    if kind in ("Zl", "Zp") or character in "\t\n\r\v\f\x85":
        return " "
    # Surrogates cannot be encoded, and unassigned characters have no known width.
    if kind in ("Cc", "Cs", "Cn") or _NEWLY_WIDE.match(character):
        return _REPLACEMENT
    # Direction overrides, joiners, zero-width marks; selectors that change their base's width.
    if kind == "Cf" or "\ufe00" <= character <= "\ufe0f" or character >= "\U000e0100":
        return ""
    return character


def clean_lines(text: str) -> list[str]:
    """Split user output into lines with tabs expanded; each line is cleaned when drawn."""
    return text.expandtabs(4).splitlines()


def cell_width(text: str) -> int:
    """Return how many terminal cells a cleaned text takes."""
    if text.isascii():
        return len(text)
    return _cell_width(text)


@lru_cache(maxsize=4096)
def _cell_width(text: str) -> int:
    return sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if "\u2500" <= character <= "\u28ff":  # box drawing, blocks, braille: most of what we draw
        return 2 if unicodedata.east_asian_width(character) in "WF" else 1
    if unicodedata.category(character) in ("Mn", "Me"):
        # What joins two letters makes them wider on some terminals.
        return 1 if unicodedata.combining(character) == _VIRAMA else 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def clip(text: str, width: int, *, ellipsis: str = "…") -> str:
    """Return `text` in at most `width` cells, its end replaced by `ellipsis` if it is too wide."""
    if cell_width(text) <= width:
        return text
    if width <= 0:
        return ""
    room = width - cell_width(ellipsis)
    if room < 0:
        return ellipsis[:width]
    if text.isascii():
        return text[:room] + ellipsis
    kept = []
    for character in text:
        room -= _character_width(character)
        if room < 0:
            break
        kept.append(character)
    return "".join(kept) + ellipsis


def wrap_words(text: str, width: int) -> list[str]:
    """Break cleaned `text` into lines of at most `width` cells, at spaces where possible."""
    lines: list[str] = []
    line = ""
    words = deque(text.split(" "))
    while words:
        word = words.popleft()
        longer = f"{line} {word}" if line else word
        if cell_width(longer) <= width:
            line = longer
            continue
        if line:
            lines.append(line)
            line = ""
            words.appendleft(word)
            continue
        head = clip(word, width, ellipsis="") or word[0]
        lines.append(head)
        if len(head) < len(word):
            words.appendleft(word[len(head) :])
    return [*lines, line] if line or not lines else lines


def format_count(count: int) -> str:
    """Return `1,234,567` for 1234567."""
    return f"{count:,}"


def format_short(value: float) -> str:
    """Return at most five characters: `950`, `12.3k`, `4.56M`. For axes and tight columns."""
    if not math.isfinite(value):
        return "-"
    return _scaled(value, ("", "k", "M", "G"))


def _scaled(value: float, units: tuple[str, ...]) -> str:
    """Return three digits and the unit, each of which is a thousand times the one before."""
    scale = 1.0
    for unit in units[:-1]:
        if abs(value) < 999.5 * scale:
            return f"{_three_digits(value / scale)}{unit}"
        scale *= 1e3
    return f"{_three_digits(value / scale)}{units[-1]}"


def _three_digits(value: float) -> str:
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    if abs(value) >= 1:
        return f"{value:.3g}"
    return f"{value:.3f}".rstrip("0").rstrip(".")


def format_rate(per_second: float) -> str:
    """Return requests per second: `12,345`, `42.5`, `0.31`."""
    if not math.isfinite(per_second):
        return "-"
    if per_second >= 100:
        return f"{per_second:,.0f}"
    if per_second >= 10:
        return f"{per_second:.1f}"
    return f"{per_second:.2f}" if per_second else "0"


# Upper end of a range of milliseconds -> what one unit is there, its name, digits to show.
_LATENCY_FORMS = (
    (0.0995, 1e-3, "us", 0),
    (9.995, 1.0, "ms", 2),
    (99.95, 1.0, "ms", 1),
    (999.5, 1.0, "ms", 0),
    (9995.0, 1e3, "s", 2),
    (99950.0, 1e3, "s", 1),
)


def format_ms(milliseconds: float | None) -> str:
    """Return a latency with its unit: `85us`, `3.14ms`, `250ms`, `1.25s`, `2m05s`."""
    if milliseconds is None or not math.isfinite(milliseconds):
        return "-"
    for limit_ms, unit_ms, unit, digits in _LATENCY_FORMS:
        if milliseconds < limit_ms:
            return f"{milliseconds / unit_ms:.{digits}f}{unit}"
    minutes, seconds = divmod(round(milliseconds / 1e3), 60)
    return f"{minutes}m{seconds:02}s"


def format_clock(seconds: float) -> str:
    """Return a running time: `00:37`, `1:02:03`, `3d 04:05:06`."""
    whole = max(0, int(seconds))
    days, hours = divmod(whole // 3600, 24)
    clock = f"{whole // 60 % 60:02}:{whole % 60:02}"
    if days:
        return f"{days}d {hours:02}:{clock}"
    return f"{hours}:{clock}" if hours else clock


def format_bytes(count: float) -> str:
    """Return `1.54 kB` for 1536."""
    return _scaled(count, (" B", " kB", " MB", " GB"))
