"""Markup that is escaped by construction, and numbers as people read them.

Only `h` makes `Html`, apart from the page's own style and script; every other string that reaches
a page is text and escaped.
"""

import html
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from hyperscale.reporting.xml_report import xml_text
from hyperscale.stats.standing import SIGNS, Standing

NOTHING = "\N{EN DASH}"  # shown where there is no number
_VOID = ("meta",)  # elements without content and end tag


class Html(str):
    """Markup, as opposed to text."""

    __slots__ = ()


Child: TypeAlias = "str | int | Iterable[Child] | None"


def h(tag: str, *children: Child, **attributes: str | int) -> Html:
    """Return an element. `tag` may name classes (`div.panel.wide`); `_` in attributes means `-`."""
    name, *classes = tag.split(".")
    shown = f' class="{" ".join(filter(None, classes))}"' if any(classes) else ""
    for attribute, value in attributes.items():
        shown += f' {attribute.replace("_", "-")}="{_escaped(value)}"'
    if name in _VOID:
        return Html(f"<{name}{shown}>")
    return Html(f"<{name}{shown}>{join(children)}</{name}>")


def join(children: Child) -> Html:
    """Return the children in order; what is not markup is escaped."""
    if children is None:
        return Html("")
    if isinstance(children, Html):
        return children
    if isinstance(children, str | int):
        return Html(_escaped(children))
    return Html("".join(join(child) for child in children))


def _escaped(value: object) -> str:
    """Return `value` escaped, for content and for quoted attributes alike."""
    return html.escape(xml_text(str(value)), quote=True)


def badge(standing: Standing, word: str = "") -> Html:
    """Return the symbol, the word and the colour of a standing."""
    sign = SIGNS[standing]
    symbol = h("span.symbol", sign.symbol, aria_hidden="true")
    return h(f"span.badge.{sign.tone}", symbol, word or standing)


def table(
    title: Child, columns: Sequence[str], rows: Sequence[Sequence[Child]], *, words: int = 1
) -> Html | None:
    """Return a panel with a table; None without rows. The first `words` columns hold words.

    On a narrow screen each row becomes a card, in which each cell names its column.
    """
    if not rows:
        return None
    head = h("tr", [h("th", column, scope="col") for column in columns])
    body = [
        h(
            "tr",
            [h("td", cell, data_label=column) for column, cell in zip(columns, row, strict=True)],
        )
        for row in rows
    ]
    shown = h("table", h("thead", head), h("tbody", body))
    return h(f"div.panel.words-{words}", h("h3", title), h("div.scroll", shown))


def count(value: float) -> str:
    """Return `1,234,567` for 1234567."""
    return f"{value:,.0f}"


def short(value: float) -> str:
    """Return `1.23M` for 1234567: for axes and tiles."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scale = 1e3 if suffix == "k" else limit
            return f"{_digits(value / scale)}{suffix}"
    return count(value) if float(value).is_integer() or abs(value) >= 1000 else _digits(value)


def rate(value: float) -> str:
    return f"{short(value) if value >= 10 else _digits(value)}/s"


def millis(value: float | None) -> str:
    """Return `250 µs` for 0.25, `12.3 ms` for 12.3, `1.5 s` for 1500, a dash for None."""
    if value is None:
        return NOTHING
    if value == 0:
        return "0 ms"
    if value < 1:
        return f"{_digits(value * 1000)} µs"
    if value < 1000:
        return f"{_digits(value)} ms"
    return f"{_digits(value / 1000)} s"


def seconds(value: float) -> str:
    """Return `1m 15s` for 75."""
    if value < 60:
        return f"{_digits(value)} s"
    whole = round(value)
    parts = ((whole // 3600, "h"), (whole % 3600 // 60, "m"), (whole % 60, "s"))
    return " ".join(f"{n}{unit}" for n, unit in parts if n)


def size(value: float) -> str:
    """Return a number of bytes, in powers of 1000."""
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= limit:
            return f"{_digits(value / limit)} {unit}"
    return f"{value:.0f} B"


def percent(part: float, whole: float) -> str:
    """Return a share in percent; small shares keep the digits that make them not zero."""
    if not whole:
        return NOTHING
    value = 100 * part / whole
    if value in {0, 100}:
        return f"{value:.0f} %"
    if value > 99:
        return f"{min(value, 99.99):.2f} %"
    return f"{value:.2g} %"


def _digits(value: float) -> str:
    """Return three significant digits, without an exponent."""
    if value == 0:
        return "0"
    magnitude = abs(value)
    places = 0 if magnitude >= 100 else 1 if magnitude >= 10 else 2 if magnitude >= 1 else 3
    shown = f"{value:,.{places}f}"
    return shown.rstrip("0").rstrip(".") if places else shown
