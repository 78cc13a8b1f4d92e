"""Exceptions of user code: the first of each kind is printed in full, the rest are counted.

A step that raises does so on every iteration of every virtual user; a hundred thousand
equal tracebacks say no more than one. Frames of Hyperscale are left out: the reader can only
correct their own code.
"""

import sysconfig
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from hyperscale.errors import HyperscaleError
from hyperscale.testing.parameters import masked

E = TypeVar("E", bound=HyperscaleError)

_OURS = str(Path(__file__).resolve().parent.parent)
_LIBRARIES = tuple(
    {f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_KINDS_MAX = 100
_TEXT_MAX = 500

HOOK_ERRORS = (Exception, SystemExit, KeyboardInterrupt)
"""Exceptions that count as a failure of the hook and never end the process."""

_Key = tuple[str, type[BaseException], str, int]
_TRACE_MAX = 4000


@dataclass(slots=True)
class SeenError:
    """Errors of one type from one place of the user's code."""

    message: str  # of the first of them
    trace: str  # of the first of them: the user's frames
    count: int = 0


class UserErrorLog:
    """Writes each distinct error once; `write` gets whole lines."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._seen: dict[_Key, SeenError] = {}
        self._unlisted = 0

    def note(self, where: str, error: BaseException) -> SeenError:
        """Note an exception raised in the hook `where`; return what is known of its kind."""
        file, line = _origin(error.__traceback__)
        key = (where, type(error), file, line)
        seen = self._seen.get(key)
        if seen is None:
            if len(self._seen) >= _KINDS_MAX:
                self._unlisted += 1
                return SeenError(f"{type(error).__name__} ({Path(file).name}:{line})", "")
            trace = format_error(error)
            seen = SeenError(describe_error(error), _shown(trace)[-_TRACE_MAX:])
            self._seen[key] = seen
            self._write(f"{where} raised (shown once by each process):\n{trace}")
        seen.count += 1
        return seen

    def summarise(self) -> None:
        """Write how often each error occurred; called once, at the end."""
        for (where, kind, file, line), seen in self._seen.items():
            if seen.count > 1:
                place = f" at {file}:{line}" if file else ""
                self._write(
                    f"{where} raised {kind.__name__}{place} {seen.count:,} times in this process\n"
                )
        if self._unlisted:
            self._write(f"… and {self._unlisted:,} exceptions of other kinds, not shown\n")


def format_error(error: BaseException) -> str:
    """Return the traceback with only the user's frames, ending in a line break."""
    report = traceback.TracebackException.from_exception(error)
    seen: set[int] = set()
    waiting: list[traceback.TracebackException | None] = [report]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        users = [frame for frame in one.stack if not is_ours(frame.filename)]
        # An error without a frame of user code is shown with all its frames.
        if users:
            one.stack = traceback.StackSummary.from_list(users)
        waiting += [one.__cause__, one.__context__, *(one.exceptions or ())]
    return "".join(report.format())


def describe_error(error: BaseException) -> str:
    """Describe an error in one line: what was raised and where in the user's code."""
    # The indented lines of a syntax error show the place; notes follow the error itself.
    lines = traceback.format_exception_only(error)
    text = " ".join(next(line for line in lines if not line.startswith(" ")).split())
    text = _shown(text)  # before it is cut, which may cut a secret in two
    text = text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"
    file, line = _origin(error.__traceback__)
    return _shown(f"{text} ({Path(file).name}:{line})" if file else text)


def _shown(text: str) -> str:
    """Mask secrets, and escape lone surrogates, which cannot be sent: they stand for undecodable
    bytes."""
    return masked(text.encode("utf-8", "backslashreplace").decode())


def failure(kind: type[E], what: str, error: BaseException) -> E:
    """Return an error that says what failed because user code raised `error`, with a hint."""
    hint = ""
    if isinstance(error, FileNotFoundError):
        hint = (
            "a file that a test opens by its path must be on every machine that runs the test: "
            "workers get only imported modules and files given as `File`"
        )
    return kind(f"{what}: {describe_error(error)}", hint=hint)


def is_ours(filename: str) -> bool:
    return filename.startswith((_OURS, "<frozen"))


def _origin(trace: TracebackType | None) -> tuple[str, int]:
    """Return file and line of the innermost frame of user code, or else of a library; ("", 0) if
    there is neither."""
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
