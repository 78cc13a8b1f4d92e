"""What is on the screen, and the bytes that turn it into the next frame. Pure.

Only lines that changed are sent, all of them in one write, between the marks of a synchronized
update: terminals that know it show the frame at once, the others have little to redraw.
"""

from collections.abc import Sequence

_BEGIN = b"\x1b[?2026h"
_END = b"\x1b[?2026l"


class Screen:
    """The last frame sent, and its size."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._size = (0, 0)

    def forget(self) -> None:
        """Send the next frame whole: other programs may have written over the last one."""
        self._lines = []
        self._size = (0, 0)

    @property
    def is_blank(self) -> bool:
        """Return True if no frame is known to be on the screen."""
        return not self._lines

    def draw(self, lines: Sequence[str], *, columns: int, rows: int) -> bytes:
        """Bytes that show `lines`, each narrower than `columns`; empty if nothing changed."""
        whole = self._size != (columns, rows)
        before = [] if whole else self._lines
        after = [*lines[:rows], *[""] * (rows - len(lines))]
        parts = [
            # The erase comes after the text: no moment at which the line is blank.
            f"\x1b[{row + 1};1H{line}\x1b[K"
            for row, line in enumerate(after)
            if row >= len(before) or before[row] != line
        ]
        self._lines, self._size = after, (columns, rows)
        if not parts:
            return b""
        return _BEGIN + "".join(parts).encode("utf-8", "replace") + _END
