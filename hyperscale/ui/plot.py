"""Plots from text: numbers in, rows of characters out.

Areas are built of eighth blocks, curves of braille cells (two by four dots each), both of plain
ASCII where the terminal can show no more. Pure functions: no colours (they say which series
owns a cell), no terminal, no clock.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

# Bit of each dot of a braille cell, by column, from the top row down.
_BRAILLE_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BRAILLE_BASE = 0x2800
# A cell filled from below, in as many steps as the characters allow.
_BLOCK_FILL = " ▁▂▃▄▅▆▇█"
_ASCII_FILL = " .:#"
ASCII_MARKS = "*o+x"

EMPTY = -1  # owner of a cell no series touches

Run = tuple[str, int]  # neighbouring cells of one owner: their text, and which series


def nice_ceiling(value: float) -> float:
    """Return the least of 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8 (times a power of ten) not below `value`.

    A plot's top moves only when the data leaves it, so the picture does not twitch.
    """
    if not value > 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    for step in (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0):
        if value <= step * power * (1 + 1e-9):
            return step * power
    return 10.0 * power


def nice_floor(value: float) -> float:
    """Return the largest of 1, 2, 5 (times a power of ten) not above `value`."""
    if not value > 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return max(step for step in (1.0, 2.0, 5.0) if step * power <= value * (1 + 1e-9)) * power


def time_span_s(elapsed_s: float, duration_s: float) -> float:
    """Return how much time the axis covers: the whole run if short, else the next round span.

    All of the run stays in view, and the axis changes a few times in a run instead of sliding all
    the time. A run that takes longer than its duration widens the axis by the difference.
    """
    spans_s = (60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21600.0, 43200.0, 86400.0)
    shown_s = next((span for span in spans_s if elapsed_s <= span), elapsed_s)
    if duration_s <= 0:
        return shown_s
    if elapsed_s > duration_s:
        return elapsed_s
    return duration_s if duration_s <= spans_s[2] else min(shown_s, duration_s)


def resample(values: Sequence[float], span_points: float, columns: int) -> list[float | None]:
    """Spread `values` (evenly spaced, the first at the left edge) over an axis of `span_points`.

    Several points in a column are averaged; a column between points is interpolated; a column
    past the last point, or without a finite value, is None.
    """
    count = len(values)
    if columns <= 0 or not count or span_points <= 0:
        return [None] * max(0, columns)
    step = span_points / columns
    result: list[float | None] = []
    for column in range(columns):
        low = column * step
        if low >= count:
            result.append(None)
        elif step > 1:
            bucket = values[int(low) : max(int(low) + 1, min(count, int(low + step)))]
            finite = [value for value in bucket if math.isfinite(value)]
            result.append(sum(finite) / len(finite) if finite else None)
        else:
            result.append(_interpolate(values, low + step / 2 - 0.5))
    return result


def _interpolate(values: Sequence[float], at: float) -> float | None:
    at = min(max(at, 0.0), len(values) - 1.0)
    left = int(at)
    right = min(left + 1, len(values) - 1)
    a, b = values[left], values[right]
    if not math.isfinite(a):
        return None
    return a + (b - a) * (at - left) if math.isfinite(b) else a


@lru_cache(maxsize=64)
def area(
    values: tuple[float, ...],
    marked: tuple[float, ...],
    width: int,
    height: int,
    *,
    span_points: float,
    top: float,
    unicode: bool = True,
) -> tuple[tuple[Run, ...], ...]:
    """Draw a filled curve from 0 to `top`, as `height` rows of `width` cells.

    The part of it below the curve `marked` belongs to series 1, the rest to series 0.
    """
    fill = _BLOCK_FILL if unicode else _ASCII_FILL
    steps = len(fill) - 1
    levels = [_level(value, top, height * steps) for value in resample(values, span_points, width)]
    marked_levels = [
        round((value or 0.0) / top * height * steps) if top > 0 else 0
        for value in resample(marked, span_points, width)
    ]
    rows = []
    for row in range(height):
        floor = (height - 1 - row) * steps  # steps below this row
        cells: list[Run] = []
        for level, marked_level in zip(levels, marked_levels, strict=True):
            text = fill[min(steps, max(0, level - floor))]
            if text == " ":
                cells.append((" ", EMPTY))
            elif marked_level <= floor:
                cells.append((text, 0))
            else:
                cells.append((text if unicode else "x", 1))
        rows.append(_runs(cells))
    return tuple(rows)


def _level(value: float | None, top: float, steps: int) -> int:
    if value is None or value <= 0 or top <= 0:
        return 0
    return max(1, min(steps, round(value / top * steps)))


@lru_cache(maxsize=64)
def curves(
    series: tuple[tuple[float, ...], ...],
    width: int,
    height: int,
    *,
    span_points: float,
    low: float,
    high: float,
    unicode: bool = True,
) -> tuple[tuple[Run, ...], ...]:
    """Draw lines on a logarithmic scale from `low` to `high`; of two in a cell the later wins.

    Logarithmic, because the latencies of one run span decades: on a straight scale one spike
    at the start would press the rest of the run flat.
    """
    dots_x, dots_y = (2, 4) if unicode else (1, 1)
    bits = [[0] * width for _ in range(height)]
    owner = [[EMPTY] * width for _ in range(height)]
    for index, values in enumerate(series):
        before: int | None = None
        for x, value in enumerate(resample(values, span_points, width * dots_x)):
            if value is None or value <= 0:
                before = None
                continue
            y = _log_position(value, low, high, height * dots_y)
            # Join this column to the one before, without doubling its last dot.
            start, end = y, y
            if before is not None and before < y:
                start = before + 1
            elif before is not None and before > y:
                end = before - 1
            for dot in range(start, end + 1):
                row = height - 1 - dot // dots_y
                bits[row][x // dots_x] |= _BRAILLE_BITS[x % dots_x][dots_y - 1 - dot % dots_y]
                owner[row][x // dots_x] = index
            before = y
    return tuple(
        _runs([_curve_cell(bits[row][x], owner[row][x], unicode) for x in range(width)])
        for row in range(height)
    )


def _log_position(value: float, low: float, high: float, dots: int) -> int:
    if high <= low:
        return 0
    share = math.log(max(value, low) / low) / math.log(high / low)
    return min(dots - 1, max(0, round(share * (dots - 1))))


def _curve_cell(bits: int, owner: int, unicode: bool) -> Run:
    if owner == EMPTY:
        return " ", EMPTY
    return (chr(_BRAILLE_BASE | bits) if unicode else ASCII_MARKS[owner]), owner


def _runs(cells: list[Run]) -> tuple[Run, ...]:
    runs: list[Run] = []
    for text, owner in cells:
        if runs and runs[-1][1] == owner:
            runs[-1] = (runs[-1][0] + text, owner)
        else:
            runs.append((text, owner))
    return tuple(runs)


def bar(share: float, width: int, *, unicode: bool = True) -> tuple[str, str]:
    """Return the done and the open part of a progress bar."""
    share = min(1.0, max(0.0, share)) if math.isfinite(share) else 0.0
    if not unicode:
        done = round(share * width)
        return "#" * done, "-" * (width - done)
    done, half = divmod(round(share * width * 2), 2)
    return "━" * done + "╸" * half, "─" * (width - done - half)
