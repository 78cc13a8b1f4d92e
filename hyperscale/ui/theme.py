"""How things look: which colours and characters this terminal can show.

Layout code names roles ("failed", "dim"); only this module turns a role into a control
sequence. It reads no environment by itself: `detect` is given one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hyperscale.stats.standing import SIGNS, Standing, Tone
from hyperscale.ui.text import clean

# Role -> SGR parameters with 256 colours (middle tones: legible on dark and on light), with the
# terminal's own 16, and without colour (NO_COLOR forbids colours, not weight).
_ROLES: dict[str, tuple[str, str, str]] = {
    "brand": ("1;38;5;39", "1;34", "1"),
    "title": ("1", "1", "1"),
    Tone.DIM: ("38;5;244", "2", "2"),
    Tone.OK: ("38;5;35", "32", ""),
    Tone.FAILED: ("1;38;5;203", "1;31", "1"),
    Tone.WARN: ("38;5;178", "33", ""),
    Tone.RUNNING: ("38;5;39", "34", ""),
    "banner": ("1;30;48;5;178", "1;30;43", "1;7"),
    "bar": ("38;5;39", "34", ""),
    "track": ("38;5;240", "2", "2"),
    "rate": ("38;5;37", "36", ""),
    "p50": ("38;5;35", "32", ""),
    "p99": ("38;5;170", "35", "1"),
    "key": ("1;38;5;39", "1;34", "1"),
}


@dataclass(frozen=True)
class Glyphs:
    """The characters of the layout that differ between a full and an ASCII terminal."""

    ellipsis: str = "…"
    separator: str = "·"
    rule: str = "─"
    gutter: str = "│"
    axis: str = "┤"
    corner: str = "└"


_ASCII_GLYPHS = Glyphs(*"~|-||+")  # in the order of the fields


@dataclass(frozen=True)
class Theme:
    """What one terminal can show. `colors` is 256, 16 or 0; None forbids every control code."""

    unicode: bool = True
    colors: int | None = 256
    glyphs: Glyphs = field(init=False)
    _sgr: Mapping[str, str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "glyphs", Glyphs() if self.unicode else _ASCII_GLYPHS)
        sgr = {}
        if self.colors is not None:
            column = (256, 16, 0).index(self.colors)
            sgr = {role: looks[column] for role, looks in _ROLES.items()}
        object.__setattr__(self, "_sgr", sgr)

    def clean(self, text: str) -> str:
        """Return `text` as one line without control characters, in the terminal's character set."""
        return clean(text, unicode=self.unicode)

    def sign(self, standing: Standing) -> tuple[str, str]:
        """Return the symbol of a standing and its role."""
        sign = SIGNS[standing]
        return sign.symbol if self.unicode else sign.ascii, sign.tone

    def paint(self, text: str, role: str) -> str:
        """Return cleaned `text` with the control sequences of `role`."""
        sgr = self._sgr.get(role)
        return f"\x1b[{sgr}m{text}\x1b[0m" if sgr and text else text


def detect(environ: Mapping[str, str], *, encoding: str | None, terminal: bool) -> Theme:
    """Return the theme for a stream of this encoding in this environment."""
    unicode = _shows_unicode(environ, encoding)
    if not terminal:
        return Theme(unicode=unicode, colors=None)
    if environ.get("NO_COLOR"):
        return Theme(unicode=unicode, colors=0)
    term = environ.get("TERM", "")
    many = "256" in term or environ.get("COLORTERM", "") in ("truecolor", "24bit")
    return Theme(unicode=unicode, colors=256 if many else 16)


def _shows_unicode(environ: Mapping[str, str], encoding: str | None) -> bool:
    if (encoding or "").lower().replace("-", "").replace("_", "") != "utf8":
        return False
    if environ.get("TERM") == "linux":  # the kernel's console has no braille and few symbols
        return False
    everything, ctype, lang = (environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    # Python coerces the C locale to UTF-8 for itself (PEP 538); the terminal was not asked.
    if not everything and ctype == "C.UTF-8" and lang in ("C", "POSIX"):
        return False
    locale = everything or ctype or lang
    return not locale or "utf8" in locale.lower().replace("-", "")
