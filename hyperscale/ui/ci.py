"""Plain lines for logs and pipes: one per workflow every few seconds, no control codes.

`RunLog` turns successive views into lines and is pure; `CiLog` writes lines without ever delaying
the run; `CiUi` joins the two.
"""

import threading
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from hyperscale.config import format_duration
from hyperscale.stats.shared_cores import cores_text
from hyperscale.stats.view import RunView, ViewStatus, WorkflowView
from hyperscale.ui.api import Mode
from hyperscale.ui.datacenters import load_line
from hyperscale.ui.panel import by_count, counted, is_active, is_ended, latency_now
from hyperscale.ui.stream import write_through
from hyperscale.ui.text import (
    cell_width,
    clean_lines,
    format_clock,
    format_count,
    format_ms,
    format_rate,
)
from hyperscale.ui.theme import Theme

if TYPE_CHECKING:
    from hyperscale.reporting.results import RunResult

FIRST_LINE_AT_S = 1.0
SILENCE_S = 30.0
"""A line is written at least this often."""
LINES_MAX = 2000  # waiting to be written; beyond that lines are dropped and counted
_SUMMARY_WIDTH = 120
_CLOSE_WITHIN_S = 2.0
_ERRORS_SHOWN = 4


class RunLog:
    """Turns successive views into lines: each start, end and warning is written once."""

    def __init__(self, theme: Theme, *, interval_s: float) -> None:
        self._theme = theme
        self._interval_s = interval_s
        self._started: set[str] = set()
        self._ended: set[str] = set()
        self._warned: set[str] = set()
        self._next_at_s: dict[str, float] = {}
        self._said_s = 0.0
        self._states: dict[str, str] = {}  # datacenter -> its state, as written last
        self._datacenters_at_s = FIRST_LINE_AT_S

    def lines(self, view: RunView) -> list[str]:
        """Return the lines for what has happened since the last view."""
        clock = format_clock(view.elapsed_s)
        widest = max((cell_width(self._theme.clean(w.name)) for w in view.workflows), default=0)
        lines = []
        # The figures in a warning of saturation change all the time: it is written once.
        warnings = {text: text for text in (*view.warnings, view.waiting) if text}
        for key, warning in {**warnings, **view.saturation}.items():
            if key not in self._warned:
                self._warned.add(key)
                lines.append(f"{clock}  warning: {warning}")
        for workflow in view.workflows:
            name = self._theme.clean(workflow.name)
            name += " " * (widest - cell_width(name))
            lines += [f"{clock}  {name}  {text}" for text in self._news(workflow)]
        lines += [f"{clock}  {text}" for text in self._datacenters(view)]
        if not lines and view.elapsed_s >= self._said_s + SILENCE_S:
            lines = [f"{clock}  {_awaited(view)}"]
        if lines:
            self._said_s = view.elapsed_s
        return [self._theme.clean(line) for line in lines]

    def _datacenters(self, view: RunView) -> Iterable[str]:
        """Yield a line for each datacenter whose state has changed, and for all now and then."""
        is_due = view.elapsed_s >= self._datacenters_at_s
        if is_due:
            self._datacenters_at_s = view.elapsed_s + self._interval_s
        for load in view.datacenters:
            if is_due or self._states.get(load.datacenter) != load.state:
                self._states[load.datacenter] = load.state
                yield f"datacenter {load.datacenter}  {load_line(load)}"

    def _news(self, workflow: WorkflowView) -> Iterable[str]:
        name = workflow.name
        if name in self._ended:
            return
        is_begun = workflow.status is ViewStatus.RUNNING or (
            is_active(workflow) and workflow.elapsed_s > 0
        )
        if is_begun and name not in self._started:
            self._started.add(name)
            self._next_at_s[name] = FIRST_LINE_AT_S
            yield self._start_line(workflow)
        if is_ended(workflow):
            self._ended.add(name)
            yield self._end_line(workflow)
        elif is_begun and workflow.elapsed_s >= self._next_at_s[name]:
            steps = int(workflow.elapsed_s / self._interval_s) + 1
            self._next_at_s[name] = steps * self._interval_s
            yield self._progress_line(workflow)

    def _start_line(self, workflow: WorkflowView) -> str:
        cores = cores_text(workflow.cores, workflow.shared_cores)
        duration = format_duration(workflow.duration_s)
        # Before its first report a workflow has no virtual users yet.
        vus = f" with {format_count(workflow.vus)} vus" if workflow.vus else ""
        way = f"in Python: {workflow.in_python}" if workflow.in_python else "natively"
        return f"started{vus} on {cores} for up to {duration}, {way}"

    def _progress_line(self, workflow: WorkflowView) -> str:
        load = workflow.load
        facts = [
            f"{workflow.progress:4.0%}",
            f"{format_rate(load.rate_now)}/s now",
            f"{format_rate(load.rate_total)}/s mean",
            *counted(workflow),
            f"{format_count(workflow.failed)} failed",
        ]
        latency = latency_now(workflow)
        if latency is not None:
            facts += [f"p50 {format_ms(latency[0])}", f"p99 {format_ms(latency[1])}"]
        if workflow.is_loop_held:
            facts.append("loop held: latencies suspect")
        facts.append(f"{format_count(workflow.vus)} vus")
        facts += [f"{name}={n}" for name, n in by_count(workflow.errors)[:_ERRORS_SHOWN]]
        return "  ".join(facts)

    def _end_line(self, workflow: WorkflowView) -> str:
        if not workflow.elapsed_s and not workflow.load.count:
            return f"{workflow.standing}: {workflow.error or 'nothing ran'}"
        line = (
            f"{workflow.standing}: {', '.join(counted(workflow))}, "
            f"{format_count(workflow.failed)} failed, {format_count(workflow.cut)} cut, "
            f"{format_rate(workflow.load.rate_total)}/s mean in "
            f"{format_duration(workflow.elapsed_s)}"
        )
        return "; ".join(filter(None, (line, workflow.error, *workflow.faults)))


def _awaited(view: RunView) -> str:
    """Return the line that is shown after a long silence: what the run is waiting for."""
    names = ", ".join(each.name for each in view.workflows if not is_ended(each))
    return f"still {view.waiting or 'waiting for ' + (names or 'the results')}"


class CiLog:
    """Writes lines on a thread: a slow reader loses lines and never delays the run."""

    def __init__(self, stream: TextIO, *, lines_max: int = LINES_MAX) -> None:
        self._stream = stream
        self._lines_max = lines_max
        self._lines: deque[str] = deque()
        self._dropped = 0
        self._is_closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="ui-lines", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, lines: Iterable[str]) -> None:
        """Queue lines; over the limit they are dropped and counted. Never waits."""
        with self._changed:
            for line in lines:
                if len(self._lines) < self._lines_max:
                    self._lines.append(line)
                else:
                    self._dropped += 1
            self._changed.notify()

    def close(self, *, within_s: float | None) -> None:
        """Write what is queued; None waits for the reader without a limit."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(within_s)

    def _run(self) -> None:
        is_read = True
        while True:
            with self._changed:
                while not self._lines and not self._is_closing:
                    self._changed.wait()
                lines, self._lines = self._lines, deque()
                dropped, self._dropped = self._dropped, 0
            if not lines:
                return
            if dropped:
                lines.append(f"... {dropped} lines dropped: the output is read too slowly")
            # After the reader is gone, lines are dropped and the run continues.
            is_read = is_read and write_through(self._stream, "\n".join(lines) + "\n")


class CiUi:
    """Lines while the run lasts, then the summary."""

    mode: Mode = "ci"

    def __init__(
        self, stream: TextIO, theme: Theme, *, interval_s: float, width: int | None
    ) -> None:
        self._theme = theme
        self._width = width or _SUMMARY_WIDTH
        self._log = RunLog(theme, interval_s=interval_s)
        self._writer = CiLog(stream)

    def __enter__(self) -> "CiUi":
        self._writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close(within_s=_CLOSE_WITHIN_S)

    def update(self, view: RunView) -> None:
        lines = self._log.lines(view)
        if lines:
            self._writer.put(lines)

    def log(self, text: str, *, source: str = "output") -> None:
        prefix = self._theme.clean(source)
        self._writer.put(f"{prefix} | {self._theme.clean(line)}" for line in clean_lines(text))

    def finish(self, result: "RunResult") -> None:
        from hyperscale.ui.summary import summary  # noqa: PLC0415 - not needed to start a run

        self._writer.put(summary(result, self._width, self._theme))
        self._writer.close(within_s=None)
