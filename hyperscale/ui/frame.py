"""The whole live screen: header, warnings, a panel per workflow, user output, keys. Pure.

`render` is a function of what is shown and how large the window is, so every size can be
tested without a terminal.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hyperscale.stats.standing import Standing
from hyperscale.stats.view import RunView, ViewStatus, WorkflowView
from hyperscale.ui.datacenters import live_datacenters
from hyperscale.ui.line import StyledLine, Viewport
from hyperscale.ui.panel import (
    compact,
    is_active,
    is_ended,
    more_line,
    panel,
    rows_wanted,
)
from hyperscale.ui.text import cell_width, clip, format_clock, wrap_words
from hyperscale.ui.theme import Theme

_NAME_WIDTH_MAX = 28
_SATURATED = (
    "the load generator itself is saturated, so latencies are suspect: they contain its own delay"
)


@dataclass(frozen=True, slots=True)
class Pane:
    """What the user has chosen to see."""

    output: Sequence[str] = ()  # the newest lines of user output
    output_total: int = 0  # lines printed so far
    shows_output: bool = False
    selected: str | None = None  # the workflow that gets all rows
    scroll: int = 0  # rows that a list which does not fit is scrolled by
    is_stopping: bool = False
    only_watches: bool = False  # `q` ends the view, not what is shown
    can_change: bool = False  # keys change the load


@dataclass(frozen=True, slots=True)
class LiveFrame:
    """At most as many lines as the window has rows, none wider than the window."""

    lines: list[str]
    scroll_max: int = 0  # 0: everything fits
    page: int = 1


def render(
    view: RunView, width: int, height: int, theme: Theme, pane: Pane | None = None
) -> LiveFrame:
    pane = pane or Pane()
    viewport = Viewport(pane.scroll)
    head = [_header(view, width, theme), *_banner(view, width, height // 5, theme)]
    foot_rows = 1 if height >= 8 else 0
    if height >= 16:
        head += _usage(view, width, theme)
        head += live_datacenters(view.datacenters, width, height // 3, theme)
        head.append(StyledLine(theme))
    output = _output(pane, width, height, theme) if pane.shows_output else []
    body_rows = max(0, height - len(head) - foot_rows - len(output))
    body = _body(view.workflows, width, body_rows, theme, selected=pane.selected, viewport=viewport)
    body += [StyledLine(theme)] * (body_rows - len(body))
    foot = [_footer(view, width, theme, pane, viewport)] * foot_rows
    lines = [*head, *body, *output, *foot][: max(0, height)]
    return LiveFrame([line.render(width) for line in lines], viewport.offset_max, viewport.page)


def preparing(width: int, theme: Theme) -> list[str]:
    """Return the screen before there is anything to show."""
    return [StyledLine(theme, "hyperscale", "brand").add("  preparing", "dim").render(width)]


def _header(view: RunView, width: int, theme: Theme) -> StyledLine:
    right = StyledLine(theme, format_clock(view.elapsed_s), "title")
    running, done = (sum(map(test, view.workflows)) for test in (is_active, is_ended))
    waiting = len(view.workflows) - running - done
    for word, count in (("running", running), ("waiting", waiting), ("done", done)):
        if count and width >= 60:
            right.add(f" {theme.glyphs.separator} ", "dim").add(f"{count} ").add(word, "dim")
    line = StyledLine(theme, "hyperscale", "brand")
    room = width - line.width - right.width - 4
    if room > 4:
        line.add("  ").add(clip(theme.clean(view.file), room, ellipsis=theme.glyphs.ellipsis))
    return line.pad_to(width - right.width).extend(right)


def _banner(view: RunView, width: int, rows: int, theme: Theme) -> list[StyledLine]:
    """Return the highlighted warnings, at most two lines each."""
    warnings = view.all_warnings or ((_SATURATED,) if view.saturated else ())
    symbol, _ = theme.sign(Standing.SUSPECT)
    lines: list[StyledLine] = []
    for warning in warnings:
        parts = wrap_words(theme.clean(warning), max(10, width - 4))
        if len(parts) > 2:
            parts = [parts[0], parts[1] + theme.glyphs.ellipsis]
        for index, part in enumerate(parts):
            mark = symbol if not index else " "
            text = clip(f" {mark} {part}", width, ellipsis=theme.glyphs.ellipsis)
            lines.append(StyledLine(theme, text + " " * (width - cell_width(text)), "banner"))
    return lines[: max(1, rows)]


def _usage(view: RunView, width: int, theme: Theme) -> list[StyledLine]:
    """Return the line with the CPU and memory of the busiest workers that fit."""
    if not view.usage:
        return []
    line = StyledLine(theme, "workers", "dim")
    used, more, shown = line.width, "", []
    for index, each in enumerate(view.usage):
        text = f"{theme.clean(each.worker)} cpu {each.cpu:.0%} memory {each.memory:.0%}"
        left = len(view.usage) - index
        more = f"  {theme.glyphs.ellipsis} {left} more"
        used += 2 + cell_width(text)
        if used + (len(more) if left > 1 else 0) > width:
            break
        shown.append((each.worker, text, "warn" if each.is_saturated else ""))
        more = ""
    # Sorted by name: the order by use changes all the time, and every place on the line with it.
    for _, text, role in sorted(shown):
        line.add("  ").add(text, role)
    return [line.add(more, "dim")]


def _body(
    workflows: Sequence[WorkflowView],
    width: int,
    rows: int,
    theme: Theme,
    *,
    selected: str | None,
    viewport: Viewport,
) -> list[StyledLine]:
    if rows <= 0 or not workflows:
        return []
    longest = max(cell_width(theme.clean(workflow.name)) for workflow in workflows)
    name_width = max(4, min(longest, _NAME_WIDTH_MAX, width // 3))
    if selected not in {workflow.name for workflow in workflows}:
        selected = None
    if selected is None and len(workflows) > rows > 1:
        # Not even a line each: the list can be scrolled, what needs attention comes first.
        shown = viewport.window(len(workflows), rows - 1)
        ordered = sorted(workflows, key=lambda each: _urgency(each, None))
        lines = [compact(each, width, theme, name_width=name_width) for each in ordered[shown]]
        return [*lines, more_line(theme, len(workflows), shown, "workflows")]
    given = allot(workflows, rows, selected)
    lines = []
    hidden = 0
    for workflow, share in zip(workflows, given, strict=True):
        if not share:
            hidden += 1
        elif share == 1:
            lines.append(compact(workflow, width, theme, name_width=name_width))
        else:
            # The last row of a share is the gap to the next panel.
            is_scrolled = selected in (None, workflow.name)
            lines += panel(
                workflow,
                width,
                share - 1,
                theme,
                name_width=name_width,
                viewport=viewport if is_scrolled else None,
            )
            lines.append(StyledLine(theme))
    if hidden:
        lines.append(StyledLine(theme, f"{theme.glyphs.ellipsis} {hidden} more workflows", "dim"))
    return lines[:rows]


def allot(workflows: Sequence[WorkflowView], rows: int, selected: str | None) -> list[int]:
    """Return how many rows each workflow gets, the gap below a panel included.

    Every workflow gets a line if there are enough. Running workflows share the other rows; rows
    that a workflow cannot use go to the others. A selected workflow gets all of them.
    """
    given = [0] * len(workflows)
    order = sorted(range(len(workflows)), key=lambda i: _urgency(workflows[i], selected))
    # One row is kept to say how many are hidden. A selected workflow needs most rows for itself.
    lines = rows // 3 if selected is not None else rows - 1
    for index in order[: rows if rows >= len(workflows) else max(1, lines)]:
        given[index] = 1
    left = rows - sum(given) - (1 if 0 in given else 0)
    eager = [i for i in order if given[i] and is_active(workflows[i])]
    for index, workflow in enumerate(workflows):
        if (
            workflow.name == selected
            and given[index]
            and (is_active(workflow) or workflow.load.count)
        ):
            eager = [index]
    wanted = {i: rows_wanted(workflows[i]) + 1 for i in eager}
    while left > 0 and eager:
        share = max(1, left // len(eager))
        for index in tuple(eager):
            more = min(share, left, wanted[index] - given[index])
            given[index] += more
            left -= more
            if given[index] >= wanted[index]:
                eager.remove(index)
    # Two rows hold a line and a gap, which is worse than the line alone.
    return [1 if share == 2 else share for share in given]


def _urgency(workflow: WorkflowView, selected: str | None) -> int:
    if workflow.name == selected:
        return 0
    if workflow.standing is Standing.FAILING:
        return 1
    if is_active(workflow):
        return 2
    if workflow.standing in (Standing.FAILED, Standing.TIMEOUT, Standing.PARTIAL):
        return 3
    return 4 if is_ended(workflow) else 5


def _output(pane: Pane, width: int, height: int, theme: Theme) -> list[StyledLine]:
    """Return the newest lines of user output, for the lower third of the window."""
    rows = max(1, height // 3)
    title = f" output {theme.glyphs.separator} {pane.output_total:,} lines "
    rule = theme.glyphs.rule
    head = StyledLine(theme, rule * 2, "track").add(title, "dim")
    lines = [head.add(rule * max(0, width - head.width), "track")]
    lines += [StyledLine(theme, line) for line in pane.output[-rows:]]
    if not pane.output:
        lines.append(StyledLine(theme, "nothing printed yet", "dim"))
    return lines + [StyledLine(theme)] * (rows + 1 - len(lines))


def _footer(view: RunView, width: int, theme: Theme, pane: Pane, viewport: Viewport) -> StyledLine:
    if pane.is_stopping and pane.only_watches:
        return StyledLine(theme, "leaving: the job goes on", "warn")
    if pane.is_stopping or any(w.status is ViewStatus.STOPPING for w in view.workflows):
        return StyledLine(theme, "stopping: waiting for requests in flight", "warn")
    line = StyledLine(theme)
    output = "hide output" if pane.shows_output else "output"
    stop = "leave" if pane.only_watches else "stop"
    keys = [("q", stop)]
    if viewport.offset_max:
        keys += [("↑↓" if theme.unicode else "j/k", "scroll"), ("pgup pgdn", "page")]
    if len(view.workflows) > 1:
        keys.append(("tab", "next workflow"))
    if pane.can_change:
        is_paused = any(w.status is ViewStatus.PAUSED for w in view.workflows)
        keys += [("p", "resume" if is_paused else "pause"), ("+ -", "load")]
    keys.append(("o", output))
    if pane.selected is not None:
        keys.append(("esc", "all"))
    for key, meaning in keys:
        if line.width + len(key) + len(meaning) + 1 > width:
            break
        line.add(f"{key} ", "key").add(f"{meaning}   ", "dim")
    return line
