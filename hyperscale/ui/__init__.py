"""The user interface of a run: the live view, plain lines, or nothing. `open_ui` opens it.

The run reports to the UI (`update`, `log`, `finish`) and never waits for it.
"""

import contextlib
import os
import sys
import termios
from collections.abc import Callable, Mapping
from typing import TextIO

from hyperscale.config import parse_whole
from hyperscale.errors import InputError
from hyperscale.plan.changes import LoadChange
from hyperscale.ui.api import Mode, SilentUi, Ui
from hyperscale.ui.terminal import in_foreground
from hyperscale.ui.theme import detect

__all__ = ["Mode", "Ui", "open_ui"]

LINE_INTERVAL_S = 5.0
_COLUMNS_MOST = 10_000


def open_ui(
    mode: str,
    *,
    stream: TextIO | None = None,
    quiet: bool = False,
    line_interval_s: float = LINE_INTERVAL_S,
    on_stop: Callable[[], None] | None = None,
    on_change: Callable[[LoadChange], None] | None = None,
    only_watches: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Ui:
    """Return the UI for `mode`, to be entered as a context manager.

    `full` becomes `ci` where there is no terminal to take over: a pipe, a file, `TERM=dumb`, a job
    in the background. `on_stop` is called, on another thread, when the user presses `q`; without it
    the process gets SIGINT, as from Ctrl-C. `on_change` is called, also on another thread, when a
    key changes the load. With `only_watches`, what is shown goes on after `q`.
    """
    if mode not in ("full", "ci", "none"):
        raise InputError(f"--ui: unknown mode {mode!r}", hint="use full, ci or none")
    if quiet or mode == "none":
        return SilentUi()
    stream = sys.stdout if stream is None else stream
    environ = os.environ if environ is None else environ
    encoding = getattr(stream, "encoding", None)
    if mode == "full" and _is_terminal_of_ours(stream, environ):
        from hyperscale.ui.full import FullUi  # noqa: PLC0415 - only the UI in use is loaded

        theme = detect(environ, encoding=encoding, terminal=True)
        # A terminal that may be written to, but not opened or controlled, gets lines.
        with contextlib.suppress(OSError, termios.error):
            return FullUi(
                stream, theme, on_stop=on_stop, on_change=on_change, only_watches=only_watches
            )
    from hyperscale.ui.ci import CiUi  # noqa: PLC0415 - only the UI in use is loaded

    theme = detect(environ, encoding=encoding, terminal=False)
    return CiUi(stream, theme, interval_s=line_interval_s, width=_width(stream, environ))


def _is_terminal_of_ours(stream: TextIO, environ: Mapping[str, str]) -> bool:
    if environ.get("TERM", "dumb") in ("", "dumb"):
        return False
    try:
        fd = stream.fileno()
    except (OSError, AttributeError):
        return False
    return os.isatty(fd) and in_foreground(fd)


def _width(stream: TextIO, environ: Mapping[str, str]) -> int | None:
    """Return the width of the summary: COLUMNS, or the width of the terminal if there is one."""
    columns = parse_whole(environ.get("COLUMNS", ""), low=40, most=_COLUMNS_MOST)
    if columns is not None:
        return columns
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, AttributeError):
        return None
