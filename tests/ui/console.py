"""A terminal for tests: a real pty, emulated as a person would see it.

The emulator knows no alternate screen, so the stream is split where one is entered and left,
and each screen is emulated on its own.
"""

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pyte

DEMO = Path(__file__).with_name("demo.py")
# Makes the pty the controlling terminal of what it starts, as a login shell's is.
_OWN_TERMINAL = (
    "import fcntl, os, sys, termios;"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
_SWITCH = re.compile(rb"(\x1b\[\?1049[hl])")
DEADLINE_S = 30.0


class Console:
    """The demo on a terminal of its own."""

    def __init__(
        self,
        *arguments: str,
        columns: int = 100,
        rows: int = 30,
        environ: Mapping[str, str] | None = None,
        own_terminal: bool = True,
    ) -> None:
        self.master, slave = os.openpty()
        self.resize(columns, rows, tell=False)
        self.before = termios.tcgetattr(slave)
        base = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LC_ALL")}
        command = [str(DEMO), *arguments]
        if own_terminal:
            command = ["-c", _OWN_TERMINAL, *command]
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=slave,
            stdout=slave,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**base, "TERM": "xterm-256color", "LANG": "C.UTF-8", **(environ or {})},
        )
        os.close(slave)
        self.raw = b""
        self.is_alternate = False
        self.was_alternate = False
        self.normal = pyte.HistoryScreen(columns, rows, history=1000)
        self.alternate = pyte.HistoryScreen(columns, rows, history=1000)
        self._streams = {
            False: pyte.ByteStream(self.normal),
            True: pyte.ByteStream(self.alternate),
        }
        self._unread = b""
        self.is_hung_up = False

    def __enter__(self) -> "Console":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()
        os.close(self.master)

    # -- the person

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def resize(self, columns: int, rows: int, *, tell: bool = True) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if tell:
            self.alternate.resize(rows, columns)
            self.normal.resize(rows, columns)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def text(self) -> str:
        """What is on the screen now."""
        screen = self.alternate if self.is_alternate else self.normal
        return "\n".join(line.rstrip() for line in screen.display)

    def errors(self) -> str:
        """What the process wrote to its standard error, once it has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    # -- waiting, always for something

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not condition():
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, f"waited in vain; the screen is:\n{self.text()}"
            self._read(min(left_s, 0.05))

    def wait_for(self, text: str) -> None:
        self.wait_until(lambda: text in self.text())

    def wait_for_end(self) -> int:
        """Wait until the process has ended and no process holds the terminal."""
        self.wait_until(lambda: self.is_hung_up and self.process.poll() is not None)
        return self.process.wait()

    def _read(self, within_s: float) -> None:
        if self.is_hung_up:
            select.select([], [], [], within_s)
            return
        readable, _, _ = select.select([self.master], [], [], within_s)
        if not readable:
            return
        try:
            data = os.read(self.master, 65536)
        except OSError:  # how Linux says that the last slave was closed
            self.is_hung_up = True
            return
        self.raw += data
        self._unread += data
        *whole, self._unread = _SWITCH.split(self._unread)
        for part in whole:
            self._feed(part)
        # A switch may be cut in two; keep what could be the beginning of one.
        cut = self._unread.rfind(b"\x1b")
        if cut < 0 or len(self._unread) - cut > 8:
            cut = len(self._unread)
        self._feed(self._unread[:cut])
        self._unread = self._unread[cut:]

    def _feed(self, data: bytes) -> None:
        if _SWITCH.fullmatch(data):
            self.is_alternate = data.endswith(b"h")
            self.was_alternate = self.was_alternate or self.is_alternate
        elif data:
            self._streams[self.is_alternate].feed(data)

    # -- what must hold afterwards

    def assert_restored(self) -> None:
        """Cursor shown, wrapping on, main screen, and the modes as they were."""
        assert self.was_alternate
        assert not self.is_alternate
        assert _last(self.raw, b"\x1b[?25") == b"h"
        assert _last(self.raw, b"\x1b[?7") == b"h"
        assert _last(self.raw, b"\x1b[?2026") == b"l"
        assert self.modes() == self.before

    def modes(self) -> list[object]:
        return termios.tcgetattr(self.master)


def _last(raw: bytes, mode: bytes) -> bytes:
    """Whether a private mode was last set (h) or reset (l)."""
    at = raw.rindex(mode) + len(mode)
    return raw[at : at + 1]
