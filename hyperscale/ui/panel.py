"""One workflow on the screen, in as many rows as it is given. Pure.

A panel always starts with its headline; numbers, steps, errors and plots follow as far as the
rows go. It knows nothing of the other workflows or of the terminal.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from hyperscale.stats.shared_cores import cores_text
from hyperscale.stats.standing import SIGNS, Standing
from hyperscale.stats.view import StepView, ViewStatus, WorkflowView
from hyperscale.ui import plot
from hyperscale.ui.line import Column, StyledLine, Viewport, table
from hyperscale.ui.text import format_clock, format_count, format_ms, format_rate, format_short
from hyperscale.ui.theme import Theme

if TYPE_CHECKING:
    from hyperscale.reporting.results import StepResult

INDENT = 2
PLOT_ROWS_MIN = 4  # a title and three rows of curve
PLOT_ROWS_MAX = 16
_BAR_WIDTH_MAX = 60
_NOTE_GAP = 4
_LABEL_WIDTH = 6  # of a plot's axis
_SIDE_BY_SIDE_WIDTH = 72

_ACTIVE = {ViewStatus.RUNNING, ViewStatus.PAUSED, ViewStatus.STOPPING, ViewStatus.CANCELLING}
_ENDED = set(ViewStatus) - _ACTIVE - {ViewStatus.WAITING, ViewStatus.PREPARING}


def is_ended(workflow: WorkflowView) -> bool:
    return workflow.status in _ENDED


def is_active(workflow: WorkflowView) -> bool:
    """Return True if the workflow has numbers that change, and so gets a panel."""
    return workflow.status in _ACTIVE


def rows_wanted(workflow: WorkflowView) -> int:
    """Return the number of rows beyond which a panel has nothing more to show."""
    steps = 1 + len(workflow.steps) if workflow.steps else 0
    return 2 + steps + len(_notes(workflow)) + PLOT_ROWS_MAX


def panel(
    workflow: WorkflowView,
    width: int,
    rows: int,
    theme: Theme,
    *,
    name_width: int,
    viewport: Viewport | None = None,
) -> list[StyledLine]:
    """Return the workflow in at most `rows` rows; `viewport` says which steps, if not all fit."""
    if rows <= 1 or not (is_active(workflow) or workflow.load.count):
        return [compact(workflow, width, theme, name_width=name_width)][:rows]
    numbers = StyledLine(theme, " " * INDENT)
    _append_fitting(numbers, _facts(workflow, theme, is_live=True), width, gap="")
    lines = [_headline(workflow, width, theme, name_width=name_width), numbers]
    notes = _note_lines(_notes(workflow), width, theme)[: max(0, rows - 2)]
    steps_wanted = 1 + len(workflow.steps) if workflow.steps else 0
    if rows - 2 - len(notes) < steps_wanted:
        # Short of rows: errors keep their line, the other rows go to steps.
        notes = notes[: 1 if workflow.errors or workflow.error or workflow.faults else 0]
    left = rows - 2 - len(notes)
    plot_rows = min(PLOT_ROWS_MAX, left - steps_wanted)
    if plot_rows < PLOT_ROWS_MIN:
        # A long table may not push the plots out while it keeps half of the room, or six rows.
        plot_rows = PLOT_ROWS_MIN if left - PLOT_ROWS_MIN >= max(6, left // 2) else 0
    if plot_rows:
        lines += plots(workflow, width, plot_rows, theme)
    lines += steps(workflow.steps, width, left - plot_rows, theme, viewport or Viewport())
    return [*lines, *notes][:rows]


def _headline(workflow: WorkflowView, width: int, theme: Theme, *, name_width: int) -> StyledLine:
    """Return the symbol, name, progress bar and time."""
    standing = workflow.standing
    symbol, role = theme.sign(standing)
    line = StyledLine(theme, symbol, role).add(" ").add_fit(workflow.name, name_width, "title")
    if standing is not Standing.RUNNING:
        line.add("  ").add(standing, role)
    tail = _time_line(workflow, theme, room=width - line.width)
    bar_width = min(_BAR_WIDTH_MAX, width - line.width - tail.width - 2)
    if bar_width >= 5:
        done, rest = plot.bar(workflow.progress, bar_width, unicode=theme.unicode)
        line.add("  ").add(done, "bar").add(rest, "track")
    return line.extend(tail)


def _time_line(workflow: WorkflowView, theme: Theme, *, room: int) -> StyledLine:
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


def compact(workflow: WorkflowView, width: int, theme: Theme, *, name_width: int) -> StyledLine:
    """Return the workflow in one line."""
    symbol, role = theme.sign(workflow.standing)
    line = StyledLine(theme, symbol, role).add(" ").add_fit(workflow.name, name_width, "title")
    if workflow.status is ViewStatus.RUNNING:
        line.add(f"  {workflow.progress:4.0%}")
    else:
        line.add("  ").add_fit(workflow.standing, 9, role)
    if workflow.error:
        return line.add("  ").add(workflow.error, role)
    if is_ended(workflow) and workflow.faults:
        return line.add("  ").add("; ".join(workflow.faults), role)
    if workflow.load.count or workflow.elapsed_s:
        _append_fitting(line, _facts(workflow, theme, is_live=is_active(workflow)), width)
    elif workflow.vus:
        line.add("  ").add(f"{format_count(workflow.vus)} vus", "dim")
    return line


def _facts(workflow: WorkflowView, theme: Theme, *, is_live: bool) -> list[StyledLine]:
    def fact(value: str, label: str, role: str = "title") -> StyledLine:
        return StyledLine(theme, value, role).add(f" {label}", "dim")

    failed = format_count(workflow.failed) + _percent_of(workflow.failed, workflow.total)
    load = workflow.load
    requests, *others = (text.split(" ", 1) for text in counted(workflow))
    facts = [fact(f"{format_rate(load.rate_now)}/s", "now")] if is_live else []
    facts += [
        fact(f"{format_rate(load.rate_total)}/s", "mean"),
        fact(*requests),
        fact(failed, "failed", "failed" if workflow.failed else "title"),
    ]
    if not is_live:
        facts.append(fact(format_clock(workflow.elapsed_s), "elapsed"))
    if workflow.vus:
        facts.append(fact(format_count(workflow.vus), "vus"))
    latency = latency_now(workflow)
    if is_live and latency is not None:
        p50, p99 = map(format_ms, latency)
        facts += [fact(p50, "p50", "p50"), fact(p99, "p99", "p99")]
    if workflow.is_loop_held:
        # A mark on the latencies. It comes first: narrow windows have no room for all facts.
        facts.insert(0, StyledLine(theme, "loop held", "warn"))
    if workflow.cores:
        facts.append(fact(*cores_text(workflow.cores, workflow.shared_cores).split(" ", 1)))
    if workflow.dropped:
        facts.append(fact(format_count(workflow.dropped), "dropped", "warn"))
    if workflow.late:
        facts.append(fact(format_count(workflow.late), "late", "warn"))
    if workflow.cut:
        facts.append(fact(format_count(workflow.cut), "cut", "warn"))
    return [*facts, *(fact(*each) for each in others)]


def counted(workflow: WorkflowView) -> list[str]:
    """Return `12 requests`, `10 steps`, `2 none` and `5 iterations`: those that there are."""
    load = workflow.load
    counts = {
        load.unit: load.count,
        "steps": workflow.total,
        "none": workflow.none,
        "iterations": workflow.iterations,
    }
    return [f"{format_count(n)} {unit}" for unit, n in counts.items() if n or unit == load.unit]


def latency_now(workflow: WorkflowView) -> tuple[float, float] | None:
    """Return p50 and p99 of the last finished interval in which a request was timed."""
    return next((pair for pair in reversed(workflow.latency_series) if pair[1] > 0), None)


def _percent_of(part: int, whole: int) -> str:
    if not part or not whole:
        return ""
    share = part / whole
    return f" ({share:.0%})" if share >= 0.0995 else f" ({share:.1%})" if share >= 0.001 else ""


def _append_fitting(
    line: StyledLine, parts: Sequence[StyledLine], width: int, *, gap: str = "  "
) -> None:
    """Add the parts that fit. `gap` comes before the first of them."""
    for part in parts:
        if line.width + len(gap) + part.width > width:
            return
        line.add(gap).extend(part)
        # Places grow in steps, so that figures do not push each other about at every digit.
        gap = "  " + " " * (-part.width % 2)


def step_label(step: "StepView | StepResult") -> str:
    """Return a step's name; a step that is no part of the load itself says so."""
    return f"{step.name} ({step.kind})" if step.kind in ("setup", "teardown") else step.name


_STEP_COLUMNS: tuple[Column[StepView], ...] = (
    Column("step", step_label, right=False, width_min=12, width_max=32),
    Column("ok", lambda s: format_count(s.ok), width_min=7),
    Column(
        "failed", lambda s: format_count(s.failed), lambda s: "failed" * bool(s.failed), width_min=7
    ),
    Column("none", lambda s: format_count(s.none), rank=2, width_min=7, is_optional=True),
    Column(
        "cut", lambda s: format_count(s.cut), lambda s: "warn" if s.cut else "dim", 4, width_min=7
    ),
    Column("sent", lambda s: format_count(s.sent), rank=8, width_min=7),
    Column("steps/s", lambda s: format_rate(s.rate_now), rank=3, width_min=7),
    Column("p50", lambda s: format_ms(s.p50_ms), rank=2, width_min=6),
    Column("p90", lambda s: format_ms(s.p90_ms), rank=6, width_min=6),
    Column("p95", lambda s: format_ms(s.p95_ms), rank=7, width_min=6),
    Column("p99", lambda s: format_ms(s.p99_ms), rank=1, width_min=6),
    Column("max", lambda s: format_ms(s.max_ms), rank=5, width_min=6),
)


def steps(
    views: Sequence[StepView], width: int, rows: int, theme: Theme, viewport: Viewport
) -> list[StyledLine]:
    """Return the step table in at most `rows` rows, its title included; failing steps first."""
    if rows < 2 or not views:
        return []
    ordered = sorted(views, key=lambda step: not step.failed)
    if len(ordered) < rows:
        return table(theme, _STEP_COLUMNS, ordered, width, indent=INDENT)
    shown = viewport.window(len(ordered), rows - 2)
    # All rows, then the window: columns keep their widths while the table is scrolled.
    title, *lines = table(theme, _STEP_COLUMNS, ordered, width, indent=INDENT)
    lines = [title, *lines[shown]]
    if len(lines) < rows:
        more = more_line(theme, len(ordered), shown, "steps")
        lines.append(StyledLine(theme, " " * INDENT).extend(more))
    return lines


def more_line(theme: Theme, total: int, shown: slice, what: str) -> StyledLine:
    """Return the line below a list of which not all is shown."""
    hidden = total - (shown.stop - shown.start)
    place = f" {theme.glyphs.separator} {shown.start + 1}-{shown.stop} of {total}"
    return StyledLine(theme, f"{theme.glyphs.ellipsis} {hidden} more {what}{place}", "dim")


_Code = TypeVar("_Code", str, int)
Note = tuple[str, list[tuple[str, str, str]]]  # title; name, value, role


def _notes(workflow: WorkflowView) -> list[Note]:
    """Return what went wrong and what the target answered, one note each."""
    notes: list[Note] = []
    if workflow.error:
        notes.append(("error", [(workflow.error, "", "failed")]))
    if workflow.faults:
        notes.append(("failing", [(fault, "", "failed") for fault in workflow.faults]))
    notes += outcome_notes(workflow.errors, workflow.status_codes)
    if workflow.failures:
        items = [
            (f"{each.step}: {each.message}", format_count(each.count), "failed")
            for each in workflow.failures
        ]
        notes.append(("failures", items))
    allowed = [check for check in workflow.checks if check.failed and check.is_allowed]
    if allowed:
        role = SIGNS[Standing.ALLOWED].tone
        items = [(c.name, f"{format_count(c.failed)} failed, allowed", str(role)) for c in allowed]
        notes.append(("checks", items))
    elif workflow.checks and all(c.passed and not c.failed for c in workflow.checks):
        notes.append(("checks", [(f"{len(workflow.checks)} passing", "", "ok")]))
    return notes


def outcome_notes(errors: Mapping[str, int], codes: Mapping[_Code, int]) -> list[Note]:
    """Return the error classes and the status codes, the most frequent first."""
    notes: list[Note] = []
    if errors:
        notes.append(("errors", [(e, format_count(n), "failed") for e, n in by_count(errors)]))
    if codes:
        items = [
            (str(code), format_count(n), "ok" if str(code) < "400" else "failed")
            for code, n in by_count(codes)
        ]
        notes.append(("status", items))
    return notes


def by_count(counts: Mapping[_Code, int]) -> list[tuple[_Code, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _note_lines(notes: Sequence[Note], width: int, theme: Theme) -> list[StyledLine]:
    """Return lines such as `errors  timeout 12 · reset 3`, several notes to a line if they fit."""
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


def plots(workflow: WorkflowView, width: int, rows: int, theme: Theme) -> list[StyledLine]:
    """Return rate and latency over time: side by side where there is room, else stacked."""
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


def _rate_plot(workflow: WorkflowView, width: int, rows: int, theme: Theme) -> list[StyledLine]:
    load, failed = workflow.load, workflow.failed_series
    rates = tuple(map(max, load.rate_series, failed))  # a call may fail before it sends anything
    top = plot.nice_ceiling(max(rates, default=0.0))
    title = StyledLine(theme, f"{load.unit} per second", "dim")
    if any(failed):
        title.add(f"  {'█' if theme.unicode else 'x'} ", "failed").add("failed", "dim")
    draw = partial(plot.area, rates, failed, top=top, unicode=theme.unicode)
    values, roles = (format_short(top), format_short(top / 2), "0"), ("rate", "failed")
    return _framed(title, workflow, width, rows, theme, draw=draw, values=values, roles=roles)


def _latency_plot(workflow: WorkflowView, width: int, rows: int, theme: Theme) -> list[StyledLine]:
    p50 = tuple(pair[0] for pair in workflow.latency_series)
    p99 = tuple(pair[1] for pair in workflow.latency_series)
    timed = [value for value in (*p50, *p99) if value > 0]
    low = plot.nice_floor(min(timed)) if timed else 1.0
    high = plot.nice_ceiling(max(timed)) if timed else 10.0
    title = StyledLine(theme, "latency", "dim")
    roles = ("p99", "p50")
    for index, name in enumerate(roles):
        mark = "━" if theme.unicode else plot.ASCII_MARKS[index]
        title.add(f"  {mark} ", name).add(name, "dim")
    draw = partial(plot.curves, (p99, p50), low=low, high=high, unicode=theme.unicode)
    values = (_axis_ms(high), _axis_ms((low * high) ** 0.5), _axis_ms(low))
    return _framed(title, workflow, width, rows, theme, draw=draw, values=values, roles=roles)


def _framed(
    title: StyledLine,
    workflow: WorkflowView,
    width: int,
    rows: int,
    theme: Theme,
    *,
    draw: Callable[..., Sequence[Sequence[plot.Run]]],
    values: tuple[str, str, str],
    roles: tuple[str, str],
) -> list[StyledLine]:
    """Return the curves below their title and above the time, with their top, middle and bottom
    value at the left."""
    span_s = plot.time_span_s(workflow.elapsed_s, workflow.duration_s)
    has_time_axis = rows > PLOT_ROWS_MIN
    curve_width, curve_rows = width - _LABEL_WIDTH - 2, rows - 1 - has_time_axis
    labels = [""] * curve_rows
    labels[0], labels[-1] = values[0], values[2]
    if curve_rows % 2 and curve_rows >= 3:
        labels[curve_rows // 2] = values[1]
    body = draw(curve_width, curve_rows, span_points=span_s / workflow.series_interval_s)
    lines = [title]
    for label, row in zip(labels, body, strict=True):
        axis = theme.glyphs.axis if label else theme.glyphs.gutter
        line = StyledLine(theme).add_fit(label, _LABEL_WIDTH, "dim", right=True)
        line.add(f" {axis}", "track")
        for text, owner in row:
            line.add(text, roles[owner] if owner != plot.EMPTY else "")
        lines.append(line)
    if has_time_axis:
        end = format_clock(span_s)
        line = StyledLine(theme, " " * (_LABEL_WIDTH + 1)).add(theme.glyphs.corner, "track")
        line.add("00:00", "dim").add(
            theme.glyphs.rule * max(0, curve_width - 5 - len(end)), "track"
        )
        lines.append(line.add(end, "dim"))
    return lines


def _axis_ms(milliseconds: float) -> str:
    if milliseconds >= 1000:
        return f"{format_short(milliseconds / 1000)}s"
    if milliseconds >= 1:
        return f"{milliseconds:.3g}ms"
    return f"{milliseconds * 1000:.3g}us"
