"""Exceptions of user code: the first of each kind shown in full, the rest counted.

A step that raises does so on every iteration of every virtual user; a hundred thousand
equal tracebacks say no more than one. Frames of our own are left out: the reader's code is
what they can mend.
"""

import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

_OURS = str(Path(__file__).resolve().parent.parent)
_LIBRARIES = tuple(
    {f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_KINDS_MAX = 100
_TEXT_MAX = 500

HOOK_ERRORS = (Exception, SystemExit, KeyboardInterrupt)
"""What a hook may raise to say that it failed. To leave the process is for others to decide."""

_Key = tuple[str, type[BaseException], str, int]


class UserErrorLog:
    """Writes each distinct fault once; `write` gets whole lines."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._seen: dict[_Key, int] = {}
        self._unlisted = 0

    def note(self, where: str, error: BaseException) -> None:
        """One more exception, raised in the hook `where`."""
        file, line = _origin(error.__traceback__)
        key = (where, type(error), file, line)
        count = self._seen.get(key)
        if count is not None:
            self._seen[key] = count + 1
        elif len(self._seen) < _KINDS_MAX:
            self._seen[key] = 1
            self._write(f"{where} raised (shown once):\n{format_error(error)}")
        else:
            self._unlisted += 1

    def summarise(self) -> None:
        """How often each came again; call it once, at the end."""
        for (where, kind, file, line), count in self._seen.items():
            if count > 1:
                place = f" at {file}:{line}" if file else ""
                self._write(f"{where} raised {kind.__name__}{place} {count:,} times in all\n")
        if self._unlisted:
            self._write(f"… and {self._unlisted:,} exceptions of other kinds, not shown\n")


def format_error(error: BaseException) -> str:
    """The traceback with only the user's frames, ending in a line break."""
    report = traceback.TracebackException.from_exception(error)
    seen: set[int] = set()
    waiting: list[traceback.TracebackException | None] = [report]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        users = [frame for frame in one.stack if not is_ours(frame.filename)]
        # An error that began in our code and has no frame of theirs is shown as it is.
        if users:
            one.stack = traceback.StackSummary.from_list(users)
        waiting += [one.__cause__, one.__context__, *(one.exceptions or ())]
    return "".join(report.format())


def describe_error(error: BaseException) -> str:
    """One line that can be sent: what was raised and where in the user's code."""
    # Of a syntax error what is indented shows the place; notes come after what was raised.
    told = traceback.format_exception_only(error)
    text = " ".join(next(each for each in told if not each.startswith(" ")).split())
    text = text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"
    file, line = _origin(error.__traceback__)
    text = f"{text} ({Path(file).name}:{line})" if file else text
    # Bytes that were no text come as halves of pairs, which no message can hold.
    return text.encode("utf-8", "backslashreplace").decode()


def is_ours(filename: str) -> bool:
    return filename.startswith((_OURS, "<frozen"))


def _origin(trace: TracebackType | None) -> tuple[str, int]:
    """File and line of the innermost frame of the user's, or else of a library they called;
    empty if there is none."""
    own, library = ("", 0), ("", 0)
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if not is_ours(filename):
            if filename.startswith(_LIBRARIES):
                library = filename, trace.tb_lineno
            else:
                own = filename, trace.tb_lineno
        trace = trace.tb_next
    return own if own[0] else library
