"""Output of user code: into pipes, rate limited, without ever blocking that code.

Everything an executor's process writes to descriptors 1 and 2 ends in two pipes that the
supervisor reads: prints, logs, tracebacks, and what C code or a child process writes. The
interpreter's own streams are limited here, before the pipe, so that a print in every step
costs the supervisor nothing; the supervisor limits once more what came past them.
"""

import contextlib
import io
import os
import sys
import time
from collections.abc import Callable
from typing import Any

RATE_BYTES_PER_S = 64 * 1024
BURST_BYTES = 128 * 1024
PIPE_BYTES = 1024 * 1024


class OutputLimit:
    """A token bucket over bytes that counts what it turns away. Owns no clock."""

    def __init__(self, rate_bytes_per_s: int, burst_bytes: int, *, now_s: float) -> None:
        self._rate = rate_bytes_per_s
        self._burst = burst_bytes
        self._tokens = float(burst_bytes)
        self._at_s = now_s
        self.dropped_bytes = 0

    def admit(self, payload: bytes, *, now_s: float) -> bytes:
        """What of `payload` may pass now, led by a note of what was dropped before it."""
        self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
        # After a drop, wait until half the bucket is back: one note per pause, not one
        # note for every line that just fits.
        if self.dropped_bytes and self._tokens < self._burst / 2:
            self.dropped_bytes += len(payload)
            return b""
        note = self.take_note()
        passing = payload[: int(self._tokens)]
        self._tokens -= len(passing)
        self.dropped_bytes += len(payload) - len(passing)
        return note + passing

    def take_note(self) -> bytes:
        """The line that stands for what was dropped since the last one; empty if nothing."""
        if not self.dropped_bytes:
            return b""
        note = f"… {self.dropped_bytes} bytes dropped\n".encode()
        self.dropped_bytes = 0
        return note


class _LimitedRaw(io.RawIOBase):
    """A raw stream that drops rather than waits."""

    def __init__(self, descriptor: int, limit: OutputLimit, clock: Callable[[], float]) -> None:
        self._descriptor = descriptor
        # The descriptor itself stays blocking, as C code and child processes expect; this
        # second opening of the same pipe does not.
        self._out = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK)
        self._limit = limit
        self._clock = clock

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Any, /) -> int:  # any buffer
        payload = bytes(data)
        self._put(self._limit.admit(payload, now_s=self._clock()))
        return len(payload)

    def put_note(self) -> None:
        self._put(self._limit.take_note())

    def _put(self, payload: bytes) -> None:
        try:
            sent = os.write(self._out, payload) if payload else 0
        except BlockingIOError:  # the pool is not reading: output is dropped, not waited for
            sent = 0
        self._limit.dropped_bytes += len(payload) - sent


class Capture:
    """The limited `sys.stdout` and `sys.stderr` of an executor."""

    def __init__(self) -> None:
        limit = OutputLimit(RATE_BYTES_PER_S, BURST_BYTES, now_s=time.monotonic())
        self._raws = [_LimitedRaw(descriptor, limit, time.monotonic) for descriptor in (1, 2)]
        self._streams = [
            io.TextIOWrapper(
                io.BufferedWriter(raw),
                encoding="utf-8",
                errors="backslashreplace",
                line_buffering=True,
            )
            for raw in self._raws
        ]

    def install(self) -> None:
        """Makes them the process's streams.

        What the executor itself has to say goes to `complain`, also after user code closed
        or replaced `sys.stderr`.
        """
        sys.stdout, sys.stderr = self._streams

    def flush(self) -> None:
        """Everything printed so far is in the pipes, with a note of what was dropped."""
        for stream in self._streams:
            with contextlib.suppress(ValueError):  # closed by the code it was for
                stream.flush()
        for raw in self._raws:
            raw.put_note()


def complain(text: str) -> None:
    """What the executor has to say, beside what user code prints."""
    with contextlib.suppress(AttributeError, ValueError, OSError):  # a stream taken away
        sys.stderr.write(text)
        return
    with contextlib.suppress(OSError):
        os.write(2, text.encode("utf-8", "backslashreplace"))


class LineReader:
    """The pool's end: bytes of a pipe in, limited whole-line text out. Owns no clock."""

    def __init__(self, limit: OutputLimit) -> None:
        self._limit = limit
        self._partial = b""

    def feed(self, data: bytes, *, now_s: float) -> str:
        """The text that may be shown now. An unfinished line waits, but not for ever."""
        text = self._partial + self._limit.admit(data, now_s=now_s)
        end = text.rfind(b"\n") + 1
        if len(text) - end > 8 * 1024:
            end = len(text)
        self._partial = text[end:]
        return text[:end].decode("utf-8", "replace")

    def finish(self) -> str:
        """Return the incomplete last line, when the stream or the slot has ended."""
        text = self._partial + self._limit.take_note()
        self._partial = b""
        return text.decode("utf-8", "replace")
