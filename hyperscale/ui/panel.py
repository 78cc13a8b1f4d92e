"""One workflow on the screen, in as many rows as it is given. Pure.

A panel always starts with its headline; numbers, steps, errors and plots follow as far as the
rows go. It knows nothing of the other workflows or of the terminal.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from hyperscale.stats.view import StepView, ViewStatus, WorkflowView
from hyperscale.ui import plot
from hyperscale.ui.line import Column, StyledLine, table
from hyperscale.ui.text import (
    format_clock,
    format_count,
    format_ms,
    format_rate,
    format_short,
)
from hyperscale.ui.theme import Theme

INDENT = 2
PLOT_ROWS_MIN = 4  # a title and three rows of curve
PLOT_ROWS_MAX = 16
_BAR_WIDTH_MAX = 60
_NOTE_GAP = 4
_LABEL_WIDTH = 6  # of a plot's axis
_SIDE_BY_SIDE_WIDTH = 72

_ENDED = {
    ViewStatus.COMPLETED,
    ViewStatus.PARTIAL,
    ViewStatus.FAILED,
    ViewStatus.CANCELLED,
    ViewStatus.TIMEOUT,
}
_ACTIVE = {ViewStatus.RUNNING, ViewStatus.STOPPING, ViewStatus.CANCELLING}


def is_ended(workflow: "WorkflowView") -> bool:
    return workflow.status in _ENDED


def is_active(workflow: "WorkflowView") -> bool:
    """Return True if the workflow has numbers that change, and so gets a panel."""
    return workflow.status in _ACTIVE


def status_mark(theme: Theme, status: ViewStatus) -> tuple[str, str]:
    """Return the symbol of a status and its role in the theme."""
    glyphs = theme.glyphs
    match status:
        case ViewStatus.COMPLETED:
            return glyphs.passed, "ok"
        case ViewStatus.FAILED | ViewStatus.TIMEOUT:
            return glyphs.failed, "failed"
        case ViewStatus.PARTIAL:
            return glyphs.failed, "warn"
        case ViewStatus.CANCELLED | ViewStatus.CANCELLING | ViewStatus.STOPPING:
            return glyphs.cancelled, "warn"
        case ViewStatus.RUNNING:
            return glyphs.running, "running"
    return glyphs.waiting, "dim"


def rows_wanted(workflow: "WorkflowView") -> int:
    """Rows beyond which a panel has nothing more to show."""
    steps = 1 + len(workflow.steps) if workflow.steps else 0
    return 2 + steps + len(_notes(workflow)) + PLOT_ROWS_MAX


def panel(
    workflow: "WorkflowView", width: int, rows: int, theme: Theme, *, name_width: int
) -> list[StyledLine]:
    """The workflow in at most `rows` rows."""
    if rows <= 1 or not (is_active(workflow) or workflow.total):
        return [compact(workflow, width, theme, name_width=name_width)][:rows]
    lines = [
        headline(workflow, width, theme, name_width=name_width),
        numbers(workflow, width, theme),
    ]
    notes = note_lines(_notes(workflow), width, theme)[: max(0, rows - 2)]
    steps_wanted = 1 + len(workflow.steps) if workflow.steps else 0
    if rows - 2 - len(notes) < steps_wanted:
        # Short of rows, what went wrong keeps its line; the rest is a step's.
        notes = notes[: 1 if workflow.errors or workflow.error else 0]
    left = rows - 2 - len(notes)
    plot_rows = min(PLOT_ROWS_MAX, left - steps_wanted)
    if plot_rows < PLOT_ROWS_MIN:
        # A long table may not push the plots out while it keeps half of the room itself.
        plot_rows = PLOT_ROWS_MIN if left - PLOT_ROWS_MIN >= max(3, left // 2) else 0
    if plot_rows:
        lines += plots(workflow, width, plot_rows, theme)
    lines += steps(workflow.steps, width, left - plot_rows, theme)
    return [*lines, *notes][:rows]


def headline(workflow: "WorkflowView", width: int, theme: Theme, *, name_width: int) -> StyledLine:
    """Symbol, name, progress bar, time."""
    mark, role = status_mark(theme, workflow.status)
    line = StyledLine(theme, mark, role).add(" ").add_fit(workflow.name, name_width, "title")
    if workflow.status != "running":
        line.add("  ").add(workflow.status, role)
    tail = _time_line(workflow, theme, room=width - line.width)
    bar_width = min(_BAR_WIDTH_MAX, width - line.width - tail.width - 2)
    if bar_width >= 5:
        done, rest = plot.bar(workflow.progress, bar_width, unicode=theme.unicode)
        line.add("  ").add(done, "bar").add(rest, "track")
    return line.extend(tail)


def _time_line(workflow: "WorkflowView", theme: Theme, *, room: int) -> StyledLine:
    """Return percent done, elapsed of duration and remaining time, as far as they fit."""
    line = StyledLine(theme).add(f"  {workflow.progress:4.0%}", "title")
    left_s = max(0.0, workflow.duration_s - workflow.elapsed_s)
    if workflow.progress > 0.01:  # a count of iterations may be reached before the time is
        left_s = min(left_s, workflow.elapsed_s * (1 - workflow.progress) / workflow.progress)
    elapsed, duration = format_clock(workflow.elapsed_s), format_clock(workflow.duration_s)
    if room >= 50:
        line.add(f"  {elapsed}").add(f" / {duration}", "dim")
    if room >= 20:
        line.add(f"  {format_clock(left_s + 0.999)}").add(" left", "dim")
    return line


def compact(workflow: "WorkflowView", width: int, theme: Theme, *, name_width: int) -> StyledLine:
    """The workflow in one line."""
    mark, role = status_mark(theme, workflow.status)
    line = StyledLine(theme, mark, role).add(" ").add_fit(workflow.name, name_width, "title")
    if is_active(workflow) and workflow.status is ViewStatus.RUNNING:
        line.add(f"  {workflow.progress:4.0%}")
    else:
        line.add("  ").add_fit(workflow.status, 9, role)
    if workflow.error:
        return line.add("  ").add(
            workflow.error, "" if workflow.status is ViewStatus.CANCELLED else "failed"
        )
    if workflow.total or workflow.elapsed_s:
        parts = _facts(workflow, theme, is_live=is_active(workflow))
        _append_fitting(line, parts, width)
    elif workflow.vus:
        line.add("  ").add(f"{format_count(workflow.vus)} vus", "dim")
    return line


def numbers(workflow: "WorkflowView", width: int, theme: Theme) -> StyledLine:
    """The figures of the whole workflow, the most telling first."""
    line = StyledLine(theme, " " * INDENT)
    _append_fitting(line, _facts(workflow, theme, is_live=True), width, first_gap="")
    return line


def _facts(workflow: "WorkflowView", theme: Theme, *, is_live: bool) -> list[StyledLine]:
    def fact(value: str, label: str, role: str = "title") -> StyledLine:
        return StyledLine(theme, value, role).add(f" {label}", "dim")

    rate_now = fact(f"{format_rate(workflow.rate_now)}/s", "now")
    failed = fact(
        format_count(workflow.failed) + _percent_of(workflow.failed, workflow.total),
        "failed",
        "failed" if workflow.failed else "title",
    )
    facts = [rate_now] if is_live else []
    facts.append(fact(f"{format_rate(workflow.rate_total)}/s", "mean"))
    facts += [fact(format_count(workflow.total), "done"), failed]
    if not is_live:
        facts.append(fact(format_clock(workflow.elapsed_s), "elapsed"))
    if workflow.vus:
        facts.append(fact(format_count(workflow.vus), "vus"))
    latency = latency_now(workflow)
    if is_live and latency is not None:
        p50, p99 = map(format_ms, latency)
        facts += [fact(p50, "p50", "p50"), fact(p99, "p99", "p99")]
    if workflow.cores:
        facts.append(fact(str(workflow.cores), "cores" if workflow.cores != 1 else "core"))
    if workflow.cut:
        facts.append(fact(format_count(workflow.cut), "cut", "warn"))
    return facts


def latency_now(workflow: "WorkflowView") -> tuple[float, float] | None:
    """p50 and p99 of the last finished interval in which anything was timed."""
    return next((pair for pair in reversed(workflow.latency_series) if pair[1] > 0), None)


def _percent_of(part: int, whole: int) -> str:
    if not part or not whole:
        return ""
    share = part / whole
    return f" ({share:.0%})" if share >= 0.0995 else f" ({share:.1%})" if share >= 0.001 else ""


def _append_fitting(
    line: StyledLine,
    parts: Sequence[StyledLine],
    width: int,
    *,
    gap: str = "  ",
    first_gap: str = "  ",
) -> None:
    before = first_gap
    for part in parts:
        if line.width + len(before) + part.width > width:
            return
        line.add(before).extend(part)
        # Slots grow in steps, so figures do not push each other about at every digit.
        before = gap + " " * (-part.width % 2)


def steps(views: Sequence["StepView"], width: int, rows: int, theme: Theme) -> list[StyledLine]:
    """The step table in at most `rows` rows, its title included."""
    if rows < 2 or not views:
        return []
    shown = views if len(views) < rows else views[: max(1, rows - 2)]
    roles = tuple("failed" if step.failed else "" for step in shown)
    cut_roles = tuple("warn" if step.cut else "dim" for step in shown)

    def counts(title: str, values: Sequence[int], rank: int, roles: tuple[str, ...]) -> Column:
        cells = tuple(map(format_count, values))
        return Column(title, cells, roles, rank=rank, width_min=7)

    def times(title: str, values: Sequence[float | None], rank: int) -> Column:
        return Column(title, tuple(map(format_ms, values)), rank=rank, width_min=6)

    columns = [
        Column(
            "step",
            tuple(step_label(step.name, step.kind) for step in shown),
            right=False,
            width_min=12,
            width_max=32,
        ),
        counts("ok", [step.ok for step in shown], 0, ()),
        counts("failed", [step.failed for step in shown], 0, roles),
        counts("cut", [step.cut for step in shown], 4, cut_roles),
        Column("rate/s", tuple(format_rate(step.rate_now) for step in shown), rank=3, width_min=7),
        times("p50", [step.p50_ms for step in shown], 2),
        times("p90", [step.p90_ms for step in shown], 6),
        times("p95", [step.p95_ms for step in shown], 7),
        times("p99", [step.p99_ms for step in shown], 1),
        times("max", [step.max_ms for step in shown], 5),
    ]
    lines = table(theme, columns, width, indent=INDENT)
    if len(shown) < len(views) and len(lines) < rows:
        hidden = len(views) - len(shown)
        lines.append(
            StyledLine(theme, " " * INDENT).add(f"{theme.glyphs.ellipsis} {hidden} more", "dim")
        )
    return lines


def step_label(name: str, kind: str) -> str:
    """A step's name; what is no part of the load itself says so."""
    return f"{name} ({kind})" if kind in ("setup", "teardown") else name


_Key = TypeVar("_Key", str, int)
Note = tuple[str, list[tuple[str, str, str]]]  # title; name, value, role


def _notes(workflow: "WorkflowView") -> list[Note]:
    """What went wrong, and what the target answered: one line each."""
    notes: list[Note] = []
    if workflow.error:
        notes.append(("error", [(workflow.error, "", "failed")]))
    if workflow.errors:
        ranked = by_count(workflow.errors)
        notes.append(("errors", [(name, format_count(n), "failed") for name, n in ranked]))
    if workflow.status_codes:
        codes = [
            (str(code), format_count(n), "ok" if code < 400 else "failed")
            for code, n in by_count(workflow.status_codes)
        ]
        notes.append(("status", codes))
    failing = [check for check in workflow.checks if check.failed]
    if failing:
        items = [
            (check.name, f"{format_count(check.failed)} failed", "failed") for check in failing
        ]
        notes.append(("checks", items))
    elif workflow.checks and any(check.passed for check in workflow.checks):
        notes.append(("checks", [(f"{len(workflow.checks)} passing", "", "ok")]))
    return notes


def by_count(counts: Mapping[_Key, int]) -> list[tuple[_Key, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def note_lines(notes: Sequence[Note], width: int, theme: Theme) -> list[StyledLine]:
    """`errors  timeout 12 · reset 3`: several to a line where they fit, else cut at the width."""
    lines: list[StyledLine] = []
    for title, items in notes:
        whole = _note_line(title, items, 10_000, theme)
        if lines and lines[-1].width + _NOTE_GAP + whole.width <= width:
            lines[-1].add(" " * _NOTE_GAP).extend(whole)
        else:
            room = width - INDENT
            line = whole if whole.width <= room else _note_line(title, items, room, theme)
            lines.append(StyledLine(theme, " " * INDENT).extend(line))
    return lines


def _note_line(
    title: str, items: Sequence[tuple[str, str, str]], width: int, theme: Theme
) -> StyledLine:
    line = StyledLine(theme, title, "dim")
    gap = "  "
    for index, (name, value, role) in enumerate(items):
        part = StyledLine(theme, name, role)
        if value:
            part.add(f" {value}")
        rest = len(items) - index
        more = f" {theme.glyphs.separator} +{rest}"
        room = width - line.width - len(gap) - (len(more) if rest > 1 else 0)
        if index and part.width > room:
            return line.add(more, "dim")
        line.add(gap, "dim").extend(part)
        gap = f" {theme.glyphs.separator} "
    return line


def plots(workflow: "WorkflowView", width: int, rows: int, theme: Theme) -> list[StyledLine]:
    """Rate and latency over time, beside each other where there is room, else one above."""
    room = width - INDENT
    if room >= _SIDE_BY_SIDE_WIDTH:
        gap = 3
        left_width = (room - gap) // 2
        left = _rate_plot(workflow, left_width, rows, theme)
        right = _latency_plot(workflow, room - gap - left_width, rows, theme)
        return [
            StyledLine(theme, " " * INDENT).extend(a).pad_to(INDENT + left_width + gap).extend(b)
            for a, b in zip(left, right, strict=True)
        ]
    if rows >= 2 * PLOT_ROWS_MIN:
        upper = rows // 2
        blocks = _rate_plot(workflow, room, rows - upper, theme)
        blocks += _latency_plot(workflow, room, upper, theme)
    else:
        blocks = _rate_plot(workflow, room, rows, theme)
    return [StyledLine(theme, " " * INDENT).extend(line) for line in blocks]


def _span(workflow: "WorkflowView") -> tuple[float, float]:
    """What the time axis covers: seconds, and points of the series."""
    span_s = plot.time_span_s(workflow.elapsed_s, workflow.duration_s)
    return span_s, span_s / workflow.series_interval_s


def _rate_plot(workflow: "WorkflowView", width: int, rows: int, theme: Theme) -> list[StyledLine]:
    span_s, span_points = _span(workflow)
    curve_rows = rows - 1 - _has_time_axis(rows)
    top = plot.nice_ceiling(max(workflow.rate_series, default=0.0))
    curve_width = width - _LABEL_WIDTH - 2
    body = plot.area(
        workflow.rate_series,
        workflow.failed_series,
        curve_width,
        curve_rows,
        span_points=span_points,
        top=top,
        unicode=theme.unicode,
    )
    title = StyledLine(theme, "requests per second", "dim")
    if any(workflow.failed_series):
        title.add(f"  {plot.failed_mark(theme.unicode)} ", "failed").add("failed", "dim")
    labels = _labels(curve_rows, (format_short(top), format_short(top / 2), "0"))
    lines = _plot_rows(theme, labels, body, ("rate", "failed"))
    return [title, *lines, *_time_axis(theme, rows, curve_width, span_s)]


def _latency_plot(
    workflow: "WorkflowView", width: int, rows: int, theme: Theme
) -> list[StyledLine]:
    span_s, span_points = _span(workflow)
    curve_rows = rows - 1 - _has_time_axis(rows)
    curve_width = width - _LABEL_WIDTH - 2
    p50 = tuple(pair[0] for pair in workflow.latency_series)
    p99 = tuple(pair[1] for pair in workflow.latency_series)
    timed = [value for value in (*p50, *p99) if value > 0]
    low, high = (
        (plot.nice_floor(min(timed)), plot.nice_ceiling(max(timed))) if timed else (1.0, 10.0)
    )
    body = plot.curves(
        (p99, p50),
        curve_width,
        curve_rows,
        span_points=span_points,
        low=low,
        high=high,
        unicode=theme.unicode,
    )
    title = StyledLine(theme, "latency", "dim")
    for mark, name in zip(plot.marks(theme.unicode), ("p99", "p50"), strict=True):
        title.add(f"  {mark} ", name).add(name, "dim")
    middle = (low * high) ** 0.5
    labels = _labels(curve_rows, (_axis_ms(high), _axis_ms(middle), _axis_ms(low)))
    lines = _plot_rows(theme, labels, body, ("p99", "p50"))
    return [title, *lines, *_time_axis(theme, rows, curve_width, span_s)]


def _plot_rows(
    theme: Theme,
    labels: Sequence[str],
    body: Sequence[Sequence[plot.Run]],
    roles: tuple[str, str],
) -> list[StyledLine]:
    lines = []
    for label, row in zip(labels, body, strict=True):
        line = _axis_row(theme, label)
        for text, owner in row:
            line.add(text, roles[owner] if owner != plot.EMPTY else "")
        lines.append(line)
    return lines


def _axis_ms(milliseconds: float) -> str:
    if milliseconds >= 1000:
        return f"{format_short(milliseconds / 1000)}s"
    if milliseconds >= 1:
        return f"{milliseconds:.3g}ms"
    return f"{milliseconds * 1000:.3g}us"


def _labels(rows: int, marks: tuple[str, str, str]) -> list[str]:
    """The top, middle and bottom value at their rows; no middle in a plot too low for one."""
    labels = [""] * rows
    labels[0], labels[-1] = marks[0], marks[2]
    if rows % 2 and rows >= 3:
        labels[rows // 2] = marks[1]
    return labels


def _axis_row(theme: Theme, label: str) -> StyledLine:
    glyph = theme.glyphs.axis if label else theme.glyphs.gutter
    return (
        StyledLine(theme).add_fit(label, _LABEL_WIDTH, "dim", right=True).add(f" {glyph}", "track")
    )


def _has_time_axis(rows: int) -> bool:
    return rows >= PLOT_ROWS_MIN + 1


def _time_axis(theme: Theme, rows: int, width: int, span_s: float) -> list[StyledLine]:
    if not _has_time_axis(rows):
        return []
    end = format_clock(span_s)
    line = StyledLine(theme, " " * (_LABEL_WIDTH + 1)).add(theme.glyphs.corner, "track")
    line.add("00:00", "dim").add(theme.glyphs.rule * max(0, width - 5 - len(end)), "track")
    return [line.add(end, "dim")]
