"""One executor process, seen from its parent: starts it, sends messages, kills it, reaps it.

`pooled_executor` decides what messages mean and when to kill.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hyperscale.errors import RunError
from hyperscale.execution.box import ExecutorBox
from hyperscale.execution.capture import PIPE_BYTES, RATE_BYTES_PER_S, LineReader, OutputLimit
from hyperscale.execution.channel import Channel
from hyperscale.execution.cpu_weight import CpuWeight
from hyperscale.execution.orphans import ProcessMark
from hyperscale.execution.protocol import (
    ExecutorOutput,
    FromExecutor,
    from_executor_decoder,
)
from hyperscale.testing.parameters import Mask

_READ_BYTES = 64 * 1024
# Looser than the executor's own limit, so what passed there passes here.
_BURST_BYTES = 512 * 1024
_TAIL_BYTES = 4 * 1024
_HELD_UP = frozenset("RDTt")  # states of a process, as the kernel writes them
_ENDING_POLL_S = 0.01
_ENDING_S = 2.0  # how long to wait for the processes that it started


class ExecutorLostError(RunError):
    """The process ended or could not be started. Another executor may be able to run the slot."""


@dataclass(frozen=True, slots=True)
class ExitInfo:
    """How a process ended."""

    status: int  # the exit code, or the negative number of the signal that killed it
    last_words: str  # the end of its stderr
    cpu_s: float  # used since its start

    @property
    def is_killed(self) -> bool:
        return self.status == -signal.SIGKILL

    def describe(self) -> str:
        how = f"exited with code {self.status}"
        if self.status < 0:
            how = f"killed by {_signal_name(-self.status)}"
        if self.is_killed:
            how += " (out of memory, or kill -9)"
        lines = [line for line in self.last_words.splitlines() if line.strip()]
        # The first line of a crash report names the error; stack and modules follow.
        lines = [line for line in lines if line.startswith("Fatal Python error")] or lines
        return f"{how}; last output: {lines[-1].strip()}" if lines else how


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


class SpawnedExecutor(NamedTuple):
    """A process that was just started, with this process's end of its control socket."""

    popen: subprocess.Popen[bytes]
    pidfd: int
    control: socket.socket
    mark: ProcessMark


def spawn_executor(
    core: int | None,
    environment: Mapping[str, str] | None = None,
    box: ExecutorBox | None = None,
) -> SpawnedExecutor:
    """Start an executor, by default with the environment of this process. The kernel kills the
    executor when the calling thread ends, so call this on a thread that lives longer. Raises
    `ExecutorLostError` if the machine has no free descriptor or process."""
    mark = ProcessMark.new()
    variables = dict(os.environ if environment is None else environment)
    with contextlib.ExitStack() as kept:
        try:
            ours, theirs = socket.socketpair()
            kept.callback(ours.close)
            with theirs:
                # -P: a user's file with the name of one of our modules, in the working directory,
                # must not be imported in its place.
                command = [sys.executable, "-P", "-m", "hyperscale.execution.executor"]
                command += [str(theirs.fileno()), str(os.getpid())]
                command.append("-" if core is None else str(core))
                if box is not None:
                    box.renew()
                    command.append(box.argument())
                    variables |= box.environment()
                popen = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    command,
                    bufsize=0,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    env=mark.added_to(variables),
                    cwd=None if box is None else box.scratch,
                )
            kept.enter_context(popen)
            kept.callback(popen.kill)
            if box is not None:
                box.hold(popen.pid)
            pidfd = os.pidfd_open(popen.pid)
        except OSError as error:
            raise ExecutorLostError(
                f"no executor can be started: {error}", hint="check ulimit -n and ulimit -u"
            ) from error
        kept.pop_all()  # the caller closes them from now on
    return SpawnedExecutor(popen, pidfd, ours, mark)


class ExecutorProcess:
    """A running executor. It is over when `wait_gone` returns."""

    def __init__(
        self,
        spawned: SpawnedExecutor,
        *,
        on_message: Callable[[FromExecutor], None],
        on_garbage: Callable[[str], None],
        on_output: Callable[[ExecutorOutput], None],
        on_exit: Callable[[ExitInfo], None],
    ) -> None:
        self.pid = spawned.popen.pid
        self.weight = CpuWeight(self.pid)
        self._loop = loop = asyncio.get_running_loop()
        self._popen = spawned.popen
        self._mark = spawned.mark
        self.runs_code = False  # user code, which may have started processes that outlive it
        self._on_output = on_output
        self._on_exit = on_exit
        self._on_garbage = on_garbage
        self._tail = b""
        self._mask = Mask()
        self._exited = asyncio.Event()
        self.channel: Channel[FromExecutor] = Channel(
            loop,
            spawned.control,
            from_executor_decoder(),
            on_message=on_message,
            on_closed=self._on_channel_closed,
        )
        limit = OutputLimit(RATE_BYTES_PER_S, _BURST_BYTES, now_s=time.monotonic())
        self._outputs: dict[int, tuple[str, LineReader]] = {}
        for stream, pipe in ("stdout", self._popen.stdout), ("stderr", self._popen.stderr):
            assert pipe is not None
            fd = pipe.fileno()
            with contextlib.suppress(OSError):  # over the user's limit: a smaller pipe is enough
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            os.set_blocking(fd, False)
            self._outputs[fd] = stream, LineReader(limit)
            loop.add_reader(fd, self._read_output, fd)
        self._pidfd = spawned.pidfd
        loop.add_reader(self._pidfd, self._reap)

    @property
    def has_exited(self) -> bool:
        return self._exited.is_set()

    def usage(self) -> tuple[float, bool]:
        """Return the CPU seconds used, and whether the process is held up: it waits for a core or
        a disk, or was stopped. A process that is just running counts as held up too."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # gone
            return 0.0, False
        # The name before the last parenthesis may hold anything.
        fields = stat.rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK"), fields[0] in _HELD_UP

    def terminate(self) -> None:
        """Ask the process to exit; its teardown hooks run."""
        if not self.has_exited:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and every process it started."""
        if not self.has_exited:
            self._end_all()

    def mask(self, secrets: Iterable[str]) -> None:
        """Mask these secrets in all output from now on."""
        self.flush_output()
        self._mask = Mask(secrets)
        for _, reader in self._outputs.values():
            reader.mask = self._mask

    def forget_last_words(self) -> None:
        """Forget the stderr of the previous slot, which says nothing about the next one."""
        self.flush_output()
        self._tail = b""

    def flush_output(self) -> None:
        """Deliver all output written so far, incomplete lines too."""
        for fd in list(self._outputs):
            self._read_output(fd)
        for stream, reader in self._outputs.values():
            self._emit(stream, reader.finish())

    async def wait_gone(self) -> None:
        """Return when the process is reaped and every process it started has ended."""
        await self._exited.wait()
        # By the mark only: its process id and group id may have been reused by now.
        for _ in range(round(_ENDING_S / _ENDING_POLL_S)):
            # Again: a marked process may have forked during the search.
            if not (self.runs_code and self._mark.end_bearers()):
                return
            await asyncio.sleep(_ENDING_POLL_S)

    def _end_all(self) -> None:
        """Kill the process group. Only before the process is reaped: its id may be reused then."""
        # No process is left, or only children that changed their user.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if self.runs_code:
            self._mark.end_bearers()

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self.weight.stop()
        self._end_all()
        self.channel.drain()
        self.channel.close()
        self.flush_output()
        for fd in self._outputs:
            self._loop.remove_reader(fd)
        self._outputs.clear()
        cpu_s, _ = self.usage()
        with self._popen:  # closes the pipes
            status = self._popen.wait()
        self._exited.set()
        tail = self._mask.payload(self._tail).decode("utf-8", "replace")
        self._on_exit(ExitInfo(status, tail, cpu_s))

    def _on_channel_closed(self, reason: str | None) -> None:
        # An orderly end of the channel is followed by an exit; the exit is what counts.
        if reason is not None:
            self._on_garbage(reason)

    def _read_output(self, fd: int) -> None:
        stream, reader = self._outputs[fd]
        # A bounded number of reads per wake-up: a flood must not keep the loop.
        for _ in range(16):
            try:
                data = os.read(fd, _READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._loop.remove_reader(fd)
                return
            if stream == "stderr":
                # Masked before it is cut: half of a secret would not be recognised.
                self._tail = self._mask.payload(self._tail + data)[-_TAIL_BYTES:]
            self._emit(stream, reader.feed(data, now_s=time.monotonic()))

    def _emit(self, stream: str, text: str) -> None:
        if text:
            self._on_output(ExecutorOutput(stream=stream, text=text))
