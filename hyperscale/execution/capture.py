"""Captures the output of user code in pipes, rate limited, without blocking that code.

The pool reads everything that an executor writes to descriptors 1 and 2: prints, logs, tracebacks,
and the output of C code and child processes. `sys.stdout` and `sys.stderr` are limited in the
executor, so that a print in every step costs the pool nothing; the pool limits all output again.
"""

import contextlib
import io
import os
import sys
import time
from typing import Any

from hyperscale.testing.parameters import Mask, masked_payload

RATE_BYTES_PER_S = 64 * 1024
BURST_BYTES = 128 * 1024
PIPE_BYTES = 1024 * 1024
_PARTIAL_BYTES_MAX = 8 * 1024


class OutputLimit:
    """A token bucket over bytes that counts the bytes it drops."""

    def __init__(self, rate_bytes_per_s: int, burst_bytes: int, *, now_s: float) -> None:
        self._rate = rate_bytes_per_s
        self._burst = burst_bytes
        self._tokens = float(burst_bytes)
        self._at_s = now_s
        self.dropped_bytes = 0

    def admit(self, payload: bytes, *, now_s: float) -> bytes:
        """Return the part of `payload` that passes, after a note of what was dropped before."""
        self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
        # After a drop, wait until the bucket is half full: one note for many dropped lines.
        if self.dropped_bytes and self._tokens < self._burst / 2:
            self.dropped_bytes += len(payload)
            return b""
        note = self.take_note()
        passing = payload[: int(self._tokens)]
        self._tokens -= len(passing)
        self.dropped_bytes += len(payload) - len(passing)
        return note + passing

    def take_note(self) -> bytes:
        """Return a line that counts the bytes dropped since the last one; empty if none were."""
        if not self.dropped_bytes:
            return b""
        note = f"… {self.dropped_bytes} bytes dropped\n".encode()
        self.dropped_bytes = 0
        return note


class _LimitedRaw(io.RawIOBase):
    """A raw stream that drops output instead of waiting."""

    def __init__(self, descriptor: int, limit: OutputLimit) -> None:
        self._descriptor = descriptor
        # C code and child processes expect a blocking descriptor, so the pipe is opened again.
        self._out = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK)
        self._limit = limit

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Any, /) -> int:  # any buffer
        payload = bytes(data)
        # Before the limit, which may cut a secret in two.
        self.put(self._limit.admit(masked_payload(payload), now_s=time.monotonic()))
        return len(payload)

    def put(self, payload: bytes) -> None:
        try:
            sent = os.write(self._out, payload) if payload else 0
        except BlockingIOError:  # the pool is not reading: output is dropped, not waited for
            sent = 0
        self._limit.dropped_bytes += len(payload) - sent


class Capture:
    """The limited `sys.stdout` and `sys.stderr` of an executor."""

    def __init__(self) -> None:
        self._limit = OutputLimit(RATE_BYTES_PER_S, BURST_BYTES, now_s=time.monotonic())
        self._raws = [_LimitedRaw(descriptor, self._limit) for descriptor in (1, 2)]
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
        """Replace `sys.stdout` and `sys.stderr`."""
        sys.stdout, sys.stderr = self._streams

    def flush(self) -> None:
        """Write everything printed so far to the pipes, with a note of what was dropped."""
        for stream in self._streams:
            with contextlib.suppress(ValueError):  # user code has closed it
                stream.flush()
        for raw in self._raws:
            raw.put(self._limit.take_note())


def complain(text: str) -> None:
    """Print a message of the executor itself, even if user code closed or replaced the stream."""
    with contextlib.suppress(AttributeError, ValueError, OSError):
        sys.stderr.write(text)
        return
    with contextlib.suppress(OSError):
        os.write(2, text.encode("utf-8", "backslashreplace"))


class LineReader:
    """Turns the bytes that the pool reads from a pipe into limited text of whole lines."""

    def __init__(self, limit: OutputLimit) -> None:
        self._limit = limit
        self._partial = b""
        self.mask = Mask()  # of the secrets of the slot

    def feed(self, data: bytes, *, now_s: float) -> str:
        """Return the text to show now; an incomplete line waits until it is long."""
        text = self.mask.payload(self._partial + data)
        end = text.rfind(b"\n") + 1
        if len(text) - end > _PARTIAL_BYTES_MAX:
            end = len(text) - max(0, self.mask.bytes_max - 1)  # the start of a secret waits
        self._partial = text[end:]
        # After the mask: the limit may cut a secret in two, and half of one would be shown.
        return self._limit.admit(text[:end], now_s=now_s).decode("utf-8", "replace")

    def finish(self) -> str:
        """Return the incomplete last line, when the stream or the slot has ended."""
        text = self.mask.payload(self._partial) + self._limit.take_note()
        self._partial = b""
        return text.decode("utf-8", "replace")
