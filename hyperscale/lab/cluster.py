"""Runs a local cluster: starts its nodes, reports which ones end, restarts them on request.

It restarts no node by itself. It has one thread, and the kernel kills the nodes with it. Requests
arrive on a socket in the cluster's directory, whose rights decide who may ask: one line of JSON
each way. The socket is opened through a descriptor of the directory, because the paths of sockets
must be short.
"""

import asyncio
import contextlib
import fcntl
import os
import selectors
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import msgspec
from msgspec import Struct

from hyperscale.client.cluster_file import (
    SECRET_NAME,
    ClusterFile,
    ClusterNode,
    cluster_path,
    read_cluster,
    write_cluster,
)
from hyperscale.errors import InputError, RunError
from hyperscale.lab.layout import ClusterOptions, former_shape, lay_out, shape_of
from hyperscale.lab.node_processes import ended_how, start_node
from hyperscale.lab.readiness import nodes_not_ready
from hyperscale.wire.cluster_secret import make_secret, write_secret_file

READY_S = 60.0
STOP_S = 15.0
_LOOK_S = 0.1
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOG_LINES = 5
_SOCKET_NAME = "control.sock"
_LINE_BYTES_MAX = 4096
_ANSWER_S = 10.0
_REQUEST_S = 5.0  # how long a request may take to arrive; nothing else is done meanwhile


class StartNode(Struct, frozen=True, kw_only=True):
    """-> StartNodeReply"""

    start: str  # the id of the node


class StartNodeReply(Struct, frozen=True, kw_only=True):
    """`pid` of the new process, or `error`; `is_running`: the node had not ended."""

    pid: int = 0
    error: str = ""
    is_running: bool = False


class NodeRunningError(RunError):
    """The node has not ended, so it was not restarted."""


class LocalCluster:
    """A cluster in a directory.

    `say` gets lines for people; `note` gets lines that explain what is being waited for.
    """

    def __init__(
        self,
        directory: Path,
        rows: ClusterFile,
        say: Callable[[str], None],
        note: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._say = say
        self._note = note
        self._file = rows
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._pidfds: dict[str, int] = {}  # of nodes whose end has not been noticed
        self._selector = selectors.DefaultSelector()
        self._stops = 0  # signals received

    def run(self) -> None:
        """Start all nodes, run until SIGINT, SIGTERM or SIGHUP, end all nodes."""
        with _signals(self._on_signal, self._selector), self._listening():
            try:
                self._note(f"starting nodes; their logs are in {self._directory / 'logs'}")
                for row in self._file.nodes:
                    self._start(row)
                write_cluster(self._directory, self._file)
                if self._wait_ready():
                    self._announce()
                    while not self._stops:
                        self._wait(None)
            finally:
                self._end_all()

    def _start(self, row: ClusterNode) -> None:
        process = start_node(row.argv, row.cpus, self._log_of(row.id))
        self._processes[row.id] = process
        self._pidfds[row.id] = os.pidfd_open(process.pid)
        self._selector.register(self._pidfds[row.id], selectors.EVENT_READ, row.id)
        tiers = (self._file.gates, self._file.managers, self._file.workers)
        rows = next(rows for rows in tiers if row in rows)
        rows[rows.index(row)] = msgspec.structs.replace(row, pid=process.pid)

    def _log_of(self, name: str) -> Path:
        return self._directory / "logs" / f"{name}.log"

    def _wait_ready(self) -> bool:
        """Wait until all nodes are ready; return False if a signal arrived before."""
        deadline_s = time.monotonic() + READY_S
        while not self._stops:
            self._wait(_LOOK_S)
            if ended := self._processes.keys() - self._pidfds.keys():
                name = min(ended)
                raise RunError(f"{name} did not start: {self._last_lines(name)}")
            waiting = asyncio.run(nodes_not_ready(self._file))
            if not waiting:
                return True
            if time.monotonic() > deadline_s:
                named = ", ".join(f"{name} ({why})" for name, why in waiting.items())
                raise RunError(
                    f"not ready within {READY_S:g} s: {named}",
                    hint=f"their logs are in {self._directory / 'logs'}",
                )
        return False

    def _announce(self) -> None:
        width = max(12, *(len(row.id) for row in self._file.nodes))
        nodes = [
            f"  {row.id:<{width}} {row.tcp:<22} http://{row.http}  pid {row.pid}"
            for row in self._file.nodes
        ]
        submit = f"hyperscale submit FILE --dir {shlex.quote(str(self._directory))}"
        self._say("\n".join(["ready", *nodes, f"submit with: {submit}"]))

    def _node_ended(self, name: str) -> None:
        descriptor = self._pidfds.pop(name)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        code = self._processes[name].wait()
        if not self._stops:
            self._say(f"{name} {ended_how(code)} (log: {self._log_of(name)})")

    def _last_lines(self, name: str) -> str:
        try:
            lines = self._log_of(name).read_text("utf-8", "replace").splitlines()
        except OSError:
            lines = []
        how = ended_how(self._processes[name].returncode)
        return "\n  ".join([how, *lines[-_LOG_LINES:]])

    def _wait(self, timeout_s: float | None) -> None:
        """Wait for one event: a node ended, a request arrived or a signal was received."""
        for key, _ in self._selector.select(timeout_s):
            match key.data:
                case str() as name:
                    self._node_ended(name)
                case socket.socket() as listener:
                    self._answer(listener)
                case _:
                    os.read(key.fd, 4096)  # the wakeup pipe: the signal handler has run

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stops += 1

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        with (
            _short_path(self._directory) as path,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
        ):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            listener.bind(path)
            os.chmod(path, 0o600)
            listener.listen()
            self._selector.register(listener, selectors.EVENT_READ, listener)
            try:
                yield
            finally:
                self._selector.unregister(listener)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)

    def _answer(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the command that asked has ended
            asking, _ = listener.accept()
            with asking:
                asking.settimeout(_REQUEST_S)
                if line := _read_line(asking):
                    asking.sendall(msgspec.json.encode(self._serve(line)) + b"\n")

    def _serve(self, line: bytes) -> StartNodeReply:
        try:
            row = self._file.node(msgspec.json.decode(line, type=StartNode).start)
            if self._processes[row.id].poll() is None:
                return StartNodeReply(error=f"{row.id} is already running", is_running=True)
            if row.id in self._pidfds:
                self._node_ended(row.id)
            self._start(row)
            write_cluster(self._directory, self._file)
        except (msgspec.MsgspecError, InputError, RunError) as error:
            return StartNodeReply(error=str(error))
        self._say(f"{row.id} restarted, pid {self._processes[row.id].pid}")
        return StartNodeReply(pid=self._processes[row.id].pid)

    def _end_all(self) -> None:
        """End workers, then managers, then gates, each of which take the results of the former; a
        second signal kills all."""
        self._stops = max(1, self._stops)
        self._note("ending all nodes; Ctrl-C again ends them at once")
        for rows in (self._file.workers, self._file.managers, self._file.gates):
            alive = [row.id for row in rows if self._is_alive(row.id)]
            for name in alive:
                self._processes[name].send_signal(signal.SIGCONT)
                self._processes[name].send_signal(signal.SIGTERM)
            deadline_s = time.monotonic() + STOP_S
            while any(map(self._is_alive, alive)) and self._stops < 2:
                if time.monotonic() >= deadline_s:
                    break
                self._wait(_LOOK_S)
        how = "killed" if self._stops > 1 else f"did not end within {STOP_S:g} s and was killed"
        for name, process in self._processes.items():
            if self._is_alive(name):
                self._say(f"{name} {how}")
                process.kill()
            process.wait()

    def _is_alive(self, name: str) -> bool:
        process = self._processes.get(name)
        return process is not None and process.poll() is None


def run_cluster(
    directory: Path,
    wanted: ClusterOptions,
    say: Callable[[str], None],
    note: Callable[[str], None],
) -> None:
    """Lock the directory and run a cluster in it until a stop signal; the one it holds, if any."""
    directory = directory.absolute()
    try:
        (directory / "logs").mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InputError(
            f"--dir: {directory} cannot be used: {error.strerror}", hint="choose another directory"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"--dir: another cluster is running in {directory}", hint="choose another --dir"
            ) from None
        LocalCluster(directory, _laid_out(directory, wanted), say, note).run()
    finally:
        os.close(lock)


def _laid_out(directory: Path, wanted: ClusterOptions) -> ClusterFile:
    secret_file = directory / SECRET_NAME
    before = read_cluster(directory) if cluster_path(directory).exists() else None
    shape = shape_of(wanted, before)
    if before is not None and (former := former_shape(before)).counts != shape.counts:
        raise InputError(
            f"--dir: {directory} holds a cluster of {former.flags}",
            hint="leave these flags out, choose another --dir, or remove the directory",
        )
    if not secret_file.exists():
        write_secret_file(secret_file, make_secret())
    return lay_out(shape, directory, secret_file)


@contextlib.contextmanager
def _signals(
    handler: Callable[[int, FrameType | None], None], selector: selectors.BaseSelector
) -> Iterator[None]:
    """Have stop signals call `handler` and wake the selector."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    # A signal that is ignored, as under nohup, stays ignored.
    heeded = [each for each in _STOP_SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heeded}
    woken = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    selector.register(reading, selectors.EVENT_READ, None)
    try:
        yield
    finally:
        selector.unregister(reading)
        signal.set_wakeup_fd(woken)
        for number, previous in before.items():
            signal.signal(number, previous)
        os.close(reading)
        os.close(writing)


@contextlib.contextmanager
def _short_path(directory: Path) -> Iterator[str]:
    """A short path of the control socket, valid while the context lasts."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{_SOCKET_NAME}"
    finally:
        os.close(descriptor)


def _read_line(connection: socket.socket) -> bytes:
    """Return one line, at most _LINE_BYTES_MAX; empty if the peer closed the connection before."""
    line = b""
    while not line.endswith(b"\n") and len(line) < _LINE_BYTES_MAX:
        data = connection.recv(_LINE_BYTES_MAX)
        if not data:
            return b""
        line += data
    return line


def restart_node(directory: Path, node: str) -> int:
    """Restart a node that has ended; return its new process id.

    Raise `InputError` if there is no such node, `NodeRunningError` if it has not ended.
    """
    read_cluster(directory).node(node)
    try:
        with (
            _short_path(directory) as path,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking,
        ):
            asking.settimeout(_ANSWER_S)
            asking.connect(path)
            asking.sendall(msgspec.json.encode(StartNode(start=node)) + b"\n")
            answer = msgspec.json.decode(_read_line(asking), type=StartNodeReply)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        start = f"'hyperscale cluster up --dir {shlex.quote(str(directory))}'"
        raise RunError(
            f"the cluster in {directory} is not running", hint=f"{start} starts all its nodes"
        ) from error
    except (OSError, msgspec.MsgspecError) as error:
        raise RunError(
            f"the 'hyperscale cluster up' of {directory} does not answer: "
            f"{getattr(error, 'strerror', None) or error}",
            hint="is 'hyperscale cluster up' still running?",
        ) from error
    if answer.is_running:
        raise NodeRunningError(answer.error)
    if answer.error:
        raise RunError(answer.error)
    return answer.pid
