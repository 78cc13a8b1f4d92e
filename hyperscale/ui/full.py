"""The live view: a thread that draws the newest snapshot on the terminal.

The run hands over snapshots and never waits: drawing, writing and reading keys happen on the
thread, through a descriptor that does not block. A terminal that is slower than the run misses
frames. `frame` decides what a frame looks like.
"""

import os
import select
import signal
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TextIO

from hyperscale.ui.api import Mode
from hyperscale.ui.frame import LiveFrame, Pane, preparing, render
from hyperscale.ui.stream import write_through
from hyperscale.ui.terminal import Terminal
from hyperscale.ui.text import clean_lines
from hyperscale.ui.theme import Theme

if TYPE_CHECKING:
    from hyperscale.plan.changes import LoadChange
    from hyperscale.reporting.results import RunResult
    from hyperscale.stats.view import RunView

FRAME_INTERVAL_S = 1 / 12
REPAINT_INTERVAL_S = 2.0  # repairs what other programs wrote over the frame
OUTPUT_LINES_MAX = 500
_OUTPUT_CHARS_MAX = 2000  # of one line
_JOIN_WITHIN_S = 5.0

_BEGIN, _END = b"\x1b[?2026h", b"\x1b[?2026l"  # of a synchronized update
_GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL


class Screen:
    """The last frame sent, its size, and the bytes that turn it into the next one.

    Only lines that changed are sent, all of them in one write, between the marks of a synchronized
    update: terminals that know it show the frame at once, the others have little to redraw.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Send the next frame whole: other programs may have written over the last one."""
        self._lines: list[str] = []
        self._size = (0, 0)

    @property
    def is_blank(self) -> bool:
        """Return True if no frame is known to be on the screen."""
        return not self._lines

    def draw(self, lines: Sequence[str], *, columns: int, rows: int) -> bytes:
        """Return the bytes that show `lines`, each narrower than `columns`; none if unchanged."""
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


class _OutputTail:
    """The newest lines of output; written by the run, read by the thread that draws."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=OUTPUT_LINES_MAX)
        self._total = 0
        self._lock = threading.Lock()

    def add(self, text: str) -> None:
        lines = clean_lines(text)
        newest = [line[:_OUTPUT_CHARS_MAX] for line in lines[-OUTPUT_LINES_MAX:]]
        with self._lock:
            self._total += len(lines)
            self._lines.extend(newest)

    def read(self, *, with_lines: bool) -> tuple[tuple[str, ...], int]:
        """Return the newest lines, if wanted, and the number of lines so far."""
        with self._lock:
            return tuple(self._lines) if with_lines else (), self._total


class Controls:
    """What the user has chosen with keys."""

    def __init__(
        self,
        on_stop: Callable[[], None],
        on_change: Callable[["LoadChange"], None] | None = None,
    ) -> None:
        self._on_stop = on_stop
        self._on_change = on_change
        self.shows_output = False
        self.selected: str | None = None  # name of a workflow
        self.is_stopping = False
        self.scroll = 0  # rows
        self.frame = LiveFrame([])  # the last one drawn: how far it can be scrolled

    @property
    def can_change(self) -> bool:
        return self._on_change is not None

    def press(self, key: str, view: "RunView | None") -> None:
        workflows = [] if view is None else [each.name for each in view.workflows]
        match key:
            case "p" | "+" | "-":
                self._change(key, view)
            case "q" | "Q" if not self.is_stopping:
                self.is_stopping = True
                self._on_stop()
            case "o" | "O":
                self.shows_output = not self.shows_output
            case "\t" | "right":
                self._select(+1, workflows)
            case "back-tab" | "left":
                self._select(-1, workflows)
            case "escape":
                self.selected, self.scroll = None, 0
            case "down" | "j":
                self._scroll_to(self.scroll + 1)
            case "up" | "k":
                self._scroll_to(self.scroll - 1)
            case "page-down" | " ":
                self._scroll_to(self.scroll + self.frame.page)
            case "page-up" | "b":
                self._scroll_to(self.scroll - self.frame.page)
            case "home" | "g":
                self._scroll_to(0)
            case "end" | "G":
                self._scroll_to(self.frame.scroll_max)

    def _change(self, key: str, view: "RunView | None") -> None:
        from hyperscale.ui.load_keys import change_of  # noqa: PLC0415 - few need it

        if self._on_change is not None and view is not None:
            change = change_of(key, view, self.selected)
            if change is not None:
                self._on_change(change)

    def _scroll_to(self, row: int) -> None:
        self.scroll = max(0, min(row, self.frame.scroll_max))

    def _select(self, step: int, workflows: Sequence[str]) -> None:
        names = [None, *workflows]
        at = names.index(self.selected) if self.selected in names else 0
        self.selected, self.scroll = names[(at + step) % len(names)], 0


class FullUi:
    """Live view on a terminal, then the summary on its normal screen."""

    mode: Mode = "full"

    def __init__(
        self,
        stream: TextIO,
        theme: Theme,
        *,
        on_stop: Callable[[], None] | None = None,
        on_change: Callable[["LoadChange"], None] | None = None,
        only_watches: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._theme = theme
        self._only_watches = only_watches
        self._clock = clock
        self._terminal = Terminal(stream.fileno())
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="ui", daemon=True)
        self._is_closing = False
        # Written by the run, read by the thread.
        self._view: RunView | None = None
        self._output = _OutputTail()
        # Used by the thread only.
        self._screen = Screen()
        stop = on_stop or partial(os.kill, os.getpid(), signal.SIGINT)
        self._controls = Controls(stop, on_change)
        self._shown: tuple[int, int, RunView | None, Pane] | None = None
        self._repaint_at_s = 0.0

    def __enter__(self) -> "FullUi":
        self._stream.flush()
        self._terminal.enter(before_leave=self._stop_drawing)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def update(self, view: "RunView") -> None:
        self._view = view

    def log(self, text: str, *, source: str = "output") -> None:
        del source  # the pane is narrow; the file beside the results names the source
        self._output.add(text)

    def finish(self, result: "RunResult") -> None:
        from hyperscale.ui.summary import summary  # noqa: PLC0415 - not needed to start a run

        columns, _ = self._terminal.size()
        self._close()
        lines = summary(result, columns - 1, self._theme)
        # The run is over: from here on it may wait for a terminal that was suspended.
        unsent = self._terminal.unsent.decode("ascii")
        write_through(self._stream, unsent + "\n".join(lines) + "\n")

    def _close(self) -> None:
        self._terminal.leave()
        if self._wake_fd >= 0:
            os.close(self._wake_fd)
            self._wake_fd = -1

    def _stop_drawing(self) -> None:
        self._is_closing = True
        if threading.current_thread() is self._thread or not self._thread.is_alive():
            return
        os.eventfd_write(self._wake_fd, 1)
        self._thread.join(_JOIN_WITHIN_S)

    # -- the thread

    def _run(self) -> None:
        try:
            self._draw_until_closed()
        except (OSError, termios.error):
            return  # the terminal is gone; the run continues without it
        except BaseException:
            # A bug must not leave a broken terminal behind its traceback.
            self._terminal.leave()
            raise

    def _draw_until_closed(self) -> None:
        terminal = self._terminal
        poller = select.poll()
        poller.register(self._wake_fd, select.POLLIN)
        pending = memoryview(b"")
        frame_at_s = self._clock()
        while not self._is_closing:
            poller.register(terminal.fd, select.POLLIN | (select.POLLOUT if pending else 0))
            wait_s = 1.0 if pending else max(0.0, frame_at_s - self._clock())
            events = dict(poller.poll(wait_s * 1000))
            happened = events.get(terminal.fd, 0)
            if happened & _GONE:
                return
            if happened & select.POLLIN and self._press(terminal.read()):
                frame_at_s = self._clock()
            # A frame is drawn only after the last one was written: the next one will be newer.
            if not pending and self._clock() >= frame_at_s:
                if terminal.retake():
                    self._screen.forget()
                pending = memoryview(self._frame())
                frame_at_s = self._clock() + FRAME_INTERVAL_S
            if pending:
                pending = pending[terminal.write(pending) :]

    def _frame(self) -> bytes:
        """Return the bytes that bring the screen up to date; empty if it is."""
        view = self._view
        columns, rows = self._terminal.size()
        controls = self._controls
        output, output_total = self._output.read(with_lines=controls.shows_output)
        pane = Pane(
            output=output,
            output_total=output_total,
            shows_output=controls.shows_output,
            selected=controls.selected,
            scroll=controls.scroll,
            is_stopping=controls.is_stopping,
            only_watches=self._only_watches,
            can_change=controls.can_change,
        )
        now_s = self._clock()
        if now_s >= self._repaint_at_s:
            self._screen.forget()
            self._repaint_at_s = now_s + REPAINT_INTERVAL_S
        shown = (columns, rows, view, pane)
        if shown == self._shown and not self._screen.is_blank:
            return b""
        self._shown = shown
        # One column stays free: terminals differ in what they do after their last cell.
        if view is None:
            controls.frame = LiveFrame(preparing(columns - 1, self._theme))
        else:
            controls.frame = render(view, columns - 1, rows, self._theme, pane)
        return self._screen.draw(controls.frame.lines, columns=columns, rows=rows)

    def _press(self, typed: bytes) -> bool:
        """Act on keys; returns True if the screen should show the change at once."""
        for key in read_keys(typed):
            if key == "\x0c":  # Ctrl-L
                self._screen.forget()
            else:
                self._controls.press(key, self._view)
        return bool(typed)


_SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1b[Z": "back-tab",
    b"\x1b[5~": "page-up",
    b"\x1b[6~": "page-down",
    b"\x1b[H": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1b[4~": "end",
}


def read_keys(typed: bytes) -> list[str]:
    """Return the names of the keys in what a terminal sent; unknown sequences are ""."""
    keys = []
    while typed:
        if typed[:1] != b"\x1b":
            keys.append(chr(typed[0]))
            typed = typed[1:]
        elif len(typed) == 1 or typed[1:2] not in b"[O":
            keys.append("escape")
            typed = typed[1:]
        else:
            end = next((i for i in range(2, len(typed)) if 0x40 <= typed[i] <= 0x7E), len(typed))
            sequence = b"\x1b[" + typed[2 : end + 1]
            keys.append(_SEQUENCES.get(sequence, ""))
            typed = typed[end + 1 :]
    return keys
