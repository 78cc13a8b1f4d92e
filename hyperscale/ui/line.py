"""Lines of styled text and tables made of them: built from parts, clipped to a width.

All text reaches the terminal through `StyledLine.render`, which removes control characters from
every part. This module knows nothing of workflows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from hyperscale.ui.text import cell_width, clip
from hyperscale.ui.theme import Theme


class StyledLine:
    """Parts of one screen line, each with a role."""

    __slots__ = ("_parts", "_theme", "width")

    def __init__(self, theme: Theme, text: str = "", role: str = "") -> None:
        self._theme = theme
        self._parts: list[tuple[str, str]] = []
        self.width = 0
        if text:
            self.add(text, role)

    def add(self, text: str, role: str = "") -> "StyledLine":
        if text.isascii() and text.isprintable():  # nearly always: worth not asking further
            self.width += len(text)
        else:
            text = self._theme.clean(text)
            self.width += cell_width(text)
        self._parts.append((text, role))
        return self

    def add_fit(
        self, text: str, width: int, role: str = "", *, right: bool = False
    ) -> "StyledLine":
        """Add `text` in exactly `width` cells: clipped or padded."""
        if text.isascii() and text.isprintable() and len(text) <= width:
            fitted = text.rjust(width) if right else text.ljust(width)
        else:
            text = clip(self._theme.clean(text), width, ellipsis=self._theme.glyphs.ellipsis)
            space = " " * (width - cell_width(text))
            fitted = space + text if right else text + space
        self._parts.append((fitted, role))
        self.width += width
        return self

    def pad_to(self, column: int) -> "StyledLine":
        if column > self.width:
            self.add(" " * (column - self.width))
        return self

    def extend(self, other: "StyledLine") -> "StyledLine":
        self._parts.extend(other._parts)
        self.width += other.width
        return self

    def render(self, width: int) -> str:
        """Return the line with its control sequences, at most `width` cells wide."""
        theme = self._theme
        if self.width <= width:
            return "".join([theme.paint(text, role) for text, role in self._parts])
        room = width
        painted = []
        for text, role in self._parts:
            part_width = cell_width(text)
            if part_width < room:
                painted.append(theme.paint(text, role))
                room -= part_width
                continue
            # The line is too long, so its last visible cell says so.
            kept = clip(text + "  ", room, ellipsis=theme.glyphs.ellipsis)
            painted.append(theme.paint(kept, role))
            break
        return "".join(painted)


def wrap(
    theme: Theme, head: StyledLine, parts: Sequence[StyledLine], width: int, *, gap: str
) -> list[StyledLine]:
    """Put `parts` behind `head`, over as many lines as they need, each indented to its end."""
    indent = head.width
    lines = [head]
    for part in parts:
        has_parts = lines[-1].width > indent
        if has_parts and lines[-1].width + cell_width(gap) + part.width > width:
            lines.append(StyledLine(theme, " " * indent))
            has_parts = False
        if has_parts:
            lines[-1].add(gap, "dim")
        lines[-1].extend(part)
    return lines


class Viewport:
    """The part of a list that is shown where not all of it fits, and how far it can be scrolled."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset
        self.offset_max = 0
        self.page = 1  # rows of the list that are shown at a time

    def window(self, total: int, rows: int) -> slice:
        """Return the rows to show of a list of `total`; the offset is kept within it."""
        rows = max(1, rows)
        self.offset_max = max(self.offset_max, total - rows)
        self.page = max(self.page, rows)
        start = max(0, min(self.offset, total - rows))
        return slice(start, start + rows)


RowT = TypeVar("RowT")


@dataclass(frozen=True, slots=True)
class Column(Generic[RowT]):
    """One column of a table. Those with the highest `rank` go first when room is short."""

    title: str
    text: Callable[[RowT], str]
    role: Callable[[RowT], str] = lambda _: ""
    rank: int = 0
    right: bool = True
    width_min: int = 0  # keeps a live table from shifting as its numbers grow
    width_max: int = 1000
    is_optional: bool = False  # left out if it is 0 in every row


def table(
    theme: Theme,
    columns: Sequence[Column[RowT]],
    rows: Sequence[RowT],
    width: int,
    *,
    indent: int = 0,
    gap: int = 2,
) -> list[StyledLine]:
    """Return title and rows; if too wide, columns are dropped, then the first is narrowed."""
    shown: list[Column[RowT]] = []
    cells, widths = {}, {}
    for column in columns:
        cells[column.title] = [column.text(row) for row in rows]
        if not column.is_optional or any(text != "0" for text in cells[column.title]):
            shown.append(column)
        widest = max(map(cell_width, map(theme.clean, (column.title, *cells[column.title]))))
        widths[column.title] = min(max(widest, column.width_min), column.width_max)

    def total() -> int:
        return indent + sum(widths[column.title] for column in shown) + gap * (len(shown) - 1)

    while total() > width and any(column.rank for column in shown):
        shown.remove(max(reversed(shown), key=lambda column: column.rank))
    first = shown[0].title
    widths[first] = max(4, widths[first] - max(0, total() - width))

    lines = []
    for index in range(-1, len(rows)):
        line = StyledLine(theme, " " * indent)
        for column in shown:
            if column is not shown[0]:
                line.add(" " * gap)
            text, role = column.title, "dim"
            if index >= 0:
                text, role = cells[column.title][index], column.role(rows[index])
            line.add_fit(text, widths[column.title], role, right=column.right)
        lines.append(line)
    return lines
