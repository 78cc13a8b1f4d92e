"""Events of a node as JSON lines, written by a thread of their own.

    {"time": "2026-01-02T03:04:05.678Z", "level": "warning", "event": "peer.refused", "node": ...}

The reader of the output may stop reading; a node that waited for it would look dead to its peers.
So lines wait in a bounded queue. Lines that do not fit, or that cannot be written, are dropped
and counted.

What libraries print to standard error becomes an event too (`stderr.printed`), and so do warnings
and exceptions that nothing catches: every line of the output is JSON.
"""

import io
import logging
import queue
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import IO, Any

import msgspec

LINES_WAITING_MAX = 10_000
_TEXT_CHARS_MAX = 4_000
_FLUSH_S = 2.0

_EVENT = re.compile(r"[a-z_]+\.[a-z_]+")
_formatter = logging.Formatter()
_encode = msgspec.json.Encoder(enc_hook=str).encode
# The attributes of every record; all others come from `extra`.
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def json_line(record: logging.LogRecord, bound: dict[str, Any]) -> str:
    """Return a record as one JSON object. The fields of `bound` are in every line."""
    text = str(record.msg)
    event, _, rest = text.partition(": ")
    if not _EVENT.fullmatch(event):  # a record of asyncio or another library
        event, rest = f"{record.name.partition('.')[0]}.reported", text
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    line: dict[str, Any] = {
        "time": f"{at}.{int(record.msecs):03d}Z",
        "level": record.levelname.lower(),
        "event": event,
        **bound,
    }
    line |= {key: _short(each) for key, each in record.__dict__.items() if key not in _STANDARD}
    if rest and "detail" not in line:
        line["detail"] = _short(record.getMessage().removeprefix(f"{event}: "))
    if record.exc_info:
        line["traceback"] = _formatter.formatException(record.exc_info)[-_TEXT_CHARS_MAX:]
    return _encode(line).decode()


class LineWriter(logging.Handler):
    """Hands lines to a thread and never waits. `close` waits for the last lines, for a while."""

    def __init__(self, stream: IO[str], bound: dict[str, Any]) -> None:
        super().__init__()
        self._bound = bound
        self.dropped = 0  # lines that did not fit the queue or could not be written
        self._stream = stream
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        # A daemon thread: a blocked write must not keep the process from ending.
        self._thread = threading.Thread(target=self._write, name="log-writer", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        if self._lines.qsize() >= LINES_WAITING_MAX:
            self.dropped += 1
            return
        self._lines.put(json_line(record, self._bound))

    def close(self) -> None:
        self._lines.put(None)
        self._thread.join(_FLUSH_S)
        super().close()

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._stream.write(line + "\n")
                if self._lines.empty():
                    self._stream.flush()
            except (OSError, ValueError):  # the pipe is closed or the disk is full
                self.dropped += 1


class PrintedLines(io.TextIOBase):
    """Stands in for `sys.stderr`: each line that is printed becomes an event.

    A line in parts, as `print` writes it, is one event: no other line comes between its parts.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._log = logging.getLogger("hyperscale.stderr")
        self._parts = threading.local()

    def write(self, text: str) -> int:
        *lines, self._parts.rest = (getattr(self._parts, "rest", "") + text).split("\n")
        for line in lines:
            if line.strip():
                self._log.warning("stderr.printed", extra={"detail": line})
        return len(text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()


@contextmanager
def log_to(stream: IO[str], level: str, bound: dict[str, Any]) -> Iterator[None]:
    """Send the `hyperscale` loggers to one writer for as long as the context lasts."""
    logger, of_libraries = logging.getLogger("hyperscale"), logging.getLogger()
    before = (logger.level, logger.propagate)
    with closing(LineWriter(stream, bound)) as writer:
        logger.setLevel(level.upper())
        logger.propagate = False
        logger.addHandler(writer)
        of_libraries.addHandler(writer)
        try:
            yield
        finally:
            logger.removeHandler(writer)
            of_libraries.removeHandler(writer)
            logger.setLevel(before[0])
            logger.propagate = before[1]


@contextmanager
def printed_as_events() -> Iterator[None]:
    """Turn what this process prints to standard error into events for as long as the context
    lasts: text, warnings, and exceptions that nothing catches. The logger must write elsewhere."""
    before = sys.stderr
    sys.stderr = printed = PrintedLines(before)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        printed.write("\n")  # completes a last line of this thread
        sys.stderr = before


def _short(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _TEXT_CHARS_MAX:
        return value[:_TEXT_CHARS_MAX] + "..."
    return value
