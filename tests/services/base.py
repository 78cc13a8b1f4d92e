"""A server that a test starts, stops, pauses, kills and restarts."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path

from tests.lab.ports import free_port
from tests.services import guard

START_S = 100.0  # many servers start at once, and others may use the machine
PASSWORD = "open sesame/42"
QUOTED = "open%20sesame%2F42"  # in a URL


class Service(ABC):
    """One server process on a port of its own; a restart keeps its port and its data."""

    name = ""
    account: str | None = None  # of the operating system, for servers that refuse to be root
    start_s = START_S

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        if self._user is not None:
            entry = pwd.getpwnam(self._user)
            os.chown(directory, entry.pw_uid, entry.pw_gid)

    # --- what a server defines ------------------------------------------------------------

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL that clients use."""

    @property
    def client_url(self) -> str:
        """The URL that `self.client` uses."""
        return self.url

    @abstractmethod
    def command(self) -> list[str]:
        """The command that runs the server in the foreground."""

    def install(self) -> None:  # noqa: B027 - most servers need none
        """Make the data directory."""

    def environment(self) -> dict[str, str]:
        return {}

    def is_ready(self) -> bool:
        """Return True once the server accepts connections."""
        return accepts(self.port)

    def set_up(self) -> None:  # noqa: B027 - most servers need none
        """Make what tests need: tables, users. Runs once, when the server is first ready."""

    # --- life -----------------------------------------------------------------------------

    @property
    def _user(self) -> str | None:
        return self.account if os.getuid() == 0 else None

    def run(self, *command: str) -> str:
        """Run a tool of the server as its account; returns its output."""
        done = subprocess.run(
            command,
            user=self._user,
            cwd=self.directory,
            env={**os.environ, **self.environment()},
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def start_first(self) -> None:
        self.install()
        self.start()
        self.set_up()

    def start(self) -> None:
        """Start the server and wait until it is ready."""
        log = (self.directory / "server.log").open("ab")
        self._process = subprocess.Popen(
            self.command(),
            user=self._user,
            cwd=self.directory,
            env={**os.environ, **guard.mark(), **self.environment()},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        until_s = time.monotonic() + self.start_s
        while not self.is_ready():
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < until_s, self.log()
            time.sleep(0.05)  # between two looks at a process of another program

    def log(self) -> str:
        text = (self.directory / "server.log").read_text(errors="replace")
        return f"{self.name} did not start:\n{text[-3000:]}"

    def kill(self) -> None:
        """Kill the server and its children at once."""
        self._signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()
        self._process = None

    def pause(self) -> None:
        """Stop the server in its tracks: it accepts connections (the kernel does) and is silent."""
        self._signal(signal.SIGSTOP)
        assert self._process is not None
        for pid in (self._process.pid, *descendants(self._process.pid)):
            while (state := _state(pid)) is not None and state not in "TtZX":
                time.sleep(0.001)  # a signal is handled when the process next runs

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None:
            self.resume()
            self.kill()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        for pid in (self._process.pid, *descendants(self._process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def connections(self) -> int:
        """Return how many connections of other processes the server has open."""
        return established(self.port)


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started; some have groups of their own."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = entry.read_text().rpartition(")")[2].split()
            parents[int(entry.parent.name)] = int(fields[1])
    found: list[int] = []
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        children = [child for child, of in parents.items() if of == parent]
        found += children
        waiting += children
    return found


def _state(pid: int) -> str | None:
    """Return the letter of a process's state, such as T for stopped; None if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def established(port: int) -> int:
    """Return how many connections to a local port are open, from the client's side."""
    count = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            remote_port, state = int(fields[2].rpartition(":")[2], 16), fields[3]
            count += remote_port == port and state == "01"
    return count


def tool(*names: str) -> str:
    """Return the path of a program; fails with the command that installs it."""
    places = os.environ["PATH"] + ":/usr/sbin:/sbin:/usr/local/sbin"
    for name in names:
        found = shutil.which(name, path=places)
        if found is not None:
            return found
    raise AssertionError(f"{names[0]} is not installed: run `make test-deps`")
