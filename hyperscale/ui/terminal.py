"""Taking over a terminal on `enter`, and restoring it on every exit.

Alternate screen, hidden cursor, keys without echo. Three things restore it: `leave` (normal
exits, exceptions, and signals whose default action would end the process), `atexit`, and a
small guard process for SIGKILL, which no process can handle. This module knows nothing of what
is drawn.
"""

import atexit
import os
import select
import signal
import subprocess
import termios
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

_ENTER = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J"
_LEAVE = b"\x1b[?2026l\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_LEAVE_WITHIN_S = 1.0  # a terminal that takes nothing (stopped with Ctrl-S) cannot hold the exit
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

# The guard waits for a word from us. End of file instead of a word means that we were killed, so
# it does what `leave` would have done. The modes are restored only if they are still ours a moment
# later: a shell sets its own modes when one of its jobs dies, and those must stay.
_GUARD_SCRIPT = """
trap '' HUP INT QUIT TERM TSTP TTIN TTOU
exec 3<&1
read -r word && exit 0
for attempt in 1 2 3 4 5; do printf '%s' "$1" && break; sleep 0.2; done
sleep 0.3
[ "$(stty -g <&3)" = "$2" ] && stty "$3" <&3
"""

_Modes = list[Any]  # as termios gives and takes them
_Handler = Callable[[int, FrameType | None], Any] | int | None


def in_foreground(fd: int) -> bool:
    """Return True if this process may draw on and read from the terminal `fd`.

    A job in the background that changes the terminal's modes is stopped by the kernel. A
    terminal that is not our controlling one knows no jobs.
    """
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return os.isatty(fd)


class Terminal:
    """One terminal, reached through a description of our own that never blocks."""

    def __init__(self, fd: int) -> None:
        self.fd = _reopen(fd)
        try:
            self._saved: _Modes = termios.tcgetattr(self.fd)
        except termios.error:
            os.close(self.fd)
            raise
        self._quiet_modes = _without_echo(self._saved)
        self._entered = False
        self._lock = threading.RLock()  # re-entered by a signal that arrives during `leave`
        self._guard: subprocess.Popen[bytes] | None = None
        self._handlers: dict[signal.Signals, _Handler] = {}
        self._before_leave: Callable[[], None] | None = None
        self._was_stopped = False
        self.unsent = b""  # of giving the terminal back, if it would not take it in time

    def enter(self, *, before_leave: Callable[[], None]) -> None:
        """Take the terminal over. `before_leave` must end all drawing; it may be called twice."""
        with self._lock:
            self._before_leave = before_leave
            self._guard = _start_guard(self.fd, self._quiet_modes, self._saved)
            self._entered = True
            atexit.register(self.leave)
            self._catch_signals()
            termios.tcsetattr(self.fd, termios.TCSANOW, self._quiet_modes)
            self._write_all(_ENTER)

    def leave(self) -> None:
        """Give the terminal back. Every call after the first does nothing."""
        with self._lock:
            if not self._entered:
                return
            if self._before_leave is not None:
                self._before_leave()
            self._entered = False
            self.unsent = self._write_all(_LEAVE)
            try:
                # Keys pressed for us are not the shell's to read.
                termios.tcflush(self.fd, termios.TCIFLUSH)
                termios.tcsetattr(self.fd, termios.TCSANOW, self._saved)
            except termios.error:
                pass  # the terminal is gone, and its modes with it
            self._release_signals()
            atexit.unregister(self.leave)
            if self._guard is not None:
                _dismiss_guard(self._guard)
            os.close(self.fd)
            self.fd = -1

    def size(self) -> tuple[int, int]:
        """Return columns and rows: cheap enough to ask for every frame, so no change is missed."""
        try:
            columns, rows = os.get_terminal_size(self.fd)
        except OSError:
            return 80, 24
        return columns or 80, rows or 24

    def write(self, data: memoryview) -> int:
        """Write as much of `data` as the terminal takes now. Raises OSError if it is gone."""
        try:
            return os.write(self.fd, data)
        except BlockingIOError:
            return 0

    def read(self) -> bytes:
        """Return what was typed since the last call."""
        try:
            return os.read(self.fd, 1024)
        except BlockingIOError:
            return b""

    def retake(self) -> bool:
        """Set our modes again after a stop, when this process is back in the foreground.

        Call it between frames; returns True if everything must be drawn again.
        """
        if not self._was_stopped or not in_foreground(self.fd):
            return False
        self._was_stopped = False
        termios.tcsetattr(self.fd, termios.TCSANOW, self._quiet_modes)
        self._write_all(_ENTER)
        return True

    def _write_all(self, data: bytes) -> bytes:
        """Write `data`, waiting a little; return what the terminal did not accept."""
        view = memoryview(data)
        deadline_s = time.monotonic() + _LEAVE_WITHIN_S
        poller = select.poll()
        poller.register(self.fd, select.POLLOUT)
        try:
            while view and (left_s := deadline_s - time.monotonic()) > 0:
                poller.poll(left_s * 1000)
                view = view[self.write(view) :]
        except OSError:
            return b""  # the terminal is gone
        return bytes(view)

    def _catch_signals(self) -> None:
        """Restore the terminal before a signal ends the process; handled signals are left alone."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _ENDING_SIGNALS:
            if signal.getsignal(number) == signal.SIG_DFL:
                self._handlers[number] = signal.signal(number, self._end)
        if signal.getsignal(signal.SIGCONT) == signal.SIG_DFL:
            self._handlers[signal.SIGCONT] = signal.signal(signal.SIGCONT, self._resume)

    def _release_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number, before in self._handlers.items():
            if signal.getsignal(number) in (self._end, self._resume):
                signal.signal(number, before)
        self._handlers.clear()

    def _end(self, number: int, _frame: FrameType | None) -> None:
        self.leave()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _resume(self, _number: int, _frame: FrameType | None) -> None:
        self._was_stopped = True


def _reopen(fd: int) -> int:
    """Open a separate file description of the terminal `fd`, which can be set to non-blocking.

    The flag belongs to the open file description, which the shell and every process on this
    terminal share: set there, it would make their reads fail.
    """
    flags = os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        os.tcgetpgrp(fd)  # succeeds only on our controlling terminal
        return os.open("/dev/tty", flags)
    except OSError:
        return os.open(os.ttyname(fd), flags)


def _without_echo(modes: _Modes) -> _Modes:
    """Return `modes` with keys delivered at once and without echo; Ctrl-C still interrupts.

    Ctrl-Z does not suspend: executors lead their own sessions, so they would go on driving load
    while the run that watches them is suspended.
    """
    changed = [*modes[:6], list(modes[6])]
    changed[3] &= ~(termios.ICANON | termios.ECHO)
    changed[6][termios.VMIN] = 1
    changed[6][termios.VTIME] = 0
    changed[6][termios.VSUSP] = b"\0"
    return changed


def _stty_form(modes: _Modes) -> str:
    """Return `modes` as `stty -g` prints and `stty` accepts them."""
    characters = [value if isinstance(value, int) else value[0] for value in modes[6]]
    return ":".join(f"{value:x}" for value in (*modes[:4], *characters))


def _start_guard(fd: int, ours: _Modes, saved: _Modes) -> "subprocess.Popen[bytes] | None":
    arguments = (_LEAVE.decode("ascii"), _stty_form(ours), _stty_form(saved))
    try:
        return subprocess.Popen(  # noqa: S603 - a constant script, arguments of our own making
            ["/bin/sh", "-c", _GUARD_SCRIPT, "hyperscale-terminal", *arguments],
            stdin=subprocess.PIPE,
            stdout=fd,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what kills our whole group must not kill the guard
        )
    except OSError:
        return None  # no shell here: every exit but SIGKILL is still clean


def _dismiss_guard(guard: "subprocess.Popen[bytes]") -> None:
    try:
        guard.communicate(b"done\n", timeout=2.0)
    except subprocess.TimeoutExpired:
        guard.kill()
        guard.wait()
