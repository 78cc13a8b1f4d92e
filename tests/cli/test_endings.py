"""However a run ends, it leaves no process and no broken terminal behind and loses no results."""

import contextlib
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.conftest import RunningTarget
from tests.lab.command import HYPERSCALE, finish, results, start, write
from tests.lab.processes import executors_of, is_alive
from tests.lab.waiting import WAIT_S, until

LONG = """
    class Long(Workflow):
        vus = 4
        duration = "5m"
        interval = "5ms"

        @step()
        async def go(self, url: URL = "{url}/") -> HTTPResponse:
            return await self.client.http.get(url)
"""

FLAGS = ("--workers", "2", "--json", "r.json")


class Running:
    """A long run that has started: its command and its executors."""

    def __init__(self, process: "subprocess.Popen[str]", target: RunningTarget) -> None:
        self.process = process
        until(lambda: target.counts()["total"] > 20, what="load at the target")
        self.executors = executors_of(process.pid)
        assert len(self.executors) == 2

    def assert_gone(self) -> None:
        for pid in self.executors:
            until(lambda pid=pid: not is_alive(pid), what=f"the end of executor {pid}")  # type: ignore[misc]
        assert executors_of(self.process.pid) == []


@pytest.fixture
def running(tmp_path: Path, target: RunningTarget) -> Running:
    write(tmp_path / "long.py", LONG.format(url=target.url))
    return Running(start("run", "long.py", *FLAGS, cwd=tmp_path), target)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_ends_the_run_and_partial_results_are_written(
    running: Running, tmp_path: Path, number: signal.Signals, target: RunningTarget
) -> None:
    running.process.send_signal(number)
    done = finish(running.process)
    assert done.code == 130, done.stderr
    assert "Traceback" not in done.stderr
    running.assert_gone()
    result = results(tmp_path / "r.json")
    assert result["status"] == "cancelled"
    [workflow] = result["workflows"]
    assert workflow["error"] == f"interrupted by {number.name}"
    [step] = workflow["steps"]
    assert step["total"] > 0
    [(_, methods)] = [(r, m) for r, m in target.counts()["routes"].items() if r == "/"]
    assert step["sent"] - step["cut"] <= methods["GET"] <= step["sent"]
    assert "cancelled" in done.stdout


def test_a_second_interrupt_kills_a_run_that_does_not_stop(
    tmp_path: Path, target: RunningTarget
) -> None:
    body = """
    import time

    class Stubborn(Workflow):
        vus = 1
        duration = "5m"

        @step()
        async def go(self, url: URL = "{url}/") -> HTTPResponse:
            response = await self.client.http.get(url)
            while True:
                time.sleep(1)
    """
    write(tmp_path / "t.py", body.format(url=target.url))
    process = start("run", "t.py", "--workers", "1", "--json", "r.json", cwd=tmp_path)
    until(lambda: target.counts()["total"] > 0, what="the first request")
    executors = executors_of(process.pid)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert done.code == 130, done.stderr
    assert not any(map(is_alive, executors))
    assert results(tmp_path / "r.json")["status"] == "cancelled"


def test_executors_end_when_their_parent_is_killed(running: Running) -> None:
    running.process.kill()
    running.process.wait(WAIT_S)
    running.assert_gone()


def test_a_killed_executor_fails_the_run_and_the_results_of_the_other_executor_are_kept(
    tmp_path: Path, target: RunningTarget
) -> None:
    write(tmp_path / "long.py", LONG.format(url=target.url).replace('"5m"', '"4s"'))
    process = start("run", "long.py", *FLAGS, cwd=tmp_path)
    running = Running(process, target)
    os.kill(running.executors[0], signal.SIGKILL)
    done = finish(process)
    assert done.code == 3, done.stderr
    result = results(tmp_path / "r.json")
    assert result["status"] == "failed"
    [workflow] = result["workflows"]
    assert workflow["status"] == "failed"
    assert "of 2 failed: killed by SIGKILL" in workflow["error"]
    assert workflow["elapsed_seconds"] >= 3.9, "the other core ran on to the end"
    assert workflow["total"] > 100
    running.assert_gone()


FORKING = """
    import os, subprocess, sys, threading

    CHILDREN = {children!r}

    def note(pid):
        with open(CHILDREN, "a") as file:
            file.write(f"{{pid}}\\n")

    class Forking(Workflow):
        vus = 1
        duration = "5m"

        @step()
        async def go(self, url: URL = "{url}/") -> HTTPResponse:
            if not os.path.exists(CHILDREN):
                pid = os.fork()
                if pid == 0:
                    while True:
                        signal_free_sleep()
                note(pid)
                note(subprocess.Popen(["sleep", "600"]).pid)
            return await self.client.http.get(url)

    def signal_free_sleep():
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
"""


@pytest.mark.parametrize("ending", ["interrupt", "kill the parent", "kill the executor"])
def test_processes_that_user_code_forked_end_with_their_executor(
    tmp_path: Path, target: RunningTarget, ending: str
) -> None:
    children = tmp_path / "children"
    write(tmp_path / "t.py", FORKING.format(url=target.url, children=str(children)))
    process = start("run", "t.py", "--workers", "1", "--quiet", cwd=tmp_path)
    until(lambda: children.exists() and target.counts()["total"] > 3, what="children and load")
    pids = [int(line) for line in children.read_text().split()]
    executors = executors_of(process.pid)
    assert len(pids) == 2
    assert all(map(is_alive, pids))
    match ending:
        case "interrupt":
            process.send_signal(signal.SIGINT)
        case "kill the parent":
            process.kill()
        case _:
            os.kill(executors[0], signal.SIGKILL)
    finish(process)
    for pid in (*pids, *executors):
        until(lambda pid=pid: not is_alive(pid), what=f"the end of {pid}")  # type: ignore[misc]


def test_an_interrupt_during_the_import_of_the_test_file_prints_no_traceback(
    tmp_path: Path,
) -> None:
    sign = tmp_path / "importing"
    body = f"open({str(sign)!r}, 'w').close()\nimport time\ntime.sleep(600)\n"
    (tmp_path / "slow.py").write_text(body)
    process = start("run", "slow.py", cwd=tmp_path)
    until(sign.exists, what="the import")
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert (done.code, done.stdout) == (130, "")
    assert done.stderr == "hyperscale: interrupted\n"


# --- on a terminal -----------------------------------------------------------------------


class Terminal:
    """A pseudo-terminal for a run, with its settings before the run."""

    def __init__(self) -> None:
        self.main, self.other = pty.openpty()
        self.before = termios.tcgetattr(self.other)
        self.shown = b""

    def read(self) -> None:
        """Read what has been written so far, without waiting."""
        os.set_blocking(self.main, False)
        try:
            while chunk := os.read(self.main, 65536):
                self.shown += chunk
        except (BlockingIOError, OSError):
            return

    def assert_sane(self) -> None:
        self.read()
        assert termios.tcgetattr(self.other) == self.before
        assert self.shown.rfind(b"\x1b[?25h") >= self.shown.rfind(b"\x1b[?25l"), "cursor hidden"
        assert self.shown.rfind(b"\x1b[?1049l") >= self.shown.rfind(b"\x1b[?1049h"), "other screen"


@pytest.mark.parametrize(
    "ending", ["end", "SIGINT", "SIGTERM", "kill the parent", "kill executors"]
)
def test_the_terminal_is_restored_however_the_run_ends(
    tmp_path: Path, target: RunningTarget, ending: str
) -> None:
    duration = "2s" if ending in ("end", "kill executors") else "5m"
    write(tmp_path / "t.py", LONG.format(url=target.url).replace('"5m"', f'"{duration}"'))
    terminal = Terminal()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "", "LINES": ""}
    process = subprocess.Popen(
        [*_on_terminal(), "run", "t.py", *FLAGS],
        cwd=tmp_path,
        env=environment,
        stdin=terminal.other,
        stdout=terminal.other,
        stderr=terminal.other,
        start_new_session=True,
    )
    try:
        _drain_until(terminal, lambda: target.counts()["total"] > 20, "load at the target")
        _drain_until(terminal, lambda: b"\x1b[" in terminal.shown, "the live view")
        executors = _hyperscale_executors(process.pid)
        match ending:
            case "SIGINT" | "SIGTERM":
                process.send_signal(getattr(signal, ending))
            case "kill the parent":
                process.kill()
            case "kill executors":
                for pid in executors:
                    os.kill(pid, signal.SIGKILL)
        _drain_until(terminal, lambda: process.poll() is not None, "the end of the run")
        for pid in executors:
            _drain_until(terminal, lambda pid=pid: not is_alive(pid), "the end of executors")
        if ending == "kill the parent":
            _drain_until(
                terminal,
                lambda: termios.tcgetattr(terminal.other) == terminal.before,
                "the terminal's settings",
            )
        terminal.assert_sane()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(terminal.main)
        os.close(terminal.other)
    expected = {"end": 0, "SIGINT": 130, "SIGTERM": 130, "kill executors": 3}
    assert process.returncode == expected.get(ending, -signal.SIGKILL)


def test_repeated_interrupts_lose_no_results(
    running: Running, tmp_path: Path, target: RunningTarget
) -> None:
    process = running.process
    # Half a second of load: the second signal kills executors, and what they reported before stays.
    until(lambda: target.counts()["total"] > 400, what="executors have reported several times")
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.01)  # as fast as a key repeats
    done = finish(process)
    assert done.code in (130, -signal.SIGINT)  # the last signal may arrive while the process exits
    assert "Traceback" not in done.stderr
    [workflow] = results(tmp_path / "r.json")["workflows"]
    assert workflow["total"] > 20
    [directory] = (tmp_path / "hyperscale-results").iterdir()
    names = {path.name for path in directory.iterdir()}
    assert names >= {"results.json", "report.html", "steps.csv", "junit.xml"}
    assert not [name for name in names if name.endswith(".tmp")]
    running.assert_gone()


def test_ctrl_c_before_the_command_is_imported_shows_no_traceback() -> None:
    script = """
import os, signal, sys

class InterruptOnImport:
    def find_spec(self, name, *_):
        if name == "argparse":
            os.kill(os.getpid(), signal.SIGINT)

from hyperscale.cli.main import main
assert "argparse" not in sys.modules
sys.meta_path.insert(0, InterruptOnImport())
sys.exit(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "hyperscale: interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_submission_says_how_to_find_out_whether_it_was_accepted(
    tmp_path: Path, number: int
) -> None:
    write(tmp_path / "long.py", LONG.format(url="http://127.0.0.1:1"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(WAIT_S)
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        process = start("submit", "long.py", "--manager", where, cwd=tmp_path)
        with silent.accept()[0]:
            process.send_signal(number)
            done = finish(process)
    assert (done.code, done.stdout) == (130, "")
    assert (
        f"interrupted while the job was being submitted; 'hyperscale jobs --manager {where}'"
        in (done.stderr)
    )
    assert "Traceback" not in done.stderr


def _on_terminal() -> list[str]:
    """Return the command line that runs in the foreground of its terminal, as from a shell."""
    code = (
        "import fcntl, os, sys, termios\n"
        "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
        "os.execv(sys.argv[1], sys.argv[1:])\n"
    )
    return [HYPERSCALE[0], "-c", code, *HYPERSCALE]


def _hyperscale_executors(pid: int) -> list[int]:
    found = executors_of(pid)
    assert found
    return found


def _drain_until(terminal: Terminal, condition: object, what: str) -> None:
    assert callable(condition)

    def look() -> object:
        terminal.read()  # a terminal that is not read blocks its writers
        return condition()

    until(look, what=what)
