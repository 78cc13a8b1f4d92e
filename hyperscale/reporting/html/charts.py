"""Plots as inline SVG: lines over time, the percentile curve, bars.

Pure functions from numbers to markup. Colours come from the page's style by class, so light
and dark need no second drawing. The points ride along as data for the page's script, which
shows values under the pointer; without the script the plots stand as they are.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hyperscale.reporting.html.markup import Html, count, h, millis, percent, seconds, short

WIDTH, HEIGHT = 480, 210
LEFT, RIGHT, TOP, BOTTOM = 60, 12, 12, 28
PLOT_W = WIDTH - LEFT - RIGHT
PLOT_H = HEIGHT - TOP - BOTTOM

Point = tuple[float, float | None]  # None: a gap


@dataclass(frozen=True, slots=True)
class ChartLine:
    label: str
    css: str  # class that gives the colour
    points: Sequence[Point]
    is_area: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values to positions in 0..1, and names them."""

    ticks: Sequence[tuple[float, str]]
    place: Callable[[float], float]
    show: Callable[[float], str]


def time_chart(
    title: str,
    lines: Sequence[ChartLine],
    *,
    until_s: float,
    unit: str,
    empty: str,
    mark: Html | None = None,
) -> Html:
    """Draw lines over the seconds of a run. `unit` is "ms", "/s" or empty for a count."""
    show = millis if unit == "ms" else (lambda value: f"{short(value)}{unit}")
    tick = millis if unit == "ms" else short
    return _chart(
        title, lines, _time_axis(until_s), show_y=show, tick_y=tick, empty=empty, mark=mark
    )


def percentile_chart(title: str, lines: Sequence[ChartLine], *, empty: str) -> Html:
    """Draw latency by percentile, the distance to 100 % on a logarithmic axis."""
    nines = max([1.0, *(_nines(x) for line in lines for x, _ in line.points if x < 100)])
    ticks = [
        (p, f"{p:g}%") for p in (0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999) if _nines(p) <= nines
    ]
    axis = Axis(ticks, lambda p: min(_nines(p) / nines, 1.0), lambda p: f"{p:.5g} %")
    return _chart(title, lines, axis, show_y=millis, empty=empty)


def bars(title: str, rows: Sequence[tuple[str, int, str]], *, empty: str) -> Html:
    """Draw horizontal bars of counts: label, count, class that gives the colour."""
    total = sum(n for _, n, _ in rows)
    most = max((n for _, n, _ in rows), default=0)
    body = [
        h(
            "div.bar-row",
            h("span.bar-label", label, title=label),
            h(
                "svg.bar",
                h("rect.bar-back", width=100, height=10, rx=1),
                h(f"rect.fill.{css}", width=_px(100 * n / most), height=10),
                viewBox="0 0 100 10",
                preserveAspectRatio="none",
            ),
            h("span.bar-value", count(n)),
            h("span.bar-share", percent(n, total)),
        )
        for label, n, css in rows
    ]
    return _figure(title, h("div.bars", body) if body else h("p.empty", empty))


def _chart(
    title: str,
    lines: Sequence[ChartLine],
    x_axis: Axis,
    *,
    show_y: Callable[[float], str],
    tick_y: Callable[[float], str] | None = None,
    empty: str,
    mark: Html | None = None,
) -> Html:
    highest = max((y for line in lines for _, y in line.points if y is not None), default=None)
    if highest is None:
        return _figure(title, h("p.empty", empty))
    y_ticks = nice_ticks(highest)
    top = y_ticks[-1]

    def place(point: tuple[float, float]) -> tuple[float, float]:
        return LEFT + PLOT_W * x_axis.place(point[0]), TOP + PLOT_H * (1 - point[1] / top)

    drawn = [
        *(
            _grid_line(TOP + PLOT_H * (1 - tick / top), (tick_y or show_y)(tick))
            for tick in y_ticks
        ),
        *(
            _x_tick(LEFT + PLOT_W * x_axis.place(x), label, is_minor=number % 2 == 1)
            for number, (x, label) in enumerate(x_axis.ticks)
        ),
    ]
    for line in lines:
        drawn += _draw(line, place)
    data = [
        {
            "label": line.label,
            "css": line.css,
            "points": [
                [*(round(v, 1) for v in place((x, y))), show_y(y), x_axis.show(x)]
                for x, y in line.points
                if y is not None
            ],
        }
        for line in lines
    ]
    svg = h(
        "svg.plot",
        drawn,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=title,
        data_plot=json.dumps(data, separators=(",", ":"), ensure_ascii=False),
    )
    return _figure(title, svg, lines, mark)


def _figure(
    title: str, body: Html, lines: Sequence[ChartLine] = (), mark: Html | None = None
) -> Html:
    legend = [h("span.key", h(f"i.swatch.{line.css}"), line.label) for line in lines]
    return h(
        "figure", h("figcaption", h("span", h("b", title), mark), h("span.legend", legend)), body
    )


def _draw(
    line: ChartLine, place: Callable[[tuple[float, float]], tuple[float, float]]
) -> list[Html]:
    drawn = []
    for run in _runs(line.points):
        placed = [place(point) for point in run]
        if len(placed) == 1:
            ((x, y),) = placed
            drawn.append(h(f"circle.dot.{line.css}", cx=_px(x), cy=_px(y), r=2))
            continue
        path = "M" + "L".join(f"{_px(x)} {_px(y)}" for x, y in placed)
        if line.is_area:
            base = TOP + PLOT_H
            closed = f"{path}L{_px(placed[-1][0])} {base}L{_px(placed[0][0])} {base}Z"
            drawn.append(h(f"path.area.{line.css}", d=closed))
        drawn.append(h(f"path.line.{line.css}", d=path))
    return drawn


def _runs(points: Sequence[Point]) -> list[list[tuple[float, float]]]:
    """Split the points at gaps."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is not None:
            runs[-1].append((x, y))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _grid_line(y: float, label: str) -> Html:
    line = h("line.grid", x1=LEFT, x2=WIDTH - RIGHT, y1=_px(y), y2=_px(y))
    return Html(line + h("text.tick", label, x=LEFT - 8, y=_px(y + 3.5), text_anchor="end"))


def _x_tick(x: float, label: str, *, is_minor: bool) -> Html:
    """Draw the label of a tick; a minor one is left out where there is little room."""
    is_last = x > WIDTH - RIGHT - 20  # centred there, it would be cut off
    anchor = "end" if is_last else "middle"
    x = min(x + 10, WIDTH - 2) if is_last else x
    tag = "text.tick.minor" if is_minor else "text.tick"
    return h(tag, label, x=_px(x), y=HEIGHT - 8, text_anchor=anchor)


def nice_ticks(highest: float, wanted: int = 4) -> list[float]:
    """Return ticks from 0 to at least `highest` in steps of 1, 2 or 5 times a power of ten."""
    if highest <= 0:
        return [0.0, 1.0]
    rough = highest / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if power * factor >= rough)
    # A few ulps of slack, or 0.3 / 0.1 would ask for a fourth step.
    return [step * n for n in range(math.ceil(highest / step - 1e-9) + 1)]


_TIME_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400)


def time_ticks(until_s: float) -> list[tuple[float, str]]:
    """Return round times from 0 to `until_s`, and how they are written."""
    step_s = next(
        (s for s in _TIME_STEPS_S if until_s / s <= 6), 86400 * math.ceil(until_s / 691200)
    )
    return [(float(t), seconds(t) if t else "0") for t in range(0, int(until_s) + 1, step_s)]


def _time_axis(until_s: float) -> Axis:
    until_s = max(until_s, 1.0)
    return Axis(time_ticks(until_s), lambda x: min(x / until_s, 1.0), seconds)


def _nines(p: float) -> float:
    """Return how many nines a percentile has: 0 for 0 %, 1 for 90 %, 2 for 99 %."""
    return -math.log10(max(1e-9, 1.0 - p / 100.0))


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
